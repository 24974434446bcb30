"""What autograd recorded between a loss and what a model gave: the ops of a user's ``loss_fn``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge


@dataclass(frozen=True)
class Between:
    """The functions whose backwards lead from a loss to results, and further to whatever else is trained.

    Args:
        nodes: each once, those of leaves among them; not those that made the results.
        reached: the places of the results that the loss is made of.
    """

    nodes: tuple[Node, ...]
    reached: frozenset[int]

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The tensors that are trained, and that the loss reads past the results."""
        variables = (getattr(node, "variable", None) for node in self.nodes)
        return [each for each in variables if each is not None]


def between(loss: torch.Tensor, results: Sequence[Any]) -> Between:
    """Look from a loss backwards, up to the results. One op may give several of them: under DDP a single one gives all.

    Args:
        loss: has a gradient.
        results: a model's; those that have none are not looked for.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> found = between((x * 2).sum(), [torch.ones(1), x])
        >>> [node.name() for node in found.nodes], found.reached
        (['SumBackward0', 'MulBackward0'], frozenset({1}))
    """
    trained = ((place, each) for place, each in enumerate(results) if isinstance(each, torch.Tensor) and each.requires_grad)
    places = {get_gradient_edge(each)[:2]: place for place, each in trained}
    nodes, reached, seen, waiting = dict[Node, None](), set[int](), set[Any](), [get_gradient_edge(loss)[:2]]
    while waiting:
        edge = waiting.pop()
        if edge in seen:
            continue
        seen.add(edge)
        if edge in places:
            reached.add(places[edge])
            continue
        nodes[edge[0]] = None
        waiting += [(behind, place) for behind, place in edge[0].next_functions if behind is not None]
    return Between(tuple(nodes), frozenset(reached))
