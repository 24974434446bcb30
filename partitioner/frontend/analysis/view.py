"""From a symbolic view to a Graph: effects from the static table, no shapes. An op uses state; loading it is no op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from partitioner.frontend.analysis.build import Traced, target_of
from partitioner.frontend.analysis.stale_views import refreshes
from partitioner.frontend.analysis.static import Effect, Inputs, static_effect
from partitioner.ir.graph import Graph, Op
from partitioner.model.state import all_state, attribute
from partitioner.model.storage import storage_key


def view_graph(fx: torch.fx.Graph, constants: Mapping[str, torch.Tensor], module: nn.Module) -> Traced:
    """The Graph of what a symbolic trace shows of ``module``, and of the tensors that it made."""
    nodes = [node for node in fx.nodes if is_op(node)]
    states = {node.name: _state(node, module) for node in nodes}
    effects = static_effects(fx, module, resource_names(module), states)
    for name, stale in refreshes(nodes, effects).items():
        effects[name] = replace(effects[name], writes=effects[name].writes | stale)
    results = dict.fromkeys(node.name for node in fx.output_node().all_input_nodes)
    inputs = [node.name for node in fx.find_nodes(op="placeholder")]
    ops = tuple(_op(node, effects[node.name], states[node.name]) for node in nodes)
    graph = Graph(
        name=type(module).__name__,
        ops=ops,
        inputs=tuple((name, None) for name in inputs),
        outputs=tuple(results),
        fx=fx,
        arguments=tuple(inputs),
        tracer="symbolic_trace",
    )
    values = {name: constants.get(name, attribute(module, name, None)) for op in ops for name in op.state}
    return Traced(graph, {name: value for name, value in values.items() if isinstance(value, torch.Tensor)})


def is_op(node: torch.fx.Node) -> bool:
    """Whether a node is an op of the graph. A loaded parameter is one only where the model returns it."""
    if node.op == "get_attr":
        return any(user.op == "output" for user in node.users)
    return node.op in ("call_function", "call_method", "call_module")


def _op(node: torch.fx.Node, effect: Effect, state: Sequence[str]) -> Op:
    return Op(
        name=node.name,
        target=target_of(node),
        inputs=tuple(source.name for source in node.all_input_nodes if source.op != "get_attr" or is_op(source)),
        accesses=effect.accesses(node.name),
        storages=tuple(sorted(effect.storages)) if effect.tensor else (),
        state=tuple(state),
        path=node.meta["path"],
        source=node.meta["source"],
        tensor=effect.tensor,
    )


def _state(node: torch.fx.Node, module: nn.Module) -> list[str]:
    """Qualified names of the parameters, buffers and constants that a node uses."""
    if node.op == "get_attr":
        return [str(node.target)]
    used = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr" and not is_op(source)]
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        for path, part in called.named_modules(prefix=str(node.target), remove_duplicate=False):
            held = {**part._parameters, **part._buffers}
            used += (f"{path}.{name}" for name, tensor in held.items() if tensor is not None)
    return list(dict.fromkeys(used))


def resource_names(module: nn.Module) -> dict[str, str]:
    """Resource of each parameter and buffer by qualified name; those that share a storage share the name of the first."""
    first: dict[int, str] = {}
    return {name: first.setdefault(storage_key(tensor), f"self.{name}") for name, tensor in all_state(module).items()}


def static_effects(
    fx: torch.fx.Graph, module: nn.Module, names: Mapping[str, str], states: Mapping[str, Sequence[str]]
) -> dict[str, Effect]:
    """The effect of every node by the static table."""
    inputs = Inputs({})
    effects: dict[str, Effect] = {}
    for node in fx.nodes:
        if node.op == "output":
            break
        if node.op == "placeholder":
            effect = Effect(frozenset({node.name}))
        elif node.op == "get_attr":
            target = str(node.target)
            effect = Effect(frozenset({names.get(target, f"self.{target}")}))
        else:
            called: Any = attribute(module, str(node.target)) if node.op == "call_module" else None
            state = frozenset(names.get(name, name) for name in states[node.name]) if called is not None else frozenset()
            effect = static_effect(node, inputs, called, state)
        inputs.of[node] = effect.storages if effect.tensor else frozenset()
        effects[node.name] = effect
    return effects
