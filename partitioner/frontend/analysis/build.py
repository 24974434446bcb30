"""From what the tracer found to a Graph: every op with its accesses and its modes, state told from inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from partitioner.frontend.analysis.casts import between_blocks, hidden_writes, of_arguments, users_of_casts
from partitioner.frontend.analysis.known_ops import RAISING
from partitioner.frontend.analysis.observe import observe
from partitioner.frontend.analysis.stale_views import refreshes
from partitioner.frontend.analysis.static import Effect
from partitioner.frontend.analysis.told_apart import told_apart
from partitioner.frontend.capture.dynamo import Found
from partitioner.frontend.capture.tensors.checks import checked, is_of_sizes
from partitioner.frontend.rewrite.higher_order import as_plain_calls, tell_state
from partitioner.frontend.rewrite.modes import without_switches
from partitioner.frontend.rewrite.regions import run_region, with_regions
from partitioner.frontend.rewrite.versions import count_as_eager
from partitioner.ir.access import CHECKED, RNG
from partitioner.ir.graph import Graph, Op, StateMeta
from partitioner.ir.mode import Mode
from partitioner.model.call import memory
from partitioner.model.modes import modes_here
from partitioner.model.source import is_user_code
from partitioner.model.state import sizes

FUSED = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
"""Layers that torch computes by one op where no gradients are wanted."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A Graph, and the tensors that it uses as state, by name."""

    graph: Graph
    state: Mapping[str, torch.Tensor]

    @property
    def state_metas(self) -> dict[str, StateMeta]:
        """In which storage each of them lies at the moment, and what it takes."""
        return {name: StateMeta(*sizes(tensor)) for name, tensor in self.state.items()}


def build_graph(
    found: Found,
    name: str,
    keys: Mapping[int, str],
    parameters: Sequence[str],
    apart: bool = False,
    stays: Callable[[str, torch.Tensor], bool] = lambda _key, _tensor: True,
) -> Traced:
    """The Graph of what Dynamo found.

    Args:
        found: edited, for it is the backend's to keep.
        name: of the model's class.
        keys: qualified name of each parameter and buffer of the model, by the ``id`` of the tensor.
        parameters: names of the positional parameters of the traced function.
        apart: whether its ops may be placed on several devices.
        stays: whether ops go to where a tensor of the model lies, by its name; one that moves to them is an argument.
    """
    as_plain_calls(found.module)
    count_as_eager(found.module.graph)
    module = with_regions(found.module)
    held = _name(module.graph, found, keys, parameters, stays)
    tell_state(module.graph, {name for name, (key, _) in held.items() if key})
    grad, _, autocast, cache = modes_here()  # Dynamo has left the caller's inference mode
    entry = Mode(grad, None, autocast, cache, -1 if any(enabled for _, enabled, _ in autocast) else 0)
    modes, final = without_switches(module.graph, entry, run_region)
    module.graph.lint()
    state = {key: tensor for key, tensor in held.values() if key}
    resources = _resources(held)
    effects = observe(module.graph, resources)
    nodes = [node for node in module.graph.nodes if node.op.startswith("call_")]
    users = users_of_casts(module.graph, modes, entry, resources)
    uncached = between_blocks(users, modes) | (of_arguments(users, modes, entry) if apart else {})
    modes |= uncached
    hidden = [refreshes(nodes, effects), hidden_writes(users, uncached)]
    for node_name, writes in (item for found_writes in hidden for item in found_writes.items()):
        effects[node_name] = replace(effects[node_name], writes=effects[node_name].writes | writes)
    states = {name: key for name, (key, _) in held.items() if key}
    effects |= told_apart(module.graph, effects, resources, states)
    effects |= _between_checks(nodes, effects, frozenset(resources.values()))
    placeholders = module.graph.find_nodes(op="placeholder")
    results = dict.fromkeys(node.name for node in module.graph.output_node().all_input_nodes if node.name not in states)
    graph = Graph(
        name=name,
        ops=tuple(_op(node, effects[node.name], found.paths, states, modes.get(node.name)) for node in nodes),
        inputs=tuple((n.name, next(iter(effects[n.name].outputs), None)) for n in placeholders if n.name not in states),
        outputs=tuple(results),
        fx=module.graph,
        arguments=tuple(node.name for node in placeholders),
        states=states,
        bodies={str(n.target): getattr(module, str(n.target)) for n in module.graph.find_nodes(op="get_attr")},
        leaves=None if final == entry else final,
        tracer="torch.compile",
        device=_device(placeholders),
        observed=True,
    )
    return Traced(graph, state)


def _between_checks(nodes: Sequence[torch.fx.Node], effects: Mapping[str, Effect], given: frozenset[str]) -> dict[str, Effect]:
    """The effects of checks, and of what would be seen after a call that fails: a draw, a write to what the call was ``given``.

    What eager has done by the time at which a check fails is done, and nothing that would have come after it. Nor does an op
    fail before, on values that the model checks first. Sizes are no values: one expert's rows need not wait for another expert.
    """
    checks = {node.name for node in nodes if node.target is checked}
    found = {name: replace(effects[name], writes=effects[name].writes | {CHECKED}) for name in checks}
    raising = RAISING if any(node.name in checks and not is_of_sizes(node) for node in nodes) else ()
    for node in nodes if checks else ():
        effect = effects[node.name]
        if node.name not in checks and (effect.writes & {RNG, *given} or target_of(node) in raising):
            found[node.name] = replace(effect, reads=effect.reads | {CHECKED})
    return found


def _device(placeholders: Sequence[torch.fx.Node]) -> str:
    """Where all tensors lie that come in, as far as tracing knows."""
    values = (node.meta.get("example_value") for node in placeholders)
    devices = {str(value.device) for value in values if isinstance(value, torch.Tensor)}
    return devices.pop() if len(devices) == 1 else ""


def _name(
    graph: torch.fx.Graph,
    found: Found,
    keys: Mapping[int, str],
    parameters: Sequence[str],
    stays: Callable[[str, torch.Tensor], bool],
) -> dict[str, tuple[str, Any]]:
    """Give nodes readable names; for each placeholder its key, if it is state, and its value.

    Arguments are named after the method's parameters, which come first, state after its keys, ops after the modules in which
    they were traced; ops of the root keep the names of the user's variables.
    """
    names = graph._graph_namespace = torch.fx.graph._Namespace()
    held: dict[str, tuple[str, Any]] = {}
    values = iter(found.inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            value = next(values)
            key, label = _placeholder(node, value, keys, parameters)
            node.target = node.name = names.create_name(label, node)
            held[node.name] = key if key and (not isinstance(value, torch.Tensor) or stays(key, value)) else "", value
        else:
            path = _path(node, found.paths) if node.op.startswith("call_") else ""
            node.name = names.create_name(f"{path}_{target_of(node)}" if path else node.name, node)
    return held


def _placeholder(node: torch.fx.Node, value: Any, keys: Mapping[int, str], parameters: Sequence[str]) -> tuple[str, str]:
    """The key of a placeholder, if it is state, and its label."""
    words = _words(node)
    if not isinstance(value, torch.Tensor):
        return keys.get(id(value), ""), node.name
    key = keys.get(id(value), ".".join(words[1:]) if words[:1] == ["self"] else "")
    return key, f"p_{key}" if key else "_".join(_argument(words, parameters)) or node.name


_WORD = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")


def _words(node: torch.fx.Node) -> list[str]:
    """The way from a frame's local variable to a placeholder's value: ``L['self']._modules['a']`` is ``["self", "a"]``."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    text = getattr(source, "name", "") if source is not None else ""
    text = text() if callable(text) else text
    if not text.startswith("L["):
        return ["", *(next(filter(None, groups), "") for groups in _WORD.findall(text))]
    words = [next(filter(None, groups), "") for groups in _WORD.findall(text[1:])]
    return [word for word in words if word not in ("_modules", "_parameters", "_buffers", "__dict__")]


def _argument(words: list[str], parameters: Sequence[str]) -> list[str]:
    """An argument by the name that the model's method has for it."""
    match words:
        case ["args", number, *rest] if number.isdecimal() and int(number) < len(parameters):
            return [parameters[int(number)], *rest]
        case ["args", number, *rest] if number.isdecimal():
            return [f"arg{number}", *rest]
        case ["kwargs", *rest]:
            return rest
    return [word for word in words if word]


def _resources(held: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    """The resource of each placeholder: those that share memory share the name of the first."""
    first: dict[int, str] = {}
    numbers = memory([value for _, value in held.values()])
    return {
        name: first.setdefault(number, f"self.{key}" if key else name)
        for (name, (key, value)), number in zip(held.items(), numbers, strict=True)
        if isinstance(value, torch.Tensor)
    }


def _op(node: torch.fx.Node, effect: Effect, paths: Mapping[str, str], states: Mapping[str, str], mode: Mode | None) -> Op:
    used = [source for source in node.all_input_nodes if source.op != "get_attr"]
    return Op(
        name=node.name,
        target=target_of(node),
        inputs=tuple(source.name for source in used if source.name not in states),
        accesses=effect.accesses(node.name),
        storages=tuple(sorted(effect.storages)) if effect.tensor else (),
        state=tuple(dict.fromkeys(states[source.name] for source in used if source.name in states)),
        path=_path(node, paths),
        source=_source(node),
        outputs=effect.outputs,
        tensor=effect.tensor,
        work=effect.work,
        mode=mode,
        layer=_layer(node),
    )


def target_of(node: torch.fx.Node) -> str:
    """What a node calls, as a name."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).removeprefix("aten.")
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _layer(node: torch.fx.Node) -> str:
    """The outermost layer around a node that has a faster way without gradients: one op, which takes all of its parameters."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return next((str(name) for name, kind in stack if isinstance(kind, type) and issubclass(kind, FUSED)), "")


_LOCAL = re.compile(r"L\['(\w+)'\]\.?(.*)")


def _path(node: torch.fx.Node, paths: Mapping[str, str]) -> str:
    """Qualified name of the module in which an op was traced."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    parts = _LOCAL.fullmatch(str(stack[-1][0])) if stack else None
    if parts is None:
        return ""
    inner = re.sub(r"\[(\w+)\]", r".\1", parts[2])
    return ".".join(word for word in (paths.get(parts[1], ""), inner) if word)


_FILE = re.compile(r'File "([^"]+)", line (\d+)')


def _source(node: torch.fx.Node) -> str:
    """``file:line`` of the user's code that an op comes from."""
    lines = [f"{file}:{line}" for file, line in _FILE.findall(node.meta.get("stack_trace") or "") if is_user_code(file)]
    return lines[-1] if lines else ""
