"""What forward makes, tells and looks for, with which the tracer was silently wrong, or raised past the model's own handler.

Each is judged as programs of `hostile` are: the module does what the plain one does.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import OLDER, Program, Run, Steps, kept_in, raised, rand, two
from torch import Tensor, nn

from partitioner import partition

MADE: dict[str, Program] = {}

made = kept_in(MADE)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", MADE)
def test_equal(name: str, example: bool) -> None:
    assert_equal(MADE[name], Variant(True, example))


@dataclass
class Settings:
    rate: Any = 1
    items: list[Any] = field(default_factory=list)


class Names(dict[str, Any]):
    """A dictionary of the user's."""


class Items(list[Any]):
    """A list of the user's."""


class Members(set[int]):
    """A set of the user's."""


class Counts:
    """Says itself what of it is copied."""

    def __init__(self) -> None:
        self.kept, self.cache = 1, 2

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, cache=0)


def _duck_types(self: Any, x: Tensor, value: Any = None) -> Any:
    y = self.left(x)
    try:
        shape = self.sizes.shape
    except AttributeError:
        shape = "none"
    try:
        extra = y.extra
    except AttributeError:
        extra = "none"
    try:
        pairs = value.items
    except AttributeError:
        pairs = list
    return y, shape, extra, len(list(pairs()))


@made(two(_duck_types, sizes=[1, 2]))
def attributes_that_lists_and_tensors_have_not(run: Run) -> Steps:
    """They were looked for where the value is used, past the ``except``, and an `AttributeError` reached the caller."""
    for value in ([1, 2], {"a": 1}, (1,), None):
        yield run(rand(), value)


def _with_attributes(self: Any, x: Tensor) -> Tensor:
    tagged, buffer = self.left(x), nn.Buffer(x + 1)
    tagged.tag = 3.0
    try:
        factor = tagged.tag + buffer.persistent
    except AttributeError:
        factor = 0.0
    return self.right(x) * factor + tagged


@made(two(_with_attributes))
def attributes_that_tensors_have_got(run: Run) -> Steps:
    """A buffer has one of its own, which its class does not know."""
    yield run.learn(rand(grad=True))


@made(two(lambda self, x: (vars(Settings(self.left(x))), Settings(self.right(x)).__dict__)))
def attributes_of_what_forward_has_made(run: Run) -> Steps:
    """There were none."""
    yield run.learn(rand(grad=True))


def _copies(self: Any, x: Tensor, value: Any = None) -> Any:
    made = Names(a=self.left(x))
    other, deep = copy.copy(made), copy.deepcopy(value)
    other["b"] = self.right(x)
    return made, other, copy.copy(value), deep


@made(two(_copies))
def copies_of_containers_and_of_objects_that_say_how(run: Run) -> Steps:
    """The copy of a container of a class of its own was empty, and what a class says of its copies went unheard."""
    for value in (OrderedDict(a=[1]), Counter("aab"), Names(a=1), Items([1, [2]]), Members([3]), Counts(), Settings()):
        yield run(rand(), value)


@made(two(lambda self, x: (self.left(x), Members([1, 2]), sorted(Members(Members([3]))))))
def sets_of_the_users(run: Run) -> Steps:
    """They came out without members."""
    yield run(rand())


def _tells(self: Any, x: Tensor, items: Any = None) -> Any:
    y = self.left(x)
    settings, counts, total = Settings(), OrderedDict(a=1), y.sum()
    told = [f"{total:.4f}", f"{settings}", str(counts), "{} {}".format(y, 2), f"{items} {len(x)}", f"{[total]}"]  # noqa: UP032
    y.add_(1)
    total.add_(1)
    settings.rate = 7
    settings.items.append(1)
    counts["b"] = 2
    items.append(1)
    return y, told, str(settings), str(counts), f"{total:.4f}", f"{x.shape} {len(x)}"


@made(two(_tells), list)
def texts_of_what_is_changed_afterwards(run: Run) -> Steps:
    """They told what was written later, of an object that was not there yet a raw error; the text of a container was empty."""
    for rows in (3, 2, 4):
        yield run(rand(rows, 4), [1]), run(rand(rows, 4), Items([1]))


def _moves(self: Any, x: Tensor) -> Any:
    self.recent.move_to_end(next(iter(self.recent)))
    return self.left(x), list(self.recent)


@made(two(_moves, recent=OrderedDict(a=1, b=2, c=3)), limit=OLDER)
def order_of_the_models_own_dictionary(run: Run) -> Steps:
    """It stayed as it was."""
    for _ in range(3):
        yield run(rand()), list(run.model.recent)


def _parts(x: Tensor, depth: int) -> Iterator[Any]:
    """Yields parts, and returns how many there were."""
    if depth == 0:
        return 1
    yield x * depth
    first = yield from _parts(x, depth - 1)
    second = yield from _parts(x + 1, depth - 1)
    return first + second


def _counts_parts(self: Any, x: Tensor) -> Any:
    def counted() -> Iterator[Any]:
        number = yield from _parts(self.left(x), 2)
        yield number * self.right(x)

    return list(counted())


@made(two(_counts_parts))
def what_generators_return(run: Run) -> Steps:
    """``yield from`` gave ``None``."""
    yield run.learn(rand(grad=True))


def _largest(self: Any, x: Tensor) -> Any:
    total = self.left(x).sum()
    other = total * 1
    found = max(total, 0), min(1000, total), max(0, total * 0), max(total, other), min([total, other, total + 1])
    return found, [type(each).__name__ for each in found]


@made(two(_largest))
def largest_of_tensors_and_numbers(run: Run) -> Steps:
    """There was a tensor where eager has the number, and equal tensors had half of the gradient each."""
    for seed in (1, 2, 3):
        yield run.learn(rand(seed=seed, grad=True))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: max(self.left(x), 0),
        lambda self, x: self.left(x) * sum(range(x.shape[0] / 1)),
    ],
    ids=["max", "range"],
)
def test_errors_of_python_are_errors(forward: Callable[..., Tensor]) -> None:
    """The largest of several elements and zero was each one's own, and a range of a broken number was cut off."""
    model = two(forward)()
    expected, actual = raised(lambda: model(rand())), raised(lambda: partition(model, ["cpu"])(rand()))
    assert isinstance(expected, Exception) and (type(actual), str(actual)) == (type(expected), str(expected))


def _looks_for(self: Any, x: Tensor, question: int = 0) -> Any:
    y, total = self.left(x), torch.ones(())
    if question == 0:
        return y in [y], x in (x, 1), y not in [y], 3 in range(4)
    return y, 1.0 in [total] if question == 1 else ("a" in ["b", y], total in [2, total * 1])


@made(two(_looks_for), limit=OLDER)
def tensors_in_lists(run: Run) -> Steps:
    """Whether they are in there was a tensor, and of a number in a range 1; that a number equals a tensor was not seen."""
    for question in range(3):
        yield run(rand(), question)
