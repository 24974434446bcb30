"""Which gradients eager itself does not fix to the last bit.

Autograd sums the gradients that meet at a tensor in the order in which their ops run in backward. Two of them give the same
bits in either order; three or more need not, because floating-point addition is not associative:

    a + (b + c)  !=  (a + b) + c          in the last bit or two

So a gradient is held to the last bit unless a sum of three or more lies between the outputs and the parameter it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch.autograd.graph import Node

Slot = tuple[Node, int]
"""Where gradients meet: a node of the autograd graph, and which of its forward op's outputs they belong to."""


def reordered_sums(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves whose gradient passes through a sum of three or more gradients.

    Args:
        roots: the tensors that backward starts from; call this before backward, which frees the graph.

    Returns:
        Leaf tensors that require a gradient. Sums inside one node, such as a custom autograd function's, are not seen.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> [leaf is x for leaf in reordered_sums([x.sin() + x.cos()])]
    []
    >>> [leaf is x for leaf in reordered_sums([x.sin() + x.cos() + x.tan()])]
    [True]
    """
    meeting = Counter(_slot(root) for root in roots)
    nodes = _reached([node for node, _ in meeting])
    for node in nodes:
        meeting.update((next_node, index) for next_node, index in node.next_functions if next_node is not None)
    crowded = [node for (node, _), count in meeting.items() if count >= 3]
    ends = (getattr(node, "variable", None) for node in _reached(crowded))  # only the node of a leaf has one
    return [leaf for leaf in ends if isinstance(leaf, torch.Tensor)]


def _slot(root: torch.Tensor) -> Slot:
    edge = torch.autograd.graph.get_gradient_edge(root)
    return edge.node, edge.output_nr


def _reached(starts: Sequence[Node]) -> list[Node]:
    """Every node that backward visits from these, each once."""
    seen = dict.fromkeys(starts)
    waiting = list(seen)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen[node] = None
                waiting.append(node)
    return list(seen)
