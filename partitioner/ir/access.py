"""What ops touch, and the one rule that orders those that touch the same.

A *resource* is anything two ops can disagree about: a storage (named after the op, input or parameter that made it) or a
token such as `RNG`. `ANY` stands for every resource at once and is what an op of unknown effects writes.

**The one hazard rule.** Two accesses to one resource, at least one of them a write, keep their program order. Read after
write, write after read and write after write all follow from it; in-place ops, views, buffers, random generators and
modules that are called twice need no rule of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

ANY = "*"
CAST = "cast of "
RNG = "rng"
LATER = "rng in backward"
SENT = "sent between ranks"
CHECKED = "checks"

Name = TypeVar("Name", bound=Hashable)

TOKENS = frozenset({ANY, RNG, LATER, SENT, CHECKED})
"""Resources that are no storage: everything, the random generator, the generator as it will be used in backward, the order
in which the ranks of a job send to each other, which must be one on all of them, and whether all is well so far: a check writes
that, and what outlives a call that fails reads it.

Autograd runs the backward of what one thread made in reverse order; between threads it knows no order. So what ranks send in
backward counts as a use of the generator there.
"""


def is_storage(resource: str) -> bool:
    """Whether a resource is memory, which lies somewhere: no token, and not what autocast keeps of a storage, after `CAST`.

    Example:
        >>> [is_storage(each) for each in ("self.weight", "cast of self.weight", RNG)]
        [True, False, False]
    """
    return resource not in TOKENS and not resource.startswith(CAST)


@dataclass(frozen=True, order=True)
class Access:
    """One op's use of one resource."""

    resource: str
    write: bool = False

    def __str__(self) -> str:
        return f"{'w' if self.write else 'r'}:{self.resource}"


def modes(accesses: Iterable[Access]) -> dict[str, bool]:
    """By resource, whether any of the accesses to it is a write."""
    found: dict[str, bool] = {}
    for access in accesses:
        found[access.resource] = access.write or found.get(access.resource, False)
    return found


def merged(accesses: Iterable[Access]) -> tuple[Access, ...]:
    """One access to each resource, a write if any is, in the order of their names.

    >>> [str(each) for each in merged([Access("y"), Access("x"), Access("y", write=True)])]
    ['r:x', 'w:y']
    """
    return tuple(Access(resource, write) for resource, write in sorted(modes(accesses).items()))


def hazards(program: Iterable[tuple[Name, Sequence[Access]]]) -> Iterator[tuple[Name, Name]]:
    """The pairs that the one hazard rule orders, for ``(name, accesses)`` in program order.

    Pairs that follow from others are left out: a write is ordered after the reads since the last write and after that
    write, a read after the last write.

    Example:
        >>> r, w = Access("x"), Access("x", write=True)
        >>> list(hazards([("a", [w]), ("b", [r]), ("c", [r]), ("d", [w])]))
        [('a', 'b'), ('a', 'c'), ('a', 'd'), ('b', 'd'), ('c', 'd')]
    """
    writer: dict[str, Name] = {}
    readers: defaultdict[str, list[Name]] = defaultdict(list)
    fence: Name | None = None
    since_fence: list[Name] = []
    for name, accesses in program:
        before: dict[Name, None] = {}
        touched = modes(accesses)
        if fence is not None:
            before[fence] = None
        if ANY in touched:
            before.update(dict.fromkeys(since_fence))
            fence, since_fence = name, []
            writer.clear()
            readers.clear()
        else:
            for resource, write in touched.items():
                if resource in writer:
                    before[writer[resource]] = None
                if write:
                    before.update(dict.fromkeys(readers.pop(resource, ())))
                    writer[resource] = name
                else:
                    readers[resource].append(name)
            since_fence.append(name)
        for earlier in before:
            yield earlier, name


def conflict(one: Iterable[Access], other: Iterable[Access]) -> str | None:
    """The resource on which two sets of accesses conflict, or ``None``.

    Example:
        >>> conflict([Access("x")], [Access("x", write=True)])
        'x'
        >>> conflict([Access("x")], [Access("x")]) is None
        True
    """
    mine, theirs = modes(sorted(one)), modes(other)
    if (ANY in mine and theirs) or (ANY in theirs and mine):
        return ANY
    for resource, write in mine.items():
        if resource in theirs and (write or theirs[resource]):
            return resource
    return None
