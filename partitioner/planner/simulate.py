"""How long a program is expected to take: its instructions, one after the other, on lanes, links and the issuing thread.

Every lane is a FIFO. Runs and Copies take time, a Wait holds its lane until the event has happened, the rest is free:

    cpu/0  |  t0  |   t2   |       | t3 |      t3 waits for t1: the event, and then the hand-off
    cpu/1         . |    t1     | .
                  ^ hand-off      ^ hand-off

A program issues every Record before the Waits for it, so one pass in issue order is enough. What is shared is what the
planner's clock knows of (`planner/timing.py`): a link carries one copy at a time, the host issues one op at a time, whatever
accelerator's lane it is for, and lanes of one device wait where their tasks do not fit beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Device
from partitioner.ir.program import Copy, Instruction, Program, Record, Run, Wait
from partitioner.ir.task import TaskGraph
from partitioner.ir.timeline import Span, Timeline
from partitioner.planner.resources import Busy, Shares
from partitioner.planner.seconds import issue_seconds, lane_seconds, share


def simulate(program: Program, costs: Costs, tasks: TaskGraph, placement: Assignment | None = None) -> Timeline:
    """The expected timeline of one call.

    Args:
        program: what to run; verified, or a Wait may come before its Record and then holds nobody.
        costs: seconds of every op, with the machine whose lanes the program uses.
        tasks: the ops of each task that the program runs.
        placement: what says how many threads each task has; without it each has its lane's share.

    Returns:
        A span for each Run and Copy, in order of their start. If lane 0 then still waits for another lane, an empty span
        called ``return`` marks when the caller goes on, so that `Timeline.makespan` is the time of the whole call.
    """
    clock = _Clock(program, costs, tasks, _threads(placement))
    spans = [span for item in program.instructions for span in clock.advance(item)]
    end = max((span.end for span in spans), default=0.0)
    if program.lanes and clock.free[0] > end:
        spans.append(Span(0, "return", clock.free[0], clock.free[0]))
    spans.sort(key=lambda span: (span.start, span.lane))
    return Timeline(tuple(lane.name for lane in program.lanes), tuple(spans))


def op_seconds(program: Program, costs: Costs, tasks: TaskGraph, placement: Assignment | None = None) -> dict[str, float]:
    """Seconds of each op on the lane that runs it, by op name. Arguments as for `simulate`."""
    threads = _threads(placement)
    found: dict[str, float] = {}
    for item in program.instructions:
        if isinstance(item, Run):
            device = costs.machine.by_name[program.lanes[item.lane].device_name]
            for op in tasks.by_name[item.task].ops:
                found[op] = costs.op_time(op, device, threads.get(item.task) or device.threads_per_lane)
    return found


def _threads(placement: Assignment | None) -> dict[str, int]:
    return dict(zip(placement.tasks, placement.threads, strict=False)) if placement is not None else {}


@dataclass(frozen=True)
class _Work:
    """A Run as its device sees it; see `planner/seconds.py`."""

    seconds: float
    issue: float
    share: float


class _Clock:
    """When each lane, link and issuer is free, and when and where each event happened."""

    def __init__(self, program: Program, costs: Costs, tasks: TaskGraph, threads: dict[str, int]) -> None:
        self.program, self.costs, self.tasks, self.threads = program, costs, tasks, threads
        self.names = costs.machine.name_at
        self.free = [0.0] * len(program.lanes)
        self.events: dict[int, tuple[float, int]] = {}
        self.links: dict[tuple[str, str], Busy] = {}
        self.issuer = 0.0
        self.shares: dict[str, Shares] = {}

    def advance(self, item: Instruction) -> Iterator[Span]:
        """Let one instruction pass; yield its span if it has one."""
        match item:
            case Run(lane=lane, task=task):
                yield self._run(lane, task)
            case Copy(lane=lane, source=source, target=target):
                yield self._copy(lane, source, target)
            case Record(lane=lane, event=event):
                self.events[event] = self.free[lane], lane
            case Wait(lane=lane, event=event) if event in self.events:
                self.free[lane] = max(self.free[lane], self._arrival(lane, *self.events[event]))

    def _run(self, lane: int, task: str) -> Span:
        device, work = self._device(lane), self._work(lane, task)
        start = self.free[lane]
        if device.kind != "cpu":
            start = max(start, self.issuer)
            self.issuer += work.issue
        seconds = work.seconds if device.kind == "cpu" else max(work.seconds, self.issuer - start)
        if device.lanes > 1:
            shares = self.shares.setdefault(device.name, Shares())
            while (later := shares.later(start, start + seconds, work.share)) > start:
                start = later
            shares.take(start, start + seconds, work.share)
        self.free[lane] = start + seconds
        return Span(lane, task, start, start + seconds)

    def _work(self, lane: int, task: str) -> _Work:
        device, ops = self._device(lane), self.tasks.by_name[task].ops
        seconds = lane_seconds(self.costs, ops, device, self.threads.get(task) or device.threads_per_lane)
        return _Work(seconds, issue_seconds(self.costs, ops, device), share(self.costs, ops, device))

    def _copy(self, lane: int, source: str, target: str) -> Span:
        value = self.program.by_name[source]
        ends = self.names.get(value.torch_device, ""), self.program.lanes[lane].device_name
        link = self.costs.machine.link(*ends)
        seconds, busy = link.latency + value.bytes / link.bandwidth, self.links.setdefault(ends, Busy())
        start = busy.fill(self.free[lane], seconds)
        self.free[lane] = start + seconds
        return Span(lane, target, start, start + seconds)

    def _arrival(self, lane: int, time: float, origin: int) -> float:
        """When a lane that waits for an event may go on; one that has long been busy pays nothing for the hand-off."""
        return time if lane == origin else time + self._device(lane).handoff

    def _device(self, lane: int) -> Device:
        return self.costs.machine.by_name[self.program.lanes[lane].device_name]
