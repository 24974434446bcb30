"""Runs a stage so that a backward makes again what it needs, instead of keeping it: `torch.utils.checkpoint` around segments.

    forward     segment 0 . segment 1 . segment 2      kept: what passes into each
    backward    segment 2 again, its backward . segment 1 again, its backward . ...

The second run is the first one once more: with the same random numbers, with buffers as they were, and whatever it writes is
written to copies. What ranks exchange they exchange again, all of it and on all ranks at the same point.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from partitioner.compile import emit, plan_of
from partitioner.distributed.pipeline.part import Part, Run, written_parameters
from partitioner.distributed.pipeline.schedules import SCHEDULES
from partitioner.distributed.pipeline.segments import in_flight, segments_of
from partitioner.distributed.tensor.draws import Draws
from partitioner.errors import SpecError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.rewrite.higher_order import is_reentrant
from partitioner.frontend.rewrite.regions import run_region
from partitioner.ir.access import ANY, RNG, SENT
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec


@dataclass(frozen=True, eq=False)
class Rerun:
    """Runs a graph segment by segment, each of which a backward runs again.

    Args:
        graph: all of it.
        segments: its parts, one behind the other.
        runs: what runs each of them.
        draws: random numbers of a tensor axis, if there is one.
    """

    graph: Graph
    segments: Sequence[Part]
    runs: Sequence[Run]
    draws: Draws | None = None

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The graph's results, in its order."""
        if not torch.is_grad_enabled():
            runs: Sequence[Run] = self.runs
        else:
            runs = [_kept_little(part.graph, run, self.draws) for part, run in zip(self.segments, self.runs, strict=True)]
        if len(runs) == 1:
            return runs[0](arguments)
        known = dict(zip(self.graph.arguments, arguments, strict=True))
        for part, run in zip(self.segments, runs, strict=True):
            results = zip(part.results, run([known[name] for name in part.graph.arguments]), strict=True)
            known |= {name: value.clone() if name in part.copied else value for name, value in results}
        return [known[name] for name in self.graph.outputs]


def _kept_little(graph: Graph, run: Run, draws: Draws | None) -> Run:
    """The run of a segment under a checkpoint."""
    touched = {access.resource for op in graph.ops for access in op.accesses}

    def call(arguments: Sequence[Any]) -> list[Any]:
        again = _Twice(graph, run, draws, SENT in touched, tuple(arguments[place] for place in graph.written_arguments))
        given = (each for place, each in enumerate(arguments) if place not in graph.written_arguments)
        found = checkpoint(
            again, *given, use_reentrant=False, preserve_rng_state=RNG in touched, early_stop=SENT not in touched
        )
        return list(found)

    return call


class _Twice:
    """What a checkpoint calls: first in the forward, then in backward, once or more.

    Args:
        graph, run, draws: of the segment.
        exchanges: whether ranks exchange values in it.
        written: the arguments that it writes; they do not go through the checkpoint, which would refuse them once written.
    """

    def __init__(self, graph: Graph, run: Run, draws: Draws | None, exchanges: bool, written: tuple[Tensor, ...]) -> None:
        self.graph, self.run, self.draws, self.exchanges, self.written = graph, run, draws, exchanges, written
        self.before = tuple(each.detach().clone() for each in written)
        self.streams = {} if draws is None else dict(draws.states)
        self.ran = False

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        """The segment's results."""
        again, self.ran = self.ran, True
        written, rest = iter([each.clone() for each in self.before] if again else self.written), iter(given)
        places = set(self.graph.written_arguments)
        arguments = [next(written if place in places else rest) for place in range(len(self.graph.arguments))]
        with self.draws.from_states(self.streams) if again and self.draws is not None else nullcontext():
            results = self.run(arguments)
        return tuple(_together(results) if self.exchanges else results)


def _together(results: list[Any]) -> list[Any]:
    """Results whose backward runs the segment again before all else, on every rank, whatever each of them needs first."""
    learnt = [place for place, each in enumerate(results) if isinstance(each, Tensor) and each.requires_grad]
    if not learnt:
        return results
    joined = _Joined.apply(*(results[place] for place in learnt))  # type: ignore[no-untyped-call]
    found = dict(zip(learnt, joined, strict=True))
    return [found.get(place, each) for place, each in enumerate(results)]


class _Joined(torch.autograd.Function):
    """Tensors as they are; what it has kept is the first thing that a backward asks for, and so makes a checkpoint run."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(values[0].new_empty(0))
        return tuple(each.view_as(each) for each in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        assert len(ctx.saved_tensors) == 1
        return gradients


def run_of(traced: Traced, machine: Machine, spec: Spec, asked: DistributedSpec, draws: Draws | None) -> Run:
    """What runs a stage, planned for this rank's device: at once, or so that a backward runs it again.

    Args:
        traced: what the stage runs.
        machine: of this rank.
        spec, asked: what is asked for.
        draws: random numbers of a tensor axis, if there is one.

    Raises:
        SpecError: an op may do anything, and would do it twice, or writes a parameter; or as `refuse_halved`.
    """
    refuse_halved(traced.graph, asked)
    if asked.recompute == "none":
        return emit(plan_of(traced, machine, spec), spec)
    refuse_unknown(traced.graph, asked.recompute)
    trained = {key: each for key, each in traced.state.items() if each.requires_grad}
    for key in written_parameters(traced.graph, trained):
        raise SpecError(
            f"recompute: {asked.recompute} runs a forward again with copies of what it writes, and it writes the parameter "
            f"{key} (max_norm of an embedding does), of which a copy has no gradient: leave that out, or take recompute: none"
        )
    segments = segments_of(traced, asked, in_flight(asked))
    return Rerun(traced.graph, segments, [emit(plan_of(part.traced, machine, spec), spec) for part in segments], draws)


def refuse_halved(graph: Graph, asked: DistributedSpec) -> None:
    """Refuse the model's own checkpoints that can be run again once only, or not by a half of a backward.

    Raises:
        SpecError: names one.
    """
    if not SCHEDULES[asked.schedule].split:
        return
    bodies = [part for body in graph.bodies.values() if isinstance(body, torch.fx.GraphModule) for part in body.modules()]
    parts = [part for part in bodies if isinstance(part, torch.fx.GraphModule)]
    if any(is_reentrant(node) for each in (graph.fx, *(part.graph for part in parts)) for node in each.nodes):
        wrong = "use_reentrant=True"
    elif any("_checkpoint_context_fn" in part.meta for part in parts):
        wrong = "a context_fn"
    else:
        return
    raise SpecError(
        f"schedule {asked.schedule} sends each microbatch back in two halves, for which a checkpoint with {wrong} is not run "
        "again: leave that out, or take interleaved_1f1b"
    )


def refuse_unknown(graph: Graph, recompute: str) -> None:
    """Refuse to run again an op that may do anything, and would do it twice; and one that torch runs under no checkpoint.

    Raises:
        SpecError: names one.
    """
    for op in graph.ops:
        if any(access.resource == ANY and access.write for access in op.accesses):
            raise SpecError(f"recompute: {recompute} would run this twice, and what it does is unknown: {op.shown}")
    for node in graph.fx.find_nodes(op="call_function", target=run_region):
        body = graph.bodies[node.args[0].target]
        if any(getattr(each.target, "__name__", "") == "_saved_tensors_hooks_disable" for each in body.graph.nodes):
            raise SpecError(
                f"recompute: {recompute} sees by hooks what a forward keeps, under which torch.func.grad, vjp, jacrev and "
                f"hessian do not work: {graph.by_name[node.name].shown}. Take recompute: none"
            )
