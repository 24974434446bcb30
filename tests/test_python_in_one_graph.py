"""Python that Dynamo ends graphs at, and that one whole graph is made of over several devices: each program was refused.

They are judged against eager: results, gradients, state, what forward sets, further calls with other data and batch sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import hostile.portrait
import numpy as np
import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import OLDER, Program, Run, Steps, Two, rand, two
from pretend import TWO, World, spread
from torch import Tensor, nn

from partitioner import TraceError

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are compared by all but where they lie."""
    plain = hostile.portrait._tensor

    def pictured(value: Tensor, kind: str) -> hostile.portrait.Picture:
        found = plain(value, kind)
        return replace(found, facts=tuple(fact for fact in found.facts if fact[0] != "device"))

    monkeypatch.setattr(hostile.portrait, "_tensor", pictured)


def calls(run: Run) -> Steps:
    """Two trainings, another batch size, one without gradients."""
    for seed in (3, 9):
        yield run.learn(rand(3, 4, seed=seed, grad=True))
    yield run.learn(rand(5, 4))
    with torch.no_grad():
        yield run(rand(3, 4, seed=5))


class Rows(Exception):
    """An error of the user's, with more than a text."""

    def __init__(self, rows: int, why: str = "many") -> None:
        super().__init__(f"{why}: {rows}", rows)
        self.rows = rows


class Deeper(Rows):
    def __init__(self, rows: int) -> None:
        super().__init__(rows, why="deeper")


class Missing(KeyError):
    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key, len(key))


def few(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if x.shape[0] > 4:
        raise Deeper(x.shape[0])
    return layer(x)


class Depth:
    """A context that counts, and lets errors of the user's go no further."""

    def __init__(self) -> None:
        self.depth, self.errors = 0, list[str]()

    def __enter__(self) -> int:
        self.depth += 1
        return self.depth

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.depth -= 1
        if kind is not None:
            self.errors.append(str(error))
        return kind is Deeper


def of_an_argument(self: Any, x: Tensor) -> Tensor:
    with x.device as device:
        ones = torch.ones(4)
    return self.left(x) * ones + self.right(x) * (2 if device == x.device else 3)


def one_in_another(self: Any, x: Tensor) -> Tensor:
    y = self.left(x)
    with torch.device("meta"):
        with torch.device(y.device):
            scale, shift = torch.full((4,), 2.0), torch.tensor([1.0, 2.0, 3.0, 4.0])
        nowhere = torch.zeros(4)
    return y * scale + shift * self.right(x) + torch.ones(nowhere.shape)


def random_numbers(self: Any, x: Tensor) -> Tensor:
    with torch.device(self.right.weight.device):
        kept = torch.rand(4) > 0.5
        noise = torch.randn(x.shape[0], 4)
    return torch.where(kept, self.left(x), 0) + self.right(x) * noise


def left_by_an_error(self: Any, x: Tensor) -> Tensor:
    try:
        with x.device:
            if x.shape[0] == 5:
                raise ValueError("five")
            scale = torch.ones(4)
    except ValueError:
        scale = torch.zeros(4)
    return self.left(x) * scale + self.right(x)


def entered(self: Any, x: Tensor) -> Tensor:
    with self.context as depth, self.context:
        y = self.left(x) * self.context.depth
    with self.context:
        y = few(self.right, x) * y
    return y * depth + self.context.depth


def caught(self: Any, x: Tensor) -> Any:
    try:
        return few(self.left, x) + self.right(x), None
    except Rows as error:
        return x + self.right(x) * error.rows, (error, error.args, str(error), isinstance(error, Deeper))


def caught_key(self: Any, x: Tensor) -> Any:
    y = self.left(x)
    try:
        raise Missing("rows")
    except KeyError as error:
        return y * self.right(x), error.args, error.key, error


def named(self: Any, x: Tensor) -> Any:
    found = SimpleNamespace(y=self.left(x), rows=[x.shape[0]])
    found.z = self.right(x)
    found.inner = SimpleNamespace(same=found.rows)
    found.rows.append(2)
    return found, found.inner, found.y * found.z + len(vars(found))


def kept(self: Any, x: Tensor) -> Tensor:
    self.notes.calls += 1
    self.notes.last = self.left(x).detach()
    return self.left(x) * self.right(x) * self.notes.calls


def seeded(self: Any, x: Tensor) -> Any:
    before = torch.nn.functional.dropout(self.left(x), 0.5)
    torch.manual_seed(x.shape[0])
    after = torch.nn.functional.dropout(self.right(x), 0.5)
    noise = torch.rand(4)
    torch.manual_seed(3)
    return before * after + noise, torch.rand(2)


def seeded_at_the_end(self: Any, x: Tensor) -> Tensor:
    y = self.left(x) * torch.rand(4) + self.right(x)
    torch.manual_seed(seed=11)
    return y


DEVICES = [of_an_argument, one_in_another, random_numbers, left_by_an_error]
OTHERS = [entered, caught, caught_key, named, kept, seeded, seeded_at_the_end]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("forward", [*DEVICES, *OTHERS], ids=lambda forward: forward.__name__)
def test_equal(forward: Callable[..., Any], training: bool, world: World, anywhere: None) -> None:
    def build() -> nn.Module:
        model: Any = type("Model", (Two,), {"forward": forward})()
        model.context, model.notes = Depth(), SimpleNamespace(calls=0, last=None)
        return model  # type: ignore[no-any-return]

    limit = OLDER if forward in (entered, caught, caught_key, named) else ""  # the text of an error, len(vars(...))
    program = Program(forward.__name__, build, calls, lambda: ((rand(),), {}), watch=("context", "notes"), limit=limit)
    assert_equal(program, Variant(training, True), lambda model, program: spread(model, program.example()[0], TWO))


def kept_by_layers(self: Any, x: Tensor) -> Any:
    self.features, before = [], x
    for layer in (self.left, self.right):
        x = layer(x).relu()
        if x.requires_grad:
            x.retain_grad()
            self.features.append(x)
    return x + self.left(before), self.features[:1]


def hooked_too(self: Any, x: Tensor) -> Any:
    y, z = self.left(x), self.right(x)
    asked = y.retains_grad
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2)
        y.retain_grad()
        z[:, :2].retain_grad()
    return y * z + (1 if y.retains_grad and not asked else 2), [y]


def written_after(self: Any, x: Tensor) -> Any:
    y, z = self.left(x), self.right(x)
    if y.requires_grad:
        y.retain_grad()
    y.mul_(z)
    return y * z, [y]


@pytest.mark.parametrize("options", [{}, {"backward": "lanes"}], ids=["engine", "lanes"])
@pytest.mark.parametrize("forward", [kept_by_layers, hooked_too, written_after], ids=lambda forward: forward.__name__)
def test_retained_gradients(forward: Callable[..., Any], options: dict[str, str], world: World, anywhere: None) -> None:
    """Of what forward gives and of what it keeps, over several backwards, and none without gradients."""

    def script(run: Run) -> Steps:
        for seed in (3, 3, 9):
            result, kept = run(rand(3, 4, seed=seed))
            result.square().sum().backward()
            yield result, [(each, each.grad, each.retains_grad) for each in kept], len(getattr(run.module, "features", ()))
        with torch.no_grad():
            yield run(rand(3, 4))

    program = Program(forward.__name__, two(forward), script, lambda: ((rand(),), {}), limit=OLDER)
    assert_equal(program, Variant(True, True), lambda model, program: spread(model, program.example()[0], TWO, **options))


def asks_for_a_device(self: Any, x: Tensor) -> Tensor:
    with x.device:
        return self.left(x) + torch.ones(4, device=torch.get_default_device())


def asks_for_the_generator(self: Any, x: Tensor) -> Tensor:
    return self.left(x) * torch.rand(4, generator=torch.manual_seed(1))


def compares(self: Any, x: Tensor) -> Tensor:
    return self.left(x) * (1 if SimpleNamespace(rows=1) == SimpleNamespace(rows=1) else 2)


class Full(OSError):
    def __init__(self, number: int) -> None:
        super().__init__(number, "full")


def has_a_number(self: Any, x: Tensor) -> Any:
    try:
        raise Full(x.shape[1])
    except OSError as error:
        return self.left(x) * error.errno


def makes_a_nested_tensor(self: Any, x: Tensor) -> Any:
    rows = torch.nested.as_nested_tensor([x[:1], x[1:]], layout=torch.jagged)
    return self.left(rows).values() * self.right(x)


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (makes_a_nested_tensor, r"a NestedTensor, which is several tensors in one \(at .*test_python_in_one_graph"),
        (asks_for_a_device, "asks for the device of tensors that name none"),
        (asks_for_the_generator, "an object that no graph can hold"),
        (compares, "comparison|does not know"),
        (has_a_number, r"super\(\)\.__init__"),
    ],
)
def test_refused(forward: Callable[..., Any], why: str, world: World) -> None:
    """What is not looked into like the rest: it would be something else than eager's."""
    with pytest.raises(TraceError, match=why):
        spread(type("Model", (Two,), {"forward": forward})(), (rand(),), TWO)


class Later(Two):
    """Something that no graph can hold, in the second call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 if self.calls < 2 else float(np.ones(1)[0]) * x.detach().numpy().sum())


def test_a_second_call_that_is_refused_says_why(world: World) -> None:
    """``a second call: eager takes it, the program does not`` was all that was said."""
    with pytest.raises(TraceError, match=r"cannot be one graph.*numpy"):
        spread(Later(), (rand(),), TWO)
