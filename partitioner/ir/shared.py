"""How the ops of a graph may be shared out over the ranks of a tensor axis, what passes between ranks, and what was chosen.

    linear    x, weight, bias     R, R, R -> R     R, S(0), S(0) -> S(2)     S(2), S(1), P -> P
    relu      linear              R -> R           S(2) -> S(2)

A value that an op reads in another form than it has is converted: cut, gathered, summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from partitioner.ir.machine import DEFAULT_LINK
from partitioner.ir.sharding import F, Placement, R

Step = tuple[Placement, Placement]
"""A conversion: from a form to a form."""


@dataclass(frozen=True)
class Rule:
    """One way in which an op works on parts with no word to other ranks.

    Args:
        inputs: the placement of each of its inputs.
        output: of its result.
        seconds: how long one rank's share takes.
    """

    inputs: tuple[Placement, ...]
    output: Placement
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.inputs))} -> {self.output}"


@dataclass(frozen=True)
class ShardedOp:
    """An op that is to be shared out.

    Args:
        name: of the op.
        inputs: the values that it reads, each once.
        rules: ways to do it; one of them on whole values.
    """

    name: str
    inputs: tuple[str, ...]
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Whole:
    """A value before it is shared out.

    Args:
        bytes: of the whole.
        grad: whether a gradient comes back.
        fixed: whether it stays in the form in which it is made: what is written in place, what is no tensor.
        state: whether it is a parameter or a buffer, which may begin in any form that is R or S.
        held: of state, bytes that a rank keeps for all of it, what the optimizer has for it included.
        matrix: of state, whether it has two dimensions or more, as nearly all of a model's parameters are in such.
    """

    bytes: int
    grad: bool
    fixed: bool = False
    state: bool = False
    held: int = 0
    matrix: bool = False


@dataclass(frozen=True)
class Axis:
    """The ranks of a tensor axis, and the links between them.

    Args:
        ranks: how many.
        bandwidth: bytes a second of each rank's link.
        latency: seconds from one rank to the next.
        halves: whether a part of a sum costs half of the whole sum, as on rings. Gloo, on CPUs, sums all and drops the rest.
    """

    ranks: int
    bandwidth: float = DEFAULT_LINK.bandwidth
    latency: float = DEFAULT_LINK.latency
    halves: bool = True

    def seconds(self, step: Step, size: int, grad: bool) -> tuple[float, float] | None:
        """What a conversion takes forwards and backwards; ``None`` of one that there is not.

        Rings pass 2 (n - 1) / n of the bytes for a sum that all have, and (n - 1) / n for one half of that: parts of a sum, or
        a whole of parts. Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
        MPICH", 2005.

        >>> from partitioner.ir.sharding import P, R
        >>> Axis(2, bandwidth=1e9, latency=0.0).seconds((P, R), 10**9, grad=True)
        (1.0, 0.0)
        """
        half = (self.ranks - 1) * (size / self.ranks / self.bandwidth + self.latency)
        part = 1 if self.halves else 2
        passed = {("P", "R"): (2, 0), ("S", "R"): (1, 0), ("R", "S"): (0, 1), ("P", "S"): (part, 1), ("S", "F"): (1, part)}
        passed |= {("R", "F"): (0, 2), ("R", "P"): (0, 0)}
        found = passed.get((step[0].kind, step[1].kind))
        return None if found is None else (found[0] * half, found[1] * half * grad)

    def way(self, have: Iterable[Placement], need: Placement, size: int, grad: bool) -> tuple[float, tuple[Step, ...]] | None:
        """The cheapest conversions from forms that there are: seconds, forwards and backwards, and the steps.

        >>> from partitioner.ir.sharding import F, P
        >>> seconds, steps = Axis(2).way([P], F, 1024, grad=True)
        >>> [f"{source} -> {target}" for source, target in steps]
        ['P -> R', 'R -> F']
        """
        return _way(self, tuple(have), need, size, grad)


@cache
def _way(
    axis: Axis, have: tuple[Placement, ...], need: Placement, size: int, grad: bool
) -> tuple[float, tuple[Step, ...]] | None:
    need = R if need == F and not grad else need
    if need in have:
        return 0.0, ()
    ways = [((source, need),) for source in have] + [((source, R), (R, need)) for source in have if R not in (source, need)]
    priced = []
    for steps in ways:
        costs = [axis.seconds(step, size, grad) for step in steps]
        if None not in costs:
            priced.append((sum(sum(cost) for cost in costs if cost), steps))
    return min(priced, key=lambda each: each[0], default=None)


@dataclass(frozen=True)
class Sharding:
    """How each op of a graph is done, and how each state is held.

    Args:
        axis: the ranks.
        rules: by the op's name.
        state: by the name of the graph's input.
        cost: what the choice was made by: seconds of work and of what is sent, and the price of what every rank holds.
        proven: whether no other choice under these rules costs less.
    """

    axis: Axis
    rules: Mapping[str, Rule]
    state: Mapping[str, Placement]
    cost: float = 0.0
    proven: bool = True

    def __str__(self) -> str:
        lines = [f"sharding over {self.axis.ranks} ranks"]
        lines += [f"  {name}  {held}" for name, held in self.state.items() if held != R]
        lines += [f"  {name}: {rule}" for name, rule in self.rules.items() if rule.output != R]
        return "\n".join(lines)
