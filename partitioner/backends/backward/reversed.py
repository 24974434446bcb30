"""Runs the backward of a call on lanes: each segment's graph on the thread of its lane, and gradients passed between them.

A CPU backward runs on the thread that asks for it and releases the interpreter lock, so lanes compute at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from partitioner.backends.backward.through import engine
from partitioner.backends.codegen import Code, hosts_of
from partitioner.backends.threads import Launch
from partitioner.ir.gradient import Backward, Step
from partitioner.ir.plan import Plan
from partitioner.ir.program import Free, Instruction, Program, Record, Run, Wait


@dataclass(frozen=True)
class Cuts:
    """Where the autograd graph of a call is cut.

    Args:
        parts: by the name of a term, the view through which an op reads what another segment made; as autograd knows it.
        ends: by the name of a tensor, the tensor that a segment hands over; likewise.
    """

    parts: dict[str, GradientEdge]
    ends: dict[str, GradientEdge]


def reversed_code(plan: Plan, program: Program, steps: Mapping[str, Step]) -> Code:
    """What each host issues of a backward, as functions like those of generated code; for `Reversed`.

    Args:
        plan: of the forward, whose hosts these are.
        program: of its backward.
        steps: that this runs, by name.
    """
    hosts = hosts_of(plan.program)
    issued: list[list[Instruction]] = [[] for _ in range(max(hosts) + 1)]
    for item in program.instructions:
        issued[hosts[item.lane]].append(item)
    events = max((item.event for item in program.instructions if isinstance(item, Record | Wait)), default=-1) + 1
    first = next(item.task for item in program.instructions if isinstance(item, Run))
    shares_first = not steps[first].segment.wide
    short = not any(step.segment.wide for step in steps.values())
    return Code(str(program), "", tuple(map(_issuing, issued)), events, 0, {}, (), shares_first=shares_first, short=short)


def _issuing(items: Sequence[Instruction]) -> Callable[[Any, Reversed], None]:
    def run(_: Any, launch: Reversed) -> None:
        wide = None
        for item in items:
            match item:
                case Run(task=name):
                    step = launch.backward.steps[name]
                    if step.segment.wide != wide:
                        wide = step.segment.wide
                        launch.threads(wide)
                    launch.run(step)
                case Record(lane=lane, event=event):
                    launch.record(event, lane)
                case Wait(lane=lane, event=event):
                    launch.wait(event, lane)
                case Free(value=value):
                    launch.terms.pop(value, None)

    return run


class Reversed(Launch):
    """One backward.

    Args:
        code: what its hosts issue.
        plan: of the forward.
        backward: what each segment has to do.
        cuts: where the graph of the call is cut.
        given: gradients of the results, by the tensor's name.
        keep: whether there may be another backward through the graph.
        toward: the terms from which gradients flow on to those that are wanted. What leads to none stays for another backward,
            as in eager.

    Attributes:
        terms: what was added to gradients so far and is not summed yet.
    """

    def __init__(
        self,
        code: Code,
        plan: Plan,
        backward: Backward,
        cuts: Cuts,
        given: Mapping[str, torch.Tensor],
        keep: bool,
        toward: frozenset[str],
    ) -> None:
        super().__init__(code, len(code.hosts))
        self.plan, self.backward, self.cuts, self.keep, self.toward = plan, backward, cuts, keep, toward
        self.terms: dict[str, Any] = {one.given: given[one.name] for one in backward.gradients if one.name in given}

    def alone(self) -> None:
        """Run all of it on this thread."""
        for item in self.backward.program.instructions if self.backward.program else ():
            match item:
                case Run(task=name):
                    self.run(self.backward.steps[name])
                case Free(value=value):
                    self.terms.pop(value, None)

    def run(self, step: Step) -> None:
        """Run the backward of a segment; nothing if no gradient reaches it.

        Raises:
            Exception: whatever an op raises, with a note that names the tasks.
        """
        ends = {name: terms for name, terms in step.sums if name in self.cuts.ends and self.toward.issuperset(terms)}
        sums = {name: total for name, terms in ends.items() if (total := self._sum(terms)) is not None}
        terms = [term for term in step.terms if term in self.cuts.parts and term in self.toward]
        if not sums or not terms:
            return
        starts, views = [self.cuts.ends[name] for name in sums], [self.cuts.parts[term] for term in terms]
        try:
            found = engine(starts, views, self.keep)(list(sums.values()))
        except Exception as error:
            error.add_note(f"in the backward of {self._shown(step)}")
            raise
        self.terms.update(zip(terms, found, strict=True))

    def _sum(self, terms: Sequence[str]) -> Any:
        """The sum of those terms that there are, one after the other."""
        total = None
        for found in filter(lambda each: each is not None, map(self.terms.get, terms)):
            total = found if total is None else found + total if total.is_sparse else total + found
        return total

    def _shown(self, step: Step) -> str:
        """The tasks of a segment, and its first op with its source."""
        tasks = step.segment.tasks
        op = self.plan.graph.by_name[self.plan.tasks.by_name[tasks[0]].ops[0]]
        names = f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {tasks[0]} to {tasks[-1]}"
        lane = self.plan.program.lanes[step.segment.lane].name
        return f"{names} on {lane}, from {op.shown}"
