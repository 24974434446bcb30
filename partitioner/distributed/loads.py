"""What the stages of a cut hold and move: the weights of their ops, what a microbatch leaves for backward, what passes borders.

These are figures of the cut alone; a schedule, the number of microbatches and the copies come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

from partitioner.distributed.cut import Cut
from partitioner.ir.graph import Op
from partitioner.ir.memory import Memory, Weight
from partitioner.spec.distributed import DistributedSpec


@dataclass(frozen=True, eq=False)
class StageLoad:
    """One stage.

    Args:
        weights: the state that it uses, by storage.
        kept: bytes that a microbatch leaves for backward.
        working: bytes that an op takes at most while it runs, forwards or backwards, beyond what it leaves.
        passed: bytes of what passes to the next stage.
        returned: bytes of the gradients that come back for it.
        exchanged: seconds of its forward in which the ranks of a tensor axis pass on what they have.
    """

    weights: Mapping[int, Weight]
    kept: int
    working: int
    passed: int
    returned: int
    exchanged: float = 0.0

    @cached_property
    def parameters(self) -> int:
        """Bytes of its parameters."""
        return sum(each.bytes for each in self.weights.values() if each.parameter)

    @cached_property
    def gradients(self) -> int:
        """Bytes of their gradients."""
        return sum(each.gradient for each in self.weights.values())


def loads_of(cut: Cut, memory: Memory, differentiable: Set[str]) -> tuple[StageLoad, ...]:
    """What each stage holds and moves.

    Args:
        cut: the stages.
        memory: of the ops of its graph, training.
        differentiable: the values that have a gradient.
    """
    inside: list[list[Op]] = [[] for _ in range(cut.count)]
    for op in cut.graph.ops:
        inside[cut.stage[op.name]].append(op)
    borders, sizes = (*cut.borders, ()), {op.name: op.bytes for op in cut.graph.ops}
    return tuple(
        StageLoad(
            {memory.state[key].storage: memory.state[key] for op in ops for key in op.state if key in memory.state},
            _kept(memory, ops),
            max((max(memory.ops[op.name].workspace, memory.ops[op.name].backward) for op in ops), default=0),
            sum(sizes[name] for name in border),
            sum(sizes[name] for name in border if name in differentiable),
            sum(op.exchange for op in ops),
        )
        for ops, border in zip(inside, borders, strict=True)
    )


def _kept(memory: Memory, ops: Iterable[Op]) -> int:
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
