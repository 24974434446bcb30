"""How much an ATen op computes: FLOPs, by torch's formulas as far as they go, and cycles of kernels that take elements singly.

A roofline knows products and bytes. On a CPU many kernels are bound by neither: a maximum over windows, a variance, a random
number, a sort or a decomposition takes ten to a hundred times as long as its bytes. What that is was measured by
``benchmarks/op_costs.py`` and is told in cycles of one core, each as long as 32 FLOPs of a matrix product; an op that is not in
the table takes its bytes' time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from partitioner.frontend.analysis.static import draws
from partitioner.ir.graph import Work

aten = torch.ops.aten

Units = Callable[[Sequence[Any], Any], int]
"""How many of what a kernel takes one by one, from the arguments and the result of an ATen op."""


def work_of(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, touched: int) -> Work:
    """The work of one ATen op.

    Args:
        func: what was dispatched; views are no work.
        args, kwargs: on fakes.
        result: what it gave.
        touched: bytes that it reads and writes.

    >>> product = torch.ones(8, 8)
    >>> work_of(aten.mm.default, (product, product), {}, product, 768)
    Work(flops=1024, kernels=1, touched=768, cycles=0, drawn=0)
    """
    cycles = _cycles(func, args, result)
    drawn = cycles if draws(func, args, kwargs) else 0
    return Work(_flops(func, args, kwargs, result), 1, touched, cycles - drawn, drawn)


def _flops(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """FLOPs by torch's formulas, or by ours; none of a form of an op that its formula does not expect."""
    own, count = FLOPS.get(func._overloadpacket), flop_registry.get(func._overloadpacket)
    with suppress(Exception):
        if own is not None:
            return own(args)
        if count is not None:
            return int(count(*args, **kwargs, out_val=result))
    return 0


def _weights(args: Sequence[Any]) -> int:
    """A product of each row of the first argument with each matrix among the others."""
    matrices = (each for each in args[1:] if isinstance(each, torch.Tensor) and each.dim() == 2 and each.is_floating_point())
    return 2 * int(args[0].numel()) // max(1, int(args[0].shape[-1])) * sum(int(matrix.numel()) for matrix in matrices)


def _attention(args: Sequence[Any]) -> int:
    """Scores and what they weigh, of a batch of sequences."""
    batch, length, width = map(int, args[0].shape)
    return 4 * batch * length * length * width


FLOPS: Mapping[Any, Callable[[Sequence[Any]], int]] = {
    aten.mkldnn_rnn_layer: lambda args: _weights(args[:3]),
    aten._native_multi_head_attention: lambda args: _weights(args) + _attention(args),
    aten._transformer_encoder_layer_fwd: lambda args: _weights(args) + _attention(args),
    aten._scaled_dot_product_flash_attention_for_cpu: lambda args: sdpa_flop_count(*(each.shape for each in args[:3])),  # type: ignore[no-untyped-call]
    aten._grouped_mm: lambda args: 2 * int(args[0].numel()) * int(args[1].shape[-1]),
    aten._cdist_forward: lambda args: 3 * int(args[0].numel()) * int(args[1].shape[-2]),
}
"""Of what torch's own registry has no formula for."""


def _cycles(func: torch._ops.OpOverload, args: Sequence[Any], result: Any) -> int:
    found = CYCLES.get(func._overloadpacket)
    if found is None:
        return 0
    cycles, units = found
    with suppress(AttributeError, IndexError, TypeError):  # arguments of another form
        return int(cycles * units(args, result[0] if isinstance(result, tuple) else result))
    return 0


def taken(args: Sequence[Any], _result: Any) -> int:
    """Elements of the first argument."""
    return int(args[0].numel())


def made(_args: Sequence[Any], result: Any) -> int:
    """Elements of the result."""
    return int(result.numel())


def windows(args: Sequence[Any], result: Any) -> int:
    """Elements that pooling looks at; with channels last several at once."""
    at_once = 12 if args[0].dim() == 4 and not args[0].is_contiguous() else 1
    return int(result.numel()) * int(math.prod(args[1])) // at_once


def _halvings(count: int) -> int:
    """How often a row is halved until one is left, at least once."""
    return max(1, math.ceil(math.log2(max(2, int(count)))))


def compared(args: Sequence[Any], _result: Any) -> int:
    """Elements times how often each is compared when all of a row are sorted."""
    return int(args[0].numel()) * _halvings(args[0].shape[-1] if args[0].dim() else 1)


def looked_up(args: Sequence[Any], result: Any) -> int:
    """Elements times the steps of a bisection."""
    return int(result.numel()) * _halvings(args[0].shape[-1])


def transformed(args: Sequence[Any], result: Any) -> int:
    """N log N of a Fourier transform along some dimensions."""
    whole = max(args[0], result, key=lambda tensor: tensor.numel())
    points = math.prod(int(whole.shape[dimension]) for dimension in args[1])
    return int(whole.numel()) * _halvings(points)


def cubed(args: Sequence[Any], _result: Any) -> int:
    """Rows x columns x the smaller of them, for each matrix."""
    *batch, rows, columns = map(int, args[0].shape)
    return math.prod(batch) * rows * columns * min(rows, columns)


def _table(*rows: tuple[float, Units, Sequence[str]]) -> Mapping[Any, tuple[float, Units]]:
    """By op: cycles for each unit, and the units."""
    return {getattr(aten, name): (cycles, units) for cycles, units, names in rows for name in names if hasattr(aten, name)}


CYCLES = _table(
    (80, made, ("bernoulli", "bernoulli_", "native_dropout", "rrelu_with_noise", "multinomial")),
    (120, made, ("exponential", "exponential_", "geometric_", "cauchy_", "log_normal_", "poisson", "binomial")),
    (21, made, ("uniform", "uniform_", "rand", "rand_like", "normal", "normal_", "normal_functional", "randn", "randn_like")),
    (24, made, ("random", "random_", "randint", "randint_like", "randperm")),
    (35, taken, ("var", "std", "var_mean", "std_mean")),
    (75, taken, ("median", "nanmedian", "kthvalue", "mode")),
    (17, taken, ("topk",)),
    (10, taken, ("argmax", "argmin")),
    (6, taken, ("max", "min", "cummax", "cummin", "cumprod", "logcumsumexp")),
    (15, taken, ("any", "all")),
    (40, taken, ("nonzero", "masked_select", "bincount", "histc")),
    (26, compared, ("sort", "argsort", "unique_dim", "_unique2", "unique_consecutive")),
    (20, looked_up, ("searchsorted", "bucketize")),
    (20, made, ("where", "masked_fill", "masked_fill_", "masked_scatter")),
    (12, made, ("floor_divide", "remainder", "remainder_", "fmod", "atan2")),
    (40, made, ("lgamma", "mvlgamma", "special_i0e", "special_i1", "igamma")),
    (90, made, ("digamma", "polygamma", "special_zeta")),
    (18, windows, ("max_pool2d_with_indices", "max_pool3d_with_indices")),
    (9, windows, ("avg_pool2d", "avg_pool3d")),
    (20, taken, ("adaptive_max_pool2d", "adaptive_max_pool3d")),
    (7, taken, ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")),
    (15, made, ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d")),
    (15, made, ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa")),
    (45, made, ("upsample_bicubic2d", "_upsample_bicubic2d_aa")),
    (7, made, ("grid_sampler_2d", "grid_sampler_3d")),
    (8, made, ("im2col",)),
    (10, taken, ("col2im",)),
    (1, transformed, ("_fft_r2c", "_fft_c2c")),
    (2, transformed, ("_fft_c2r",)),
    (15, cubed, ("linalg_eig", "_linalg_eigvals")),
    (3, cubed, ("_linalg_svd",)),
    (2, cubed, ("_linalg_eigh",)),
    (1, cubed, ("linalg_qr", "linalg_lstsq", "geqrf", "linalg_matrix_exp")),
    (0.25, cubed, ("linalg_inv_ex", "_linalg_solve_ex")),
    (0.1, cubed, ("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet", "linalg_cholesky_ex", "cholesky")),
    (0.1, cubed, ("linalg_solve_triangular", "triangular_solve", "cholesky_solve", "linalg_lu_solve")),
)
"""What takes longer on a CPU than its bytes or products, with no FLOPs in torch's tables; measured in float32."""
