"""A plan that stands in a document, applied to a model that is traced again: a policy that looks up instead of deciding.

    document            here
    gpu0  2 lanes       cuda:0  2 lanes         devices by name, or by position where names differ
    gpu1  1 lane        cuda:1  1 lane
    t0 [a, b]  gpu0/1   t0 [a, b]  lane 1       ops are grouped as they were; lanes, order and threads are the document's

What is predicted is predicted anew, by the clock, for the machine at hand may be faster or slower than that of the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partitioner.errors import PlacementError, SpecError, VerifyError
from partitioner.ir.assignment import Assignment
from partitioner.ir.differ import differences
from partitioner.ir.graph import LANDED, Graph
from partitioner.ir.problem import Problem
from partitioner.ir.saved import SavedDevice, SavedGraph, SavedPlan, SavedProgram
from partitioner.ir.saving import saved_graph
from partitioner.ir.task import TaskGraph, group
from partitioner.planner.assigned import cost_of
from partitioner.planner.bounded import bounded
from partitioner.planner.sound import verified
from partitioner.planner.timing import timed


@dataclass(frozen=True)
class Replayed:
    """Answers a problem with what a document says of it.

    Args:
        document: the plans.
        where: what errors call the document: its path.

    Example, of what `compile.plan_of` does with one:
        policy, tasks = policy.on(graph)
        placement = policy(pose(tasks, costs, machine, constraints))
    """

    document: SavedPlan
    where: str = "the plan"

    def on(self, graph: Graph) -> tuple[Replayed, TaskGraph]:
        """The policy for one graph, and the graph's ops in the tasks of the document.

        Raises:
            SpecError: the document has no program for this graph; tells the first difference from the nearest one.
        """
        program = self._program_of(saved_graph(graph))
        try:
            tasks = group(graph, [task.ops for task in program.tasks])
        except ValueError as error:
            raise SpecError(f"{self.where}: its tasks cannot be run one by one: {error}") from None
        return replace(self, document=self.document.model_copy(update={"programs": (program,)})), tasks

    def _program_of(self, here: SavedGraph) -> SavedProgram:
        digest, programs = here.digest(), self.document.programs
        for program in programs:
            if program.fingerprint == digest:
                return program
        if not programs:
            raise SpecError(f"{self.where}: it holds no program")
        rows = set(here.ops)
        nearest = max(programs, key=lambda program: len(rows.intersection(program.ops)))
        first = next(differences(nearest, here), "nothing")
        if nearest.state == here.state and nearest.inputs != here.inputs:
            what = f"it holds no plan of this call of {self.document.model}"
            advice = "Make such a call before save_plan(), which writes the plans of all calls made so far."
        elif f"= {LANDED}(" in first and _lands(nearest) != _lands(here):
            made, asked = ("with", "give") if _lands(nearest) else ("without", "leave out")
            what, advice = f"it was made {made} fullgraph=False", f"For this plan, {asked} fullgraph=False."
        else:
            what = f"it was made for another {self.document.model} than is here, or for other calls or modes of it"
            advice = "Plan this one anew, without plan=, or make such a call before save_plan()."
        raise SpecError(f"{self.where}: {what}. The first difference: {first}. {advice}")

    def __call__(self, problem: Problem) -> Assignment:
        """The document's lanes, order and threads, on the clock.

        Raises:
            SpecError: the machine is of another shape, or the tasks are others.
            PlacementError: the document breaks a rule of the problem: a pin, a memory cap, an edge.
        """
        lane_of = _lanes_here(self.document.devices, problem, self.where)
        number = {frozenset(label.split()): task for task, label in enumerate(problem.labels)}
        program = next((each for each in self.document.programs if _covers(each, number)), None)
        if program is None:
            raise SpecError(f"{self.where}: it has no program of these tasks")
        order = [number[frozenset(row.ops)] for row in program.tasks]
        rows = dict(zip(order, program.tasks, strict=True))
        lanes = [lane_of[rows[task].lane] for task in range(len(rows))]
        threads = [min(rows[task].threads, problem.processors[problem.lanes[lanes[task]]].cores) for task in range(len(rows))]
        reasons = [rows[task].reason for task in range(len(rows))]
        return self._answer(problem, program, lanes, order, threads, reasons)

    def _answer(
        self,
        problem: Problem,
        program: SavedProgram,
        lanes: Sequence[int],
        order: Sequence[int],
        threads: Sequence[int],
        reasons: Sequence[str],
    ) -> Assignment:
        place = {task: position for position, task in enumerate(order)}
        for source, target, _ in problem.edges:
            if place[source] > place[target]:
                one, other = problem.tasks[target], problem.tasks[source]
                raise PlacementError(f"{self.where}: task {one} is issued before {other}, which it waits for")
        clock = timed(problem, lanes, order, threads)
        homes = [problem.lanes[lane] for lane in lanes]
        answer = Assignment(
            policy=program.policy,
            tasks=problem.tasks,
            lanes=lanes,
            order=order,
            threads=threads if any(threads) else (),
            start=clock.start,
            end=clock.end,
            cost=cost_of(problem, homes, clock.makespan),
            reasons=reasons if any(reasons) else (),
            note=program.note,
        )
        try:
            return bounded(problem, verified(problem, answer))
        except VerifyError as error:
            raise PlacementError(f"{self.where}: it cannot be applied here; {error}") from None


def _lands(graph: SavedGraph) -> bool:
    """Whether Python goes on with what it gives, on the first device."""
    return any(op.call.startswith(f"{LANDED}(") for op in graph.ops)


def _covers(program: SavedProgram, number: dict[frozenset[str], int]) -> bool:
    """Whether the tasks of a program are those that are asked for, by the ops of each."""
    return len(program.tasks) == len(number) and all(frozenset(row.ops) in number for row in program.tasks)


def _lanes_here(devices: Sequence[SavedDevice], problem: Problem, where: str) -> dict[str, int]:
    """The number of each of the document's lanes: devices of equal names, or in order where names differ.

    Raises:
        SpecError: the machine has another number of devices, or a device is of another kind or has other lanes.
    """
    here = {each.name: index for index, each in enumerate(problem.processors)}
    if len(devices) != len(here):
        names = ", ".join(problem.processors[index].name for index in list(here.values())[:8])
        raise SpecError(f"{where}: it was made for {len(devices)} devices, and there are {len(here)} here: {names}")
    named = all(each.name in here for each in devices)
    found: dict[str, int] = {}
    for position, each in enumerate(devices):
        index = here[each.name] if named else position
        there = problem.processors[index]
        mine, theirs = _shape(each.device.partition(":")[0], each.lanes), _shape(problem.kinds[there.kind].name, there.lanes)
        if mine != theirs:
            raise SpecError(f"{where}: device {each.name} was {mine}, and {there.name}, in its place here, is {theirs}")
        for lane in range(each.lanes):
            found[f"{each.name}/{lane}"] = problem.first_lane[index] + lane
    return found


def _shape(kind: str, lanes: int) -> str:
    return f"{kind} with {lanes} lane{'s' if lanes != 1 else ''}"
