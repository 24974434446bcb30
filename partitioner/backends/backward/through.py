"""A backward through a graph that the caller's engine does not see, with gradients of gradients as far as they are asked for.

What such a backward records lies on that graph. If the caller's graph went on into it, its engine would free on the way what is
still to be gone through from here. So what is recorded stays behind one node, as the graph itself does, and so on for the
gradients of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

Gradients = Sequence[torch.Tensor | None]

Slopes = Callable[[Sequence[torch.Tensor]], Gradients]
"""Finds gradients from those of what is made of them."""


def through(
    slopes: Slopes,
    parts: Sequence[GradientEdge],
    given: Sequence[torch.Tensor],
    arguments: Sequence[torch.Tensor],
) -> Gradients:
    """The gradients of some tensors, recorded in the caller's graph if gradients are.

    Args:
        slopes: finds them, through a graph that it keeps if they are recorded.
        parts: what they are of.
        given: what ``slopes`` starts from.
        arguments: for each part, the tensor in the caller's graph that it stands for.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> ends, parts = [get_gradient_edge(x**3)], [get_gradient_edge(x)]
        >>> (slope,) = through(engine(ends, parts, keep=True), parts, [torch.ones(2)], [x])
        >>> torch.autograd.grad(slope.sum(), x)
        (tensor([6., 6.]),)
    """
    if not torch.is_grad_enabled():
        return slopes(given)
    leaves = [gradient.detach().requires_grad_(gradient.requires_grad) for gradient in given]
    found = slopes(leaves)
    recorded = {number: term for number, term in enumerate(found) if term is not None and term.requires_grad}
    if not recorded:
        return found
    heads = [get_gradient_edge(term) for term in recorded.values()]
    reached = [get_gradient_edge(leaf) for leaf in leaves if leaf.requires_grad]
    outside = [gradient for gradient in given if gradient.requires_grad]
    outer: Any = _Through.apply(list(recorded.values()), heads, [*reached, *parts], *outside, *arguments)  # type: ignore[no-untyped-call]
    named = dict(zip(recorded, outer, strict=True))
    return [named.get(number, term) for number, term in enumerate(found)]


def engine(ends: Sequence[GradientEdge], parts: Sequence[GradientEdge], keep: bool) -> Slopes:
    """What finds gradients through a whole graph at once.

    Args:
        ends: where to start; given are the gradients of what these are edges of.
        parts: what gradients are of.
        keep: whether the graph may not be freed.
    """

    def slopes(given: Sequence[torch.Tensor]) -> Gradients:
        recorded = torch.is_grad_enabled()
        return torch.autograd.grad(ends, parts, given, retain_graph=keep, create_graph=recorded, allow_unused=True)

    return slopes


class _Through(torch.autograd.Function):
    """Stands for a backward that was recorded: a function of gradients, and of arguments."""

    @staticmethod
    def forward(
        ctx: Any, terms: list[torch.Tensor], heads: list[GradientEdge], parts: list[GradientEdge], *arguments: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.heads, ctx.parts, ctx.arguments = heads, parts, arguments
        ctx.save_for_backward(torch.empty(0))
        ctx.set_materialize_grads(False)
        return tuple(term.detach() for term in terms)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if the graph may not be gone through again
        ends = [head for head, gradient in zip(ctx.heads, gradients, strict=True) if gradient is not None]
        given = [gradient for gradient in gradients if gradient is not None]
        if not given:
            return (None, None, None, *(None for _ in ctx.arguments))
        return (None, None, None, *through(engine(ends, ctx.parts, keep=True), ctx.parts, given, ctx.arguments))
