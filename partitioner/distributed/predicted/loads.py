"""What the stages of a cut hold and move: the weights of their ops, what a microbatch leaves for backward, what passes borders.

These are figures of the cut alone; a schedule, the number of microbatches and the copies come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.predicted.branchtimes import Branches
from partitioner.ir.graph import Op
from partitioner.ir.memory import Memory, Weight
from partitioner.spec.distributed import DistributedSpec

Segments = Sequence[Sequence[Op]]
"""The ops of a stage, by the segment in which a backward runs them again."""

BACKWARD = 2.0
"""How much longer a stage's backward is taken to last than its forward."""


@dataclass(frozen=True, eq=False)
class StageLoad:
    """One stage, or what one rank of a branch axis has of it.

    Args:
        weights: the state that it uses, by storage.
        kept: bytes that a microbatch leaves for backward.
        working: bytes that an op takes at most while it runs, forwards or backwards, beyond what it leaves.
        passed: bytes of what passes to the next stage.
        returned: bytes of the gradients that come back for it.
        exchanged: seconds of its forward in which the ranks of a tensor axis pass on what they have.
        forward: seconds of one microbatch.
        backward: likewise, for inputs and weights together.
        again: in which its forward is run again before a backward, or before each half of one; 0 where all was kept.
        later: bytes that a microbatch leaves between the halves of a backward.
    """

    weights: Mapping[int, Weight]
    kept: int
    working: int
    passed: int
    returned: int
    exchanged: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    again: float = 0.0
    later: int = 0

    @cached_property
    def parameters(self) -> int:
        """Bytes of its parameters."""
        return sum(each.bytes for each in self.weights.values() if each.parameter)

    @cached_property
    def gradients(self) -> int:
        """Bytes of their gradients."""
        return sum(each.gradient for each in self.weights.values())


def backwards(forward: float, exchanged: float) -> float:
    """Seconds of the backward of so long a forward, in part of which ranks of a tensor axis passed on what they had.

    >>> backwards(forward=5.0, exchanged=1.0)
    9.0
    """
    return BACKWARD * (forward - exchanged) + exchanged


def loads_of(
    cut: Cut,
    memory: Memory,
    differentiable: Set[str],
    branches: Sequence[Branches] = (),
    segments: Sequence[Segments] = (),
) -> tuple[tuple[StageLoad, ...], ...]:
    """What each stage holds and moves: of each stage, what each rank of a branch axis does.

    Args:
        cut: the stages.
        memory: of the ops of its graph, training.
        differentiable: the values that have a gradient.
        branches: of each stage, if there is a branch axis.
        segments: of each stage, if a backward runs them again.
    """
    return tuple(
        _of_stage(cut, number, ops, memory, differentiable, [*branches[number : number + 1]], [*segments[number : number + 1]])
        for number, ops in enumerate(stages_of(cut))
    )


def stages_of(cut: Cut) -> list[list[Op]]:
    """The ops of each stage, in order."""
    inside: list[list[Op]] = [[] for _ in range(cut.count)]
    for op in cut.graph.ops:
        inside[cut.stage[op.name]].append(op)
    return inside


def _of_stage(
    cut: Cut,
    number: int,
    ops: Sequence[Op],
    memory: Memory,
    differentiable: Set[str],
    branches: Sequence[Branches],
    segments: Sequence[Segments],
) -> tuple[StageLoad, ...]:
    """One stage, by the rank of the branch axis."""
    border = cut.borders[number] if number < cut.count - 1 else ()
    sizes = {name: cut.graph.by_name[name].bytes for name in border}
    passed, returned = sum(sizes.values()), sum(size for name, size in sizes.items() if name in differentiable)
    forward, exchanged = cut.seconds[number], sum(op.exchange for op in ops)
    shares, seconds = [ops], (forward, backwards(forward, exchanged))
    for each in branches:
        shares = [[op for op in ops if each.owner[op.name] == rank] for rank in range(each.ranks)]
        seconds = each.forward, each.backward
    found = []
    for share in shares:
        load = replace(load_of(share, memory), passed=passed, returned=returned, forward=seconds[0], backward=seconds[1])
        for parts in segments:
            received = cut.borders[number - 1] if number else ()
            left = {*border, *cut.graph.outputs}
            load = run_again(load, parts, received, left, memory, {op.name for op in share})
        found.append(load)
    return tuple(found)


def load_of(ops: Sequence[Op], memory: Memory) -> StageLoad:
    """What ops hold, and leave for their backward; it passes nothing and takes no time."""
    weights = {memory.state[key].storage: memory.state[key] for op in ops for key in op.state if key in memory.state}
    kept, exchanged = kept_of(memory, ops), sum(op.exchange for op in ops)
    return StageLoad(weights, kept, _working(memory, ops), passed=0, returned=0, exchanged=exchanged, later=kept)


def run_again(
    load: StageLoad, segments: Segments, received: Iterable[str], left: Set[str], memory: Memory, inside: Set[str]
) -> StageLoad:
    """A stage that keeps what passes into its segments, and the buffers that they write as these were.

    Args:
        load: where all is kept.
        segments: of the stage.
        received: what comes from the stage before.
        left: what goes to the stage behind, or is a result.
        memory: of its ops.
        inside: those of one rank of a branch axis.
    """
    kept, names = 0, set(received)
    for place, ops in enumerate(segments):
        made = {op.name for op in ops}
        names |= {name for op in ops for name in op.inputs} - made
        names |= made & left if place + 1 < len(segments) else set()  # it passes through the segments behind
        written = {access.resource for op in ops for access in op.accesses if access.write}
        keys = {key for op in ops for key in op.state if f"self.{key}" in written and key in memory.state}
        kept += sum(memory.state[key].bytes for key in keys)
    numbers = {number for name in names for number in memory.values.get(name, ())}
    kept += sum(memory.storages[number].bytes for number in numbers)
    shares = ([op for op in ops if op.name in inside] for ops in segments)
    working = max((kept_of(memory, ops) + _working(memory, ops) for ops in shares), default=0)
    return replace(load, kept=kept, working=working, again=load.forward, later=kept + load.later)


def _working(memory: Memory, ops: Iterable[Op]) -> int:
    """Bytes that an op takes at most while it runs, forwards or backwards."""
    return max((max(memory.ops[op.name].workspace, memory.ops[op.name].backward) for op in ops), default=0)


def kept_of(memory: Memory, ops: Iterable[Op]) -> int:
    """Bytes that a microbatch leaves for backward; a storage that several ops save, once."""
    found = [memory.ops[op.name] for op in ops]
    saved = {number for each in found for number in each.saved if memory.storages[number].origin != "state"}
    return sum(memory.storages[number].bytes for number in saved) + sum(each.kept for each in found)


def held(weight: Weight, asked: DistributedSpec) -> Weight:
    """What a rank has of a weight, for the wrapping that is asked for.

    DDP sums gradients in buckets, which are a second copy of them. FSDP2 shards a parameter, its gradient and the optimizer's
    state; but a stage is one group of it, and its schedule keeps a group whole, with its gradients, from the first forward to
    the last backward. So while a step lasts a rank has all of both, beside its part.

    Example:
        >>> asked = DistributedSpec(mesh={"data": 4}, wrap="fsdp2")
        >>> held(Weight(0, 800, parameter=True, gradient=800, optimizer=1600), asked).total
        2400
    """
    copies = asked.mesh.data
    if copies == 1 or asked.wrap == "none":
        return weight
    if asked.wrap == "ddp":
        return replace(weight, gradient=2 * weight.gradient)
    part = _share(weight.bytes, copies) if weight.parameter else 0
    gradient, optimizer = weight.gradient + _share(weight.gradient, copies), _share(weight.optimizer, copies)
    return replace(weight, bytes=weight.bytes + part, gradient=gradient, optimizer=optimizer)


def _share(size: int, copies: int) -> int:
    return -(-size // copies)


def held_by_a_rank(memory: Memory, asked: DistributedSpec) -> Memory:
    """The memory of a model, with each weight as `held`."""
    return replace(memory, state={key: held(weight, asked) for key, weight in memory.state.items()})
