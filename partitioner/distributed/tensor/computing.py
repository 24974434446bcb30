"""What computes: how a result is held where each rank need only compute with what it has.

mm(R, S(1)) -> S(1)               columns of the second matrix
mm(S(1), S(0)) -> P               summands of a contraction
add(P, P) -> P
softmax(S(1), dim=-1) -> S(1)
batch_norm(S(1), S(0), ..) -> S(1)      by channels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._pytree import tree_leaves

from partitioner.distributed.tensor.aten import Held
from partitioner.distributed.tensor.moving import Found, Rule, along
from partitioner.ir.sharding import P, Placement, R, shard


def pointwise(ranks: int, out: list[tuple[int, ...]], *args: Any, **kwargs: Any) -> Found:
    """Element by element: all that is not spread along the cut is cut there."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Held)]
    cuts = {
        shard(each.place.dim + len(out[0]) - len(each.shape), each.place.blocks) for each in tensors if each.place.kind == "S"
    }
    if len(cuts) != 1 or any(each.place == P for each in tensors):
        return None
    (cut,) = cuts
    for each in tensors:
        own = cut.dim - (len(out[0]) - len(each.shape))
        spread = own < 0 or each.shape[own] == 1
        if (each.place == R and not spread) or (each.place != R and spread):
            return None
    return cut


def _sum_like(ranks: int, out: list[tuple[int, ...]], one: Any, other: Any, *, alpha: Any = 1) -> Found:
    """Add, subtract: of summands on both sides, too."""
    if isinstance(one, Held) and isinstance(other, Held) and one.place == other.place == P:
        return P
    return pointwise(ranks, out, one, other)


def _product(ranks: int, out: list[tuple[int, ...]], one: Any, other: Any) -> Found:
    """Multiply: summands by what all ranks have, too."""
    places = [each.place for each in (one, other) if isinstance(each, Held)]
    if sorted(places) in ([P], [P, R]):
        return P
    return pointwise(ranks, out, one, other)


def _quotient(ranks: int, out: list[tuple[int, ...]], one: Any, other: Any, **options: Any) -> Found:
    if isinstance(one, Held) and one.place == P:
        return P if not options and (not isinstance(other, Held) or other.place == R) else None
    return pointwise(ranks, out, one, other)


def _mm(ranks: int, out: list[tuple[int, ...]], one: Held, other: Held) -> Found:
    """A product of matrices, or of batches of them."""
    a, b, last = one.place, other.place, len(one.shape) - 1
    rows, columns = last - 1, last
    if a.kind == b.kind == "S" and a.dim == b.dim < rows and a.blocks == b.blocks:
        return a
    if a.kind == "S" and a.dim == rows and b == R:
        return a
    if a == R and b.kind == "S" and b.dim == columns:
        return b
    if a.kind == b.kind == "S" and a.dim == columns and b.dim == rows and a.blocks == b.blocks:
        return P
    return P if sorted((a, b)) == [P, R] else None


def _addmm(ranks: int, out: list[tuple[int, ...]], bias: Held, one: Held, other: Held, **factors: Any) -> Found:
    """A product with something added: summands of a product take summands."""
    found = _mm(ranks, out, one, other)
    if found == P:
        return P if bias.place == P and not factors else None
    return found if isinstance(found, Placement) and pointwise(ranks, out, Held(out[0], found), bias) == found else None


def _sort_stable(ranks: int, out: list[tuple[int, ...]], x: Held, *, stable: Any = None, dim: int = -1, **_: Any) -> Found:
    return along(ranks, out, x, dim)


def _top(ranks: int, out: list[tuple[int, ...]], x: Held, k: int, dim: int = -1, *_: Any) -> Found:
    return along(ranks, out, x, dim)


def _reduce(ranks: int, out: list[tuple[int, ...]], x: Held, dims: Any = None, *_: Any, **__: Any) -> Found:
    """What makes one value of some dimensions, if the cut is along another."""
    if x.place.kind != "S" or dims is None or dims == []:
        return None
    gone = {dim % len(x.shape) for dim in ([dims] if isinstance(dims, int) else dims)}
    if x.place.dim in gone:
        return None
    return (
        x.place if len(out[0]) == len(x.shape) else shard(x.place.dim - sum(dim < x.place.dim for dim in gone), x.place.blocks)
    )


def _sum(ranks: int, out: list[tuple[int, ...]], x: Held, dims: Any = None, *_: Any, **__: Any) -> Found:
    """A sum of parts is a summand, and a sum of summands, too."""
    found = _reduce(ranks, out, x, dims)
    return P if found is None and x.place.kind in "SP" else found


def _mean(ranks: int, out: list[tuple[int, ...]], x: Held, dims: Any = None, *_: Any, **__: Any) -> Found:
    return P if x.place == P else _reduce(ranks, out, x, dims)


def _norm(ranks: int, out: list[tuple[int, ...]], x: Held, order: Any, dims: Any = None, *_: Any, **__: Any) -> Found:
    return _reduce(ranks, out, x, dims)


def _layer_norm(ranks: int, out: list[tuple[int, ...]], x: Held, shape: Sequence[int], *rest: Any) -> Found:
    whole = all(each.place == R for each in rest if isinstance(each, Held))
    return x.place if x.place.kind == "S" and whole and x.place.dim < len(x.shape) - len(shape) else None


def _batch_norm(ranks: int, out: list[tuple[int, ...]], x: Held, *rest: Any) -> Found:
    """By channels: each has a mean, a variance, a weight of its own."""
    by_channel = all(each.place == shard(0, x.place.blocks) for each in rest if isinstance(each, Held))
    if x.place.kind != "S" or x.place.dim != 1 or not by_channel:
        return None
    return [x.place, *[shard(0, x.place.blocks) if shape != (0,) else R for shape in out[1:]]]


def _group_norm(ranks: int, out: list[tuple[int, ...]], x: Held, *rest: Any) -> Found:
    whole = all(each.place == R for each in rest if isinstance(each, Held))
    return [x.place] * len(out) if x.place == shard(0) and whole else None


def _convolution(
    ranks: int,
    out: list[tuple[int, ...]],
    x: Held,
    weight: Held,
    bias: Held | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Found:
    """Over a batch that is cut; of output channels that are cut; of input channels that are cut, whose results are summands."""
    rest = [each.place for each in (weight, bias) if each is not None]
    if x.place == shard(0) and all(place == R for place in rest):
        return shard(0)
    if groups != 1 or transposed:
        return None
    if x.place == R and weight.place.kind == "S" and weight.place.dim == 0 and len(set(rest)) == 1:
        return shard(1, weight.place.blocks)
    same = x.place.kind == "S" and x.place.dim == 1 and weight.place == x.place
    return P if same and (bias is None or bias.place == P) else None


def _embedding(ranks: int, out: list[tuple[int, ...]], weight: Held, index: Held, *_: Any) -> Found:
    if weight.place == R and index.place.kind == "S":
        return index.place
    return (
        shard(len(out[0]) - 1, weight.place.blocks)
        if weight.place.kind == "S" and weight.place.dim == 1 and index.place == R
        else None
    )


def _attention(
    ranks: int, out: list[tuple[int, ...]], query: Held, key: Held, value: Held, *rest: Any, attn_mask: Any = None, **_: Any
) -> Found:
    """By the batch or by heads. Of other results than the first nothing is known, and none is used."""
    place, masks = query.place, [each for each in (*rest, attn_mask) if isinstance(each, Held)]
    if place.kind != "S" or place.dim > 1 or key.place != place or value.place != place or place.blocks != 1:
        return None
    for mask in masks:
        own = place.dim - (len(out[0]) - len(mask.shape))
        spread = own < 0 or mask.shape[own] == 1
        if mask.place != (R if spread else shard(own)):
            return None
    return [place, *[None] * (len(out) - 1)]


def _by_leading(count: int) -> Rule:
    """What works on the last dimensions, ``count`` of them."""

    def rule(ranks: int, out: list[tuple[int, ...]], x: Held, *rest: Any, **options: Any) -> Found:
        alone = not any(isinstance(each, Held) for each in tree_leaves((rest, options)))
        return x.place if x.place.kind == "S" and x.place.dim < len(x.shape) - count and alone else None

    return rule


COMPUTING: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub", "add_", "sub_"), _sum_like),
    **dict.fromkeys(("mul", "mul_"), _product),
    **dict.fromkeys(("div", "div_"), _quotient),
    **dict.fromkeys(("mm", "bmm"), _mm),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    **dict.fromkeys(("_softmax", "_log_softmax", "cumsum", "cumprod", "_safe_softmax", "logcumsumexp"), along),
    "sort": _sort_stable,
    "topk": _top,
    **dict.fromkeys(("amax", "amin", "any", "all", "argmax", "argmin", "logsumexp", "max", "min", "var", "std"), _reduce),
    "sum": _sum,
    "mean": _mean,
    "linalg_vector_norm": _norm,
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _layer_norm),
    **dict.fromkeys(
        ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        _batch_norm,
    ),
    "native_group_norm": _group_norm,
    "convolution": _convolution,
    "embedding": _embedding,
    "native_dropout": lambda ranks, out, x, *_: x.place if x.place.kind == "S" else None,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        _attention,
    ),
    **dict.fromkeys(("tril", "triu", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"), _by_leading(2)),
    **dict.fromkeys(("avg_pool1d", "upsample_nearest1d", "upsample_linear1d"), _by_leading(1)),
    **dict.fromkeys(("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"), _by_leading(2)),
    **dict.fromkeys(("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "upsample_nearest3d"), _by_leading(3)),
}
