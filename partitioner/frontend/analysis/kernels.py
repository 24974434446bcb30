"""What PyTorch's kernels on the CPU take inside of themselves, which no fake shows, told by their allocator while they run.

oneDNN convolves copies of what it is given, with channels in blocks whose size depends on the processor, and keeps a workspace
for the backward of a recurrent layer; other kernels copy what is not contiguous, or of another dtype. No formula holds for all
of it, so each distinct kernel runs once on zeros of the same form: a large one with two rows, and with three, from which what
it takes with all of them follows. What cannot be run so, or would take long, is taken to need nothing inside.

Source: ``c10::reportMemoryUsageToProfiler``, which PyTorch's CPU allocator calls whenever it gives out or takes back memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from partitioner.frontend.analysis.looks import form_of, remembered
from partitioner.frontend.analysis.work import work_of
from partitioner.ir.cost import FLOPS_PER_CYCLE
from partitioner.model.fakes import bytes_of, layout_of, number_of, reach_of, tensors_in

aten = torch.ops.aten

Run = tuple[list[int], list[int]]
"""What the allocator gave out and took back (negative) in a run, in this order; and the bytes of each tensor in the result."""

MOST_BYTES = 1 << 28
"""A kernel whose arguments take more is not run."""

MOST_FLOPS = 1 << 36
"""Nor is one that computes more: about a second of one core."""

FEW = (2, 16)
"""With so many rows, and with one more, a kernel of many is run: with the fewest with which it is the same one."""

ROWS: Mapping[Any, tuple[int, ...]] = {
    aten.convolution.default: (0,),
    aten.convolution_backward.default: (0, 1),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (0, 1, 2, 3, 4, 5),
}
"""Arguments of kernels that compute row after row: those that have rows, in their first dimension."""

PRODUCTS = frozenset("mm addmm bmm baddbmm mv dot".split())
"""What BLAS computes where things lie, if each matrix has rows or columns without gaps."""

HARMLESS = PRODUCTS.union(
    """convolution mkldnn_rnn_layer _scaled_dot_product_flash_attention_for_cpu native_batch_norm native_layer_norm
    native_group_norm _softmax _log_softmax _safe_softmax max_pool2d_with_indices max_pool3d_with_indices avg_pool2d
    avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d embedding_dense mean sum prod amax amin max
    min argmax argmin any all var std var_mean std_mean linalg_vector_norm logsumexp cumsum cumprod logcumsumexp sort
    topk gather scatter scatter_add index_select index_add cat stack im2col col2im _cdist _cdist_forward glu
    native_dropout""".split()
)
"""Of ops that do not take element after element: what may be given any values of the right form, with its backward."""

UNFIT = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Of ops that are not run: they would draw the caller's random numbers, or depend on values."""


@dataclass(frozen=True)
class Inside:
    """What a kernel takes that fakes do not show.

    Args:
        hidden: bytes at most while it runs, beyond what it leaves.
        results: bytes of each tensor in its result; none where that is not known.
    """

    hidden: int = 0
    results: tuple[int, ...] = ()


NOTHING = Inside()


@dataclass(eq=False)
class Kernels:
    """Runs kernels, each distinct one once.

    Attributes:
        known: what they take, by what tells them apart.
    """

    known: dict[Any, Inside] = field(default_factory=dict)

    def inside(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Inside:
        """What a kernel takes that its fakes do not show.

        Args:
            func: an op.
            args, kwargs: its arguments; fakes will do.
            result: what it gave for them.

        Example:
            >>> x, weight = torch.empty(1, 8, 16, 16, dtype=torch.float64), torch.empty(8, 8, 3, 3, dtype=torch.float64)
            >>> args = (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            >>> Kernels().inside(aten.convolution.default, args, {}, x).hidden == 8 * 9 * 16 * 16 * 8  # an im2col of all of it
            True
        """
        if not _may_run(func, (*args, kwargs)):
            return NOTHING
        key = func, form_of((args, kwargs)), torch.is_grad_enabled()
        return remembered(self.known, key, lambda: _measured(func, args, kwargs, result))


def _may_run(func: Any, given: Sequence[Any]) -> bool:
    """Whether an op is PyTorch's own, computes on the CPU and may be run on any values."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func.is_view:
        return False
    name = func._overloadpacket.__name__
    forward = name.removesuffix("_data").removesuffix("_backward")
    if not (forward in HARMLESS or torch.Tag.pointwise in func.tags):
        return False
    tensors = list(tensors_in(given))
    dense = all(each.device.type == "cpu" and each.layout is torch.strided for each in tensors)
    if not tensors or not dense or any(tag in func.tags for tag in UNFIT):
        return False
    return name not in PRODUCTS or any(map(_is_copied, tensors))


def _is_copied(matrix: torch.Tensor) -> bool:
    """Whether BLAS has to copy it, or has no product of its dtype."""
    return matrix.dtype not in (torch.float32, torch.float64) or 1 not in matrix.stride()[-2:]


def _measured(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Inside:
    """Run it: with all of its rows, or with few, from which follows what all of them take."""
    try:
        events, sizes = _with_few(func, args, kwargs) or _with_all(func, args, kwargs, result)
    except Exception:  # zeros may be refused, with any exception
        return NOTHING
    now = list(accumulate(events, initial=0))
    return Inside(max(now) - now[-1], tuple(sizes))


def _with_all(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Run:
    """What a run tells, if that does not take long."""
    work = work_of(func, tuple(args), dict(kwargs), result, 0)
    return _run(func, args, kwargs) if work.flops + FLOPS_PER_CYCLE * work.cycles <= MOST_FLOPS else ([], [])


def _with_few(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run | None:
    """What a run with all rows would tell, from runs with few; ``None`` if it has few, or does something else with few."""
    places = ROWS.get(func, ())
    rows = {int(number_of(args[place].shape[0])) for place in places}
    count = rows.pop() if len(rows) == 1 else 0
    alike = (few for few in FEW if few + 1 < count and _backend(func, _cut(args, places, few)) == _backend(func, args))
    few = next(alike, 0)
    if not few:
        return None
    ones, others = (_run(func, _cut(args, places, rows), kwargs) for rows in (few, few + 1))
    if any(len(one) != len(other) for one, other in zip(ones, others, strict=True)):
        return None
    further = count - few
    events, sizes = ([a + further * (b - a) for a, b in zip(*two, strict=True)] for two in zip(ones, others, strict=True))
    return events, sizes


def _cut(args: Sequence[Any], places: Sequence[int], rows: int) -> list[Any]:
    """Arguments of which some have so many rows."""
    return [arg[:rows] if place in places else arg for place, arg in enumerate(args)]


def _backend(func: Any, args: Sequence[Any]) -> object:
    """PyTorch's name for what will compute a convolution, which depends on how many rows there are."""
    if func is aten.convolution.default:
        return torch._C._select_conv_backend(*args[:9], None)
    if func is aten.convolution_backward.default:
        return torch._C._select_conv_backend(*args[1:3], None, *args[4:10], None)
    return None


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run:
    """What the allocator gives out and takes back as a kernel runs on zeros, and the bytes of its results; nothing if large."""
    if sum(map(bytes_of, tensors_in((args, kwargs)))) > MOST_BYTES:
        return [], []
    grad = torch.is_grad_enabled()
    with _disable_current_modes(), torch.inference_mode(False), torch.set_grad_enabled(grad), torch._C._DisableAutocast():
        args, kwargs = tree_map_only(torch.Tensor, _zeros, (args, kwargs))
        if func is aten.mkldnn_rnn_layer_backward.default:
            args = [*args[:-1], _workspace(args)]
        result, events = watched(lambda: func(*args, **kwargs))
        return events, [tensor.untyped_storage().nbytes() for tensor in tensors_in(result)]


def _workspace(args: Sequence[Any]) -> torch.Tensor:
    """What the forward of a recurrent layer leaves for its backward, from the arguments of that; fakes say that it is empty."""
    (reverse, mode, hidden, layers, biases, train, both, sizes, batch_first) = args[13:22]
    how = reverse, sizes, mode, hidden, layers, biases, both, batch_first, train
    with torch.enable_grad():
        workspace: torch.Tensor = aten.mkldnn_rnn_layer.default(*args[:7], *how)[3]
    return workspace


def watched(call: Callable[[], Any]) -> tuple[Any, list[int]]:
    """What a call gives, and the bytes that PyTorch's CPU allocator gave out (or took back: negative) on this thread meanwhile.

    The profiler of old tells it without a word on stderr, and beside a profiler of the caller's on other threads.

    Raises:
        RuntimeError: this thread is profiled already.

    Example:
        >>> watched(lambda: torch.ones(4) + torch.ones(4))[1]
        [16, 16, 16, -16, -16]
    """
    if torch._C._autograd._profiler_enabled():
        raise RuntimeError("this thread is profiled already")
    settings = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, settings))
    try:
        result = call()
    finally:
        records = _disable_profiler_legacy()
    return result, [each.cpu_memory_usage() for record in records for each in record if str(each.kind()) == "memory_alloc"]


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same form, of zeros, which are an index of anything."""
    return torch.zeros(reach_of(tensor), dtype=tensor.dtype).as_strided(*layout_of(tensor))


def linear_outside(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A linear layer as PyTorch computes it where no dispatch mode looks: under one it adds the bias out of place."""
    if bias is None or x.dim() < 3 or x.is_contiguous():
        return torch.nn.functional.linear(x, weight, bias)
    return torch.matmul(x, weight.t()).add_(bias)
