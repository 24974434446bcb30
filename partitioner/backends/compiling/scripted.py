"""A task's ops as one function of TorchScript: the same kernels, bit for bit, and no Python between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from partitioner.backends.bodies import CompileError

PLUMBING = frozenset(
    f"prim::{name}" for name in "Constant ListConstruct TupleConstruct ListUnpack TupleUnpack NumToTensor".split()
)
"""What a recorded graph may hold beside ATen's ops."""


LOCK = threading.Lock()
"""One module is compiled at a time."""


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
