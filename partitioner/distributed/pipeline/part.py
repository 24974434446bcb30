"""One stage as a module: the part of a graph that it runs, with the model's own keys, between what it gets and what it passes.

    stage 1    received (h, mask)  ->  ops of the stage  ->  (h, mask)       a value that later stages read is handed on

What runs the part is what runs whole models: planned, verified and emitted for the rank's own devices, lanes included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.staying import staying_in
from partitioner.distributed.traced.example import meta_of
from partitioner.errors import InputError, VerifyError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.graph import Graph, TensorMeta
from partitioner.model.storage import no_view

Run = Callable[[Sequence[Any]], list[Any]]
"""Runs a graph on the values of its placeholders."""

Batch = Callable[[int], Mapping[str, Any]]
"""Gives the call's arguments of a microbatch, by name."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one stage runs.

    Args:
        number: of the stage.
        traced: its ops as a graph of their own; placeholders are what it receives, arguments of the call, and state.
        received: names of the values that the stage before passes.
        given: names of the call's arguments that it reads itself.
        passed: names of the values that it passes on; of the last stage, the graph's results.
        results: the names of those that its graph gives, in its order.
    """

    number: int
    traced: Traced
    received: tuple[str, ...]
    given: tuple[str, ...]
    passed: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def graph(self) -> Graph:
        """Its graph."""
        return self.traced.graph

    @cached_property
    def copied(self) -> frozenset[str]:
        """What it passes in memory of its own: what it got, and what lies in a buffer, which the next microbatch may write.

        This one may still be under way by then, or be needed to run what is behind it again.
        """
        made = zip(self.results, self.graph.outputs, strict=True)
        storages = {name: self.graph.by_name[output].storages for name, output in made}
        return frozenset(self.received).union(
            name for name, each in storages.items() if any(storage.startswith("self.") for storage in each)
        )

    @cached_property
    def foreseen(self) -> Mapping[str, TensorMeta | None]:
        """What it passes, but for results of sizes that are found in data: they stay here, for the loss."""
        staying = staying_in(self.graph)
        return {name: self.graph.metas.get(name) for name in self.passed if name not in staying}

    @cached_property
    def renewed(self) -> tuple[str, ...]:
        """The names of the buffers of which each microbatch has a copy: an op writes them, and another one reads them. So its
        backward may do, when the next microbatch has written them; a norm, which reads what it writes, does not.
        """
        graph, read = self.graph, set[str]()
        for op in graph.ops:
            written = {access.resource for access in op.accesses if access.write}
            read.update(access.resource for access in op.accesses if access.resource not in written)
        both = {name: key for name, key in graph.states.items() if f"self.{key}" in read & graph.written}
        return tuple(name for name, key in both.items() if not isinstance(self.traced.state[key], nn.Parameter))


def part_of(traced: Traced, cut: Cut, number: int) -> Part:
    """The part of a graph that one stage runs."""
    graph = traced.graph
    ops = tuple(op for op in graph.ops if cut.stage[op.name] == number)
    received = cut.borders[number - 1] if number else ()
    last = number == cut.count - 1
    passed = graph.outputs if last else cut.borders[number]
    read = {name for op in ops for name in op.inputs} | (set(passed) if last else set())
    given = tuple(name for name, _ in graph.inputs if name in read)
    inside = {op.name for op in ops}
    made = tuple(name for name in passed if name in inside)
    own = _subgraph(graph.fx, inside, {*received, *given}, made)
    placeholders = tuple(node.name for node in own.find_nodes(op="placeholder"))
    states = {name: key for name, key in graph.states.items() if name in placeholders}
    part = replace(
        graph,
        name=f"{graph.name} stage {number}",
        ops=ops,
        inputs=tuple((name, graph.metas[name]) for name in placeholders if name not in states),
        outputs=made,
        fx=own,
        arguments=placeholders,
        states=states,
        leaves=None,
    )
    return Part(number, Traced(part, {key: traced.state[key] for key in states.values()}), received, given, passed, made)


def _subgraph(graph: torch.fx.Graph, inside: set[str], outside: set[str], results: Sequence[str]) -> torch.fx.Graph:
    """The nodes of a stage, with a placeholder for each value that it reads and does not make."""
    own, at = torch.fx.Graph(), {}
    needed = {source.name for node in graph.nodes if node.name in inside for source in node.all_input_nodes} | outside
    for node in graph.nodes:
        if node.name not in inside and node.name in needed and node.op != "get_attr":
            at[node] = own.create_node("placeholder", node.name, name=node.name)
            at[node].meta = dict(node.meta)
    for node in graph.nodes:
        if node.name in inside or (node.op == "get_attr" and node.name in needed):
            at[node] = own.node_copy(node, at.__getitem__)
    by_name = {node.name: copy for node, copy in at.items()}
    own.output(tuple(by_name[name] for name in results))
    return own


def written_parameters(graph: Graph, state: Mapping[str, torch.Tensor]) -> list[str]:
    """The keys of the parameters among a graph's state that its ops write."""
    return [key for key, each in state.items() if isinstance(each, nn.Parameter) and f"self.{key}" in graph.written]


class Stage(nn.Module):
    """A stage of a pipeline, as `torch.distributed.pipelining.PipelineStage` wants one: tensors in, tensors out.

    Its parameters and buffers have the keys that they have in the model.

    Args:
        part: what it runs.
        run: runs the part's graph.
        state: parameters and buffers by key.
        batch: gives the call's arguments of a microbatch, by name; the stage asks it with the microbatch's number.
    """

    def __init__(self, part: Part, run: Run, state: Mapping[str, torch.Tensor], batch: Batch) -> None:
        super().__init__()
        places = {key: register(self, key, tensor) for key, tensor in state.items()}
        self._partitioner = _Inside(part, run, batch, {name: places[key] for name, key in part.graph.states.items()})

    def forward(self, *values: torch.Tensor, number: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Run one microbatch.

        Args:
            values: what the stage before passed; of the first stage, the microbatch's number.
            number: the microbatch's, of every other stage.
        """
        inside = self._partitioner
        part = inside.part
        chosen = values[0] if number is None else number
        known: dict[str, Any] = dict(inside.batch(int(chosen)))
        known |= dict(zip(part.received, values if part.number else (), strict=True))
        known |= {name: held[key] for name, (held, key) in inside.places.items()}
        renewed = {name: known[name].clone() for name in part.renewed} if torch.is_grad_enabled() else {}
        arguments = [renewed.get(name, known[name]) for name in part.graph.arguments]
        known |= dict(zip(part.results, inside.run(arguments), strict=True))
        for name, each in renewed.items():
            known[name].copy_(each.detach())
        for name, meta in part.foreseen.items():
            _refuse_another(name, known[name], meta)
        return tuple(_sendable(known[name], name in part.copied) for name in part.passed)

    @property
    def graph(self) -> Graph:
        """What it runs."""
        return self._partitioner.part.graph

    def train(self, mode: bool = True) -> Stage:
        """Stay in the mode in which the model was traced.

        Raises:
            InputError: another one is asked for.
        """
        if mode != self.training and hasattr(self, "_partitioner"):
            now = "train" if self.training else "eval"
            raise InputError(f"these stages were traced in {now} mode; make new ones of the model in the other mode")
        return self


def _refuse_another(name: str, value: torch.Tensor, meta: TensorMeta | None) -> None:
    """Refuse to send what the next rank has no room for: it would read on in what lies there, and not notice.

    Raises:
        VerifyError: says what was foreseen.
    """
    if meta is not None and (value.shape != meta.shape or value.dtype != meta.dtype):
        raise VerifyError(f"a stage passes {name} as {meta_of(value)}, and {meta} was foreseen when the stages were made")


def _sendable(value: torch.Tensor, copied: bool) -> torch.Tensor:
    """A tensor that torch's stages can send: contiguous, no view, kept by no op, for they detach in place what they have sent.

    A layer of the same stage that keeps it for its weight's gradient would find it detached under a zero-bubble schedule.
    """
    dense = value.contiguous()
    return dense.clone() if copied else no_view(dense)


@dataclass(frozen=True, eq=False)
class _Inside:
    """What a stage is made of that is no state: one attribute, which no key of a model is likely to have.

    Args:
        part, run, batch: as for `Stage`.
        places: the dictionary of its module in which each state lies, and its key there, by the name that the graph has for it.
            What lies there may change: FSDP2 puts other tensors there.
    """

    part: Part
    run: Run
    batch: Batch
    places: Mapping[str, tuple[dict[str, Any], str]]


def register(root: nn.Module, key: str, tensor: torch.Tensor) -> tuple[dict[str, Any], str]:
    """Put a tensor under a dotted key, with empty modules on the way: a parameter, or else a buffer. Says where it is: a
    dictionary, and the key there.

    A model may have any names, those of attributes of ``root`` among them: there the attribute is what ``root.name`` gives.
    """
    *path, name = key.split(".")
    for word in path:
        found = root._modules.setdefault(word, nn.Module())
        assert found is not None
        root = found
    held: dict[str, Any] = root._parameters if isinstance(tensor, nn.Parameter) else root._buffers
    held[name] = tensor
    return held, name
