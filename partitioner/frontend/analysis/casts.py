"""What autocast keeps: the first op of a block that casts a weight does so for those that follow, on whatever lane they are.

    with autocast():
        a = linear(x, w)         casts w, and keeps it: a hidden write to "cast of w"
        b = linear(y, w)         takes what was cast
    with autocast():
        c = linear(z, w)         casts w again

So the ops of a block that use one weight keep their order. What was cast is kept for a whole call, for lanes are in several
blocks at once; an op that must not find what another block has cast looks for nothing, and keeps nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import torch

from partitioner.ir.access import CAST
from partitioner.ir.mode import Mode

Users = dict[str, list[torch.fx.Node]]


def users_of_casts(graph: torch.fx.Graph, modes: Mapping[str, Mode], entry: Mode, resources: Mapping[str, str]) -> Users:
    """The ops, in order, that may use what autocast made of each tensor that it keeps.

    Args:
        graph: with a fake for every value.
        modes: of the ops that are under others than ``entry``, by name.
        entry: those of the others.
        resources: the resource of each placeholder.
    """
    kept = {node: resources[node.name] for node in graph.find_nodes(op="placeholder") if _is_kept(node)}
    found: defaultdict[str, list[torch.fx.Node]] = defaultdict(list)
    for node in graph.nodes if kept else ():
        mode = modes.get(node.name, entry)
        if mode.cache and any(enabled for _, enabled, _ in mode.autocast):
            for resource in dict.fromkeys(kept[source] for source in node.all_input_nodes if source in kept):
                found[resource].append(node)
    return found


def _is_kept(placeholder: torch.fx.Node) -> bool:
    """Whether autocast keeps what it makes of a tensor: of those that are trained."""
    value = placeholder.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.requires_grad and value.is_leaf


def between_blocks(users: Users, modes: Mapping[str, Mode]) -> dict[str, Mode]:
    """The modes of ops that use what several blocks cast: they keep nothing."""
    found: dict[str, Mode] = {}
    for nodes in users.values():
        if len({modes[node.name].block for node in nodes if node.name in modes}) > 1:
            found |= {node.name: replace(modes[node.name], cache=False) for node in nodes}
    return found


def of_arguments(users: Users, modes: Mapping[str, Mode], entry: Mode) -> dict[str, Mode]:
    """The modes of ops that use what autocast casts of the call's arguments: they keep nothing.

    On several devices an argument is read in many places, each of which has a copy of its own, and casts that.
    """
    arguments = (nodes for resource, nodes in users.items() if not resource.startswith("self.") and len(nodes) > 1)
    return {node.name: replace(modes.get(node.name, entry), cache=False) for nodes in arguments for node in nodes}


def hidden_writes(users: Users, uncached: Mapping[str, Mode]) -> dict[str, frozenset[str]]:
    """What is kept of tensors, as resources that ops write without saying so, by name of the op."""
    found: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
    for resource, nodes in users.items():
        names = [node.name for node in nodes if node.name not in uncached]
        for name in names if len(names) > 1 else ():
            found[name] |= {CAST + resource}
    return found
