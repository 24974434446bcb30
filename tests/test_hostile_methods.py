"""Programs about methods and classes: what an object is said to have, how it is bound, and who calls it, that were different.

Each is judged as those of `hostile` are: it does what the plain model does.
"""

from __future__ import annotations

import functools
import string
import textwrap
from collections.abc import Callable
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, rand
from lanes import OLD_TORCH, assert_same
from pretend import TWO, World, spec
from torch import Tensor, nn

from partitioner import partition

METHODS: dict[str, Program] = {}

about_methods = kept_in(METHODS)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", METHODS)
def test_equal(name: str, example: bool) -> None:
    if OLD_TORCH and name == "partial_methods" and example:
        pytest.skip("its tracer does not bind them, and the model is refused")
    assert_equal(METHODS[name], Variant(True, example))


# -- partial methods -----------------------------------------------------------------------------------------------------------


class Partly(Two):
    def scaled(self, k: int, x: Tensor, *more: Tensor, m: int = 1) -> Tensor:
        return self.left(x) * k * m + sum(more)

    half = functools.partialmethod(scaled, 2)
    thrice = functools.partialmethod(scaled, 3, m=2)
    size = functools.partialmethod(classmethod(lambda kind, a, b: len(kind.__name__) * a + b), 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.half(x, self.right(x)) + self.thrice(x, m=4) + (self.thrice.keywords["m"] if self.half.args == (2,) else 0)


class AsksForPartly(Partly):
    def forward(self, x: Tensor) -> Any:
        half = getattr(self, "half", None)
        try:
            size = self.size(b=1)
        except AttributeError:
            size = None
        return x if half is None else half(x), hasattr(self, "thrice"), size, self.right(x)


@about_methods(Partly)
def partial_methods(run: Run) -> Steps:
    for rows in (3, 5):
        yield run.learn(rand(rows, 4, grad=True))


@about_methods(AsksForPartly)
def partial_methods_that_are_asked_for(run: Run) -> Steps:
    """To the tracer a function had no ``__get__``, so what is bound by Python of its library was not there, without a word."""
    for rows in (3, 5):
        yield run.learn(rand(rows, 4, grad=True))


@pytest.mark.skipif(OLD_TORCH, reason="its tracer does not bind them, and the model is refused")
def test_partial_methods_in_one_graph(world: World) -> None:
    """It was refused, for "what is called there raises an error"."""
    model = Partly()
    parallel = partition(model, spec=spec(TWO), example_inputs=(rand(),), copy=True)
    for rows in (3, 5):
        assert_same(parallel(rand(rows, 4)), model(rand(rows, 4)))


# -- methods that are read of the class ----------------------------------------------------------------------------------------


class Scales(Two):
    def scaled(self, x: Tensor, k: int = 1) -> Tensor:
        return self.left(x) * k

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, 2) + self.right(x)


def of_its_own_class() -> nn.Module:
    """The class is written to, so each model has another one."""
    return type("Scales", (Scales,), {"forward": Scales.forward, "scaled": Scales.scaled})()


def _around(method: Callable[..., Tensor], times: int) -> Callable[..., Tensor]:
    def around(self: Any, x: Tensor, *given: Any) -> Tensor:
        return method(self, x, *given) * times

    return around


@about_methods(of_its_own_class)
def methods_of_the_class_are_wrapped(run: Run) -> Steps:
    """Who patches a model does it so. The method that is read of the class took the model for a partitioned one, and failed."""
    kind = type(run.module)
    forward, scaled = kind.forward, kind.scaled
    for times in (2, 3):
        kind.forward = outer = _around(kind.forward, times)
        yield run(rand()), kind.forward is outer
    kind.scaled = _around(scaled, 5)
    yield run(rand(5, 4)), run.module.scaled(rand())
    kind.forward, kind.scaled = forward, scaled
    yield run(rand()), kind.forward is forward
    with mock.patch.object(kind, "scaled", lambda self, x, k: x * k):  # which keeps what is in the class's dictionary
        yield run(rand())
    yield run(rand())


@about_methods(of_its_own_class)
def methods_of_the_class_are_called(run: Run) -> Steps:
    kind = type(run.module)
    yield kind.forward(run.module, rand()), kind.scaled(run.module, rand(), 3), kind.forward(run.model, rand(5, 4))


@about_methods(of_its_own_class)
def classes_are_derived(run: Run) -> Steps:
    """Who made an object of such a class got one of the model's, without a method of the class's own; or gave the module it."""
    kind = type(run.module)

    class Twice(kind):  # type: ignore[misc, valid-type]
        times = 2

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.times

    class Both(Twice, kind):  # type: ignore[misc, valid-type]
        times = 3

    for derived in (Twice, Both):
        made = derived()
        made.load_state_dict(run.module.state_dict())
        yield isinstance(made, derived), type(made).__name__, made(rand()), run(rand())
    run.module.__class__ = Twice
    yield run(rand()), isinstance(run.module, Scales)


# -- what objects are said to have ---------------------------------------------------------------------------------------------

NOTHING = object()
NAMES = ("__name__", "__dict__", "__call__", "__format__", "__class__", "__reduce__", "__init_subclass__", "__len__", "shape")


def has(name: str) -> Callable[[Two, Tensor], Any]:
    """A forward that asks whether something has an attribute, in three ways."""

    def forward(self: Two, x: Tensor) -> Any:
        found = getattr(self.held, name, NOTHING)
        return self.left(x), hasattr(self.held, name), found is NOTHING, callable(found), getattr([], name, None) is None

    forward.__code__ = forward.__code__.replace()  # each name has a program of its own
    return forward


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("held", [range(3), {"a": 1}, {1}, torch.Size([2]), MappingProxyType({}), len, torch.ones(2)], ids=repr)
def test_what_an_object_has(held: Any, name: str) -> None:
    """A range had no ``__format__``, ``getattr({}, "__name__", default)`` was an error, and a set had a ``__dict__``."""
    program = Program("has", lambda: _holding(held, has(name)), _three_calls, lambda: ((rand(),), {}))
    assert_equal(program, Variant(False, False))


def _holding(held: Any, forward: Callable[..., Any]) -> nn.Module:
    model = type("Holds", (Two,), {"forward": forward})()
    model.held = held
    return model


def _three_calls(run: Run) -> Steps:
    for rows in (3, 5, 3):
        yield run(rand(rows, 4))


class OfTheLibrary(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        try:
            found: Any = string.Template("$a-$b").substitute(a=1, b=2), textwrap.TextWrapper(width=5).fill("one two")
        except TypeError as error:
            found = str(error)
        return self.left(x) + self.right(x), found


@about_methods(OfTheLibrary)
def methods_of_the_library(run: Run) -> Steps:
    """They were called without their object, as functions of constants are: it was an error that forward may catch."""
    yield from _three_calls(run)


# -- tensors of another class --------------------------------------------------------------------------------------------------


class Tagged(Tensor):
    pass


class GivesAnotherClass(Two):
    def forward(self, x: Tensor) -> Any:
        x.tag = 3  # type: ignore[attr-defined]
        one, other = x.as_subclass(Tagged), Tagged(self.left.weight)
        seen = type(one).__name__, type(other) is Tagged, hasattr(one, "tag"), one is x, one.is_leaf, other.is_leaf
        one.tag = 5  # type: ignore[attr-defined]
        return self.left(x), seen, x.tag, one * 2, other  # type: ignore[attr-defined]


@about_methods(GivesAnotherClass)
def tensors_that_are_given_another_class(run: Run) -> Steps:
    """To the tracer they were the tensor itself: of its class, with its attributes, and a leaf if it was one."""
    for rows in (3, 5):
        yield run.learn(rand(rows, 4, grad=True))


class Drops(Two):
    def forward(self, x: Tensor, p: float = 0.5, training: bool = False) -> Any:
        y = nn.functional.dropout(x, p, training)
        z = nn.functional.dropout(self.left(x), p, training)
        return y is x, y.is_leaf, y._is_view(), self.right(y) + (1 if y is x else 2), z * 2


@about_methods(Drops)
def dropouts_that_drop_nothing(run: Run) -> Steps:
    """They give their very argument, and to the tracer a copy, so ``y is x`` was false, and ``y`` no leaf."""
    for p, training in ((0.5, False), (0.0, True), (0.5, True), (0.0, False), (0.25, False)):
        yield run.learn(rand(grad=True), p, training)
        yield run(rand(5, 4), p=p, training=training)
