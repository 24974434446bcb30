"""Programs around numbers: numpy's and Python's own, and classes of tensors with rules of their own.

Each is judged as those of `hostile` are: it does what the plain model does. On several devices it may be refused, and then
nothing has changed.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, raised, rand, two
from lanes import spread as on_lanes
from pretend import TWO, pretending, spread
from torch import Tensor, nn

from partitioner import TraceError

NUMBERS: dict[str, Program] = {}

numbers = kept_in(NUMBERS)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NUMBERS)
def test_equal(name: str) -> None:
    assert_equal(NUMBERS[name], Variant(False, False))  # nothing was held against eager beforehand


class Scaled(Two):
    """Holds numbers of numpy's, and makes more of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.place, self.small = np.float64(1.5), np.int64(1), np.float32(0.1)

    def forward(self, x: Tensor) -> Any:
        places = torch.arange(4) * self.scale  # of float32, as with a number of Python's
        made = self.left(x) * self.scale / np.sqrt(4) + places, np.sqrt(2.0), np.prod((3, 4)), np.float32(3) * 2
        asked = isinstance(self.scale, float), type(self.small), self.scale > 1, f"{self.scale}", np.finfo(np.float32).eps
        return made, asked, places, x[:, self.place], self.small * 3, self.scale + self.place, [1, 2][self.place]


@numbers(Scaled)
def numbers_of_numpy(run: Run) -> Steps:
    """They came out as arrays, and made float64 of what is float32."""
    yield run(rand())
    for scale in (np.float64(2.5), np.float32(2.5), 2.5, np.float64("nan"), np.float64(-0.0), np.float64(0.0)):
        run.model.scale = scale
        yield run(rand(5, 4))


class Tensors(Two):
    """Makes tensors of numbers of numpy's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = np.float64(1.5)

    def forward(self, x: Tensor) -> Any:
        made = (
            torch.tensor(self.scale),
            torch.as_tensor(self.scale),
            torch.tensor([self.scale, 2]),
            torch.asarray((self.scale,)),
        )
        asked = torch.tensor(self.scale, dtype=torch.float16), torch.tensor(np.sqrt(2.0)), torch.tensor(data=self.scale)
        return self.left(x) + self.right(x), made, asked, torch.tensor([x.shape[0], self.scale]), x.new_tensor(self.scale)


@numbers(Tensors)
def tensors_of_numbers_of_numpy(run: Run) -> Steps:
    """They had the dtype that a tensor of Python's number has."""
    for scale in (np.float64(1.5), np.float32(2.5), 2.5, np.int16(3), np.int64(3), 3, np.float64(2.5)):
        run.model.scale = scale
        for rows in (3, 2, 5):
            yield run(rand(rows, 4))


@numbers(two(lambda self, x, t: (self.left(x) * t, t * 2, torch.arange(3) * t, type(t))), lambda: np.float64(3))
def number_that_comes_with_a_call(run: Run) -> Steps:
    for t in (*np.linspace(0, 1, 3), np.float32(2), 2.0, np.int64(2)):
        yield run(rand(), t)


@numbers(two(lambda self, x, n: (self.left(x) * float(n.sum()), n + 1, n, torch.from_numpy(n))), lambda: np.ones(3))
def array_that_comes_with_a_call(run: Run) -> Steps:
    for n in (np.ones(3), np.arange(1000, dtype=np.float32) / 7):
        result = run(rand(), n)
        yield result, result[2] is n
        result[3].zero_()
        yield n


@numbers(two(lambda self, x: self.left(x)), lambda: None)
def array_instead_of_a_tensor(run: Run) -> Steps:
    """It was taken for one, where eager raises."""
    yield raised(lambda: run.module.left(rand().numpy()))
    yield raised(lambda: run(rand().numpy()))


def frozen() -> nn.Module:
    model = two(lambda self, x: self.left(x) + torch.from_numpy(self.table.copy()))()
    model.table = np.ones(4, dtype=np.float32)
    model.table.flags.writeable = False
    return model


@numbers(frozen)
def array_that_is_read_only(run: Run) -> Steps:
    """Tracing made it one that can be written."""
    yield run(rand()), run.model.table.flags.writeable


@numbers(two(lambda self, x: self.left(x) * round(x.shape[0], -1) + round(7 * x.shape[0], -1) + round(x.shape[0])))
def sizes_rounded_to_tens(run: Run) -> Steps:
    for rows in (3, 4, 15, 25):
        yield run(rand(rows, 4))


@numbers(two(lambda self, x, z: self.left(x) * math.copysign(1.0, z) + math.atan2(z, -1.0)), lambda: 1.5)
def sign_of_a_zero(run: Run) -> Steps:
    for number in (1.5, 0.5, 0.0, -0.0):
        yield run(rand(), number)


@numbers(two(lambda self, x, z: self.left(x) * len(z.hex())), lambda: 0.25)
def sign_of_a_zero_in_a_text(run: Run) -> Steps:
    for number in (0.25, 0.0, -0.0, 0.5, -0.0, 0.0):
        yield run(rand(), number)


def counting(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def counted(x: Tensor) -> Tensor:
        counted.calls += 1
        return function(x)

    counted.calls = 0
    return counted


def doubled(x: Tensor) -> Tensor:
    doubled.calls += 1
    return x * 2


def counted_calls() -> nn.Module:
    model = two(lambda self, x: self.counted(self.left(x)) + doubled(self.right(x)))()
    model.counted = counting(torch.relu)
    doubled.calls = 0
    return model


@numbers(counted_calls)
def functions_that_count_their_calls(run: Run) -> Steps:
    """They counted the calls that partition() makes to look at the model, too."""
    for seed in range(2):
        yield run(rand(seed=seed)), run.model.counted.calls, doubled.calls


class Catches(Two):
    def forward(self, x: Tensor) -> Tensor:
        try:
            found = {"a": 1}[self.key]
        except KeyError as error:
            self.said, found = f"{error} {error!s}", 2
        return self.left(x) * found


def catches() -> nn.Module:
    model = Catches()
    model.key, model.said = "a", ""
    return model


@numbers(catches)
def text_of_a_key_error(run: Run) -> Steps:
    """It was the key, and not how the key is written."""
    for key in ("a", "b", "c"):
        run.model.key = key
        yield run(rand()), run.model.said


class Counts(nn.Module):
    """Counts its calls in a buffer before it looks at data."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), nn.Buffer(torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
            x = x / 2 if self.calls > 3 else x
        return self.left(x) + self.right(x)


def test_a_refused_call_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer counted the call that was made on tensors without values, to see whether the model itself raises."""
    with pretending(monkeypatch):
        parallel = spread(Counts().eval(), (rand(),), TWO)
        parallel.train()
        with pytest.raises(TraceError, match="decides on the value"):
            parallel(rand())
        assert parallel.calls == 0
        assert type(parallel.calls) is Tensor


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def test_warnings_as_errors_beside_a_function_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo makes an instance of the function, of which torch warns."""
    model = two(lambda self, x: self.left(Tripled.apply(self.right(x))))()
    wanted = model(rand(5, 4))
    with pretending(monkeypatch), warnings.catch_warnings():
        parallel = spread(model, (rand(),), TWO)
        warnings.simplefilter("error")
        found = parallel(rand(5, 4))
    assert torch.equal(found, wanted)


def test_what_python_draws_comes_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo knows `random.uniform`, and of `random.random` nothing: the graph ended, and on several devices it was refused."""
    model = two(lambda self, x: self.left(x) * random.random() + self.right(x) * random.uniform(0, 2) * random.random())()
    with pretending(monkeypatch):
        for parallel in (on_lanes(model, rand(), lanes=2, copy=True), spread(model, (rand(),), TWO, copy=True)):
            for seed in range(3):
                random.seed(seed)
                wanted = model(rand(5, 4)), random.random()
                random.seed(seed)
                torch.testing.assert_close((parallel(rand(5, 4)), random.random()), wanted, check_device=False)
            assert not any(piece.reason for piece in parallel._partitioner_programs.pieces)
