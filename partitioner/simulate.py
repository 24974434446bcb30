"""Program to Timeline: how long a plan is expected to take, from the costs of its ops and nothing else.

Every lane is a FIFO. Runs and Copies take time, a Wait holds its lane until the event has happened, the rest is free:

    cpu/0  |  t0  |   t2   |       | t3 |      t3 waits for t1: the event, and then the hand-off
    cpu/1         . |    t1     | .
                  ^ hand-off      ^ hand-off

A program issues every Record before the Waits for it, so one pass in issue order is enough. The host's time to issue an op
is part of the op's cost; copies between devices share no link with each other, which flatters plans with many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from partitioner.analysis.cost import Costs
from partitioner.ir.program import Copy, Instruction, Program, Record, Run, Wait
from partitioner.ir.task import TaskGraph
from partitioner.ir.timeline import Span, Timeline
from partitioner.machine import Device
from partitioner.plan import Plan


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


def serial_time(plan: Plan) -> float:
    """Seconds of the whole model on one lane of the first device; of a CPU, with all of its cores.

    What a plan is compared with. Memory caps are ignored: a model that does not fit there has this time all the same.
    """
    first = plan.machine.devices[0]
    return plan.costs.time((op.name for op in plan.graph.ops), first, first.cores)


def _threads(program: Program, costs: Costs) -> dict[str, int]:
    """Threads of an op on each device: its lane's share of the cores, or all of them where no other lane is used."""
    used = {program.lanes[item.lane] for item in program.instructions if isinstance(item, Run)}
    lanes = Counter(lane.device for lane in used)
    devices = costs.machine.by_name
    return {name: devices[name].cores if count == 1 else devices[name].threads_per_lane for name, count in lanes.items()}


def _device(program: Program, costs: Costs, lane: int) -> Device:
    return costs.machine.by_name[program.lanes[lane].device]


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
        link = self.costs.machine.link(self.names.get(value.device, ""), self.program.lanes[lane].device)
        return link.latency + value.bytes / link.bandwidth

    def _arrival(self, lane: int, time: float, origin: int) -> float:
        """When a lane that waits for an event may go on; one that has long been busy pays nothing for the hand-off."""
        return time if lane == origin else time + _device(self.program, self.costs, lane).handoff
