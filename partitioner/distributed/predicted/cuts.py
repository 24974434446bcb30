"""Stages that fit the memory of their ranks: what stands, and what microbatches in flight keep for their backwards.

    1f1b, 4 ranks        0         1         2         3
    in flight            4         3         2         1     microbatches
    even stages       10 s, 46   10 s, 38   10 s, 30   10 s, 22 GiB        of 40 there are
    fitted             8 s, 39   10 s, 39   11 s, 32   11 s, 23 GiB

In program order, and for a longest stage of at most so many seconds, each stage takes as many ops as it has time and room for:
what follows is never harder for it. The shortest longest stage for which all ops find a place is looked for by bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

from partitioner.distributed.pipeline.cut import Cut, Uncut, uncut
from partitioner.distributed.pipeline.evenly import cuts_between
from partitioner.distributed.pipeline.order import Action, order_of
from partitioner.distributed.pipeline.schedules import kind_of
from partitioner.distributed.pipeline.segments import ends_of, in_flight
from partitioner.distributed.predicted.loads import (
    Segments,
    StageLoad,
    held,
    held_by_a_rank,
    load_of,
    loads_of,
    run_again,
    stages_of,
)
from partitioner.distributed.predicted.prediction import Loads, bytes_of, fullest
from partitioner.distributed.traced.example import Example
from partitioner.frontend.analysis.held import memory_of
from partitioner.ir.graph import Op
from partitioner.ir.machine import Device
from partitioner.ir.memory import Memory
from partitioner.ir.optimizer import optimizer_named
from partitioner.planner.constraints import Constraints
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec

CLOSE = 5e-3
"""A longest stage that is so near the shortest one, relatively, is looked for no further."""

FAR = 0.8
"""A part of all work: where ranks would be full with less, all of it together, no places for cuts are looked for."""


def staged(example: Example, spec: Spec, asked: DistributedSpec, device: Device) -> Cut:
    """The model's graph in as many stages as are asked for, with room for gradients, what the optimizer keeps, and activations.

    Args:
        example: as `for_one_rank` gives it.
        spec: optimizer, profile.
        asked: mesh, schedule, wrapping.
        device: what each rank has.

    Raises:
        PlacementError: there are fewer places for cuts, or what stands fits in no way. Activations that fit in no way are no
            reason: `outlook` says by how much.
    """
    ready = uncut(example.traced, device, spec.profile)
    free = ready.into(asked.mesh.pipeline * asked.stages_per_rank)
    if device.memory is None:
        return free
    memory = memory_in(example, spec)
    cut = within(ready, free, memory, asked, device.memory)
    return cut if asked.mesh.branch > 1 else fitted(cut, _loads(cut, ready, memory, asked), ready, memory, asked, device.memory)


def memory_in(example: Example, spec: Spec) -> Memory:
    """What the ops of a microbatch take in training; the same on all ranks, whatever their processors."""
    return memory_of(example.traced, training=True, optimizer=optimizer_named(spec.optimizer), here=False)


def within(ready: Uncut, free: Cut, memory: Memory, asked: DistributedSpec, cap: int | None) -> Cut:
    """Stages as they are cut if there is no cap on memory, where what stands fits, for then no cap changes it; or others."""
    kept = held_by_a_rank(memory, asked)
    return free if cap is None or max(_standing(free, kept)) <= cap else ready.into(free.count, cap, kept)


def _standing(cut: Cut, memory: Memory) -> list[int]:
    """Bytes that each stage holds for good."""
    weights: list[dict[int, int]] = [{} for _ in range(cut.count)]
    for op in cut.graph.ops:
        found = (memory.state[key] for key in op.state if key in memory.state)
        weights[cut.stage[op.name]].update((weight.storage, weight.total) for weight in found)
    return [sum(each.values()) for each in weights]


def most_standing(ops: Sequence[Op], seconds: Mapping[str, float], memory: Memory, longest: float) -> float:
    """Bytes that a stage of some of these ops holds for good at most, if it takes no more than so many seconds.

    Args:
        ops: all there are.
        seconds: of each.
        memory: what a rank holds of each weight.
        longest: seconds of the stage.
    """
    sizes = ((sum(memory.state[key].total for key in {*op.state} & memory.state.keys()), seconds[op.name]) for op in ops)
    held = sorted(((size, each) for size, each in sizes if size), key=lambda pair: pair[1] / pair[0])
    found = 0.0
    for size, each in held:  # as many bytes for each second as there can be
        found += size * min(1.0, longest / each if each else 1.0)
        longest -= each
        if longest <= 0:
            break
    return found


def segments_in(cut: Cut, rules: Constraints, asked: DistributedSpec) -> list[Segments]:
    """The ops of each stage, by the segment in which a backward runs them again; of none, if nothing is run again."""
    return [_segments(ops, rules, asked) for ops in stages_of(cut)] if asked.recompute != "none" else []


def _segments(ops: Sequence[Op], rules: Constraints, asked: DistributedSpec) -> Segments:
    ends = ends_of(ops, rules, in_flight(asked)) if asked.recompute == "segments" else [len(ops)]
    return [ops[a:b] for a, b in pairwise([0, *ends])]


def _loads(cut: Cut, ready: Uncut, memory: Memory, asked: DistributedSpec) -> Loads:
    """What stages hold and keep; what comes back for what they pass is left out."""
    return loads_of(cut, memory, frozenset(), (), segments_in(cut, ready.rules, asked))


def fitted(
    cut: Cut,
    loads: Loads,
    ready: Uncut,
    memory: Memory,
    asked: DistributedSpec,
    cap: int,
    known: dict[tuple[int, int], StageLoad] | None = None,
) -> Cut:
    """Stages of which all fit the memory of their ranks, the longest as short as that allows; or the same, if none are found.

    Args:
        cut: stages as they are without microbatches in flight.
        loads: of these.
        ready: what they were cut from.
        memory: of its ops.
        asked: schedule, mesh, microbatches, recomputation; no branch axis.
        cap: bytes that a rank may use.
        known: what other ways to run the same ops again have found of stages between two places, and this one adds to.
    """
    have, kind = fullest(loads, asked), kind_of(asked)
    works = [
        sum(cut.seconds[each] for each in kind.stages_of(rank, len(have), asked.stages_per_rank)) for rank in range(len(have))
    ]
    if max(have) <= cap or sum(work * cap / size for work, size in zip(works, have, strict=True)) < FAR * sum(works):
        return cut
    row, best = _Row(ready, memory, asked, cap, {} if known is None else known), None
    low, high = sum(cut.seconds) / cut.count, sum(cut.seconds)
    while best is None or high > low * (1 + CLOSE):
        limit = high if best is None else (low + high) / 2
        ends = row.ends(limit, cut.count)
        if ends is not None:
            best = ready.at(ends, cut.bound)
            high = min(limit, max(best.seconds))
        elif best is None:
            return cut
        else:
            low = limit
    return best if max(fullest(_loads(best, ready, memory, asked), asked)) <= cap else cut


class _Row:
    """The ops in program order, and how many of them a stage has time and room for.

    Args:
        ready: the graph.
        memory, asked, cap, loads: as for `fitted`.
    """

    def __init__(
        self, ready: Uncut, memory: Memory, asked: DistributedSpec, cap: int, loads: dict[tuple[int, int], StageLoad]
    ) -> None:
        self.ops, self.rules, self.memory, self.asked, self.cap = ready.row.ops, ready.rules, memory, asked, cap
        sums = [0.0, *accumulate(ready.seconds[op.name] for op in self.ops)]
        self.cuts = cuts_between(self.ops, self.rules)
        self.until = [sums[cut] for cut in self.cuts]
        self.outputs = frozenset(ready.graph.outputs)
        self.last = {name: place for place, op in enumerate(self.ops) for name in op.inputs}
        self.last |= dict.fromkeys(self.outputs, len(self.ops))
        self.order = order_of(asked.schedule, asked.mesh.pipeline, asked.stages_per_rank, asked.microbatches)
        self.standing = {each.storage: held(each, asked).total for each in memory.state.values()}
        self.loads, self.borders = loads, dict[int, list[str]]()

    def ends(self, limit: float, count: int) -> list[int] | None:
        """After how many ops each stage ends, if none takes more seconds than ``limit``; ``None`` if some op finds no place."""
        kind, ranks = kind_of(self.asked), [dict[int, StageLoad]() for _ in self.order]
        found, begin = list[int](), 0
        for stage in range(count):
            soonest = bisect_right(self.until, self.until[begin] + limit * (1 + 1e-12)) - 1
            most = min(soonest, len(self.cuts) - (count - stage))  # each stage behind needs some, too
            rank = kind.holder(stage, len(ranks))
            place = self._put(stage, ranks[rank], self.order[rank], begin, most)
            if place == begin:
                return None
            found.append(self.cuts[place])
            begin = place
        return found if begin == len(self.cuts) - 1 else None

    def _put(self, stage: int, rank: dict[int, StageLoad], actions: Sequence[Action], begin: int, most: int) -> int:
        """Give a rank one more stage, as large as it has room for: as much as is left, shared with those behind.

        Returns:
            The place where it ends; ``begin`` if there is no room.
        """
        used = bytes_of(rank, actions, self.asked, self.standing) if rank else 0
        room = used + (self.cap - used) // (self.asked.stages_per_rank - len(rank))

        def fits(place: int) -> bool:
            return bytes_of(rank | {stage: self._load(begin, place)}, actions, self.asked, self.standing) <= room

        place = _reach(begin, most, max(1, len(self.cuts) // (len(self.order) * self.asked.stages_per_rank)), fits)
        if place > begin:
            rank[stage] = self._load(begin, place)
        return place

    def _load(self, begin: int, end: int) -> StageLoad:
        """What a stage between two places for cuts holds, and leaves for its backward."""
        if (begin, end) not in self.loads:
            ops = self.ops[self.cuts[begin] : self.cuts[end]]
            load = load_of(ops, self.memory)
            if self.asked.recompute != "none":
                left, inside = {*self._border(end), *self.outputs}, {op.name for op in ops}
                parts = _segments(ops, self.rules, self.asked)
                load = run_again(load, parts, self._border(begin), left, self.memory, inside)
            self.loads[begin, end] = load
        return self.loads[begin, end]

    def _border(self, place: int) -> list[str]:
        """The values that pass a place for cuts."""
        if place not in self.borders:
            cut = self.cuts[place]
            self.borders[place] = [op.name for op in self.ops[:cut] if self.last.get(op.name, -1) >= cut]
        return self.borders[place]


def _reach(begin: int, most: int, step: int, fits: Callable[[int], bool]) -> int:
    """The last place up to ``most`` for which something still holds; ``begin`` if it does not even for the next one.

    It is asked of places nearby first, for what is far takes long: in a ``step``, then in four.

    >>> _reach(2, 9, 3, lambda place: place < 6)
    5
    """
    while begin < most:
        far = min(begin + step, most)
        if not fits(far):
            return begin + bisect_left(range(begin + 1, far), True, key=lambda place: not fits(place))
        begin, step = far, 4 * step
    return begin
