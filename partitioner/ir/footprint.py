"""How much memory a plan takes on each device when it takes most, what for, and whose it is.

cuda:0   1.21 GiB at backward of layer3_0_conv1
  parameters     102 MiB      largest:
  gradients       61 MiB        layer1_0_conv2   98 MiB
  optimizer      204 MiB        ...
  saved          790 MiB
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

from partitioner.ir.memory import Memory
from partitioner.ir.plan import Plan, each_once, resident_bytes
from partitioner.ir.replay import Change, Replay
from partitioner.ir.units import format_size

LIBRARY_WORKSPACE = 8_519_680
"""Bytes that cuBLAS takes from PyTorch's allocator for each stream, unless it is told otherwise (``:4096:2:16:8``)."""

MOST_SHOWN = 5


@dataclass(frozen=True)
class Footprint:
    """The memory of one device at the moment at which most of it is taken. Sizes in bytes.

    Args:
        device: the torch device.
        at: the moment: an op, the backward of one, or the optimizer's step.
        parameters: those that are used there; tied ones once.
        buffers: buffers and constants, likewise.
        optimizer: what the optimizer keeps for these parameters.
        inputs: the call's arguments, which are the caller's, where they are read first.
        gradients: of parameters.
        activations: results of ops that something still uses.
        saved: what is kept for backward, whether something else uses it or not.
        copies: values of other devices.
        backward: gradients of activations, and what a backward takes while it runs.
        workspace: what an op takes while it runs, beyond its result.
        margin: what libraries take for themselves on an accelerator: no more than the values that they compute on.
        end: the bytes when forward is done.
        largest: who takes most of it, with bytes, largest first.
    """

    device: str
    at: str = ""
    parameters: int = 0
    buffers: int = 0
    optimizer: int = 0
    inputs: int = 0
    gradients: int = 0
    activations: int = 0
    saved: int = 0
    copies: int = 0
    backward: int = 0
    workspace: int = 0
    margin: int = 0
    end: int = 0
    largest: tuple[tuple[str, int], ...] = ()

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for; what takes none is left out."""
        names = (each.name for each in fields(self) if each.name not in ("device", "at", "end", "largest"))
        return {name: size for name in names if (size := getattr(self, name))}

    @cached_property
    def total(self) -> int:
        """All of it: the least cap under which the plan fits."""
        return sum(self.parts.values())

    @property
    def state(self) -> int:
        """What stays between calls, gradients left out."""
        return self.parameters + self.buffers + self.optimizer

    def __str__(self) -> str:
        lines = [f"{self.device}: {format_size(self.total)}{f' at {self.at}' if self.at else ''}"]
        lines += (f"  {name:<12} {format_size(size):>10}" for name, size in self.parts.items())
        return "\n".join([*lines, *([f"  largest: {self.contributors}"] if self.largest else [])])

    @property
    def purposes(self) -> str:
        """Bytes by what they are for, in words."""
        return ", ".join(f"{name} {format_size(size)}" for name, size in self.parts.items())

    @property
    def contributors(self) -> str:
        """Who takes most, in words."""
        return ", ".join(f"{name} {format_size(size)}" for name, size in self.largest[:MOST_SHOWN])


def footprints(plan: Plan) -> dict[str, Footprint]:
    """The footprint of a plan on each torch device that it uses; none where nobody knows what its ops take.

    Returns:
        By torch device, in the machine's order. Ops of lanes that run at the same time are taken to begin in issue order, in
        which an accelerator's memory is allocated.
    """
    memory = plan.memory
    if memory is None:
        return {}
    replay = Replay(plan.program, plan.tasks, memory)
    standing = list(_standing(plan, memory))
    forward = [*standing, *replay.forward()]
    changes = [*forward, *(_training(plan, memory, replay) if memory.training else ())]
    ends: Counter[str] = Counter()
    for change in forward:
        ends[change.device] += change.bytes
    used = {lane.torch_device for lane in (plan.machine.lanes[item.lane] for item in plan.program.instructions)}
    used |= {change.device for change in standing}
    margins = _margins(plan)
    peaks = _peaks(changes, len(standing))
    return {
        device: _at(device, peaks.get(device, len(standing) - 1), changes, margins.get(device, 0), ends[device])
        for device in plan.machine.places
        if device in used
    }


def _standing(plan: Plan, memory: Memory) -> Iterator[Change]:
    """What is there before the call: state, what the optimizer keeps, and the caller's inputs."""
    for device, name, weight in each_once(plan, memory.state):
        yield Change("", device, "parameters" if weight.parameter else "buffers", name, weight.bytes)
        yield Change("", device, "optimizer", f"{memory.optimizer.name} of {name}", weight.optimizer)
    seen: set[int] = set()
    for name in plan.program.inputs:
        device = plan.program.by_name[name].torch_device
        for number in memory.inputs.get(name, ()):
            if device and number not in seen:
                seen.add(number)
                yield Change("", device, "inputs", name, memory.storages[number].bytes)


def _training(plan: Plan, memory: Memory, replay: Replay) -> Iterator[Change]:
    """Backward, and the step after it."""
    yield from replay.backward()
    trained: defaultdict[str, list[int]] = defaultdict(list)
    for device, _, weight in each_once(plan, memory.state):
        if weight.gradient:
            trained[device].append(weight.gradient)
    for device, sizes in trained.items():
        size = memory.optimizer.stepping(sizes, together=not device.startswith("cpu"))
        yield Change("the optimizer's step", device, "workspace", memory.optimizer.name, size)


def _peaks(changes: list[Change], start: int) -> dict[str, int]:
    """The first change after which most is taken on each device, once what stands is there."""
    now: Counter[str] = Counter()
    most: dict[str, tuple[int, int]] = {}
    for index, change in enumerate(changes):
        now[change.device] += change.bytes
        if index >= start - 1 and now[change.device] > most.get(change.device, (-1, 0))[0]:
            most[change.device] = now[change.device], index
    return {device: index for device, (_, index) in most.items()}


def _at(device: str, index: int, changes: list[Change], margin: int, end: int) -> Footprint:
    """What is taken on a device after a change."""
    kinds: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for change in changes[: index + 1]:
        if change.device == device:
            kinds[change.kind] += change.bytes
            names[change.name] += change.bytes
    computed = sum(kinds[kind] for kind in ("activations", "saved", "copies", "backward"))
    largest = sorted(names.items(), key=lambda item: -item[1])
    at = changes[index].at if index >= 0 else ""
    shown = tuple((name, size) for name, size in largest[: 2 * MOST_SHOWN] if size > 0)
    return Footprint(device, at, **kinds, margin=min(margin, computed), end=end, largest=shown)


def _margins(plan: Plan) -> dict[str, int]:
    """What libraries take on each accelerator: a workspace for each stream that is used."""
    used = {item.lane for item in plan.program.instructions}
    found: Counter[str] = Counter()
    for number in used:
        lane = plan.machine.lanes[number]
        found[lane.torch_device] += 0 if lane.kind == "cpu" else LIBRARY_WORKSPACE
    return dict(found)


def least_cap(plan: Plan) -> int:
    """Bytes that the largest cap must have at least, whatever the plan.

    State, what the optimizer keeps, inputs, results and what backward needs lie somewhere when forward is done, so on one of n
    devices lies the n-th part of them. And where an op runs, there are what it takes, what it makes and the state that it uses.

    Args:
        plan: any plan of the graph, for its inputs, outputs and devices.

    Returns:
        0 where nobody knows what the graph's ops take.
    """
    memory = plan.memory
    if memory is None:
        return 0
    least = _least_sizes(plan, memory)
    weights = {each.storage: each for each in memory.state.values()}
    standing = sum(each.bytes + each.optimizer for each in weights.values())
    left = {number for name in (*plan.program.inputs, *plan.program.outputs) for number in memory.values.get(name, ())}
    left |= {number for each in memory.ops.values() for number in each.saved}
    ends = sum(least[number] for number in left) + sum(each.kept for each in memory.ops.values())
    devices = len(plan.machine.places)
    alone = (_alone(plan, memory, least, op) for op in memory.ops)
    return max(-(-(standing + ends) // max(1, devices)), max(alone, default=0))


def _least_sizes(plan: Plan, memory: Memory) -> list[int]:
    """Bytes that are left of each storage where it is least: a copy of a view, on another device, is as large as the view."""
    found = [each.bytes if each.origin != "state" else 0 for each in memory.storages]
    for name, numbers in memory.values.items():
        size = plan.graph.by_name[name].bytes if name in memory.ops else plan.program.by_name[name].bytes
        for number in numbers:
            found[number] = min(found[number], size // len(numbers))
    return found


def _alone(plan: Plan, memory: Memory, least: list[int], name: str) -> int:
    """Bytes that are on the device of an op when it ends, whatever else is there."""
    op, facts = plan.graph.by_name[name], memory.ops[name]
    numbers = {number for value in (*op.inputs, name) for number in memory.values.get(value, ())} | {*facts.saved}
    weights = {memory.state[used].storage: memory.state[used] for used in op.state if used in memory.state}
    return sum(least[number] for number in numbers) + facts.kept + sum(each.bytes + each.optimizer for each in weights.values())


def standing_bytes(plan: Plan) -> dict[str, int]:
    """Bytes that policies reckon with on each torch device: state, with its gradients and what the optimizer keeps."""
    if plan.memory is None:
        return resident_bytes(plan)
    found: Counter[str] = Counter()
    for device, _, weight in each_once(plan, plan.memory.state):
        found[device] += weight.total
    return dict(found)
