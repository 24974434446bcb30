"""Two accounts of what each op touches: what was observed on fakes, and what the static table says."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from partitioner.frontend.analysis.observe import observe
from partitioner.frontend.analysis.static import Effect, Inputs, static_effect
from partitioner.ir.access import ANY
from partitioner.model.fakes import tensors_in
from partitioner.model.storage import storage_key

Account = tuple[str, str, Effect, Effect]
"""Name and target of an op, its observed effect and its static one."""


def both_accounts(graph: torch.fx.Graph) -> Iterator[Account]:
    """Both accounts of every op of a graph that has a fake for each value."""
    names = resources(graph)
    seen, told = observe(graph, names), static_effects(graph, names)
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            yield node.name, str(node.target), seen[node.name], told[node.name]


def resources(graph: torch.fx.Graph) -> dict[str, str]:
    """The resource of each placeholder: those that share a storage share the name of the first."""
    first: dict[int, str] = {}
    values = ((node.name, node.meta.get("example_value")) for node in graph.find_nodes(op="placeholder"))
    return {name: first.setdefault(storage_key(tensor), name) for name, value in values for tensor in tensors_in(value)}


def static_effects(graph: torch.fx.Graph, names: dict[str, str]) -> dict[str, Effect]:
    """The effect of every node by the static table."""
    inputs, effects = Inputs({}), dict[str, Effect]()
    for node in graph.nodes:
        if node.op == "placeholder":
            effects[node.name] = Effect(frozenset({names[node.name]}) if node.name in names else frozenset())
        elif node.op in ("call_function", "call_method"):
            effects[node.name] = static_effect(node, inputs, None, frozenset())
        if node.name in effects:
            inputs.of[node] = effects[node.name].storages if effects[node.name].tensor else frozenset()
    return effects


def missing(seen: Effect, told: Effect) -> list[str]:
    """What was seen and the table does not say."""
    if ANY in told.writes:
        return []
    found = [f"may share {name}" for name in sorted(seen.storages - told.storages)] if seen.tensor else []
    found += [f"writes {name}" for name in sorted(seen.writes - told.writes)]
    found += [f"reads {name}" for name in sorted(seen.reads - told.reads - told.writes)]
    return found + (["gives a tensor"] if seen.tensor and not told.tensor else [])


def forgotten(graph: torch.fx.Graph) -> list[str]:
    """What the table forgets of a graph, op by op."""
    return [f"{name} = {target}: {what}" for name, target, seen, told in both_accounts(graph) for what in missing(seen, told)]
