"""Operators and methods that are called by their names, on what a model holds: another one in each call.

Each is judged as the programs of `hostile` are: it does what the plain model does. It tells what went wrong.
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Flag, IntEnum, IntFlag, auto
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Two, holding_in, raised, rand
from lanes import OLD_TORCH
from torch import Tensor

from partitioner import partition
from partitioner.model.keep import state_kept

NAMED: dict[str, Program] = {}

pytestmark = pytest.mark.usefixtures("scattering")


class Pair(NamedTuple):
    x: int
    y: int


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Unequal:
    """Equals nothing, and not itself."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


class Named(dict[str, int]):
    pass


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Key:
    """Equals its number, and says in a text what is larger than it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return self.number == other

    def __gt__(self, other: object) -> str:  # type: ignore[misc]
        return f"more than {self.number}"

    __hash__ = None  # type: ignore[assignment]


held = holding_in(NAMED, identity=True)


# nothing was written, another object or one of another class was given, or NotImplemented
held(lambda v, _: v.__iadd__([1, 2]), deque([1]), deque([2, 3]), deque([3]))
held(lambda v, _: v.__ior__([("q", 1)]), OrderedDict(a=1), OrderedDict(b=1))
held(lambda v, _: v.__ror__({"a": 3}), OrderedDict(a=1), OrderedDict(b=1))
held(lambda v, _: v.__add__(b"b"), b"a", b"c")
held(lambda v, n: (v.__le__(n), v.__and__(1)), Rights.READ, Rights(0), Rights.WRITE)
held(lambda v, _: (v.__mul__(1), v.__rmul__(1)), Pair(1, 2), Pair(2, 3))
held(lambda v, _: v.__ror__(Counter("ab")), Counter("a"), Counter("b"))
held(lambda v, _: defaultdict.copy(v), *(defaultdict(int, {key: 1}) for key in "ab"))
# it gave the set
held(lambda v, _: v.update(), {1}, {2})
# what equals not even itself was not found
if not OLD_TORCH:
    held(lambda v, _: (v in {1: v}.values(), v in iter([v]), v in (each for each in [v])), Unequal(), float("nan"), 1.0)
held(lambda v, n: (Rights.READ in v, Rights(n & 1) in v), Rights.READ, Rights(0), Rights.WRITE)
# a number that is open was never another one
held(lambda v, n, zero=0, three=3: (v is zero, n is three, n is not three), 0, 1, 2, 0)  # type: ignore[misc]
# nor was it equal to an object, whatever that one's class said, nor to a member of an enumeration of numbers
held(lambda v, _: (Level(v) == v, v != Level.LOW, v in tuple(Level), v in [Level.HIGH], [v] == [Level.LOW]), 1, 2, 1)
held(lambda v, n: (v == Key(2), Key(2) == v, n != Key(3), v < Key(1), n in [Key(3)], [v] == [Key(2)]), 1, 2, 3)  # type: ignore[operator]
held(lambda v, _: (Level.LOW.__eq__(v), 2 in [Key(2)], v == object(), v == (2,)), 1, 2, 3)
# an attribute that it has not was missed when forward had ended
held(lambda v, n: (getattr(v, "items", 7), hasattr(n, "items"), raised(lambda: (v.items, n.items))), 1, 2, 3)
# zeros were told apart by their signs, but not within complex numbers and sets
held(lambda v, _: repr(v), complex(1, 0.0), complex(1, -0.0), complex(0.0, 2), complex(-0.0, 2))
held(lambda v, _: [repr(each) for each in v], frozenset({0.0}), frozenset({-0.0}), frozenset({(1,)}), frozenset({(True,)}))
# what is made by a class of the user's was a dictionary
held(lambda v, _: type(Named.fromkeys(v)), "ab", "cd")
# an error that is caught spoke of a tuple where there was a list, and the other way round
held(lambda v, _: [str(raised(each)) for each in (lambda: v.index(9), lambda: v[7], lambda: [*v].remove(9))], (1,), (2, 3), [1])
# the text of an open size was no number
held(lambda v, n: raised(lambda: int(str(n)) + float(f"{v}")), 1, 2, 3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", NAMED)
def test_equal(name: str, example: bool) -> None:
    assert_equal(NAMED[name], Variant(not example, example))


class AsksForItsGradient(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, bool]:
        y = self.left(x)
        return y * self.right(x), y.grad is None


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_the_gradient_of_what_forward_has_computed() -> None:
    """The tracer said that there was one."""
    parallel = partition(AsksForItsGradient(), ["cpu:0", "cpu:1"])
    assert [parallel(rand())[1] for _ in range(2)] == [True, True]


class KeepsByTensor(Two):
    def forward(self, x: Tensor) -> Tensor:
        if x not in self.kept:
            self.kept[x] = self.left(x).detach()
        return self.kept[x] + self.right(x)


def test_tensors_as_weak_keys() -> None:
    """Python asks the tensors whether they are equal, which is an error; the tracer found them by what they are."""
    model = KeepsByTensor()
    model.kept = WeakKeyDictionary()
    parallel = partition(model, ["cpu:0", "cpu:1"])
    with pytest.raises(RuntimeError, match="Boolean value of Tensor"):
        parallel(rand())


class Permits(Two):
    def forward(self, x: Tensor, given: Rights) -> Tensor:
        return self.left(x) if Rights.READ in given else self.right(x)


@pytest.mark.skipif(OLD_TORCH, reason="a graph ends there: docs/limits.md")
def test_whether_a_flag_is_among_others_ends_no_graph() -> None:
    """A number's ``__eq__`` is Python's, and was taken for one of the user's."""
    model = Permits()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=(rand(), Rights.READ), fullgraph=True)
    for given in (Rights.WRITE, Rights.READ, Rights(3), Rights(0)):
        assert torch.equal(parallel(rand(), given), model(rand(), given))


class Ways(Flag):
    IN = auto()
    OUT = auto()
    BACK = auto()


class Combines(Two):
    """Combines flags as nobody has done before."""

    ways, rights = Ways, Rights

    def forward(self, x: Tensor) -> tuple[Tensor, object, object, object]:
        return self.left(x), self.ways.IN | self.ways.BACK, ~self.ways.IN, self.rights.READ | self.rights.WRITE


def test_a_combination_of_flags_is_one_object() -> None:
    """What enums note of these was put back, so that the next one was another, and a model was refused that had noted none."""
    model = Combines()
    with state_kept(model) as changed:
        first = model(rand())[1:]
    assert changed == []
    assert all(one is other for one, other in zip(first, model(rand())[1:], strict=True))
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=rand(), copy=True)
    assert all(one is other for one, other in zip(first, parallel(rand())[1:], strict=True))


class Decides(Two):
    """Asks a truth whether it is ``True`` itself, as a case of ``match`` does."""

    def forward(self, x: Tensor) -> tuple[Tensor, bool, bool, bool]:
        y = self.left(x)
        above, large = bool(y.sum() > 0), x.shape[0] > 3
        match above, large:
            case True, False:
                y = y * 2
            case False, True:
                y = y + self.right(x)
        return y, above is True, large is not False, operator.is_(above, False)


def test_a_truth_is_true_where_it_is_true() -> None:
    """Of numbers of tensors and sizes that are open it was neither ``True`` nor ``False``: no case was met, without a word."""
    model = Decides()
    parallel = partition(model, ["cpu:0", "cpu:1"])
    for rows in (3, 5, 2, 7):
        for seed in range(3):
            given = rand(rows, 4, seed=seed)
            found, wanted = parallel(given), model(given)
            assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:]


class Shows(Two):
    """Shows an error about a number that is open, and asks it for its class."""

    names: Any = MappingProxyType({})

    def forward(self, x: Tensor) -> tuple[Tensor, list[str], bool]:
        y, told = self.left(x), []
        for key in (x.numel() / 3, y.sum()):
            try:
                told.append(self.names[key])
            except KeyError as error:
                told.append(f"{error!r}")
        return self.right(y), told, x.shape[0].__class__ is int


def test_errors_and_classes_of_open_numbers() -> None:
    """The error was ``KeyError(IntTrueDiv(4*s77, 3))``, and the number of no class of Python's."""
    model = Shows()
    parallel = partition(model, ["cpu:0", "cpu:1"])
    for rows in (3, 5, 7):
        found, wanted = parallel(rand(rows, 4)), model(rand(rows, 4))
        assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:]
