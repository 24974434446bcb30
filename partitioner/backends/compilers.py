"""What can be made of a task's ops: a new compiler is a function and a line.

torchscript   the same kernels, called by TorchScript's interpreter: bit for bit the same, and no Python between two ops
batched       likewise, with equal ops of one level put together where that is measured to be faster; equal to rounding
frozen        likewise, on weights that are laid out for their kernels once, while nobody writes to them; equal to rounding
inductor      torch.compile's own: fused kernels, C++ on a CPU, Triton on a GPU; equal to rounding
max-autotune  likewise, as torch.compile's mode of that name: kernels are chosen by timing them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from partitioner.backends.batched import put_together
from partitioner.backends.bodies import MADE, Compiler
from partitioner.backends.frozen import frozen
from partitioner.backends.race import is_faster
from partitioner.backends.scripted import LOCK, torchscript

UNASKED: dict[str, Any] = {"triton.cudagraphs": True}
"""Of inductor on CPUs, where nothing is captured: no function asks for the sizes of what it is given, for guards have."""


AUTOTUNED = {"max_autotune": True, "coordinate_descent_tuning": True}
"""Of inductor, besides, to time the kernels that it may choose from."""

FALLBACKS = frozenset("dropout rand randn rand_like randn_like bernoulli".split())
"""What draws as in eager under inductor, which calls ATen's ops for it."""


def batched(module: torch.fx.GraphModule, arguments: Sequence[Any], *others: Sequence[Any]) -> Callable[..., Any]:
    """What `torchscript` makes of a module, or of the same with equal ops put together, if that takes less time.

    At open sizes nothing is put together.
    """
    separate, merged = torchscript(module, arguments, *others), None if others else put_together(module, arguments)
    if merged is None:
        return separate
    together = torchscript(merged, arguments)
    return together if is_faster(together, separate, arguments) else separate


def inductor(module: torch.fx.GraphModule, arguments: Sequence[Any], autotune: bool = False) -> Callable[..., Any]:
    """What torch.compile's inductor makes of a module, for values of these sizes; differentiable once. Torch keeps it on disk.

    A backward may keep its graph, as that of a CUDA graph does, and so writes over nothing that forward has kept. Torch would
    have it do that, and refuse to keep a graph from then on. Its switch, ``donated_buffer``, is asked again by each backward,
    so what it asks for while it compiles is answered here.

    Random numbers are drawn by ATen's ops and not by fused kernels. They are eager's where inductor calls the same op, which it
    does not inside of attention and recurrent layers.
    """
    from torch._functorch._aot_autograd import graph_compile
    from torch._inductor.compile_fx import compile_fx  # slow to import, and few need it

    single = not isinstance(module.graph.output_node().args[0], tuple)
    options = {"fallback_random": True, "cpp.threads": torch.get_num_threads()} | (AUTOTUNED if autotune else {})
    if all(each.device.type == "cpu" for each in arguments):
        options |= UNASKED
    strides = [arguments[position].stride() for position in module.meta[MADE]]
    kept: Any = patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: [], create=True)
    with LOCK, kept, tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        made: Any = compile_fx(_tupled(module), list(arguments), config_patches=options, ignore_shape_env=True)

    def run(*arguments: Any) -> Any:
        if [arguments[position].stride() for position in module.meta[MADE]] != strides:
            return module.forward(*arguments)  # a flag of torch's has changed, and kernels lay their results out otherwise
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
    "inductor": Compiler(inductor, FALLBACKS, at_all_sizes=False),
    "max-autotune": Compiler(partial(inductor, autotune=True), FALLBACKS, at_all_sizes=False),
}
"""By the name that a spec has for it."""
