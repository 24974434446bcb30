"""A sharding from a plan file, held against the graph that it is for: a file is data from outside.

    q: R, S(0), S(0) -> S(2)      is that one of the ways of q?  may q work on parts at all?
    split: S(2, 3) -> S(2)        reads a value that has no other form: is it in that one?
    q.weight: S(0)                is that the form in which the first op that uses it wants it?

Nothing is decided: what an op can do is found as when a sharding is chosen, and the file names one of these things.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from partitioner.distributed.tensor.shards import on_wholes
from partitioner.distributed.tensor.ways import Ways, blocks_in, inputs_of, rules_of, tensors_of, whole_rule
from partitioner.errors import SpecError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.graph import Graph
from partitioner.ir.saved_job import SavedSharding
from partitioner.ir.sharding import F, Placement, R
from partitioner.ir.shared import Axis, Rule, Sharding
from partitioner.ir.units import quote

SHOWN = 5
"""Ways of an op that an error lists."""


def replayed(traced: Traced, said: SavedSharding, ranks: int) -> Sharding:
    """The sharding that a file tells.

    Args:
        traced: the graph of a whole copy.
        said: what the file says.
        ranks: along the axis.

    Raises:
        SpecError: it names an op or a key that there is not, a rule that is none of an op's, or a form that nothing leads to.
    """
    graph = traced.graph
    rules = _rules(traced, said.rules, ranks)
    state = _first_forms(graph, rules)
    _refuse_other_forms({graph.states[name]: form for name, form in state.items()}, said.forms)
    _refuse_conversions(graph, rules, state)
    return Sharding(Axis(ranks, said.bandwidth, said.latency, said.halves), rules, state)


def _rules(traced: Traced, said: Mapping[str, str], ranks: int) -> dict[str, Rule]:
    """The rule of each op; of those that the file does not name, that on whole values."""
    graph = traced.graph
    for name in said:
        if name not in graph.by_name:
            raise SpecError(f"sharding.ops names {quote(name)}, which is no op of {graph.name}")
    ways, kept = Ways(ranks, blocks_in(graph.fx)), on_wholes(traced)
    found = {}
    for node in graph.fx.nodes:
        if node.op.startswith("call_"):
            whole = whole_rule(node)
            text = said.get(node.name, str(whole))
            options = (whole,) if text == str(whole) or node.name in kept else rules_of(ways, node, 0.0)
            found[node.name] = _among(options, text, node.name, ranks)
    return found


def _among(options: tuple[Rule, ...], text: str, name: str, ranks: int) -> Rule:
    """The rule that a text means."""
    for rule in options:
        if str(rule) == text:
            return rule
    more = f", and {len(options) - SHOWN} more" if len(options) > SHOWN else ""
    known = "; ".join(str(rule) for rule in options[:SHOWN])
    raise SpecError(f"op {name} cannot be done as {quote(text)} over {ranks} ranks; its ways are {known}{more}")


def _first_forms(graph: Graph, rules: Mapping[str, Rule]) -> dict[str, Placement]:
    """How each tensor of the model is held: as the first op that uses it wants it, where that is a part."""
    found: dict[str, Placement] = {}
    for node in graph.fx.nodes:
        if node.name in rules:
            for source, form in zip(inputs_of(node), rules[node.name].inputs, strict=True):
                if source.name in graph.states:
                    found.setdefault(source.name, form if form.kind == "S" else R)
    return {name: found.get(name, R) for name in graph.arguments if name in graph.states}


def _refuse_other_forms(wanted: Mapping[str, Placement], said: Mapping[str, str]) -> None:
    for key in [*said, *wanted]:
        if key not in wanted:
            raise SpecError(f"sharding.state names {quote(key)}, which the model's graph does not use")
        if said.get(key, "R") != str(wanted[key]):
            has = said.get(key, "R")
            raise SpecError(f"{key} is {has} in sharding.state, and the first op that uses it wants {wanted[key]}; R is whole")


def _refuse_conversions(graph: Graph, rules: Mapping[str, Rule], state: Mapping[str, Placement]) -> None:
    """Refuse another form of what has only the one that it was made in: what is no tensor, and state that ops write."""
    for node in graph.fx.nodes:
        for source, form in zip(inputs_of(node), rules[node.name].inputs, strict=True) if node.name in rules else ():
            if source.name in rules:
                made, fixed = rules[source.name].output, not isinstance(source.meta.get("example_value"), torch.Tensor)
            else:
                made, fixed = state.get(source.name, R), f"self.{graph.states.get(source.name)}" in graph.written
            learns = rules[node.name].output != R and any(tensor.requires_grad for tensor in tensors_of(source))
            need = F if form == R and learns else form
            if fixed and need != made:
                raise SpecError(f"op {node.name} reads {source.name} as {need}, and it is {made} and cannot be converted")
