"""Programs of another round: small expressions of values that differ from call to call.

Each is judged as the programs of `hostile` are: it does what the plain model does. It tells what went wrong.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, holding_in, kept_in, raised, rand
from lanes import OLD_TORCH
from torch import Tensor

ROUNDS: dict[str, Program] = {}

another = kept_in(ROUNDS)

pytestmark = pytest.mark.usefixtures("scattering")


# -- random numbers ------------------------------------------------------------------------------------------------------------


class Draws(Two):
    """Draws with a probability that the module holds."""

    probability = 0.0

    def forward(self, x: Tensor) -> list[Tensor]:
        kept = torch.native_dropout(x * 2, self.probability, True)[1]
        first = torch.normal(0.5, 1.0, (2,))
        chosen = self.left(x).bernoulli(self.probability)
        return [kept, first, chosen, torch.rand(2), x.clone().bernoulli_(self.probability), self.right(x), torch.rand(2)]


@another(Draws)
def probability_of_zero(run: Run) -> Steps:
    """A dropout of zero draws nothing, so all that had a ``p`` of zero was taken to draw none, and ran before others."""
    for probability in (0.0, 0.5, 0, 1.0):
        run.module.probability = probability
        yield run(rand()), torch.rand(1)


# -- what Python has in C ------------------------------------------------------------------------------------------------------


class Level(IntEnum):
    LOW = 0
    HIGH = 2


class Known(Enum):
    FIRST = 0
    OTHER = 1
    THIRD = 2

    def __init__(self, number: int) -> None:
        self.twice = number * 2

    @classmethod
    def _missing_(cls, value: object) -> Known:
        return cls.OTHER


class Place:
    """Says which number it is."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


class Keys:
    """Has keys and items, and is no mapping."""

    def __init__(self, items: dict[str, int]) -> None:
        self.items = items

    def keys(self) -> list[str]:
        return list(self.items)

    def __getitem__(self, key: str) -> int:
        return self.items[key]


class Base:
    __match_args__: tuple[str, ...] = ("a",)

    def __init__(self) -> None:
        self.a, self.b = 1, 2


class Holds:
    """Says how often something is in it, and Python whether."""

    def __contains__(self, item: object) -> Any:
        return 2


class Asked:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.times = 0

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        self.times += 1
        return self.times


class Heir(Base):
    __match_args__ = ("b",)


class Plain:
    pass


held = holding_in(ROUNDS)


LISTS = [1, 3], [], [2, 1]


def _sets(v: list[int], _: int) -> Any:
    seen, other = {1, 2}, {1, 2, 3}
    seen.difference_update(each for each in v)
    other.intersection_update(map(int, v))
    some = frozenset({1, 2})
    return seen, other, some.union(each for each in v), {1, 2}.difference(iter(v)), {1, 2}.intersection(map(abs, v))


# what is in an iterator was lost: it was looked through to see whether all of it can be hashed
held(_sets, *LISTS)


def _taken(v: list[int], _: int) -> Any:
    found: list[Any] = []
    takes: list[Callable[[Any], Any]] = [lambda i: max(i, default=0), sum, sorted, set, math.prod, lambda i: 3 in i]
    for take in takes:
        each = iter(v)
        found.append((take(each), list(each)))
    return found


# and an iterator over a list had all of its items still, when they had been taken
held(_taken, *LISTS)


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TypeError:
        return None


# numbers of other classes: the first one was not 0, the float was a whole number, the slice an error, none was counted
held(lambda v, n: (list(enumerate("ab", v)), float(Place(n)), range(3).count(v)), Level.LOW, Level.HIGH, 1, True)
held(lambda v, n: (torch.ones(5)[Place(v) :], [1, 2, 3][: Place(n - 2)]), 1, 0, 3)  # type: ignore[misc]
# these were errors, and the last one was none
held(lambda v, _: (_or_none(lambda: dict(Keys(v))), _or_none(lambda: OrderedDict(Keys(v)))), {"a": 1}, {"b": 2}, {})
held(lambda v, _: _or_none(lambda: next(v)), *LISTS)
# a frozenset's union with nothing was that very one, and what a class is given that is none of its objects was no error
held(lambda v, _: (lambda some: (some.union() is some, some.copy() is some))(frozenset(v)), *LISTS)
held(
    lambda v, _: (_or_none(lambda: set.intersection(v, {1})), _or_none(lambda: list.append(v, 1))),
    frozenset({1, 2}),
    frozenset(),
)
# the member that an open number names was initialised with that number
held(lambda v, n: (Known(v).twice, Known(n).name), 0, 1, 2, 7)
# two numbers of different classes are compared by the other one's method, which is for Python to say
held(lambda v, _: (v.__eq__(1.0), v.__ne__("a"), (1.5).__eq__(v)), 1, 2.0, True, "a")


def _matched(v: Any, _: int) -> Any:
    match v:
        case int(number):
            return number
        case Base(found):
            return found
        case Plain(found):  # an error: it has no attributes by position
            return found
    return None


# the attributes were those of the object's class, and not of the class that is named
held(lambda v, n: raised(lambda: _matched(v, n)), Base(), Heir(), 3, Plain(), True)

# what ``__contains__`` gives was the answer
ASKS_ITSELF = "its tracer asks for no bool" if OLD_TORCH else ""
held(lambda v, _: (1 in v, 2 not in v), Holds(), [1], Holds(), limit=ASKS_ITSELF)
# an object was asked again by the guards, and counted that
held(lambda v, _: (getattr(v, "one", 5), hasattr(v, "other"), v.times), Asked(), Asked(), Asked())


class Slotted:
    __slots__ = ("state",)


class Deletes(Two):
    """Deletes what may not be there."""

    shared = 5

    def __init__(self) -> None:
        super().__init__()
        self.state, self.slotted = 1, Slotted()

    def forward(self, x: Tensor) -> tuple[Tensor, list[str]]:
        deleted = []
        try:
            del self.state
            deleted.append("state")
            del self.slotted.state
            deleted.append("state in a slot")
            del self.shared
            deleted.append("what the class has, too")
        except AttributeError:
            deleted.append("nothing")
        return self.left(x) + self.right(x), deleted


@another(Deletes)
def attributes_that_are_deleted(run: Run) -> Steps:
    """It was no error where there was none, but for objects with a dictionary."""
    for number in range(5):
        if number != 1:
            run.module.state = number
        if number > 2:
            run.module.slotted.state = number
        if number == 4:
            run.module.shared = 7
        yield run(rand()), run.module.shared


# -- what partition() leaves behind --------------------------------------------------------------------------------------------


class Counts:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls, self.log = 0, list[int]()

    def scaled(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.log.append(self.calls)
        return x * self.calls


def _counted() -> int:
    _counted.log.append(1)  # type: ignore[attr-defined]
    return len(_counted.log)  # type: ignore[attr-defined]


@functools.lru_cache
def _cached(_: int) -> int:
    LOG.append(1)
    return len(LOG)


LOG: list[int] = []


class Asks(Two):
    """Holds what something else holds alone: a method its object, a function its attributes, a view of a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = Counts().scaled
        self.options = MappingProxyType({"seen": list[int]()})
        self.error = ValueError(0)
        LOG.clear()
        _cached.cache_clear()
        _counted.log = []  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Any:
        seen = self.options["seen"]
        seen.append(len(seen))
        self.error.args = (self.error.args[0] + 1,)
        told = _counted(), _cached(len(seen)), len(seen), self.error.args
        return self.scaled(self.left(x)) + self.right(x), told


@another(Asks)
def what_is_held_by_what_is_called(run: Run) -> Steps:
    """It had counted all the calls that `partition` had made to look at the model."""
    for _ in range(3):
        yield run(rand()), run.module.scaled.__self__.calls, list(run.module.scaled.__self__.log)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", ROUNDS)
def test_equal(name: str, example: bool) -> None:
    assert_equal(ROUNDS[name], Variant(not example, example))
