"""Programs around what a call is given, what it says when it fails, and results that hold themselves.

Each is judged as those of `hostile` are: it does what the plain model does. On several devices it may be refused, and then
nothing has changed.
"""

from __future__ import annotations

import enum
from typing import Any

import networkx as nx
import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, raised, rand, two
from lanes import OLD_TORCH
from lanes import spread as on_lanes
from pretend import TWO, World, spread
from torch import Tensor, nn

from partitioner import DifferenceError, PlacementError, partition
from partitioner.frontend.check.unlike import unlike
from partitioner.model.call import CheckFailed

TEXTS: dict[str, Program] = {}

text = kept_in(TEXTS)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TEXTS)
def test_equal(name: str) -> None:
    assert_equal(TEXTS[name], Variant(True, True))


OLDER = pytest.mark.xfail(
    OLD_TORCH, reason="torch 2.11 traces no text of a check that is made of what forward knows: docs/limits.md"
)


# -- names of arguments --------------------------------------------------------------------------------------------------------


def _scaled(y: Tensor, *, scale: float = 1.0, **more: Any) -> Tensor:
    return y * scale + len(more)


class Named:
    def __init__(self, y: Tensor, **more: Any) -> None:
        self.y = y * (1 + len(more))

    def __call__(self, x: Tensor, **more: Any) -> Tensor:
        return self.y * x + len(more)


def _hands_on(self: Any, x: Tensor, how: str = "", **more: Any) -> Any:
    left, right = self.left(x), self.right(x)
    if how == "function":
        left = _scaled(left, **more)
    elif how == "twice":
        left = _scaled(left, scale=2.0, **more)
    elif how == "object":
        left = Named(left, **more)(right, **more)
    elif how == "dictionary":
        return left * right, dict(x=1, **more)
    elif how == "no text":
        left = _scaled(left, **{len(more): 1})  # type: ignore[misc]
    return left * right


@text(two(_hands_on))
def names_given_twice(run: Run) -> Steps:
    """The second one was counted among the further keywords, or took the place of the first: eager has an error."""
    yield run(rand()), raised(lambda: run(rand(), x=rand())), raised(lambda: run(rand(), self=1))
    for how in ("function", "twice", "object", "dictionary", "no text"):
        for name in ("y", "scale", "x", "other"):
            yield raised(lambda how=how, name=name: run(rand(), how, **{name: 3.0}))  # type: ignore[misc]


# -- texts of numbers ----------------------------------------------------------------------------------------------------------


def _spells(self: Any, x: Tensor, n: int = 1) -> Any:
    rows = len(x)
    alone = f"{n}", f"{n:03d}", f"{n!r}", f"{rows}", f"{n / 3:.2f}", str(n), format(n, ">4"), format(rows), f"{n > 2}"
    within = f"{n} of {rows:>3}", f"{n!r:>3}|", f"{n:02d}/{rows}", f"{tuple(x.shape)}"
    looked_up = {"1": "one", "2": "two"}.get(f"{n}"), {f"k{n}": 0, "k2": 1}, len({f"{n}", f"{rows}"}), f"{n}" == "2"
    return self.left(x) * self.right(x), alone, within, looked_up


@text(two(_spells))
def texts_of_numbers(run: Run) -> Steps:
    """The text of a number that changes was the number, which equals no key; and of a format nothing was left."""
    for n in (1, 2, 3, 3, 2):
        yield run(rand(n + 1, 4), n)


def test_texts_of_numbers_on_several_devices(world: World) -> None:
    """What is no more than said needs no Python between two graphs."""

    def says(self: Any, x: Tensor, n: int = 1) -> Any:
        return self.left(x) * self.right(x), f"{n}", f"{n:03d} of {len(x)}", str(n), format(n, ">4"), {f"k{n}": 0, "k2": 1}

    model = two(says)()
    parallel = spread(model, (rand(), 1), TWO, copy=True)
    for n in (1, 2, 3):
        assert parallel(rand(), n)[1:] == model(rand(), n)[1:]


# -- texts of errors -----------------------------------------------------------------------------------------------------------


class Full(Exception):
    def __init__(self, why: str, size: int) -> None:
        super().__init__(why, size)
        self.size = size

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.size}"


class Cache(Two):
    """Has room for ten rows, and says in one way or another that it is full."""

    used, how = 0, 0

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if self.used + rows > 10:
            self.complain(rows, x)
        self.used += rows
        return self.left(x) * self.right(x)

    def complain(self, rows: int, x: Tensor) -> None:
        if self.how == 0:
            raise OverflowError(f"{self.used} + {rows} rows")
        if self.how == 1:
            raise OverflowError("rows: " + str(rows))
        if self.how == 2:
            raise OverflowError("x".join(map(str, x.shape)), list(x.shape))
        if self.how == 3:
            raise OverflowError(repr(self.used))
        if self.how == 4:
            raise AssertionError(("rows", rows))
        if self.how == 5:
            with torch.no_grad():
                raise Full("full", rows) from KeyError(rows)
        torch._check(rows + self.used <= 10, lambda: f"{rows} of {x.shape}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", [*range(6), pytest.param(6, marks=OLDER)])
def test_a_text_that_the_tracer_cannot_make_is_the_models(how: int, world: World) -> None:
    """On several devices there must be one graph, so what stood there in place of the error was a page about the tracer."""
    model = Cache()
    model.how = how
    parallel = spread(model, (rand(),), TWO, copy=True)
    for rows in (3, 1, 2, 5, 4, 9):
        one, other = (raised(lambda each=each, rows=rows: each(rand(rows, 4))) for each in (model, parallel))  # type: ignore[misc]
        assert type(one) is type(other)
        if isinstance(one, Exception):
            assert _told(one) == _told(other)
    assert model.used == parallel.used == 10


def _told(error: object) -> tuple[object, ...]:
    assert isinstance(error, Exception)
    return str(error), error.args, repr(error.__cause__), repr(error.__context__), error.__suppress_context__


class Blames(Two):
    """Has counted by the time that it fails, so it cannot be called once more as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(self.norm(x))
        if not y.isfinite().all():
            raise ArithmeticError(f"rows: {len(x)}") from LookupError("a reading is missing")
        return y * self.right(x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("partitioned", [lambda *call: on_lanes(*call, lanes=2), lambda *call: spread(call[0], call[1:], TWO)])
def test_an_error_keeps_its_cause(partitioned: Any, world: World) -> None:
    """It had none, or what the program had raised before the model was asked."""
    parallel = partitioned(Blames(), rand())
    for rows in (3, 5):
        one, other = (raised(lambda each=each, rows=rows: each(rand(rows, 4) / 0)) for each in (Blames(), parallel))  # type: ignore[misc]
        assert _told(one) == _told(other)


class Sized(Two):
    """Says of sizes and layers what is to hold."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        torch._check(x.shape[0] < 8, lambda: f"{x.shape[0]} rows for {y.shape}")
        torch._check_value(x.shape[1] == 4, lambda: f"{y.shape}")
        return y * self.right(x)


@OLDER
def test_a_check_that_holds_needs_no_text(world: World) -> None:
    """Its text names what forward computes, which ended the graph in each call that was in order."""
    model = Sized()
    parallel = spread(model, (rand(),), TWO, copy=True)
    for shape in ((3, 4), (4, 4), (2, 4), (9, 4), (3, 5), (3, 4)):
        one, other = (raised(lambda each=each, shape=shape: each(rand(*shape))) for each in (model, parallel))  # type: ignore[misc]
        assert type(one) is type(other) and (isinstance(one, Tensor) or str(one) == str(other))


# -- sizes that nobody knows before -------------------------------------------------------------------------------------------


class Tallies(Two):
    """How often each class comes up, of five: what eager cannot add up, or spreads over all, depends on the numbers."""

    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(5))

    def forward(self, x: Tensor, classes: Tensor) -> Any:
        chosen = x[classes > 0]
        self.counts += torch.bincount(classes)
        return self.left(x) * self.right(x), chosen.view(-1, 2, 4), self.counts * 1


SIZES = [(0, 1, 4), (0, 2, 4), (0, 4, 1), (1, 0, 2), (0, 0, 9), (0, 1, 4)]


@text(Tallies, lambda: torch.tensor([0, 1, 4]))
def sizes_that_are_computed(run: Run) -> Steps:
    """The tracer's own assertions came up: in the place of eager's errors, and where eager spreads one number over all."""
    for classes in (*SIZES, (0, 0, 0), (0, 0, 4)):
        given = torch.tensor(classes)
        yield raised(lambda given=given: run.learn(rand(), given)), run.module.counts  # type: ignore[misc]


def test_sizes_that_are_computed_on_several_devices(world: World) -> None:
    """What the program cannot do is refused in a line, and changes nothing."""
    model = Tallies()
    parallel = spread(model, (rand(), torch.tensor(SIZES[0])), TWO, copy=True)
    for classes in SIZES:
        given = torch.tensor(classes)
        one, other = (raised(lambda each=each, given=given: each(rand(), given)) for each in (model, parallel))  # type: ignore[misc]
        if isinstance(one, Exception):
            assert _told(one) == _told(other)
        else:
            torch.testing.assert_close(other, one, check_device=False)
        torch.testing.assert_close(parallel.counts, model.counts, check_device=False)
    with pytest.raises(CheckFailed, match=r"a size for which its program is not made: \w+ >= 5 does not hold"):
        parallel(rand(), torch.tensor([0, 0, 0]))
    torch.testing.assert_close(parallel.counts, model.counts, check_device=False)


class Experts(nn.Module):
    """Each has the rows that are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        chosen, found = self.gate(x).argmax(1), []
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            found.append(torch.zeros_like(x).index_add(0, rows, expert(x[rows])))
        return found[0] + found[1]


def test_experts_do_not_wait_for_each_other() -> None:
    """How many rows one has is checked, and was so after all that an expert before it had looked up."""
    graph = on_lanes(Experts().eval(), rand(6, 4), lanes=2).graph
    first, second = (next(op.name for op in graph.ops if op.path == f"experts.{number}") for number in range(2))
    assert not nx.has_path(graph.dag, first, second)


# -- results that hold themselves ----------------------------------------------------------------------------------------------


class Node:
    def __init__(self, value: Tensor, parent: Node | None = None) -> None:
        self.value, self.parent, self.children = value, parent, list[Node]()
        if parent is not None:
            parent.children.append(self)


class Flags(enum.Flag):
    FIRST, SECOND = 1, 2


def _tree(self: Any, x: Tensor) -> Any:
    root = Node(self.left(x))
    Node(self.right(x), root)
    for each in Flags:
        assert ~~each is each
    return root, Flags.FIRST


@text(two(_tree))
def objects_that_know_each_other(run: Run) -> Steps:
    """The comparison with eager went round and round: parents and children, and flags, each the inverse of the other."""
    for rows in (3, 5):
        root, flag = run(rand(rows, 4))
        yield root.value, root.children[0].value, root.children[0].parent is root, flag


def test_a_difference_behind_a_circle_is_found() -> None:
    class Tells(Two):
        def forward(self, x: Tensor) -> Any:
            root = Node(self.left(x) * self.right(x))
            Node(x + torch.compiler.is_compiling(), root)
            return root

    with pytest.raises(DifferenceError, match="values differ by up to 1"):
        partition(Tells(), ["cpu:0", "cpu:1"], example_inputs=(rand(),))


def test_what_is_long_has_an_end() -> None:
    chains: list[Any] = [None, None]
    for number in range(3_000):
        chains = [[number, each] for each in chains]
    assert unlike(*chains) is None
    assert unlike({"a": chains[0]}, {"a": [2_999, [2_998, [0, None]]]}) == "2997 in the model, 0 in the program"


def test_a_device_that_is_not_there_is_refused_in_a_line(world: World) -> None:
    """What torch says of it was told whole: a page of the backends that there are."""
    parallel = spread(Two(), (rand(),), TWO)
    with pytest.raises(PlacementError, match=r"a device that fails with .* would break its plan") as caught:
        parallel.to("lazy:7")
    assert "\n" not in str(caught.value)
