"""Programs that combine what others do one by one, and change it between calls.

Each is judged as those of `hostile` are: it does what the plain model does. It tells what went wrong.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, holding_in, kept_in, raised, rand
from torch import Tensor, nn

TOGETHER: dict[str, Program] = {}

together = kept_in(TOGETHER)

pytestmark = pytest.mark.usefixtures("scattering")


# -- functions with a cache ----------------------------------------------------------------------------------------------------

CONFIG = {"scale": 2.0}


@functools.lru_cache
def scaled(rows: int) -> float:
    return CONFIG["scale"] * rows


@functools.cache
def zeros(count: int) -> list[float]:
    return [0.0] * count


class Cached(Two):
    factor = 2.0

    @functools.lru_cache(maxsize=4)  # noqa: B019 - it is what is tested
    def factored(self, rows: int) -> float:
        return self.factor * rows

    def forward(self, x: Tensor) -> tuple[Tensor, list[float]]:
        kept = zeros(2)
        kept[0] += 1
        return self.left(x) * scaled(x.shape[0]) + self.right(x) * self.factored(2) + kept[0], kept


def cached() -> nn.Module:
    CONFIG["scale"] = 2.0
    for function in (scaled, zeros, Cached.factored):
        function.cache_clear()
    return Cached()


@together(cached)
def caches_that_hold_what_was(run: Run) -> Steps:
    """What the functions read had been read again, and the list that one gives was another one in each call."""
    first = run(rand())[1]
    yield run(rand()), run(rand())[1] is first
    CONFIG["scale"], run.module.factor = 3.0, 5.0
    yield run(rand())
    yield run(rand(2, 4)), scaled.cache_info().currsize
    scaled.cache_clear()
    yield run(rand())


class Marked(Two):
    """Says of a method that what it gives never changes, and it does."""

    factor = 2.0

    @torch.compiler.assume_constant_result
    def read(self) -> float:
        return self.factor

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.read() + self.right(x)


@together(Marked)
def results_that_are_said_to_be_constant(run: Run) -> Steps:
    """What the first call gave was kept."""
    for factor in (2.0, 3.0, -0.0):
        run.module.factor = factor
        yield run(rand())


# -- memory of other libraries -------------------------------------------------------------------------------------------------


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_float), ("y", ctypes.c_int)]


class Counts(Two):
    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.point, self.calls = (ctypes.c_float * 2)(1, 2), Point(1, 2), ctypes.c_int(0)

    def forward(self, x: Tensor) -> Tensor:
        self.numbers[1] += 1
        self.point.y += 2
        self.calls.value += 1
        return self.left(x) * self.numbers[1] + self.right(x) * self.point.y + self.calls.value


@together(Counts)
def numbers_of_c(run: Run) -> Steps:
    """What `partition` had written there when it ran the model was not put back."""
    for _ in range(2):
        yield run(rand()), list(run.module.numbers), run.module.point.y, run.module.calls.value


# -- what classes of the user's say --------------------------------------------------------------------------------------------


class Unequal:
    """Equals nothing, and not itself."""

    asked: ClassVar[list[str]] = []

    def __eq__(self, other: object) -> bool:
        Unequal.asked.append(type(other).__name__)
        return False

    __hash__ = object.__hash__


class Holds(Two):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.held = Unequal(), [Unequal()]

    def forward(self, x: Tensor) -> tuple[Tensor, list[bool]]:
        found = [self.one in [1, self.one], self.one in self.held, self.one in (self.one,)]
        return self.left(x) * sum(found) + self.right(x), found


def holds() -> nn.Module:
    Unequal.asked.clear()
    return Holds()


@together(holds)
def objects_that_are_held_and_equal_nothing(run: Run) -> Steps:
    """The list was said not to hold the object, for the object equals nothing."""
    yield run(rand()), list(Unequal.asked)
    run.module.held.append(run.module.one)
    yield run(rand()), list(Unequal.asked)


class Week(list[int]):
    def __len__(self) -> int:
        return 7


class Writes(Two):
    def __init__(self) -> None:
        super().__init__()
        self.week = Week()

    def forward(self, x: Tensor) -> tuple[Tensor, list[int]]:
        self.week.append(x.shape[0])
        return self.left(x) * sum(self.week) + self.right(x), list(self.week)


@together(Writes)
def list_that_says_how_long_it_is(run: Run) -> Steps:
    """The program of a shorter list was taken, and an item was lost."""
    for rows in (3, 2, 4, 3):
        yield run(rand(rows, 4)), [*iter(run.module.week)]


# -- dictionaries, sets and numbers --------------------------------------------------------------------------------------------


held = holding_in(TOGETHER, also=list)


class Point3(NamedTuple):
    x: int
    y: int


class Numbers(set[int]):
    pass


EMPTY_AND_NOT = {"a": 1}, {}, {"b": 1, "a": 2}, {}, {"q": 3}
KINDS: list[Callable[[dict[str, int]], Any]] = [dict, OrderedDict, lambda items: defaultdict(int, items)]

for kind in KINDS:
    some = [kind(items) for items in EMPTY_AND_NOT]
    # whether it is empty, and its text, were taken for good once it had been empty
    held(lambda d, _: (not d, bool(d), 1 if d else 2, d or 3), *some)
    held(lambda d, _: (str(d), f"{d}", "%s" % (d,), [*d]), *some)  # noqa: UP031
    # of a view it was always yes
    held(lambda d, _: (d.keys() or 5, 1 if d.items() else 2, not d.values()), *some)
    # what had come since was lost, for an ordered dictionary is written back as a whole
    held(lambda d, _: d.pop("a", 0), *some)
    held(lambda d, _: d.popitem() if d else None, *some)

# what was taken out of a set stayed in it
held(lambda s, _: s.__isub__({1}), {1, 2}, {1}, set(), {3})
held(lambda s, _: operator.isub(s, {1}), {1, 2}, {1}, set(), {3})
# nothing was added
held(lambda items, n: items.__iadd__([n]), [1], [], [2, 3])
# how many tensors are equal was a tensor, and of several numbers torch says that it cannot be told
for row in (list, tuple):
    pairs = [row([torch.zeros(size), torch.ones(size)]) for size in (1, 2)]
    held(lambda tensors, _: raised(lambda: tensors.count(tensors[0])), *pairs)
# the larger one of a size and a fraction was always a fraction
held(lambda _, n: (max(n, 1.5), min(n, 3.5), max(n, -0.0), max(2.0, n), min(n, float("inf"))), [], [], [])

# -- operators -----------------------------------------------------------------------------------------------------------------

NUMBERS = 5, 0, True, -3
LISTS = [1, 2], [], [2.0, True]

# what an operator gives that is called on its class was NotImplemented, or an error, and nothing was written
held(lambda v, n: (int.__sub__(v, 2), int.__rlshift__(v, 0), bool.__rdivmod__(True, n), complex.__rsub__(1j, 2)), *NUMBERS)
held(
    lambda v, n: (list.__iadd__(v, [n]), list.__imul__(v, n), raised(lambda: list.__le__(v, v)), list.__contains__(v, 1)),
    *LISTS,
)
held(lambda v, _: (raised(lambda: list.__setitem__(v, 0, 7)), raised(lambda: list.__delitem__(v, 0))), *LISTS)
held(lambda v, n: raised(lambda: deque.__gt__(deque(v), v)), *LISTS)
held(lambda v, n: (Point3.__contains__(v, n), Point3.__eq__(v, (1, n))), *(Point3(1, each) for each in (3, 4, 3)))
held(lambda v, _: OrderedDict.popitem(v, False), *(OrderedDict(a=each, b=2) for each in (1, 2, 3)))
held(lambda v, _: OrderedDict.__repr__(v), *(OrderedDict(a=each) for each in (1, 2, 3)))
held(lambda v, n: (v + b"b", bytearray(b"a") + v), bytearray(b"a"), bytearray(), bytearray(b"b"))
held(lambda v, _: v | {"a": 1}, *(Counter(each) for each in ("ab", "", "b")))
# a size that is open has a quotient and a rest, meets complex numbers, and equals one
held(
    lambda v, n: (raised(lambda: divmod(n, 2)), raised(lambda: v * n), raised(lambda: n - v), n == v),
    3 + 0j,
    1j,
    4 + 0j,
    3 + 0j,
)
held(lambda v, n: (raised(lambda: divmod(v, 2)), raised(lambda: v / 1j)), 1, 2, 3, 4)
held(lambda v, _: raised(lambda: operator.mod("text", v)), *(defaultdict(int, {"a": each}) for each in (1, 2)))
# once the named tuple was that one, and not a tuple
held(lambda v, _: (v * 1, 1 * v, v[:]), *(Point3(each, 2) for each in (1, 2, 3)))
# an operator in place made another set, and a plain one
held(lambda v, _: (v.__class__, operator.ior(v, {7})), *map(Numbers, ({1}, {1, 2}, {3})))
held(lambda v, _: operator.isub(v, {1}), *map(Numbers, ({1}, {1, 2}, {3})))
# an iterator was one over a tuple where the graph had something to end at before
held(lambda v, _: (iter(v), reversed(v), iter(v.__len__, 9), (each for each in v)), *LISTS)
held(lambda v, _: v.append(iter([1])), *LISTS)
# a function that is given a range was given what it is made of: where it begins and ends, and its step
held(
    lambda v, n: (dict(enumerate(v)), max(*v), [*map(int, v)], max(*range(n)), torch.zeros(*range(1, n))),
    range(3),
    range(2, 9, 3),
)


def caught(error: Exception) -> tuple[str, bool]:
    try:
        raise error
    except (ValueError, LookupError) as found:
        return repr(found), found is error
    except Exception as found:
        return repr(found), False


# an exception that the model holds was none, so that forward caught a TypeError
held(lambda v, _: caught(v[0]), *([each] for each in (ValueError("a"), KeyError(1), OSError("b"))))


class GivesIterator(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        y = self.left(x)
        rows = x.shape[0]
        found = iter(self.held)
        return y * rows, found

    held: ClassVar[list[int]] = [1, 2]


@together(GivesIterator)
def iterator_that_is_returned(run: Run) -> Steps:
    """It was one over a tuple where sizes were open, for the graph ended at the line before."""
    for rows in (3, 2, 4):
        yield type(run(rand(rows, 4))[1])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", TOGETHER)
def test_equal(name: str, example: bool) -> None:
    assert_equal(TOGETHER[name], Variant(not example, example))
