"""Which values need a gradient behind a level of functorch: the tracer sees none there, and none of what is made of them.

    y = vmap(f)(x)     traced: needs none     in eager: needs one, if x does
    z = y.sin()        likewise

What ranks of a job pass on is told by that: of a value that needs no gradient, none comes back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_aggregate

from partitioner.model.inplace import writes_in_place
from partitioner.model.node import target_name

NONE = frozenset("detach detach_ zeros_like ones_like full_like empty_like rand_like randn_like".split())
"""What gives values without a gradient, whatever it is given; beside ``new_zeros`` and its like."""


def tell_learnt(graph: torch.fx.Graph, region: torch.fx.Node) -> None:
    """Say of what comes of a region that it needs a gradient, where something that the region is given does.

    Args:
        graph: whose values are told anew.
        region: a call in which levels are opened and closed.
    """
    grad, learnt = torch.is_grad_enabled(), set[torch.fx.Node]()
    for node in graph.nodes:
        name = target_name(node)
        if node.target is torch._C._set_grad_enabled:
            grad = bool(node.args[0])
        begins = node is region and any(map(_is_learnt, node.all_input_nodes))
        if not grad or name in NONE or name.startswith("new_") or not (begins or learnt.intersection(node.all_input_nodes)):
            continue
        written = node.args[:1] if writes_in_place(node) else ()
        for each in (node, *written):
            if not _is_learnt(each):
                each.meta["example_value"] = map_aggregate(each.meta.get("example_value"), _learnt)
                learnt.add(each)


def _is_learnt(node: Any) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _learnt(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    return value if value.requires_grad else value.detach().requires_grad_()
