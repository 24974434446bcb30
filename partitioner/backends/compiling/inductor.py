"""What torch.compile's inductor makes of a task: fused kernels, C++ on a CPU, Triton on a GPU.

It is given a tracing context of its own, without which torch keeps nothing of it on disk, and what it makes is changed in
three ways: sizes that guards have asked for are not asked for again, its C++ runs without Python's lock, which another lane
needs, and a backward leaves what forward has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.source import LocalSource
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from partitioner.backends.bodies import MADE, OPEN
from partitioner.backends.compiling.scripted import LOCK

AUTOTUNED = {"max_autotune": True, "coordinate_descent_tuning": True}
"""Of inductor, besides, to time the kernels that it may choose from."""

MOST_SIZES = 1_000
"""Of which it is remembered whether a function is right for them."""

FALLBACKS = frozenset("dropout rand randn rand_like randn_like bernoulli".split())
"""What draws as in eager under inductor, which calls ATen's ops for it."""

UNLOCKED = """[](auto... given) {{
    struct Unlocked {{
        PyThreadState* state = PyEval_SaveThread();
        ~Unlocked() {{ PyEval_RestoreThread(state); }}
    }} unlocked;
    kernel(given...);
}}({}); Py_RETURN_NONE;"""
"""How Python calls a fused kernel in C++, once it has found its arguments: other threads may go on meanwhile."""


def inductor(
    module: torch.fx.GraphModule, arguments: Sequence[Any], *_: Sequence[Any], autotune: bool = False
) -> Callable[..., Any]:
    """What torch.compile's inductor makes of a module; differentiable once. Torch keeps it on disk.

    Where sizes are open it is for all but those that inductor has decided upon: there the module's ops are called one by one.

    Random numbers are drawn by ATen's ops and not by fused kernels. They are eager's where inductor calls the same op, which it
    does not inside of attention and recurrent layers.
    """
    from torch._inductor.compile_fx import compile_fx  # slow to import, and few need it

    single = not isinstance(module.graph.output_node().args[0], tuple)
    options = {"fallback_random": True, "cpp.threads": torch.get_num_threads()} | (AUTOTUNED if autotune else {})
    sizes = Sizes(arguments, module.meta[OPEN])
    strided = [position for position in module.meta[MADE] if position not in sizes.open]
    strides = [arguments[position].stride() for position in strided]
    with LOCK, _changed(), tracing(TracingContext(sizes.mode)):
        made: Any = compile_fx(_tupled(module), sizes.stand_ins(), config_patches=options)
        sizes.close()

    def run(*arguments: Any) -> Any:
        if [arguments[position].stride() for position in strided] != strides or not sizes.allow(arguments):
            return module.forward(*arguments)  # a flag of torch's has changed, and kernels lay their results out otherwise
        results = made(*arguments)
        return results[0] if single else tuple(results)

    return run


class Sizes:
    """What stands for a task's arguments while it is compiled, and for which sizes that is right.

    Args:
        arguments: what the task is called with.
        open: the dimensions whose sizes vary, by the argument's position.

    Attributes:
        mode: that of what stands for the arguments.
    """

    def __init__(self, arguments: Sequence[Any], open: Mapping[int, Sequence[int]]) -> None:
        self.arguments, self.open = arguments, open
        self.environment = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.environment)
        self.known: dict[tuple[Any, ...], bool] = {}

    def stand_ins(self) -> list[Any]:
        """What the task is compiled for."""
        found = [self.mode.from_tensor(value, static_shapes=True) for value in self.arguments]
        for number, (position, dimensions) in enumerate(self.open.items()):
            like = self.arguments[position]
            kinds = [DimDynamic.DYNAMIC if each in dimensions else DimDynamic.STATIC for each in range(like.dim())]
            value = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            value.requires_grad_(like.requires_grad)
            context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
            found[position] = self.mode.from_tensor(value, symbolic_context=context, source=LocalSource(f"t{number}"))
        self.fakes = [found[position] for position in self.open]
        return found

    def close(self) -> None:
        """Note what has been decided of sizes."""
        self.decided = self.environment.produce_guards_expression(self.fakes, ignore_static=False) if self.open else None
        del self.arguments, self.fakes

    def allow(self, arguments: Sequence[Any]) -> bool:
        """Whether what was compiled is right for arguments, which are asked for open sizes and their strides."""
        if self.decided is None:
            return True
        layouts = tuple((arguments[position].shape, arguments[position].stride()) for position in self.open)
        if layouts not in self.known:
            if len(self.known) > MOST_SIZES:
                self.known.clear()
            values = [torch.empty_strided(*layout, device="meta") for layout in layouts]
            self.known[layouts] = self.environment.evaluate_guards_expression(self.decided, values)
        return self.known[layouts]


@contextmanager
def _changed() -> Iterator[None]:
    """While inductor compiles: nothing asks for sizes that guards have asked for, kernels do not hold Python's lock, and a
    backward may keep its graph.

    As that of a CUDA graph does, and so it writes over nothing that forward has kept. Torch would have it do that, and refuse
    to keep a graph from then on. Its switch, ``donated_buffer``, is asked again by each backward, so what it asks for while it
    compiles is answered here. Its switch for asking, ``size_asserts``, is for the results of kernels, too, which stay in doubt.
    """
    from torch._functorch._aot_autograd import graph_compile
    from torch._inductor.codecache import CppPythonBindingsCodeCache
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    kept: Any = patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: [], create=True)
    unasked = patch.object(PythonWrapperCodegen, "codegen_input_size_asserts", lambda _: None)
    with kept, unasked, patch.object(CppPythonBindingsCodeCache, "call_entry_function", UNLOCKED):
        yield


def _tupled(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module with its results in a tuple, as inductor wants them."""
    graph = torch.fx.Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result if isinstance(result, tuple) else (result,))
    return torch.fx.GraphModule({}, graph, type(module).__name__)
