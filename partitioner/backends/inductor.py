"""What torch.compile's inductor makes of a task: fused kernels, C++ on a CPU, Triton on a GPU.

It is given a tracing context of its own, without which torch keeps nothing of it on disk, and what it makes is changed in
three ways: sizes that guards have asked for are not asked for again, its C++ runs without Python's lock, which another lane
needs, and a backward leaves what forward has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from partitioner.backends.bodies import MADE
from partitioner.backends.scripted import LOCK

UNASKED: dict[str, Any] = {"triton.cudagraphs": True}
"""Of inductor on CPUs, where nothing is captured: no function asks for the sizes of what it is given, for guards have."""


AUTOTUNED = {"max_autotune": True, "coordinate_descent_tuning": True}
"""Of inductor, besides, to time the kernels that it may choose from."""

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


def inductor(module: torch.fx.GraphModule, arguments: Sequence[Any], autotune: bool = False) -> Callable[..., Any]:
    """What torch.compile's inductor makes of a module, for values of these sizes; differentiable once. Torch keeps it on disk.

    Random numbers are drawn by ATen's ops and not by fused kernels. They are eager's where inductor calls the same op, which it
    does not inside of attention and recurrent layers.
    """
    from torch._inductor.compile_fx import compile_fx  # slow to import, and few need it

    single = not isinstance(module.graph.output_node().args[0], tuple)
    options = {"fallback_random": True, "cpp.threads": torch.get_num_threads()} | (AUTOTUNED if autotune else {})
    if all(each.device.type == "cpu" for each in arguments):
        options |= UNASKED
    strides = [arguments[position].stride() for position in module.meta[MADE]]
    with LOCK, _changed(), tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        made: Any = compile_fx(_tupled(module), list(arguments), config_patches=options, ignore_shape_env=True)

    def run(*arguments: Any) -> Any:
        if [arguments[position].stride() for position in module.meta[MADE]] != strides:
            return module.forward(*arguments)  # a flag of torch's has changed, and kernels lay their results out otherwise
        results = made(*arguments)
        return results[0] if single else tuple(results)

    return run


@contextmanager
def _changed() -> Iterator[None]:
    """While inductor compiles: kernels do not hold Python's lock, and a backward may keep its graph.

    As that of a CUDA graph does, and so it writes over nothing that forward has kept. Torch would have it do that, and refuse
    to keep a graph from then on. Its switch, ``donated_buffer``, is asked again by each backward, so what it asks for while it
    compiles is answered here.
    """
    from torch._functorch._aot_autograd import graph_compile
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    kept: Any = patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: [], create=True)
    with kept, patch.object(CppPythonBindingsCodeCache, "call_entry_function", UNLOCKED):
        yield


def _tupled(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module with its results in a tuple, as inductor wants them."""
    graph = torch.fx.Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result if isinstance(result, tuple) else (result,))
    return torch.fx.GraphModule({}, graph, type(module).__name__)
