"""Plan to Inspection: gathers, for people and for reports, what the stages decided. Decides nothing itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix

from partitioner.ir.batch import largest_batch
from partitioner.ir.dag import levels, quotient
from partitioner.ir.footprint import Footprint, footprints
from partitioner.ir.graph import Op
from partitioner.ir.liveness import peak_bytes
from partitioner.ir.machine import Device
from partitioner.ir.order import overlaps
from partitioner.ir.plan import Plan
from partitioner.ir.program import Copy
from partitioner.ir.timeline import Timeline
from partitioner.ir.units import format_size
from partitioner.planner.bounds import Bound, lower_bound
from partitioner.planner.seconds import serial_seconds
from partitioner.planner.simulate import op_seconds, simulate
from partitioner.report.branches import branches
from partitioner.report.inspection import Branch, Depth, DeviceLoad, Edge, Inspection, LaneLoad, Prediction, Summary, Transfers

_STRENGTH = {"data": 0, "hazard": 1, "random": 2}
_UNKNOWN = "No shapes are known, and so no times: sizes of parameters were the only weights. Example inputs would tell."


def inspect(plan: Plan) -> Inspection:
    """Look at a plan.

    Args:
        plan: what was decided.

    Returns:
        Every branch of the model, by depth, and a summary. Times are left out where shapes are unknown.
    """
    view = _View(plan)
    depths = (Depth(number, len(level), tuple(map(view.branch, level))) for number, level in enumerate(view.levels))
    return Inspection(view.summary(), tuple(depths), tuple(view.edges()))


@dataclass(frozen=True)
class _View:
    """A plan with what several answers need: its branches by depth, what bounds it, whether sizes and times are known."""

    plan: Plan

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.plan.program, self.plan.costs, self.plan.tasks, self.plan.placement)

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        return op_seconds(self.plan.program, self.plan.costs, self.plan.tasks, self.plan.placement)

    @cached_property
    def serial(self) -> float:
        return serial_seconds(self.plan.costs, self.plan.machine.devices[0])

    @property
    def shapes_known(self) -> bool:
        return self.plan.costs.shapes_known

    @cached_property
    def branches(self) -> list[list[str]]:
        return branches(self.plan.graph)

    @cached_property
    def footprints(self) -> Mapping[str, Footprint]:
        return footprints(self.plan)

    @cached_property
    def levels(self) -> list[list[int]]:
        return levels(quotient(self.plan.graph.dag, self.branches))

    @cached_property
    def names(self) -> dict[int, str]:
        members = (member for level in self.levels for member in level)
        return {member: f"b{number}" for number, member in enumerate(members)}

    @cached_property
    def bound(self) -> Bound:
        return lower_bound(self.plan.graph, self.plan.costs)

    @cached_property
    def critical(self) -> frozenset[str]:
        return frozenset(self.bound.ops)

    def size(self, ops: Iterable[Op]) -> tuple[int, int]:
        """Elements and bytes of the state that ops use; what shares a storage counts once."""
        state = self.plan.state
        storages = {state[name].storage: state[name] for op in ops for name in op.state if name in state}
        return sum(each.elements for each in storages.values()), sum(each.kept for each in storages.values())

    # By depth ---------------------------------------------------------------------------------------------------------

    def branch(self, member: int) -> Branch:
        """One branch, by its number."""
        ops = [self.plan.graph.by_name[name] for name in self.branches[member]]
        tasks = tuple(dict.fromkeys(self.plan.tasks.task_of[op.name] for op in ops))
        lanes = [self.plan.machine.lanes[self.plan.placement.lane[task]] for task in tasks]
        left = [op for op in ops if self.is_read_elsewhere(op, {other.name for other in ops})]
        elements, size = self.size(ops)
        return Branch(
            name=self.names[member],
            ops=tuple(op.name for op in ops),
            path=common_path([op.path for op in ops]),
            parameters=elements,
            parameter_bytes=size,
            flops=sum(op.flops or 0 for op in ops) if self.shapes_known else None,
            output_bytes=sum(op.bytes for op in left) if self.shapes_known else None,
            seconds=sum(self.seconds[op.name] for op in ops) if self.shapes_known else None,
            critical=any(op.name in self.critical for op in ops) if self.shapes_known else None,
            devices=tuple(dict.fromkeys(lane.device_name for lane in lanes)),
            lanes=tuple(dict.fromkeys(lane.name for lane in lanes)),
            tasks=tasks,
            reasons=tuple(self.plan.placement.reason.get(task, "") for task in tasks),
        )

    def is_read_elsewhere(self, op: Op, branch: set[str]) -> bool:
        return op.name in self.plan.graph.outputs or not branch.issuperset(self.plan.graph.dag.successors(op.name))

    def edges(self) -> Iterator[Edge]:
        """Edges between branches, each with its strongest reason."""
        home = {op: member for member, chain in enumerate(self.branches) for op in chain}
        kinds: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        for (source, target), kind in self.plan.graph.edges.items():
            if home[source] != home[target]:
                kinds[home[source], home[target]].append(kind)
        for (one, other), found in kinds.items():
            yield Edge(self.names[one], self.names[other], min(found, key=_STRENGTH.__getitem__))

    # As a whole -------------------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        graph = self.plan.graph
        elements, size = self.size(graph.ops)
        return Summary(
            model=graph.name,
            frontend=graph.tracer,
            effects="observed" if graph.observed else "static",
            policy=self.plan.placement.policy,
            ops=len(graph.ops),
            branches=len(self.branches),
            tasks=len(self.plan.tasks.tasks),
            depth=len(self.levels),
            width=max(map(len, self.levels), default=0),
            parameters=elements,
            parameter_bytes=size,
            flops=sum(op.flops or 0 for op in graph.ops) if self.shapes_known else None,
            prediction=self.prediction() if self.shapes_known else None,
            transfers=tuple(self.transfers()),
            devices=tuple(map(self.device, self.plan.machine.devices)),
            verdict=self.verdict(),
            notes=tuple(self.notes(size)),
        )

    def prediction(self) -> Prediction:
        bound, makespan = self.bound, self.timeline.makespan
        return Prediction(
            work=bound.work,
            critical_path=bound.critical_path,
            issue=bound.issue,
            bound=bound.seconds,
            serial=self.serial,
            makespan=makespan,
            graph_speedup=_ratio(self.serial, bound.seconds),
            plan_speedup=_ratio(self.serial, makespan),
            gap=max(0.0, _ratio(makespan, bound.seconds) - 1),
        )

    def transfers(self) -> Iterator[Transfers]:
        """Copies, and inputs that are first read elsewhere: the caller's are taken to lie on the first device."""
        program = self.plan.program
        moved = [(program.lanes[0].torch_device, program.by_name[name].torch_device, name) for name in program.inputs]
        for item in program.instructions:
            if isinstance(item, Copy):
                moved.append((program.by_name[item.source].torch_device, program.lanes[item.lane].torch_device, item.source))
        sizes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for source, target, name in moved:
            if target not in ("", source):
                sizes[source, target].append(program.by_name[name].bytes)
        known = self.plan.machine.name_at
        for (source, target), found in sizes.items():
            yield Transfers(known[source], known[target], len(found), sum(found) if self.shapes_known else None)

    def device(self, device: Device) -> DeviceLoad:
        """What lies on a device, what runs there, and what of its memory is left."""
        placed, lanes = self.plan.placement.lane, self.plan.machine.lanes
        own = [number for number, lane in enumerate(lanes) if lane.device_name == device.name]
        ops = (op for op in self.plan.graph.ops if placed[self.plan.tasks.task_of[op.name]] in own)
        _, size = self.size(ops)
        peak = self.peak(device.torch_device, size)
        return DeviceLoad(
            name=device.name,
            torch_device=device.torch_device,
            parameter_bytes=size,
            peak_bytes=peak if self.shapes_known else None,
            cap=device.memory,
            assumed=device.assumed,
            headroom=None if device.memory is None else device.memory - size - peak,
            lanes=tuple(map(self.lane, own)),
        )

    def peak(self, device: str, state: int) -> int:
        """Bytes that a device takes at most, beyond so many of parameters and buffers."""
        if device in self.footprints:
            return max(0, self.footprints[device].total - state)
        return peak_bytes(self.plan.program).get(device, (0, -1))[0]

    def lane(self, number: int) -> LaneLoad:
        tasks = list(self.plan.placement.lane.values()).count(number)
        share = min(1.0, _ratio(self.timeline.busy(number), self.timeline.makespan)) if tasks else 0.0
        return LaneLoad(self.plan.machine.lanes[number].name, tasks, share if self.shapes_known else None)

    def notes(self, size: int) -> Iterator[str]:
        """What times rest on, what takes memory, what the front end had to give up; ``size`` are bytes of all state."""
        yield from self.plan.graph.notes
        if not self.shapes_known:
            yield _UNKNOWN
        elif self.plan.costs.measured:
            yield f"Times rest on what was {'; '.join(self.plan.costs.basis)}."
        elif self.plan.machine.assumed:
            yield f"Assumed, not measured: {'; '.join(self.plan.machine.assumed)}. A spec can say what they are."
        for each in self.footprints.values():
            yield f"{each.device} takes {format_size(each.total)} at most, at {each.at}: {each.purposes}."
        if (most := largest_batch(self.plan)) is not None:
            yield f"The largest batch that fits is predicted to be {most}."
        first = self.plan.machine.devices[0]
        if first.memory is not None and size > first.memory:
            yield f"{first.name} alone could not hold the parameters; the time on one device is only a yardstick."

    def verdict(self) -> str:
        """What works at the same time, in words; if nothing does, why."""
        lanes = sorted(set(self.plan.placement.lane.values()))
        names = [self.plan.machine.lanes[lane].name for lane in lanes]
        chain = max(map(len, self.levels), default=0) <= 1
        if len(lanes) <= 1:
            return f"Everything runs on {', '.join(names) or 'no lane'}: {self.why_serial(chain)}."
        if not overlaps(self.plan.program):
            why = "the model is a chain" if chain else "no two of the tasks may overlap"
            return f"One device works at a time, because {why}. The {len(lanes)} lanes share memory, not time."
        gain = f", expected to be {_ratio(self.serial, self.timeline.makespan):.2f}x as fast as one device" * self.shapes_known
        return f"Branches run at the same time on {len(lanes)} lanes{gain}."

    def why_serial(self, chain: bool) -> str:
        """Why one lane does everything, as the end of a sentence."""
        reasons = set(self.plan.placement.reason.values())
        if not self.plan.graph.ops:
            return "the model has no ops"
        if len(self.plan.machine.lanes) == 1:
            return "the machine has one lane"
        if chain:
            return "the model is a chain, and no two of its branches may overlap"
        if len(self.plan.tasks.tasks) == 1:
            return "all branches are shorter than a hand-off to another lane is worth"
        return reasons.pop() if len(reasons) == 1 else "no other lane was expected to end a task sooner"


def common_path(paths: Sequence[str]) -> str:
    """The innermost module around all of the given module paths; ``""`` for the root.

    >>> common_path(["stem.conv", "stem.bn", "stem"]), common_path(["left", "right"]), common_path(["head"])
    ('stem', '', 'head')
    """
    return ".".join(commonprefix([path.split(".") for path in paths]))  # noqa: RUF071 - of lists of words


def _ratio(one: float, other: float) -> float:
    """``one / other``; 1 for a model without work."""
    return one / other if other else 1.0
