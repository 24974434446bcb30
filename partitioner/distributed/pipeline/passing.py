"""What passes between the ranks of a branch axis, with its gradient: a value from the rank that made it to all others.

    rank 0   a = tower(x)     share a                  backward: the sum of what the others' gradients of a are, and its own
    rank 1   b = tower(y)     a' = share, a' + b

Every rank takes part in every exchange, forwards and backwards, in one order. For that a *token*, an empty tensor, goes into
each exchange and comes out of it: autograd goes back through all of them, in reverse, on every rank, whoever uses what came.
The second half of a backward that has two goes back through those behind which this rank has parameters, which others may
not: there they send nothing, and give what they gave in the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from partitioner.distributed.tensor.collectives import total

OPS = torch.ops._c10d_functional

_SECOND: list[bool] = []
"""Whether a second half is under way: autograd may call backwards in threads of its own."""


@contextmanager
def second_half() -> Iterator[None]:
    """Exchanges within send nothing, and give what they gave in the first half: other ranks may not come by."""
    _SECOND.append(True)
    try:
        yield
    finally:
        _SECOND.pop()


def _summed(ctx: Any, mine: Tensor) -> Tensor:
    """The sum of what ranks give, kept for a second half where the graph is kept."""
    if _SECOND and hasattr(ctx, "summed"):
        return ctx.summed  # type: ignore[no-any-return]
    found = total(mine, ctx.group)
    if torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.summed = found
    return found


def token() -> Tensor:
    """The first token of a call."""
    return torch.zeros(0, requires_grad=torch.is_grad_enabled())


def tokens_behind(starts: Iterable[Node]) -> list[Tensor]:
    """The first tokens behind results, to which gradients go through each exchange: to inputs, only where these need any."""
    waiting, seen, found = list(starts), set(starts), []
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None and not leaf.numel() and not isinstance(leaf, nn.Parameter):
            found.append(leaf)
        behind = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= behind
        waiting += behind
    return found


def _sent(x: Tensor, owner: int, group: str) -> Tensor:
    """The owner's tensor, on every rank."""
    flat = x.contiguous()
    if flat.dtype == torch.bool:
        return OPS.wait_tensor(OPS.broadcast(flat.view(torch.uint8), owner, group)).view(torch.bool)  # type: ignore[no-any-return]
    return OPS.wait_tensor(OPS.broadcast(flat, owner, group))  # type: ignore[no-any-return]


Like = tuple[tuple[int, ...], torch.dtype, torch.device, bool]
"""Shape, dtype and device of a value, and whether it needs a gradient."""


class _Shared(torch.autograd.Function):
    """A value from its owner to all; back, the sum of the others' gradients to the owner."""

    @staticmethod
    def forward(ctx: Any, pass_on: Tensor, x: Tensor | None, like: Like, here: bool, owner: int, group: str) -> Any:
        shape, dtype, device, ctx.differentiable = like
        found = _sent(torch.empty(shape, dtype=dtype, device=device) if x is None else x.detach(), owner, group)
        ctx.here, ctx.group = here, group
        if not ctx.differentiable:  # or it would be, because the token is
            ctx.mark_non_differentiable(found)
        return found, pass_on.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        mine, pass_on = gradients
        summed = _summed(ctx, mine) if ctx.differentiable else None
        return pass_on, summed if ctx.here else None, None, None, None, None


class _Delivered(_Shared):
    """A result from its owner to all; all ranks go on alike with it, so back the owner's gradient is the whole."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        mine, pass_on = gradients
        return pass_on, mine if ctx.here else None, None, None, None, None


class _Fanned(torch.autograd.Function):
    """An input that all ranks have; back, the sum of what its readers' gradients are."""

    @staticmethod
    def forward(ctx: Any, pass_on: Tensor, x: Tensor, group: str) -> Any:
        ctx.group = group
        return x.view_as(x), pass_on.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        mine, pass_on = gradients
        return pass_on, _summed(ctx, mine), None


def share(pass_on: Tensor, x: Tensor | None, like: Like, owner: int, here: bool, group: str) -> tuple[Tensor, Tensor]:
    """A value that ops of other ranks read.

    Args:
        pass_on: the token.
        x: on its owner, the value.
        like: what it is.
        owner: which rank has it.
        here: whether that is this one.
        group: the ranks of the axis.

    Returns:
        The value, whose gradient goes to its owner; and the token.
    """
    return _Shared.apply(pass_on, x, like, here, owner, group)  # type: ignore[no-any-return, no-untyped-call]


def deliver(pass_on: Tensor, x: Tensor | None, like: Like, owner: int, here: bool, group: str) -> tuple[Tensor, Tensor]:
    """A result, as `share`; all ranks go on with it alike, and so have one gradient of it."""
    return _Delivered.apply(pass_on, x, like, here, owner, group)  # type: ignore[no-any-return, no-untyped-call]


def fan(pass_on: Tensor, x: Tensor, group: str) -> tuple[Tensor, Tensor]:
    """An input with a gradient, which only some ranks read."""
    return _Fanned.apply(pass_on, x, group)  # type: ignore[no-any-return, no-untyped-call]
