"""Every second of the package: what comes first, and how long a plan is expected to take, from the costs of its ops alone.

List scheduling gives the issue order: of the tasks that may start, the one that can start earliest is issued next, and of
those the one of the highest priority. With all on one lane that is the order of priorities, which `single` makes program order.

Every lane is a FIFO. Runs and Copies take time, a Wait holds its lane until the event has happened, the rest is free:

    cpu/0  |  t0  |   t2   |       | t3 |      t3 waits for t1: the event, and then the hand-off
    cpu/1         . |    t1     | .
                  ^ hand-off      ^ hand-off

A program issues every Record before the Waits for it, so one pass in issue order is enough. The host's time to issue an op
is part of the op's cost; copies between devices share no link with each other, which flatters plans with many of them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device, Machine
from partitioner.ir.program import Copy, Instruction, Program, Record, Run, Wait
from partitioner.ir.task import TaskGraph
from partitioner.ir.timeline import Span, Timeline


def simulate(program: Program, costs: Costs, tasks: TaskGraph) -> Timeline:
    """The expected timeline of one call.

    Args:
        program: what to run; verified, or a Wait may come before its Record and then holds nobody.
        costs: seconds of every op, with the machine whose lanes the program uses.
        tasks: the ops of each task that the program runs.

    Returns:
        A span for each Run and Copy, in order of their start. If lane 0 then still waits for another lane, an empty span
        called ``return`` marks when the caller goes on, so that `Timeline.makespan` is the time of the whole call.
    """
    clock = _Clock(program, costs, tasks)
    spans = [span for item in program.instructions for span in clock.advance(item)]
    end = max((span.end for span in spans), default=0.0)
    if program.lanes and clock.free[0] > end:
        spans.append(Span(0, "return", clock.free[0], clock.free[0]))
    spans.sort(key=lambda span: (span.start, span.lane))
    return Timeline("simulated", tuple(lane.name for lane in program.lanes), tuple(spans))


def op_seconds(program: Program, costs: Costs, tasks: TaskGraph) -> dict[str, float]:
    """Seconds of each op on the lane that runs it, by op name. Arguments as for `simulate`."""
    threads = _threads(program, costs)
    found: dict[str, float] = {}
    for item in program.instructions:
        if isinstance(item, Run):
            device = _device(program, costs, item.lane)
            for op in tasks.by_name[item.task].ops:
                found[op] = costs.op_time(op, device, threads[device.name])
    return found


def serial_time(graph: Graph, costs: Costs) -> float:
    """Seconds of the whole model on one lane of the first device; of a CPU, with all of its cores.

    What a plan is compared with. Memory caps are ignored: a model that does not fit there has this time all the same.
    """
    first = costs.machine.devices[0]
    return costs.time((op.name for op in graph.ops), first, first.cores)


def _threads(program: Program, costs: Costs) -> dict[str, int]:
    """Threads of an op on each device: its lane's share of the cores, or all of them where no other lane is used."""
    used = {program.lanes[item.lane] for item in program.instructions if isinstance(item, Run)}
    lanes = Counter(lane.device_name for lane in used)
    devices = costs.machine.by_name
    return {name: devices[name].cores if count == 1 else devices[name].threads_per_lane for name, count in lanes.items()}


def _device(program: Program, costs: Costs, lane: int) -> Device:
    return costs.machine.by_name[program.lanes[lane].device_name]


class _Clock:
    """When each lane is free, and when and where each event happened."""

    def __init__(self, program: Program, costs: Costs, tasks: TaskGraph) -> None:
        self.program, self.costs, self.tasks = program, costs, tasks
        self.names = {device.torch_device: device.name for device in costs.machine.devices}
        self.seconds = op_seconds(program, costs, tasks)
        self.free = [0.0] * len(program.lanes)
        self.events: dict[int, tuple[float, int]] = {}

    def advance(self, item: Instruction) -> Iterator[Span]:
        """Let one instruction pass; yield its span if it has one."""
        match item:
            case Run(lane=lane, task=task):
                yield self._spend(lane, task, sum(self.seconds[op] for op in self.tasks.by_name[task].ops))
            case Copy(lane=lane, source=source, target=target):
                yield self._spend(lane, target, self._copy_seconds(source, lane))
            case Record(lane=lane, event=event):
                self.events[event] = self.free[lane], lane
            case Wait(lane=lane, event=event) if event in self.events:
                self.free[lane] = max(self.free[lane], self._arrival(lane, *self.events[event]))

    def _spend(self, lane: int, label: str, seconds: float) -> Span:
        start, self.free[lane] = self.free[lane], self.free[lane] + seconds
        return Span(lane, label, start, self.free[lane])

    def _copy_seconds(self, source: str, lane: int) -> float:
        value = self.program.by_name[source]
        link = self.costs.machine.link(self.names.get(value.torch_device, ""), self.program.lanes[lane].device_name)
        return link.latency + value.bytes / link.bandwidth

    def _arrival(self, lane: int, time: float, origin: int) -> float:
        """When a lane that waits for an event may go on; one that has long been busy pays nothing for the hand-off."""
        return time if lane == origin else time + _device(self.program, self.costs, lane).handoff


def issue_order(tasks: TaskGraph, placement: Assignment, costs: Costs) -> list[str]:
    """Names of the tasks, in the order in which they are issued."""
    order: list[str] = []
    machine = costs.machine
    free = [0.0] * len(machine.lanes)
    waiting = {task.name: len(tasks.predecessors[task.name]) for task in tasks.tasks}
    ready = dict.fromkeys(waiting, 0.0)
    position = {task.name: number for number, task in enumerate(tasks.tasks)}
    heap = [(0.0, -placement.priority[name], position[name], name) for name, count in waiting.items() if not count]
    heapq.heapify(heap)
    while heap:
        start, priority, number, name = heapq.heappop(heap)
        lane = placement.lane[name]
        now = max(free[lane], ready[name])
        if now > start:  # the lane was taken in the meantime
            heapq.heappush(heap, (now, priority, number, name))
            continue
        order.append(name)
        device = machine.device_of(lane)
        end = free[lane] = now + costs.time(tasks.by_name[name].ops, device, device.threads_per_lane)
        for after in tasks.successors[name]:
            issue_only = (name, after) in tasks.random_only and device.kind != "cpu"
            arrival = now if issue_only else end + transfer_time(machine, lane, placement.lane[after], 0)
            ready[after] = max(ready[after], arrival)
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(heap, (ready[after], -placement.priority[after], position[after], after))
    return order


def transfer_time(machine: Machine, source: int, target: int, size: int) -> float:
    """Seconds until ``size`` bytes made on lane ``source`` can be read on lane ``target``.

    Zero on one lane, a hand-off between lanes of one device, a copy over the link between devices.
    """
    if source == target:
        return 0.0
    here, there = machine.device_of(source), machine.device_of(target)
    if here.name == there.name:
        return here.handoff
    link = machine.link(here.name, there.name)
    return link.latency + size / link.bandwidth
