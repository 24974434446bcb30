"""Autograd functions of the user's, made again of the two bodies that Dynamo has traced.

Torch's own way to run these bodies is meant for compilers that trace on. In eager it loses what a function has beside its
numbers: backward is never recorded, so that gradients of gradients are wrong; what was saved is not asked whether it has been
written since; and hooks for saved tensors do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Body = torch.fx.GraphModule


@dataclass(frozen=True)
class Bodies:
    """What a function does.

    Args:
        forward: gives the results, and what backward needs.
        backward: gives the arguments' gradients, from the results' and from what it needs.
        saved: which of what backward needs the function has saved with ``save_for_backward``; the rest it just keeps.
        constant: the results that are not differentiable.
        written: the results that are arguments written in place.
    """

    forward: Body
    backward: Body
    saved: frozenset[int]
    constant: frozenset[int]
    written: frozenset[int]


def own_function(forward: Body, backward: Body, *args: Any, once: bool = False, name: str = "_Own", **options: Any) -> Any:
    """Call a function with a backward of its own.

    Args:
        forward: Dynamo's body of it, which gives results, and what backward needs.
        backward: Dynamo's body of its backward.
        args: the function's arguments.
        once: whether backward was marked with `torch.autograd.function.once_differentiable`.
        name: the function's, for torch names its history after it.
        options: Dynamo's.

    Returns:
        The function's results.

    Source: torch/_functorch/autograd_function.py, AutogradFunctionApply
    """
    names = ("saved_for_backward_idx", "non_differentiable_idx", "dirty_idx")
    bodies = Bodies(forward, backward, *(frozenset(options.get(name, ())) for name in names))
    return _named(name, once).apply(bodies, *args)


class _Own(torch.autograd.Function):
    """A function of two bodies, which are its first argument."""

    @staticmethod
    def forward(ctx: Any, bodies: Bodies, *args: Any) -> Any:
        results, needed = bodies.forward.forward(*args)  # as a module, it would print its code if an op fails
        ctx.bodies = bodies
        ctx.kept = [None if number in bodies.saved else value for number, value in enumerate(needed)]
        ctx.save_for_backward(*(needed[number] for number in sorted(bodies.saved)))
        ctx.mark_dirty(*_chosen(results, bodies.written))
        ctx.mark_non_differentiable(*_chosen(results, bodies.constant))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        needed, bodies = list(ctx.kept), ctx.bodies
        for number, tensor in zip(sorted(bodies.saved), ctx.saved_tensors, strict=True):
            needed[number] = tensor
        run = _recorded(bodies.backward) if torch.is_grad_enabled() else bodies.backward
        return None, *run.forward(*gradients, *needed)


class _Once(_Own):
    """A function whose gradients have no gradients."""

    backward = staticmethod(once_differentiable(_Own.backward))  # type: ignore[assignment]


@cache
def _named(name: str, once: bool) -> Any:
    """The class of functions of that name."""
    return type(name, (_Once if once else _Own,), {})


def _chosen(results: Any, numbers: frozenset[int]) -> Sequence[Any]:
    values = results if isinstance(results, tuple | list) else (results,)
    return [value for number, value in enumerate(values) if number in numbers]


def _recorded(body: Body) -> Body:
    """A body without the switches with which Dynamo turns gradients off around it."""
    if "recorded" not in body.meta:
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(body.graph, {}))
        for node in graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled):
            graph.erase_node(node)
        body.meta["recorded"] = Body(body, graph)
    return body.meta["recorded"]  # type: ignore[no-any-return]
