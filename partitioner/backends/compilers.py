"""What can be made of a task's ops: a new compiler is a function and a line.

torchscript   the same kernels, called by TorchScript's interpreter: bit for bit the same, and no Python between two ops
batched       likewise, with equal ops of one level put together where that is measured to be faster; equal to rounding
inductor      torch.compile's own: fused kernels, C++ on a CPU, Triton on a GPU; equal to rounding
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from partitioner.backends.batched import put_together
from partitioner.backends.bodies import CompileError, Compiler
from partitioner.backends.race import is_faster

PLUMBING = frozenset(
    f"prim::{name}" for name in "Constant ListConstruct TupleConstruct ListUnpack TupleUnpack NumToTensor".split()
)
"""What a recorded graph may hold beside ATen's ops."""


@dataclass(frozen=True, eq=False)
class Scripted:
    """A function of TorchScript, called without its optimiser, for what that fuses has other bits.

    The optimiser is a switch of the thread, set for the call.
    """

    function: Any

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives."""
        switch = torch._C._set_graph_executor_optimize
        switch(False)
        try:
            return self.function(*arguments)
        finally:
            switch(True)


def torchscript(module: torch.fx.GraphModule, *given: Sequence[Any]) -> Scripted:
    """A TorchScript function of the ATen ops that a module calls on some values. It goes when nobody holds it any more.

    Args:
        module: ops of torch.
        *given: what it is called with; if sizes are open, once more with others, for a record of one call may hold as a
            number what another call would have another number for.

    Raises:
        CompileError: it holds something else than calls of ATen, or other ones at other sizes.
    """
    graphs = [_recorded(module, arguments) for arguments in given]
    if len({str(graph) for graph in graphs}) > 1:
        raise CompileError("at other sizes it calls its ops with other numbers")
    return Scripted(torch._C._create_function_from_graph(type(module).__name__, graphs[0]))


def _recorded(module: torch.fx.GraphModule, arguments: Sequence[Any]) -> torch._C.Graph:
    """The calls of ATen's ops, for tensors of any sizes."""
    record: Any = torch._C._create_graph_by_tracing
    graph: torch._C.Graph
    with LOCK, torch.no_grad(), _unwarned():
        graph, _ = record(module.forward, tuple(arguments), lambda _: "", True, False, None, [])
    _refuse_strangers(graph)
    torch._C._jit_pass_erase_shape_information(graph)
    return graph


@contextmanager
def _unwarned() -> Iterator[None]:
    """A block in which a record says nothing of sizes that Python looks at: under these guards they are constants."""
    switch: Any = torch._C
    warns = switch._jit_get_tracer_state_warn()
    switch._jit_set_tracer_state_warn(False)
    try:
        yield
    finally:
        switch._jit_set_tracer_state_warn(warns)


def _refuse_strangers(graph: torch._C.Graph) -> None:
    for node in graph.nodes():
        if not node.kind().startswith("aten::") and node.kind() not in PLUMBING:
            raise CompileError(f"TorchScript recorded {node.kind()}")


def batched(module: torch.fx.GraphModule, arguments: Sequence[Any], *others: Sequence[Any]) -> Callable[..., Any]:
    """What `torchscript` makes of a module, or of the same with equal ops put together, if that takes less time.

    At open sizes nothing is put together.
    """
    separate, merged = torchscript(module, arguments, *others), None if others else put_together(module, arguments)
    if merged is None:
        return separate
    together = torchscript(merged, arguments)
    return together if is_faster(together, separate, arguments) else separate


def inductor(module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Callable[..., Any]:
    """What torch.compile's inductor makes of a module, for values of these sizes; differentiable once.

    Random numbers are drawn by ATen's ops and not by fused kernels. They are eager's where inductor calls the same op, which it
    does not inside of attention and recurrent layers.
    """
    from torch._inductor.compile_fx import compile_fx  # slow to import, and few need it

    single = not isinstance(module.graph.output_node().args[0], tuple)
    with LOCK:
        made: Any = compile_fx(_tupled(module), list(arguments), config_patches={"fallback_random": True})

    def run(*arguments: Any) -> Any:
        results = made(*arguments)
        return results[0] if single else tuple(results)

    return run


LOCK = threading.Lock()
"""One module is compiled at a time."""


def _tupled(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module with its results in a tuple, as inductor wants them."""
    graph = torch.fx.Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result if isinstance(result, tuple) else (result,))
    return torch.fx.GraphModule({}, graph, type(module).__name__)


COMPILERS: Mapping[str, Compiler] = {
    "torchscript": Compiler(torchscript),
    "batched": Compiler(batched, frozenset()),
    "inductor": Compiler(inductor, frozenset("dropout rand randn rand_like randn_like bernoulli".split()), at_all_sizes=False),
}
"""By the name that a spec has for it."""
