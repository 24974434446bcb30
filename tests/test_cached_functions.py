"""Functions with a cache in one graph: what they give is what the cache holds, in each call."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Callable, Sized
from contextvars import Context, ContextVar, copy_context
from enum import IntEnum
from typing import Any

import pretend
import pytest
import torch
from lanes import spec
from torch import Tensor, nn
from torch._dynamo.variables import BuiltinVariable
from torch.utils._pytree import tree_leaves

from partitioner import partition
from partitioner.errors import TraceError

CALLS: list[int] = []
SCALE: ContextVar[Any] = ContextVar("SCALE", default=1.0)
LATE: ContextVar[float] = ContextVar("LATE")


@functools.lru_cache
def mask(rows: int) -> Tensor:
    return torch.tril(torch.ones(rows, rows))


@functools.cache
def zeros(count: int) -> list[float]:
    return [0.0] * count


@functools.cache
def counted(name: str) -> int:
    CALLS.append(1)
    return len(CALLS)


@functools.cache
def drawn(count: int) -> Tensor:
    return torch.randn(count)


def written(x: Tensor) -> Tensor:
    """A tensor that the cache holds is written."""
    mask(4)[0, 0] += 1
    return mask(4) @ x


def kept(x: Tensor) -> tuple[Tensor, list[float]]:
    zeros(2)[0] += 1
    return x * zeros(2)[0], zeros(2)


@functools.lru_cache(maxsize=1)
def scales(number: int) -> Tensor:
    return torch.full((4,), float(number))


def forgotten(x: Tensor) -> Tensor:
    """A cache that is too small: the function itself is called, which no tracer takes."""
    return x * scales(2) + scales(3)


def told(x: Tensor) -> Tensor:
    return x * counted("a") + counted(name="b")


class Net(nn.Module):
    def __init__(self, what: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.left, self.right, self.what = nn.Linear(4, 4), nn.Linear(4, 4), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.left(x) + self.right(x).cos())


def _fresh(what: Callable[[Tensor], Any]) -> Net:
    CALLS.clear()
    for function in (mask, zeros, counted, drawn, scales):
        function.cache_clear()
    torch.manual_seed(0)
    return Net(what)


def _seen(call: Callable[[Tensor], Any]) -> list[Any]:
    """What three calls give and leave behind, the cache emptied before the last."""
    found: list[Any] = []
    for number in range(3):
        if number == 2:
            zeros.cache_clear()
        first, *rest = tree_leaves(call(torch.full((4, 4), number + 1.0)))
        first.sum().backward()
        found += [first.detach().cpu().clone(), *rest, mask(4).clone(), len(CALLS), zeros.cache_info().currsize]
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", [written, kept, forgotten])
@pytest.mark.parametrize("where", ["one graph", "lanes", "devices"])
def test_a_cache_is_asked_in_each_call(what: Callable[[Tensor], Any], where: str, request: pytest.FixtureRequest) -> None:
    """In one graph each call got a list and a tensor of its own, and the functions counted once more."""
    model = _fresh(what)
    wanted = _seen(model)
    model = _fresh(what)
    options: dict[str, Any] = {"check": False, "example_inputs": torch.ones(4, 4)}
    if where == "devices":
        request.getfixturevalue("world")
        parallel = partition(model, spec=pretend.spec(pretend.TWO), **options)
    else:
        parallel = partition(model, spec=spec(2), fullgraph=where == "one graph", **options)
    assert not CALLS, "what was called to trace is put back"
    found = _seen(parallel)
    assert len(parallel._partitioner_programs.latest.pieces) == 1
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def test_a_cached_function_that_writes_ends_the_graph() -> None:
    """Where it had to be one graph, it wrote in each call. What is called to see what it gives must have written nothing."""
    model = _fresh(told)
    wanted = _seen(model)
    model = _fresh(told)
    parallel = partition(model, spec=spec(2))
    assert [str(each) for each in _seen(parallel)] == [str(each) for each in wanted]
    with pytest.raises(TraceError, match="counted has a cache, and writes something"):
        partition(_fresh(told), ["cpu"], example_inputs=torch.ones(2, 4), fullgraph=True)


def test_a_cache_of_random_numbers_ends_the_graph() -> None:
    """Where it had to be one graph, each call drew anew."""
    noisy = _fresh(lambda x: x + drawn(4))
    with pytest.raises(TraceError, match="drawn has a cache, and draws random numbers"):
        partition(noisy, ["cpu"], example_inputs=torch.ones(2, 4), fullgraph=True)
    parallel = partition(noisy, spec=spec(2), example_inputs=torch.ones(2, 4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = parallel(torch.ones(2, 4)), parallel(torch.ones(2, 4)), torch.rand(1)
    drawn.cache_clear()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        wanted = noisy(torch.ones(2, 4)), noisy(torch.ones(2, 4)), torch.rand(1)
    assert all(map(torch.equal, first, wanted))


@functools.singledispatch
def converted(value: Any, times: int = 2) -> Any:
    return value


@converted.register
def _(value: int, times: int = 2) -> Any:
    return value * times


@converted.register(list)
def _(value: list[Any], times: int = 2) -> Any:
    return [converted(each, times) for each in value]


class Converts(nn.Module):
    """Leaves to a table of functions what becomes of a value, and to a context how much of it."""

    held: Any = 3

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return converted(self.layer(x)) * SCALE.get(), converted(self.held), converted([1, x], times=3), LATE.get(None)


def test_functions_of_a_table_and_values_of_a_context_are_asked_for_in_one_graph() -> None:
    """Dynamo looks into neither, so each was refused where one graph was to be all of a call, and ended it elsewhere."""
    x, model = torch.ones(2, 4), Converts()
    parallel = partition(model, spec=spec(2), example_inputs=x, fullgraph=True)

    def assert_alike() -> None:
        torch.testing.assert_close(parallel(x), model(x), rtol=0, atol=0)

    def under_others() -> None:
        for value in (2.0, torch.ones(4), 3):
            SCALE.set(value)
            assert_alike()
        LATE.set(0.5)
        converted.register(Tensor, lambda value, times=2: value - times)
        assert_alike()

    for held in (3, [1, 2], 2.5, True):
        model.held = parallel.held = held
        assert_alike()
    copy_context().run(under_others)
    Context().run(assert_alike)


class Later(Converts):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * LATE.get()


def test_a_context_without_a_value() -> None:
    x, model = torch.ones(2, 4), Later()
    parallel = partition(model, spec=spec(2), fullgraph=True)
    with pytest.raises(LookupError, match="LATE"):
        parallel(x)
    context = copy_context()
    context.run(LATE.set, 2.0)
    assert torch.equal(context.run(parallel, x), context.run(model, x))


class Drawable(ABC):  # noqa: B024
    """Classes are registered with it later."""


class Chooses(Converts):
    """Does otherwise with what is a `Drawable`."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = type("Curve", (), {})
        self.part = self.kind()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2 if isinstance(self.part, Drawable) else self.layer(x)


def test_what_torch_compile_has_traced_before_is_no_part_of_it() -> None:
    """Dynamo keeps what it traces Python's functions with for the whole process, as it was when it first met one.

    So what is otherwise here was as in torch.compile for a process in which that, or an eager `torch.cond`, had come first; and
    the other way round.
    """
    x, first, later = torch.ones(2, 4), Chooses(), Chooses()
    before = {**BuiltinVariable.call_function_handler_cache}
    torch.compile(first.forward, backend="eager")(x)
    theirs = {**BuiltinVariable.call_function_handler_cache}
    assert theirs.keys() - before.keys() or any(key[0] is isinstance for key in before)
    parallel = partition(later, spec=spec(2), example_inputs=x)
    assert torch.equal(parallel(x), later(x))
    Drawable.register(later.kind)
    assert torch.equal(parallel(x), later(x)) and torch.equal(later(x), later.layer(x) * 2)
    assert theirs == BuiltinVariable.call_function_handler_cache


class Rank(IntEnum):
    LOW = 1
    HIGH = 2


class Ranks(Converts):
    """Compares a member with a number that comes open, which torch.compile takes for unequal."""

    def forward(self, x: Tensor, value: int) -> tuple[Tensor, bool, bool]:
        return self.layer(x), Rank(value) == value, value != Rank.LOW


def test_nor_is_how_torch_compile_has_compared() -> None:
    x = torch.ones(2, 4)
    BuiltinVariable._binop_handlers.cache_clear()  # as in a new process
    for value in (1, 2):
        torch.compile(Ranks(), backend="eager")(x, value)
    parallel = partition(Ranks(), spec=spec(2), example_inputs=(x, 1))
    assert [parallel(x, value)[1:] for value in (1, 2, 1)] == [(True, False), (True, True), (True, False)]


def test_classes_that_are_registered_later_are_found() -> None:
    """What a class is an instance of was asked once, though an abstract class takes up others at any time."""

    class Curve:
        pass

    class Draws(Converts):
        part = Curve()

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            match self.part:
                case Drawable():
                    y = y * 2
            return y + 1 if issubclass(type(self.part), Drawable | Sized) else y

    x, model = torch.ones(2, 4), Draws()
    parallel = partition(model, spec=spec(2), example_inputs=x, fullgraph=True)
    assert torch.equal(parallel(x), model(x))
    Drawable.register(Curve)
    assert torch.equal(parallel(x), model(x))
    assert torch.equal(model(x), model.layer(x) * 2 + 1)
