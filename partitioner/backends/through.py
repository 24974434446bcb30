"""A backward through a graph that the caller's engine does not see, with gradients of gradients as far as they are asked for.

What such a backward records lies on that graph. If the caller's graph went on into it, its engine would free on the way what is
still to be gone through from here. So what is recorded stays behind one node, as the graph itself does, and so on for the
gradients of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

Gradients = Sequence[torch.Tensor | None]


def through(
    ends: Sequence[GradientEdge],
    parts: Sequence[GradientEdge],
    given: Sequence[torch.Tensor],
    arguments: Sequence[torch.Tensor],
    keep: bool,
) -> Gradients:
    """The gradients of some tensors, recorded in the caller's graph if gradients are.

    Args:
        ends: where to start.
        parts: what gradients are of.
        given: gradients of what ``ends`` are edges of.
        arguments: for each part, the tensor in the caller's graph that it stands for.
        keep: whether the graph may not be freed.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> ends, parts = [get_gradient_edge(x**3)], [get_gradient_edge(x)]
        >>> (slope,) = through(ends, parts, [torch.ones(2)], [x], keep=True)
        >>> torch.autograd.grad(slope.sum(), x)
        (tensor([6., 6.]),)
    """
    if not torch.is_grad_enabled():
        return torch.autograd.grad(ends, parts, given, retain_graph=keep, allow_unused=True)
    leaves = [gradient.detach().requires_grad_(gradient.requires_grad) for gradient in given]
    found = torch.autograd.grad(ends, parts, leaves, create_graph=True, allow_unused=True)
    recorded = {number: term for number, term in enumerate(found) if term is not None and term.requires_grad}
    if not recorded:
        return found
    heads = [get_gradient_edge(term) for term in recorded.values()]
    reached = [get_gradient_edge(leaf) for leaf in leaves if leaf.requires_grad]
    outside = [gradient for gradient in given if gradient.requires_grad]
    outer: Any = _Through.apply(list(recorded.values()), heads, [*reached, *parts], *outside, *arguments)  # type: ignore[no-untyped-call]
    named = dict(zip(recorded, outer, strict=True))
    return [named.get(number, term) for number, term in enumerate(found)]


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
        return (None, None, None, *through(ends, ctx.parts, given, ctx.arguments, keep=True))
