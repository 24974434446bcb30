"""Inputs that share a storage which nobody writes, each as a storage of its own: so each may go to a device of its own."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

import torch

from partitioner.frontend.analysis.static import Effect


def told_apart(
    graph: torch.fx.Graph, effects: Mapping[str, Effect], resources: Mapping[str, str], states: Container[str]
) -> dict[str, Effect]:
    """The effects that change: those of such inputs, and of what reads them.

    Args:
        graph: what was observed.
        effects: of its nodes.
        resources: the resource of each placeholder.
        states: the placeholders that are state, which keeps its storages.
    """
    written = {resource for effect in effects.values() for resource in effect.writes}
    shared = {resource for name, resource in resources.items() if name not in states and resource != name} - written
    apart = {
        name: frozenset({resource if name in states else name}) for name, resource in resources.items() if resource in shared
    }
    found: dict[str, Effect] = {}
    for node in graph.nodes if apart else ():
        if node.name not in effects:
            break
        effect = effects[node.name]
        own = apart.get(node.name, frozenset[str]().union(*(apart.get(one.name, ()) for one in node.all_input_nodes)))
        if own:
            storages, reads = ((each - shared) | own if each & shared else each for each in (effect.storages, effect.reads))
            found[node.name] = replace(effect, storages=storages, reads=reads)
            apart[node.name] = own if effect.storages & shared else frozenset()
    return found
