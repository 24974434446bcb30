"""What passes between the ranks of a tensor axis, with its gradient: one function for each conversion between placements.

    form    to      forwards                      backwards
    P       R       sum over ranks                as it is
    P       S       sum, of which each has a part gather
    S       R       gather                        cut
    S       F       gather                        sum, of which each has a part
    R       F       as it is                      sum over ranks
    R       S       cut                           gather
    R       P       the first rank keeps it       as it is

Groups are named as torch.distributed names them, so that a graph of such calls is data. Source: Shoeybi et al., "Megatron-LM",
2019; for the halves of a sum Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group  # type: ignore[attr-defined]

from partitioner.ir.sharding import Placement
from partitioner.model.storage import no_view

OPS = torch.ops._c10d_functional


def total(x: Tensor, group: str) -> Tensor:
    """The sum over all ranks."""
    found: Tensor = OPS.wait_tensor(OPS.all_reduce(x.contiguous(), "sum", group))
    return found


def gathered(x: Tensor, dim: int, blocks: int, ranks: int, group: str) -> Tensor:
    """The whole of which each rank has a part."""
    rows: Tensor = OPS.wait_tensor(OPS.all_gather_into_tensor(x.contiguous(), ranks, group))
    parts = rows.view(ranks, *x.shape)
    if blocks == 1 and dim == 0:
        return rows
    size = x.shape[dim] // blocks
    parts = parts.view(ranks, *x.shape[:dim], blocks, size, *x.shape[dim + 1 :]).movedim(0, dim + 1)
    return _own(parts.reshape(*x.shape[:dim], ranks * x.shape[dim], *x.shape[dim + 1 :]))


def cut(x: Tensor, dim: int, blocks: int, ranks: int, rank: int) -> Tensor:
    """One rank's part.

    >>> cut(torch.arange(8), 0, 2, 2, 1).tolist()
    [2, 3, 6, 7]
    """
    size = x.shape[dim] // (blocks * ranks)
    if blocks == 1:
        return x.narrow(dim, rank * size, size)
    apart = x.reshape(*x.shape[:dim], blocks, ranks, size, *x.shape[dim + 1 :])
    return apart.select(dim + 1, rank).flatten(dim, dim + 1)


def part_of_total(x: Tensor, dim: int, blocks: int, ranks: int, group: str) -> Tensor:
    """One rank's part of the sum over all."""
    size = x.shape[dim] // (blocks * ranks)
    apart = x.reshape(*x.shape[:dim], blocks, ranks, size, *x.shape[dim + 1 :]).movedim(dim + 1, 0).contiguous()
    mine: Tensor = OPS.wait_tensor(OPS.reduce_scatter_tensor(apart, "sum", ranks, group))
    return _own(mine.view(apart.shape[1:]).flatten(dim, dim + 1))


def _own(x: Tensor) -> Tensor:
    """The same, as no view: autograd lets nobody write into a view that a function of ours gives."""
    return no_view(x) if x._is_view() else x


class _Total(torch.autograd.Function):
    """P to R."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return total(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


class _PartOfTotal(torch.autograd.Function):
    """P to S."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, blocks: int, ranks: int, group: str) -> Tensor:
        ctx.form = dim, blocks, ranks, group
        return part_of_total(x, dim, blocks, ranks, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gathered(gradients[0], *ctx.form), None, None, None, None


class _Gathered(torch.autograd.Function):
    """S to R, whose gradient all ranks have, or to F, whose gradient they have in summands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, blocks: int, ranks: int, rank: int, group: str, summands: bool) -> Tensor:
        ctx.form, ctx.rank, ctx.group, ctx.summands = (dim, blocks, ranks), rank, group, summands
        return gathered(x, dim, blocks, ranks, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), (dim, blocks, ranks) = gradients, ctx.form
        if ctx.summands:
            found = part_of_total(gradient, dim, blocks, ranks, ctx.group)
        else:
            found = cut(gradient, dim, blocks, ranks, ctx.rank).contiguous()
        return found, None, None, None, None, None, None


class _Fanned(torch.autograd.Function):
    """R to F."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return total(gradients[0], ctx.group), None


class _Cut(torch.autograd.Function):
    """R to S."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, blocks: int, ranks: int, rank: int, group: str) -> Tensor:
        ctx.form = dim, blocks, ranks, group
        return cut(x, dim, blocks, ranks, rank).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gathered(gradients[0], *ctx.form), None, None, None, None, None


class _Summand(torch.autograd.Function):
    """R to P."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: int) -> Tensor:
        return torch.zeros_like(x) if rank else x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


def all_reduce(x: Tensor, group: str) -> Tensor:
    """P to R."""
    return _Total.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def reduce_scatter(x: Tensor, dim: int, blocks: int, ranks: int, group: str) -> Tensor:
    """P to S."""
    return _PartOfTotal.apply(x, dim, blocks, ranks, group)  # type: ignore[no-any-return, no-untyped-call]


def all_gather(x: Tensor, dim: int, blocks: int, ranks: int, rank: int, group: str, summands: bool) -> Tensor:
    """S to R or F."""
    return _Gathered.apply(x, dim, blocks, ranks, rank, group, summands)  # type: ignore[no-any-return, no-untyped-call]


def fan_out(x: Tensor, group: str) -> Tensor:
    """R to F."""
    return _Fanned.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def take_part(x: Tensor, dim: int, blocks: int, ranks: int, rank: int, group: str) -> Tensor:
    """R to S."""
    return _Cut.apply(x, dim, blocks, ranks, rank, group)  # type: ignore[no-any-return, no-untyped-call]


def summand(x: Tensor, rank: int) -> Tensor:
    """R to P."""
    return _Summand.apply(x, rank)  # type: ignore[no-any-return, no-untyped-call]


def conversion(
    source: Placement, target: Placement, ranks: int, rank: int, group: str
) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The function that converts, and its arguments behind the tensor."""
    match source.kind, target.kind:
        case "P", "R":
            return all_reduce, (group,)
        case "P", "S":
            return reduce_scatter, (target.dim, target.blocks, ranks, group)
        case "S", _:
            return all_gather, (source.dim, source.blocks, ranks, rank, group, target.kind == "F")
        case "R", "F":
            return fan_out, (group,)
        case "R", "S":
            return take_part, (target.dim, target.blocks, ranks, rank, group)
        case "R", "P":
            return summand, (rank,)
    raise ValueError(f"no conversion from {source} to {target}")


def from_first(held: Tensor, group: dist.ProcessGroup) -> None:
    """Give what each rank of a group holds the values of the first one's.

    gloo sends memory as it lies, as much as there are elements: of an expanded tensor more than there is. So what lies in
    another order than a new tensor is sent as a copy.
    """
    dense = held.contiguous()
    dist.broadcast(dense, group=group, group_src=0)
    if dense is not held:
        put(held, dense)


def put(held: Tensor, values: Tensor) -> None:
    """Write values into a tensor, which may be expanded: then one of each that share memory."""
    one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in held.stride())
    held[one].copy_(values[one])


def group_named(name: str) -> dist.ProcessGroup:
    """The ranks of an axis."""
    return _resolve_process_group(GroupName(name))


def embedding_of_part(index: Tensor, weight: Tensor, padding: int | None, rank: int) -> Tensor:
    """An embedding of which each rank has some rows: a summand, zero where another rank has the row.

    Args:
        index: integers, of all rows.
        weight: this rank's rows.
        padding: the row that gets no gradient.
        rank: this one.
    """
    first, rows = rank * weight.shape[0], weight.shape[0]
    own = (index >= first) & (index < first + rows)
    local = torch.where(own, index - first, 0)
    known = padding if padding is None or padding - first in range(rows) else None
    found = torch.nn.functional.embedding(local, weight, None if known is None else known - first)
    return found.masked_fill(~own.unsqueeze(-1), 0.0)
