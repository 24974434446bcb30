"""What programs made at random have found: combinations that nobody would write down, with which we were silently wrong.

Each is judged as programs of `hostile` are: the module does what the plain one does.
"""

from __future__ import annotations

import bisect
import enum
import functools
from collections import defaultdict, namedtuple
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, kept_in, raised, rand, two
from torch import Tensor

from partitioner import TraceError, partition

FUZZED: dict[str, Program] = {}

fuzzed = kept_in(FUZZED)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", FUZZED)
def test_equal(name: str, example: bool) -> None:
    assert_equal(FUZZED[name], Variant(True, example))


def _takes_rows(self: Any, x: Tensor, way: int = 0) -> Any:
    y = self.left(x)
    if way == 0:
        first, *others = y
        return first.grad_fn.name(), [row.grad_fn.name() for row in others], self.right(sum(row for row in y))
    if way == 1:
        for row in y:
            row.mul_(2)
    else:
        y, _, _ = y
        y += 1
    return self.right(y)


@fuzzed(two(_takes_rows))
def rows_of_a_tensor_that_wants_a_gradient(run: Run) -> Steps:
    """A row was ``y[0]``, to which one may write; those of ``for row in y`` are views of one op, which is an error."""
    for way in range(3):
        yield raised(lambda way=way: run.learn(rand(grad=True), way))  # type: ignore[misc]
    with torch.no_grad():
        yield run(rand(), 1), run(rand(), 2)


class Base:
    """What forward derives a class of."""


def _makes_classes(self: Any, x: Tensor) -> Any:
    made = type("Made", (Base,), {"value": 3})()
    pair = namedtuple("pair", "left right")(self.left(x), self.right(x))
    kinds = [type(made), type(pair), enum.Enum("Colour", "RED GREEN")]  # type: ignore[misc]
    return made, pair, [kind.__module__ for kind in kinds]


@fuzzed(two(_makes_classes))
def modules_of_classes_that_are_made_by_a_call(run: Run) -> Steps:
    """They were said to be of the tracer's own modules."""
    yield run(rand())


def _holds_a_mode(self: Any, x: Tensor, kind: Any = torch.no_grad) -> Any:
    context = kind()
    y = self.left(x)
    torch._dynamo.graph_break()
    z, enabled = self.left(y), torch.is_grad_enabled()
    with context:
        w = self.right(z)
        torch._dynamo.graph_break()
        w = self.right(w)
    with torch.enable_grad(), context:
        inside = torch.is_grad_enabled()
    return z, w, enabled, inside, torch.is_grad_enabled()


@fuzzed(two(_holds_a_mode), lambda: torch.no_grad)
def modes_that_are_entered_after_a_graph_has_ended(run: Run) -> Steps:
    """From the end of the graph on nothing had gradients, without a word: bare torch.compile does so, too."""
    for kind in (torch.no_grad, torch.enable_grad):
        yield run.learn(rand(grad=True), kind)
        with torch.no_grad():
            yield run(rand(), kind)


def _decorates(self: Any, x: Tensor, n: int = 2) -> Any:
    y = self.left(x)

    @torch.no_grad()
    def frozen(t: Tensor, times: int = bisect.bisect(range(n), 1)) -> Any:
        return self.right(t) * times

    return y, frozen(y), torch.is_grad_enabled()


@fuzzed(two(_decorates))
def decorators_before_defaults_that_end_a_graph(run: Run) -> Steps:
    """The decorator is there before the function that it is given."""
    for n in (2, 3, 4):
        yield run.learn(rand(grad=True), n)


@functools.lru_cache
def _cached(n: int) -> Any:
    return n, [n]


SCALE: ContextVar[Any] = ContextVar("SCALE", default=(1, 2))


def _asks_twice(self: Any, x: Tensor, n: int = 2) -> Any:
    first, again = _cached(n), _cached(n)
    same = first is again, first[1] is _cached(n)[1], first is _cached(n + 1), SCALE.get() is SCALE.get()
    return self.left(x) * self.right(x), first, same


@fuzzed(two(_asks_twice))
def one_question_asked_twice(run: Run) -> Steps:
    """What a cache, or a context, gave twice was two tuples."""
    for n in (2, 3, 2):
        yield run(rand(), n)
    _cached.cache_clear()
    yield run(rand(), 2)


def _compares_tuples(self: Any, x: Tensor, one: Any, other: Any) -> Any:
    self.other = self.pair
    before = one
    torch._dynamo.graph_break()
    same = one is other, one is not self.pair, before is one, self.other is self.pair, one[1] is other[1], one == other
    return self.left(x) * self.right(x), same


@fuzzed(two(_compares_tuples, pair=(1, [2])), lambda: (1, [2]), lambda: (1, [2]))
def tuples_with_two_names(run: Run) -> Steps:
    """They were two, for the tracer makes each of them anew: bare torch.compile says so, too."""
    pair = (1, [2])
    yield run(rand(), pair, pair)
    yield run(rand(), pair, (1, [2]))
    run.module.pair = pair
    yield run(rand(), pair, pair)
    yield run(rand(), (1, pair[1]), pair)


def _sets_what_it_closes_over(self: Any, x: Tensor, values: Any = (1, 2, 3)) -> Any:
    factor: int
    kept = [y for v in values if (y := v % 3)]

    def give(t: Tensor) -> Tensor:
        nonlocal factor
        factor = len(values)
        return later(t) if factor > 2 else t

    z = self.left(x)
    try:
        give(z)
    except NameError as error:
        z = z + len(str(error))

    def later(t: Tensor) -> Tensor:
        return t * factor

    return give(z) * self.right(x), kept, factor, y


@fuzzed(two(_sets_what_it_closes_over), lambda: (1, 2, 3))
def variables_that_a_function_sets_for_forward(run: Run) -> Steps:
    """Where the function was called the graph ended, and spread it was refused, as of a variable that is not set."""
    for values in ((1, 2, 3), (4, 5), (2, 3, 4, 6)):
        yield run(rand(), values)


def test_a_variable_set_in_a_list_is_part_of_one_graph() -> None:
    """As above: in a whole graph, too."""
    model = two(lambda self, x, values=(1, 2): self.left(x) * sum([y for v in values if (y := v % 3)]))()
    parallel = partition(model, devices=["cpu:0", "cpu:1"], example_inputs=(rand(),), fullgraph=True, copy=True)
    torch.testing.assert_close(parallel(rand()), model(rand()))


class Made:
    """What forward gives attributes."""

    def __init__(self, first: int = 1) -> None:
        self.first, self.second = first, 2


def _sets_attributes(self: Any, x: Tensor, n: int = 2) -> Any:
    setattr(self, f"a{n}", n)
    self.made.added, self.made.first = n, 5
    del self.made.second
    fresh = Made(n)
    fresh.also = n
    names = [name for name in vars(self) if not name.startswith("_")]
    return self.left(x) * self.right(x), names, list(self.made.__dict__.items()), list(vars(fresh)), {**vars(self.made)}


@fuzzed(two(_sets_attributes, made=Made()))
def attributes_in_their_order(run: Run) -> Steps:
    """Those that forward had set came first: bare torch.compile says so, too."""
    for n in (2, 3, 2):
        yield run(rand(), n), vars(run.module.made)
        run.module.made.second = n


def _goes_on_with_iterators(self: Any, x: Tensor) -> Any:
    values = [1, 2, 3]
    found = iter(values), reversed(self.items), zip(values, self.items, strict=False), map(abs, values)
    first = [next(each) for each in found]
    y = self.left(x)
    torch._dynamo.graph_break()
    values.append(4)
    self.items[0] = 7
    left = [list(each) for each in found]
    self.later, self.values = iter(values), values
    return y * self.right(x), first, left, [type(each).__name__ for each in found]


@fuzzed(two(_goes_on_with_iterators, items=[1, 2, 3]))
def iterators_over_lists_that_change(run: Run) -> Steps:
    """Where a graph ended, or on the module, they went over a copy of the list: bare torch.compile has that, too."""
    for _ in range(2):
        yield run(rand())
        run.module.values.append(9)
        yield list(run.module.later)


class Stepper:
    """Has a property that is worked out once."""

    def __init__(self, first: int) -> None:
        self.first, self.asked = first, 0

    @functools.cached_property
    def tenfold(self) -> int:
        self.asked += 1
        return self.first * 10


def _writes_what_a_property_reads(self: Any, x: Tensor, n: int = 4) -> Any:
    self.step.first = n
    return self.left(x) * self.right(x), self.step.tenfold, self.step.asked


@fuzzed(two(_writes_what_a_property_reads, step=Stepper(2)))
def cached_properties_of_objects_that_were_not_asked(run: Run) -> Steps:
    """The guard of a later program asked them, before forward had written what they read."""
    for step in (run.module.step, run.module.step, Stepper(7), Stepper(8)):
        run.module.step = step
        yield run(rand(), 4), vars(run.module.step)


def _asks_a_default(self: Any, x: Tensor, n: int = 2) -> Any:
    self.held["a"] += n
    return self.left(x) * self.right(x), self.held["new"], list(self.held.items())


@fuzzed(two(_asks_a_default, held=defaultdict(int)))
def what_makes_values_of_a_defaultdict(run: Run) -> Steps:
    """Where keys are guarded, the tracer's guards look at no attribute of a dictionary. Bare torch.compile guards no keys."""
    for make in (int, float, lambda: 3, lambda: 4, functools.partial(int, 5), bool, int):
        run.module.held = defaultdict(make)
        yield run(rand()), run(rand())
    run.module.held.clear()
    run.module.held.default_factory = lambda: 6
    yield run(rand())
    run.module.held = {"a": 1, "new": 2}
    yield run(rand())
    run.module.held = None
    yield type(raised(lambda: run(rand())))


KNOWN = (1, [2], {"a": [3]})
LARGEST = functools.partial(max, [0])
WORDS = MappingProxyType({"a": [1]})


def _writes_in_a_tuple(self: Any, x: Tensor, n: int = 2) -> Any:
    self.pair[1].append(n)
    self.pair[2][1].add(n)
    for values in (KNOWN[1], KNOWN[2]["a"], LARGEST.args[0], WORDS["a"]):
        values.append(n)
    found = KNOWN[1][-2:], KNOWN[2]["a"][-2:], LARGEST.args[0][-2:], WORDS["a"][-2:]
    return self.left(x) * self.right(x) * self.pair[0], self.pair, self.pair[1] is self.other, found


@fuzzed(two(_writes_in_a_tuple, pair=(1, [2], (3, {4})), other=None))
def lists_in_tuples(run: Run) -> Steps:
    """One of the module's was a constant, and what was written to its list was lost: bare torch.compile loses it, too.

    And what was written to the list of a global one, or of a global partial, was not put back after the comparison with eager.
    """
    for values in (KNOWN[1], KNOWN[2]["a"], LARGEST.args[0], WORDS["a"]):  # type: ignore[index]
        del values[1:]
    for n in (5, 6):
        run.module.other = run.module.pair[1]
        yield run(rand(), n), run.module.pair, run.module.other
    run.module.pair = (2, [7], (8, {9}))
    yield run(rand(), 5), run.module.pair


def test_a_refusal_has_no_names_of_the_tracer_s() -> None:
    """The assertion of torch's tracer was repeated: AttrSource member must not contain '.'."""
    model = two(lambda self, x: (self.left(x), getattr(self.held, str(0.5), 1)), held=Made())()
    with pytest.raises(TraceError, match="does what torch's tracer does not know"):
        partition(model, devices=["cpu:0", "cpu:1"], example_inputs=(rand(),), fullgraph=True)
