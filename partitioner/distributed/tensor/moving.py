"""What moves elements and computes nothing: how a result is held where ranks need only move what they have.

view(2, 4, 8 -> 2, 4, 2, 4) of S(2)   S(2)       heads
transpose(1, 2) of S(2)               S(1)
chunk(3, dim=2) of S(2, 3)            S(2)       a query, a key and a value that lay side by side
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from partitioner.distributed.tensor.aten import Held
from partitioner.ir.sharding import P, Placement, R, reshaped, shard

Found = Placement | Sequence[Placement | None] | None
Rule = Callable[..., Found]
"""Of the number of ranks, the shapes of the results, and the op's arguments with a `Held` for each tensor."""


def same(ranks: int, out: list[tuple[int, ...]], x: Held, *_: Any, **__: Any) -> Found:
    """What keeps every element as it is."""
    return x.place


def along(ranks: int, out: list[tuple[int, ...]], x: Held, dim: int = -1, *_: Any, **__: Any) -> Found:
    """What works along one dimension, each line by itself."""
    return x.place if x.place.kind == "S" and x.place.dim != dim % len(x.shape) else None


def _view(ranks: int, out: list[tuple[int, ...]], x: Held, *sizes: Any) -> Found:
    return reshaped(x.place, x.shape, out[0], ranks)


def _expand(ranks: int, out: list[tuple[int, ...]], x: Held, sizes: Any, **_: Any) -> Found:
    if x.place.kind != "S":
        return x.place
    return None if x.shape[x.place.dim] == 1 else shard(x.place.dim + len(out[0]) - len(x.shape), x.place.blocks)


def _permute(ranks: int, out: list[tuple[int, ...]], x: Held, dims: Sequence[int]) -> Found:
    if x.place.kind != "S":
        return x.place
    return shard([dim % len(x.shape) for dim in dims].index(x.place.dim), x.place.blocks)


def _transpose(ranks: int, out: list[tuple[int, ...]], x: Held, one: int = 0, other: int = 1) -> Found:
    order = list(range(len(x.shape)))
    if len(order) > 1:
        order[one], order[other] = order[other], order[one]
    return _permute(ranks, out, x, order)


def _unsqueeze(ranks: int, out: list[tuple[int, ...]], x: Held, dim: int) -> Found:
    if x.place.kind != "S":
        return x.place
    return shard(x.place.dim + (dim % len(out[0]) <= x.place.dim), x.place.blocks)


def _squeeze(ranks: int, out: list[tuple[int, ...]], x: Held, dims: Any = None) -> Found:
    if x.place.kind != "S":
        return x.place
    asked = range(len(x.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {dim % len(x.shape) for dim in asked if x.shape[dim] == 1}
    return None if x.place.dim in gone else shard(x.place.dim - sum(dim < x.place.dim for dim in gone), x.place.blocks)


def _slice(ranks: int, out: list[tuple[int, ...]], x: Held, dim: int = 0, *_: Any) -> Found:
    if x.place.kind == "S" and dim % len(x.shape) == x.place.dim and out[0] != x.shape:
        return None
    return x.place


def _select(ranks: int, out: list[tuple[int, ...]], x: Held, dim: int = 0, *_: Any) -> Found:
    """One of a dimension, or each of them: the dimension goes."""
    if x.place.kind != "S":
        return x.place
    dim %= len(x.shape)
    return None if dim == x.place.dim else shard(x.place.dim - (dim < x.place.dim), x.place.blocks)


def _split(ranks: int, out: list[tuple[int, ...]], x: Held, sizes: Any, dim: int = 0) -> Found:
    """Into equal pieces, each of them whole blocks; or along another dimension."""
    if x.place.kind != "S" or dim % len(x.shape) != x.place.dim:
        return x.place
    even = len(set(out)) == 1 and x.place.blocks % len(out) == 0
    return shard(x.place.dim, x.place.blocks // len(out)) if even else None


def _cat(ranks: int, out: list[tuple[int, ...]], tensors: Sequence[Held], dim: int = 0) -> Found:
    first = tensors[0].place
    if any(each.place != first for each in tensors):
        return None
    return first if first == P or (first.kind == "S" and first.dim != dim % len(out[0])) else None


def _stack(ranks: int, out: list[tuple[int, ...]], tensors: Sequence[Held], dim: int = 0) -> Found:
    first = tensors[0].place
    if any(each.place != first for each in tensors):
        return None
    return first if first == P else shard(first.dim + (dim % len(out[0]) <= first.dim), first.blocks)


def _index(ranks: int, out: list[tuple[int, ...]], x: Held, indices: Sequence[Held | None]) -> Found:
    """By whole indices, of dimensions side by side, and along none that is cut."""
    used = [dim for dim, each in enumerate(indices) if each is not None]
    whole = all(each.place == R for each in indices if each is not None)
    if x.place.kind != "S" or not whole or x.place.dim in used or used != list(range(used[0], used[-1] + 1)):
        return None
    more = len(out[0]) - len(x.shape) if x.place.dim > used[0] else 0
    return shard(x.place.dim + more, x.place.blocks)


def _index_select(ranks: int, out: list[tuple[int, ...]], x: Held, dim: int, index: Held) -> Found:
    return along(ranks, out, x, dim) if index.place == R else None


def _gather(ranks: int, out: list[tuple[int, ...]], x: Held, dim: int, index: Held, **_: Any) -> Found:
    alike = x.place == index.place and x.place.kind == "S" and x.shape[x.place.dim] == index.shape[x.place.dim]
    return along(ranks, out, x, dim) if alike else None


def _pad(ranks: int, out: list[tuple[int, ...]], x: Held, pads: Sequence[int], *_: Any) -> Found:
    return x.place if x.place.kind == "S" and x.place.dim < len(x.shape) - len(pads) // 2 else None


MOVING: dict[str, Rule] = {
    **dict.fromkeys(("clone", "detach", "alias", "neg", "lift_fresh", "contiguous"), same),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _view),
    "expand": _expand,
    "permute": _permute,
    **dict.fromkeys(("transpose", "t"), _transpose),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "slice": _slice,
    **dict.fromkeys(("select", "unbind"), _select),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "index": _index,
    "index_select": _index_select,
    "gather": _gather,
    "cat": _cat,
    "stack": _stack,
    "constant_pad_nd": _pad,
}
