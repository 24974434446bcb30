"""What can be made of a task's ops: a new compiler is a function and a line.

torchscript   the same kernels, called by TorchScript's interpreter: bit for bit the same, and no Python between two ops
batched       likewise, with equal ops of one level put together where that is measured to be faster; equal to rounding
frozen        likewise, on weights that are laid out for their kernels once, while nobody writes to them; equal to rounding
inductor      torch.compile's own: fused kernels, C++ on a CPU, Triton on a GPU; equal to rounding
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch

from partitioner.backends.batched import put_together
from partitioner.backends.bodies import Compiler
from partitioner.backends.frozen import frozen
from partitioner.backends.race import is_faster
from partitioner.backends.scripted import LOCK, torchscript


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

    A backward may keep its graph, as that of a CUDA graph does, and so writes over nothing that forward has kept. Torch would
    have it do that, and refuse to keep a graph from then on. Its switch, ``donated_buffer``, is asked again by each backward,
    so what it asks for while it compiles is answered here.

    Random numbers are drawn by ATen's ops and not by fused kernels. They are eager's where inductor calls the same op, which it
    does not inside of attention and recurrent layers.
    """
    from torch._functorch._aot_autograd import graph_compile
    from torch._inductor.compile_fx import compile_fx  # slow to import, and few need it

    single = not isinstance(module.graph.output_node().args[0], tuple)
    with LOCK, patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: [], create=True):
        made: Any = compile_fx(_tupled(module), list(arguments), config_patches={"fallback_random": True})

    def run(*arguments: Any) -> Any:
        results = made(*arguments)
        return results[0] if single else tuple(results)

    return run


def _tupled(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module with its results in a tuple, as inductor wants them."""
    graph = torch.fx.Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result if isinstance(result, tuple) else (result,))
    return torch.fx.GraphModule({}, graph, type(module).__name__)


COMPILERS: Mapping[str, Compiler] = {
    "torchscript": Compiler(torchscript),
    "batched": Compiler(batched, frozenset()),
    "frozen": Compiler(frozen, frozenset()),
    "inductor": Compiler(inductor, frozenset("dropout rand randn rand_like randn_like bernoulli".split()), at_all_sizes=False),
}
"""By the name that a spec has for it."""
