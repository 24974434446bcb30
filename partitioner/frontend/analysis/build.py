"""From a captured torch.fx graph to a Graph: every node with its accesses.

Effects are observed where there are example inputs, and told from the static table otherwise. Loads of parameters are no
ops: an op *uses* state, and the code that runs it reads the state from the module, so that whatever the user does to the
module (``.half()``, ``load_state_dict``, a swapped parameter) is what the next call sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from partitioner.frontend.analysis.observe import Unobservable, observe
from partitioner.frontend.analysis.stale_views import refreshes
from partitioner.frontend.analysis.static import Effect, Inputs, static_effect
from partitioner.frontend.capture.capture import Capture
from partitioner.ir.access import Access
from partitioner.ir.graph import Graph, Op, TensorMeta
from partitioner.model.keep import untouched
from partitioner.model.state import attribute
from partitioner.model.storage import storage_key


def build_graph(capture: Capture, module: nn.Module, tensors: Sequence[torch.Tensor] | None) -> Graph:
    """The Graph of a captured program.

    Args:
        capture: what a front end gave.
        module: the model.
        tensors: example inputs to observe effects on, or ``None`` for the static table.
    """
    notes = capture.notes
    effects: dict[str, Effect] | None = None
    if tensors is not None:
        try:
            with untouched(module):  # PyTorch's own hooks may assign what they compute
                effects = observe(capture.fx, module, capture.constants, tensors)
        except Unobservable as error:
            notes += (f"effects come from the static table, because {error}",)
    observed = effects is not None
    names = resource_names(module)
    effects = static_effects(capture.fx, module, names) if effects is None else effects
    nodes = [node for node in capture.fx.nodes if is_op(node)]
    for name, stale in refreshes(nodes, effects).items():
        effects[name] = replace(effects[name], writes=effects[name].writes | stale)
    results = list(dict.fromkeys(node.name for node in capture.fx.output_node().all_input_nodes))
    return Graph(
        name=type(module).__name__,
        ops=tuple(_op(node, effects[node.name], capture, module) for node in nodes),
        inputs=tuple((node.name, _meta(effects[node.name])) for node in capture.fx.find_nodes(op="placeholder")),
        outputs=tuple(results),
        fx=capture.fx,
        signature=capture.signature,
        constants={name: _ordinary(constant) for name, constant in capture.constants.items()},
        tracer=capture.tracer,
        notes=notes,
        observed=observed,
    )


def _ordinary(constant: Any) -> Any:
    """A tensor that was made under inference mode could not take part in training; a copy of it can."""
    if not isinstance(constant, torch.Tensor) or not constant.is_inference():
        return constant
    with torch.inference_mode(False):
        return constant.clone()


def is_op(node: torch.fx.Node) -> bool:
    """Whether a node is an op of the graph. A loaded parameter is one only where the model returns it."""
    if node.op == "get_attr":
        return any(user.op == "output" for user in node.users)
    return node.op in ("call_function", "call_method", "call_module")


def _meta(effect: Effect) -> TensorMeta | None:
    return effect.outputs[0] if effect.outputs else None


def _op(node: torch.fx.Node, effect: Effect, capture: Capture, module: nn.Module) -> Op:
    modes = {**dict.fromkeys(effect.storages, False), **dict.fromkeys(effect.reads, False)}
    modes |= dict.fromkeys(effect.writes, True)
    if node.name in effect.storages:
        modes[node.name] = True  # it makes that storage
    return Op(
        name=node.name,
        target=_target(node),
        inputs=tuple(source.name for source in node.all_input_nodes if source.op != "get_attr" or is_op(source)),
        accesses=tuple(Access(resource, write) for resource, write in sorted(modes.items())),
        storages=tuple(sorted(effect.storages)) if effect.tensor else (),
        state=tuple(_state(node, module)),
        path=capture.paths.get(node.name, ""),
        source=capture.sources.get(node.name, ""),
        outputs=effect.outputs,
        tensor=effect.tensor,
        flops=effect.flops,
    )


def _target(node: torch.fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).removeprefix("aten.")
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _state(node: torch.fx.Node, module: nn.Module) -> list[str]:
    """Qualified names of the parameters, buffers and constants that a node uses."""
    if node.op == "get_attr":
        return [str(node.target)]
    used = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr" and not is_op(source)]
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        used += (f"{node.target}.{name}" for name, _ in called.named_parameters(remove_duplicate=False))
        used += (f"{node.target}.{name}" for name, _ in called.named_buffers(remove_duplicate=False))
    return list(dict.fromkeys(used))


def resource_names(module: nn.Module) -> dict[str, str]:
    """Resource of each parameter and buffer by qualified name; those that share a storage share the name of the first."""
    first: dict[int, str] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(storage_key(tensor), f"self.{name}") for name, tensor in named}


def static_effects(fx: torch.fx.Graph, module: nn.Module, names: Mapping[str, str]) -> dict[str, Effect]:
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
            state = frozenset(names.get(name, name) for name in _state(node, module)) if called is not None else frozenset()
            effect = static_effect(node, inputs, called, state)
        inputs.of[node] = effect.storages if effect.tensor else frozenset()
        effects[node.name] = effect
    return effects
