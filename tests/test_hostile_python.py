"""Features of Python about which the tracer was silently wrong, or that `partition` left changed behind it.

Each is judged as programs of `hostile` are: the module does what the plain one does.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, UserDict
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import OLDER, Program, Run, Steps, Two, kept_in, rand, two
from torch import Tensor, nn

from partitioner import DifferenceError, partition

PYTHON: dict[str, Program] = {}

python = kept_in(PYTHON)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", PYTHON)
def test_equal(name: str, example: bool) -> None:
    assert_equal(PYTHON[name], Variant(True, example))


# -- globals -------------------------------------------------------------------------------------------------------------------

TABLE = torch.zeros(4)
LOCAL, SPACE, SETTINGS = threading.local(), SimpleNamespace(calls=0), UserDict(calls=0)


class Binds(Two):
    def forward(self, x: Tensor) -> Any:
        global TABLE, LATEST
        TABLE = TABLE + x.detach().sum(0)
        new = "LATEST" not in globals()
        LATEST = x.detach()
        LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
        SPACE.calls += 1
        SETTINGS["calls"] += 1
        return self.left(x) * TABLE, new, self.right(x) * LATEST, LOCAL.calls + SPACE.calls + SETTINGS["calls"]


def binds() -> nn.Module:
    global TABLE
    TABLE = torch.zeros(4)
    globals().pop("LATEST", None)
    vars(LOCAL).clear()
    SPACE.calls = SETTINGS["calls"] = 0
    return Binds()


@python(binds)
def globals_that_forward_binds(run: Run) -> Steps:
    """A tensor that a global stands for, and a global that was not there, stayed as `partition` had left them, and so did what
    a thread keeps for itself and objects of Python's own."""
    yield type(TABLE), "LATEST" in globals(), vars(LOCAL)
    for seed in range(3):
        yield run(rand(seed=seed)), TABLE, LATEST, vars(LOCAL), vars(SPACE), SETTINGS


# -- operators in place --------------------------------------------------------------------------------------------------------


class Items(list[Any]):
    """A list of the user's."""


class Names(dict[str, Any]):
    """A dictionary of the user's."""


def _adds_in_place(self: Any, x: Tensor) -> Any:
    made, names = Items([1]), Names(a=1)
    other = made
    made += [2]
    made *= 2
    names |= {"b": 2}
    self.items += [x.shape[0]]
    self.items *= 2
    self.names |= {str(len(self.items)): self.left(x).detach()}
    return self.right(x), made, made is other, names, self.items, self.names


@python(two(_adds_in_place, items=Items(), names=Names()))
def operators_in_place(run: Run) -> Steps:
    """They gave a plain list, and the model's own list, or dictionary, stayed as it was."""
    for _ in range(2):
        yield run(rand()), list(run.model.items), dict(run.model.names)


class Order(OrderedDict[str, Any]):
    """An ordered dictionary of the user's."""


def _copies_in_order(self: Any, x: Tensor) -> Any:
    return self.left(x) * self.right(x), self.order.copy(), self.order | {"b": 2}, Order(a=1).copy(), Order(a=1) | {"b": 2}


@python(two(_copies_in_order, order=Order(a=1)))
def copies_of_ordered_dictionaries(run: Run) -> Steps:
    """They were plain ones."""
    yield run(rand())


# -- classes -------------------------------------------------------------------------------------------------------------------


class Base:
    rate = 1.0
    log: ClassVar[list[str]] = []

    def name(self) -> str:
        return "base"


class Heir(Base):
    pass


def _writes_to_classes(self: Any, x: Tensor) -> Any:
    type(self).calls = getattr(type(self), "calls", 0) + 1
    Base.rate = Base.rate + 1
    first = Heir.rate, Heir().rate, self.calls
    Base.rate = Base.rate * 2
    return self.left(x) * Heir.rate + self.right(x) * self.calls, first, Heir().rate


def _of_its_own_class() -> nn.Module:
    Base.rate = 1.0
    return two(_writes_to_classes)()


@python(_of_its_own_class)
def classes_that_forward_writes_to(run: Run) -> Steps:
    """Objects of the class, and its heirs, had what it was before the call."""
    for _ in range(3):
        yield run(rand()), Base.rate


def _compares_methods(self: Any, x: Tensor) -> Any:
    one, other = Heir(), Heir()
    method = one.name
    found = one.name is one.name, method is method, one.name == one.name, one.name == other.name, one.name != other.name
    return self.left(x), found, self.left.forward == self.right.forward, self.left.forward is self.left.forward


@python(two(_compares_methods))
def methods_that_are_compared(run: Run) -> Steps:
    """Of two objects they were equal, and each time the same."""
    yield run(rand())


def _partials(self: Any, x: Tensor) -> Any:
    part = functools.partial(functools.partial(pow, 2), 3)
    return self.left(x), part.args, part.func is pow, functools.partial(self.part, exp=3).keywords


@python(two(_partials, part=functools.partial(pow, base=2)), limit=OLDER)
def partials_of_partials(run: Run) -> Steps:
    yield run(rand())


def _zips(self: Any, x: Tensor) -> Any:
    told = []
    for other in ([1], [1, 2], [1, 2, 3]):
        try:
            told.append(list(zip([1, 2], other, strict=True)))
        except ValueError as error:
            told.append(str(error))
    return self.left(x), told


@python(two(_zips))
def what_zip_tells(run: Run) -> Steps:
    yield run(rand())


# -- frames that cannot be gone on with ----------------------------------------------------------------------------------------


def _looks_at_its_variables(self: Any, x: Tensor) -> Any:
    y = self.left(x)
    print(end="")
    z = self.right(x)
    return {name: value for name, value in locals().items() if name != "self"}, sorted(vars()), sorted(dir()), z


@python(two(_looks_at_its_variables))
def variables_of_a_frame(run: Run) -> Steps:
    """Where the frame was gone on with there were some of the tracer's among them."""
    yield run.learn(rand(grad=True))


def _enters_by_hand(self: Any, x: Tensor) -> Any:
    off, cast = torch.no_grad(), torch.autocast("cpu", torch.bfloat16)
    off.__enter__()
    left = self.left(x)
    off.__exit__(None, None, None)
    cast.__enter__()
    right = self.right(x)
    cast.__exit__(None, None, None)
    return left, right, self.right(x), torch.is_grad_enabled()


@python(two(_enters_by_hand))
def contexts_entered_by_hand(run: Run) -> Steps:
    """Gradients stayed off after the call, and of a block of autocast there was a raw error."""
    for _ in range(2):
        yield run.learn(rand(grad=True))


# -- refusals ------------------------------------------------------------------------------------------------------------------


def test_what_differs_is_told_in_one_line() -> None:
    """Of large results their structure was told in a line for each leaf."""

    def other_each_time(self: Any, x: Tensor) -> Any:
        return {"left": [self.left(x)] * (9 if torch.compiler.is_compiling() else 30)}

    with pytest.raises(DifferenceError) as caught:
        partition(two(other_each_time)(), example_inputs=(rand(),))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


# -- generators that go on behind the end of a graph ---------------------------------------------------------------------------


@torch.compiler.disable
def between() -> None:
    """Ends the graph."""


def _endless(self: Any, x: Tensor) -> Any:
    def parts() -> Iterator[Tensor]:
        times = 0
        while True:
            yield self.left(x) * times
            times += 1

    found = parts()
    next(found)
    between()
    return next(found), self.right(x)


def _sends(self: Any, x: Tensor) -> Any:
    def parts() -> Generator[Tensor, Tensor, None]:
        y = yield self.left(x)
        while y is not None:
            y = yield y * 2

    found = parts()
    first = next(found)
    between()
    return found.send(first), self.right(x)


def goes_on(run: Run) -> Steps:
    """The rest of it was worked out where the graph ended: forever, and without ``send``."""
    yield run.learn(rand(grad=True)), run(rand(5, 4))


for _forward in (_endless, _sends):
    PYTHON[f"goes_on{_forward.__name__}"] = Program(
        f"goes_on{_forward.__name__}", two(_forward), goes_on, lambda: ((rand(),), {})
    )
