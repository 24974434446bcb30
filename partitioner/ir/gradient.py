"""Gradients of one call: for each tensor, the op that made it and the ops that add to its gradient.

An op that reads a tensor adds a *part* to its gradient, once for each time that its backward uses it. Autograd runs backward
from the last op to the first, so the parts of one tensor are summed in that order:

    h = stem(x); a = left(h); b = right(h); c = h + a        gradient of h = (part of c + part of b) + part of a
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partitioner.errors import PartitionerError
from partitioner.ir.program import Program
from partitioner.ir.segment import Segment


class BackwardError(PartitionerError):
    """Backward cannot run on the lanes of the forward; the message is the reason, without a full stop."""


@dataclass(frozen=True)
class Part:
    """What one op adds to the gradient of a tensor.

    Args:
        op: name of the op.
        value: the name under which it reads the tensor; ``""`` if it reads a view of it, and writes that in place.
        leaf: which tensor of that value it is, where the value is a list, a tuple or a dict of them; otherwise ``None``.
        count: how many terms it adds; 0 if it adds none in the call that was watched.
    """

    op: str
    value: str
    leaf: int | None = None
    count: int = 1


@dataclass(frozen=True)
class Gradient:
    """The gradient of one tensor.

    Args:
        value: name of the op's result, or of the argument, that is the tensor or holds it.
        leaf: which tensor of that value it is, where the value holds several; otherwise ``None``.
        maker: the op that made it, ``""`` for an argument.
        parts: what ops add to it, in program order.
        results: positions of the graph's results that are this tensor.
    """

    value: str
    leaf: int | None
    maker: str
    parts: tuple[Part, ...] = ()
    results: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The value's name, with the number of the tensor if it holds several."""
        return self.value if self.leaf is None else f"{self.value}.{self.leaf}"

    def term(self, part: Part) -> str:
        """The name of a part as a value of a program: ``h/linear_1``, what `linear_1` adds to the gradient of `h`."""
        return f"{self.name}/{part.op}"

    @property
    def given(self) -> str:
        """The name of what the caller's loss adds, as a value of a program."""
        return f"{self.name}/caller"


@dataclass(frozen=True)
class Step:
    """The backward of one segment.

    Args:
        segment: whose.
        sums: for each tensor that the segment made and others read, by name, the terms of its gradient in the order in which
            they are summed.
        terms: what the segment's own ops add to gradients of tensors that it did not make.
        leads: by the name of a tensor that it made, those of its terms to which the gradient of that one flows on.
    """

    segment: Segment
    sums: tuple[tuple[str, tuple[str, ...]], ...]
    terms: tuple[str, ...]
    leads: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Backward:
    """How the backward of a program, or of one section of its graph (`lower.sections`), runs on its lanes.

    Args:
        program: what each lane does, a verified program; its Runs are called after the steps. ``None`` where the thread that
            asks for it does all of it.
        steps: by the name of their segment.
        gradients: those that are handed over between segments, or come from or go to the caller; of their parts those alone
            that an op of another segment than the maker's adds, in the order in which they are summed: the last op's first.
        apart: arguments that some result is not made of, while another one is.
        views: ops, where all that they do is to give another view of a result; the caller gets one of what stands for that.
    """

    program: Program | None
    steps: dict[str, Step]
    gradients: tuple[Gradient, ...]
    apart: frozenset[str] = frozenset()
    views: tuple[str, ...] = ()

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The tensors whose gradients it begins with, by name."""
        return tuple(gradient.name for gradient in self.gradients if gradient.results)

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """What it adds to gradients of arguments, by name."""
        return tuple(one.term(part) for one in self.gradients if not one.maker for part in one.parts)

    def toward(self, wanted: Collection[str]) -> frozenset[str]:
        """The terms from which gradients flow on to some of them, and these.

        Args:
            wanted: terms of arguments, by name.
        """
        found = set(wanted)
        for step in self.steps.values():
            for tensor, terms in step.sums:
                if not found.isdisjoint(step.leads[tensor]):
                    found.update(terms)
        return frozenset(found)


def same_sum(eager: Sequence[int], ours: Sequence[Sequence[int]]) -> bool:
    """Whether two sums of numbered terms have the same bits: of ``eager`` one after the other, and of sums of groups of them.

    Floating-point addition is not associative, so only the first group may have several terms. It is commutative, but the first
    term gives the sum its strides, and with them the order in which a later reduction adds up its elements.

    Example:
        >>> same_sum([3, 2, 1], [[3], [2], [1]]), same_sum([3, 2, 1], [[3, 2], [1]])
        (True, True)
        >>> same_sum([3, 2, 1], [[3], [2, 1]]), same_sum([3, 2, 1], [[2], [3], [1]])
        (False, False)
    """
    groups = [group for group in ours if group]
    return [term for group in groups for term in group] == list(eager) and all(len(group) == 1 for group in groups[1:])
