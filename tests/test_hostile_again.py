"""Programs that were different because of what lies outside of the model: classes, functions, objects in globals.

Each is judged as those of `hostile` are: it does what the plain model does.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, ClassVar, Self

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, rand
from lanes import OLD_TORCH
from torch import Tensor, nn

AGAIN: dict[str, Program] = {}

again = kept_in(AGAIN)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", AGAIN)
def test_equal(name: str, example: bool) -> None:
    assert_equal(AGAIN[name], Variant(example, example))


# -- what `partition` itself runs, and has to put back ---------------------------------------------------------------------


class Times(torch.autograd.Function):
    forwards = backwards = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Times.forwards += 1
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Times.backwards += 1
        return gradient * 2


class Region:
    log: ClassVar[list[str]] = []

    def __enter__(self) -> Self:
        self.log.append("enters")
        return self

    def __exit__(self, kind: type | None, *_: object) -> bool:
        self.log.append(kind.__name__ if kind else "leaves")
        return kind is KeyError


class Tally:
    """An object in a global."""

    def __init__(self) -> None:
        self.calls = 0

    def add(self) -> int:
        self.calls += 1
        return self.calls


TALLY, TABLE = Tally(), torch.zeros(4)


def nudged(x: Tensor) -> Tensor:
    """A function that forward calls: what it writes in turn was not put back."""
    TABLE.add_(1)
    return x * TALLY.add() + TABLE


class Counts(Two):
    made: ClassVar[int]

    @classmethod
    def count(cls) -> int:
        cls.made = getattr(cls, "made", 0) + 1
        return cls.made

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        y = Times.apply(self.left(x)) + nudged(self.right(x)) * self.count()
        with Region():
            if fail:
                raise KeyError(0)
            y = y * 2
        return y


def counts() -> nn.Module:
    Times.forwards = Times.backwards = TALLY.calls = 0
    Region.log.clear()
    TABLE.zero_()
    return type("Fresh", (Counts,), {})()


@again(counts)
def counted_outside_of_the_model(run: Run) -> Steps:
    """On classes, in objects in globals, in functions that forward calls: each run that `partition` makes was counted."""
    for fail in (False, True, False):
        yield run.learn(rand(), fail), run(rand()), list(Region.log)
        yield Times.forwards, Times.backwards, TALLY.calls, type(run.model).made, TABLE.clone()


# -- what a frame did not find, and finds later --------------------------------------------------------------------------------


def plain(x: Tensor) -> Tensor:
    return x


class Text(str):
    """A text with attributes."""


class Pair(tuple):
    """A tuple with attributes."""


OWNERS: dict[str, Callable[[], Any]] = {
    "function": lambda: types.FunctionType(plain.__code__, {}),
    "module": lambda: types.ModuleType("settings"),
    "class": lambda: type("Settings", (), {}),
    "class of modules": lambda: type("Part", (nn.Module,), {}),
    "partial": lambda: functools.partial(plain),
    "cached function": lambda: functools.lru_cache(types.FunctionType(plain.__code__, {})),
    "tensor": lambda: torch.zeros(2),
    "text": lambda: Text("text"),
    "tuple": lambda: Pair((1, 2)),
}


def by_getattr(owner: Any) -> float:
    return getattr(owner, "scale", 1.0)


def by_hasattr(owner: Any) -> float:
    return owner.scale if hasattr(owner, "scale") else 1.0


def by_except(owner: Any) -> float:
    try:
        return owner.scale
    except AttributeError:
        return 1.0


def asking(owner: Any, ask: Callable[[Any], float]) -> nn.Module:
    class Asks(Two):
        def forward(self, x: Tensor) -> Tensor:
            return self.left(x) * ask(self.owner) + self.right(x)

    model = Asks()
    model.owner = owner
    return model


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ask", [by_getattr, by_hasattr, by_except])
@pytest.mark.parametrize("kind", OWNERS)
def test_an_attribute_that_comes_later(kind: str, ask: Callable[[Any], float]) -> None:
    """That there was none was no guard, but of objects: a counter that begins with ``getattr(f, "calls", 0)`` stayed at 1."""

    def script(run: Run) -> Steps:
        yield run(rand())
        for scale in (2.0, 3.0):
            run.model.owner.scale = scale
            yield run(rand())
        del run.model.owner.scale
        yield run(rand())

    if OLD_TORCH and kind == "partial" and ask is not by_hasattr:
        pytest.xfail("its tracer makes a constant of what a partial lacks")
    program = Program(kind, lambda: asking(OWNERS[kind](), ask), script, lambda: ((rand(),), {}))
    assert_equal(program, Variant(False, False))


def calls_of_a_function() -> nn.Module:
    def step(x: Tensor) -> Tensor:
        return x

    class Steps(Two):
        def forward(self, x: Tensor) -> Tensor:
            step.calls = getattr(step, "calls", 0) + 1  # type: ignore[attr-defined]
            return self.left(step(x)) + self.right(x) * step.calls  # type: ignore[attr-defined]

    return Steps()


@again(calls_of_a_function)
def counter_that_is_an_attribute_of_a_function(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())


class Base(Two):
    scale, table = 2.0, {"k": 2.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.scale + self.right(x) * self.table["k"] * self.part.gain


class Gains:
    gain = 1.0


def heirs() -> nn.Module:
    model = type("Heir", (Base,), {})()
    model.part = type("Own", (Gains,), {})()
    return model


@again(heirs)
def class_gets_an_attribute_that_its_base_has(run: Run) -> Steps:
    """Dynamo asks the classes between the object's own and the one that has it."""
    yield run(rand())
    type(run.model).scale = 5.0
    yield run(rand())
    type(run.model).table = {"k": 7.0}
    type(run.model.part).gain = 3.0
    yield run(rand())
    del type(run.model).scale
    yield run(rand())


# -- properties ------------------------------------------------------------------------------------------------------------


class Makes(Two):
    """A property that cannot be traced together with its caller, so that it is traced on its own."""

    @property
    def table(self) -> Tensor:
        self.made = getattr(self, "made", 0) + 1
        print(end="")
        return torch.arange(4.0) * self.made

    @functools.cached_property
    def kept(self) -> Tensor:
        self.looked = getattr(self, "looked", 0) + 1
        return torch.ones(4) * self.looked

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.table * self.kept + self.right(x)


@again(Makes)
def properties_that_count(run: Run) -> Steps:
    """To name the arguments of the property's code, the model was asked for an attribute of its name: that ran it."""
    for _ in range(4):
        yield run(rand()), run.module.made, run.module.looked
        del run.module.kept
    yield run(rand()), run.module.looked


class Lacks(Two):
    """Asks ``None`` for an attribute, as models do whose cache is optional."""

    cache: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * 2 if getattr(self.cache, "is_static", False) else self.right(x)


@again(Lacks)
def none_has_no_attributes(run: Run) -> Steps:
    """torch 2.11 raised of the guard itself, and GPT-2 was not one graph any more."""
    yield run(rand())
    run.model.cache = types.SimpleNamespace(is_static=True)
    yield run(rand())
    run.model.cache = None
    yield run(rand())
