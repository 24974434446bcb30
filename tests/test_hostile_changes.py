"""Programs that were different after a change between two calls, of which the tracer did not ask.

Each is judged as those of `hostile` are: it does what the plain model does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, raised, rand
from lanes import OLD_TORCH
from torch import Tensor, nn
from torch.autograd import forward_ad

CHANGES: dict[str, Program] = {}

changes = kept_in(CHANGES)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHANGES)
def test_equal(name: str) -> None:
    assert_equal(CHANGES[name], Variant(True, True))


# -- classes -------------------------------------------------------------------------------------------------------------------


class Kinds(Two):
    """Objects of classes that are made with it: a plain one, one with defaults, a dictionary of the user's, a layer."""

    def __init__(self) -> None:
        super().__init__()

        def begin(self: Any, size: float = 2.0) -> None:
            self.size = size

        self.plain, self.sized = type("Plain", (), {"size": 2.0}), type("Sized", (), {"__init__": begin})
        self.items = type("Items", (dict,), {})(a=1.0)
        self.layer = type("Layer", (nn.Linear,), {})(4, 4)
        self.kept, self.held = self.plain(), self.plain()

    def forward(self, x: Tensor) -> Any:
        asked = bool(self.kept), self.kept == 3, self.items.get("a"), self.items["a"], "a" in self.items, callable(self.kept)
        self.held.seen = 3.0
        made = self.plain().size, self.sized().size, self.kept.size, self.held.seen
        return self.left(x) * self.right(x) + self.layer(x), asked, made


def _doubled(self: Any, name: str, value: float) -> None:
    object.__setattr__(self, name, value * 2)


COMES = {
    "__bool__": lambda self: False,
    "__eq__": lambda self, other: True,
    "__call__": lambda self: None,
    "__init__": lambda self: setattr(self, "size", 5.0),
    "__setattr__": _doubled,
    "__getattribute__": lambda self, name: 7.0,
}


@changes(Kinds)
def methods_that_come_to_a_class(run: Run) -> Steps:
    """Dynamo asks of a method that is there whether it is the same, and not whether one has come that it would have called."""
    yield run.learn(rand())
    for name, method in COMES.items():
        setattr(run.model.plain, name, method)
        yield name, run(rand())
        delattr(run.model.plain, name)
        yield name, run(rand())
    items = type(run.model.items)
    for name in ("get", "__getitem__", "__contains__"):
        setattr(items, name, lambda *_: True)
        yield name, run(rand())
    type(run.model.layer).__getattr__ = lambda self, name: nn.Module.__getattr__(self, name) * 2
    yield run.learn(rand())


@changes(Kinds)
def defaults_of_a_constructor(run: Run) -> Steps:
    """Of a function that it is given Dynamo asks what its defaults are; of the one that makes an object it does not."""
    for size in (2.0, 3.0, 2.0):
        run.model.sized.__init__.__defaults__ = (size,)
        yield run(rand())


# -- values that are equal -----------------------------------------------------------------------------------------------------


class Twins(Two):
    steps = range(0, 3, 2)

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[Any, str] = {1: "one"}

    def forward(self, x: Tensor) -> Any:
        return self.left(x) * self.right(x), self.steps.stop, list(self.names)


@changes(Twins)
def ranges_and_keys_that_are_equal(run: Run) -> Steps:
    """Ranges are equal that give the same numbers, and so are the keys 1, 1.0 and True."""
    yield run(rand())
    run.model.steps, run.model.names = range(0, 4, 2), {1.0: "one"}
    yield run(rand())
    run.model.steps, run.model.names = range(0, 3, 2), {True: "one"}
    yield run(rand())


# -- one object under two names ------------------------------------------------------------------------------------------------


class Mode(enum.Enum):
    FULL, HALF = 1.0, 0.5


class Scale:
    def __init__(self, size: float) -> None:
        self.size = size


SCALE = Scale(2.0)


class Named(Two):
    """Reads by its own name what is a global, too."""

    def __init__(self) -> None:
        super().__init__()
        self.mode, self.scale, self.scales = Mode.FULL, SCALE, [SCALE]

    def forward(self, x: Tensor) -> Any:
        whole = Mode.FULL is self.mode
        return self.left(x) * self.right(x) * SCALE.size, whole, self.mode.name, self.scale.size, self.scales[0].size


@changes(Named)
def one_object_as_a_global_and_an_attribute(run: Run) -> Steps:
    """Dynamo takes the attribute for the global that it has seen before, and did not ask again whether it still is."""
    yield run.learn(rand())
    run.model.mode = Mode.HALF
    yield run(rand())
    run.model.scale = Scale(3.0)
    yield run(rand())
    run.model.scales[0] = run.model.scale
    yield run(rand())
    run.model.mode, run.model.scale = Mode.FULL, SCALE
    yield run(rand())


# -- keys and sets -------------------------------------------------------------------------------------------------------------


class Key:
    """One of many that are equal."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.value == self.value

    def __hash__(self) -> int:
        return self.value


@dataclass(frozen=True)
class Named:
    value: int
    name: str = field(compare=False)


class Seen(set[Any]):
    """A set of the user's."""


class Collects(Two):
    """Notes what it is given, in a dictionary and in sets: a set of objects was not written, nor was one of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.seen, self.own = dict[Any, int](), {nn.ReLU, nn.Tanh}, Seen([nn.ReLU, nn.Tanh])

    def forward(self, x: Tensor, key: Any) -> Tensor:
        self.counts[key] = self.counts.get(key, 0) + 1
        known = {Key(1): 2.0, Named(1, "a"): 4.0}.get(key, 3.0)
        return self.left(x) * self.counts[key] + self.right(x) * known


@changes(Collects, lambda: Key(1))
def keys_that_are_equal(run: Run) -> Steps:
    for key in (Key(2), Key(1), Key(2), Named(1, "b"), Named(1, "c")):
        yield run(rand(), key), [(key.value, count) for key, count in run.model.counts.items()]


class Puts(Collects):
    name = "seen"

    def forward(self, x: Tensor, key: Any) -> Tensor:
        held = getattr(self, self.name)
        held.add(key)
        held.discard(nn.ReLU)
        return self.left(x) * len(held) + self.right(x)


@changes(Puts, lambda: 1)
def sets_of_objects_are_written(run: Run) -> Steps:
    for run.model.name in ("seen", "own"):
        for key in (Key(2), nn.Tanh, torch.sin, Key(2)):
            yield run(rand(), key), len(run.model.seen), len(run.model.own)


# -- a forward of its own ------------------------------------------------------------------------------------------------------


def _with_a_forward() -> nn.Module:
    model = Two()
    model.forward = (lambda self, x: self.left(x) - self.right(x)).__get__(model)
    return model


@changes(_with_a_forward, limit="a forward of its own that is taken away again is not noticed" if OLD_TORCH else "")
def forward_replaced_and_taken_away(run: Run) -> Steps:
    """The one that was replaced came back."""
    yield run(rand())
    run.module.forward = (lambda self, x: self.left(x) * 7).__get__(run.module)
    yield run(rand())
    del run.module.forward
    yield run(rand()), "forward" in vars(run.module)


# -- errors in the middle ------------------------------------------------------------------------------------------------------


class Tangents(Two):
    """Differentiates forward, by a transform or in a level of its own."""

    transform = True

    def forward(self, x: Tensor, chosen: Tensor) -> Any:
        if self.transform:
            found = torch.func.jvp(lambda inner: inner.index_select(-1, chosen).sin(), (x,), (torch.ones_like(x),))[1]
        else:
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(x, torch.ones_like(x)).index_select(-1, chosen)
                found = forward_ad.unpack_dual(dual).tangent
        return self.left(x) * self.right(x), found


@changes(Tangents, lambda: torch.tensor([0, 1]))
def index_out_of_range_in_forward_mode(run: Run) -> Steps:
    """The level stayed open, so that nobody in the process could differentiate forward any more."""
    for run.model.transform in (True, False):
        for last in (1, 9, 2):
            yield raised(lambda last=last: run(rand(), torch.tensor([0, last])))  # type: ignore[misc]
