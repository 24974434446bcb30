"""Programs that the tracer took for others: what is one object and was two, what keeps a maximum, what catches an op's error.

Each is judged as those of `hostile` are: it does what the plain model does.
"""

from __future__ import annotations

import random
from collections import ChainMap, deque
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import OLDER, Program, Run, Steps, Two, kept_in, rand, two
from torch import Tensor, nn
from torch.nn.functional import embedding

from partitioner import partition

MORE: dict[str, Program] = {}

more = kept_in(MORE)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("example", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["example", "bare"])
@pytest.mark.parametrize("name", MORE)
def test_equal(name: str, example: bool) -> None:
    assert_equal(MORE[name], Variant(not example, example))


class History(Two):
    def __init__(self) -> None:
        super().__init__()
        self.seen: deque[Tensor] = deque(maxlen=3)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.left(x).detach())
        return torch.stack(list(self.seen)).mean(0) + self.right(x)


@more(History)
def history_of_three_frames(run: Run) -> Steps:
    """Dynamo forgot the maximum, and the mean was one of all frames that ever were."""
    for seed in range(5):
        yield run.learn(rand(seed=seed)), len(run.module.seen), run.module.seen.maxlen
    run.module.seen = deque(run.module.seen)
    yield run.learn(rand())
    yield run.learn(rand()), len(run.module.seen)


BOUNDED: dict[str, Callable[[deque[Any], int], Any]] = {
    "append": lambda held, n: [held.append(k) for k in range(n)],
    "extendleft": lambda held, n: (held.extendleft([n, 2, 3]), held.popleft(), held.maxlen),
    "insert": lambda held, n: (held.clear(), held.insert(0, n), held == deque([n])),
    "added": lambda held, n: held + deque([n, n]),
    "copied": lambda held, n: held.copy(),
    "repeated": lambda held, n: held * 2,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BOUNDED)
def test_a_deque_with_a_maximum(name: str) -> None:
    class Bounded(Two):
        def __init__(self) -> None:
            super().__init__()
            self.held: deque[Any] = deque([1, 1], maxlen=2)

        def forward(self, x: Tensor) -> Any:
            return BOUNDED[name](self.held, x.shape[0]), self.left(x) + self.right(x)

    def script(run: Run) -> Steps:
        for rows in (3, 4, 3):
            yield run(rand(rows, 4)), run.module.held, run.module.held.maxlen
        run.module.held = deque([1, 1, 1], maxlen=4)
        yield run(rand()), run.module.held, run.module.held.maxlen

    limit = OLDER if name == "added" else ""
    assert_equal(Program(name, Bounded, script, lambda: ((rand(),), {}), limit=limit), Variant(False, True))


def test_a_history_is_one_graph() -> None:
    """It was refused where one graph must be all of a forward."""
    model = History()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=rand(), fullgraph=True, copy=True)
    for seed in range(5):
        torch.testing.assert_close(parallel(rand(seed=seed)), model(rand(seed=seed)))
        assert len(parallel.seen) == len(model.seen)


class Logs(Two):
    def __init__(self) -> None:
        super().__init__()
        self.first: list[int] = []
        self.second: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.first.append(1)
        self.second.append(2)
        return self.left(x) * len(self.first) + self.right(x) * len(self.second)


@more(Logs)
def two_lists_that_become_one(run: Run) -> Steps:
    """That they were two was not asked again, so each of the two names saw only what was written under it."""
    yield run(rand())
    run.module.first = run.module.second = []
    yield run(rand()), run(rand()), run.module.first
    run.module.second = []
    yield run(rand()), run.module.first, run.module.second


class Options:
    """The options of a call."""

    def __init__(self) -> None:
        self.scale = 1.0


def _shared(self: Any, x: Tensor, options: Options, cache: dict[str, Any], kept: dict[str, Any], of_part: Options) -> Tensor:
    options.scale += 1
    cache["left"] = self.left(x)
    return kept.get("left", x) * of_part.scale + self.right(x)


@more(two(_shared), Options, dict, dict, Options)
def arguments_that_are_one_object(run: Run) -> Steps:
    for one in (False, True, False):
        options, cache = Options(), dict[str, Any]()
        kept, of_part = (cache, options) if one else ({}, Options())
        yield run(rand(), options, cache, kept, of_part), sorted(cache), sorted(kept), options.scale, of_part.scale


class Methods(Two):
    @classmethod
    def offset(cls) -> float:
        return 1.0

    def scale(self) -> float:
        return 2.0

    def other(self) -> float:
        return 3.0

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.scale() + self.right(x) + self.offset()


def _methods() -> nn.Module:
    scale = FunctionType(Methods.scale.__code__, globals())
    return type("Fresh", (Methods,), {"scale": scale})()


@more(_methods)
def methods_replaced_and_edited(run: Run) -> Steps:
    """A notebook that reloads a file replaces the code of the functions that are there. Class methods were never asked for."""
    kind = type(run.model)
    yield run(rand())
    kind.scale.__code__ = kind.other.__code__
    yield run(rand())
    kind.offset = classmethod(lambda _: 5.0)
    yield run(rand())


@more(two(lambda self, x: (self.left(x) * sum(self.kinds), self.right(x), [type(item) for item in self.kinds]), kinds={1, 2}))
def sets_that_are_equal(run: Run) -> Steps:
    for kinds in ({1, 2}, {True, 2}, {1.0, 2}):
        run.module.kinds = kinds
        yield run(rand())


def _looked_up(self: Any, x: Tensor, rows: Tensor) -> Tensor:
    try:
        found = embedding(rows, self.left.weight)
    except IndexError as error:
        self.failed = str(error)
        found = self.right(x)
    with suppress(torch.linalg.LinAlgError):
        found = found + torch.linalg.cholesky(x.t() @ x + torch.eye(4)).sum()
    return found + self.left(x)


@more(two(_looked_up, failed=""), lambda: torch.tensor([0, 1, 2]))
def error_of_an_op_that_depends_on_data(run: Run) -> Steps:
    """Dynamo knows what an op raises on fakes. What it raises on data came out of the module, past all that would catch it."""
    for rows, scale in ((2, 1.0), (9, 1.0), (1, float("nan")), (9, float("nan"))):
        yield run.learn(rand() * scale, torch.tensor([0, 1, rows])), run.module.failed


class Asks(Two):
    def __init__(self) -> None:
        super().__init__()
        self.scales: dict[int, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        try:
            scale = self.scales[len(x)]
        except KeyError:
            scale = 1.0
        try:
            offset = self.left.offset
        except AttributeError:
            offset = 0.0
        return self.left(x) * scale + self.right(x) + offset


@more(Asks)
def asked_by_exceptions(run: Run) -> Steps:
    """That a key or an attribute was not there was no guard, so what came later was not seen."""
    yield run(rand())
    run.module.scales[3] = 2.0
    yield run(rand()), run(rand(2, 4))
    run.module.left.offset = 3.0
    yield run(rand()), run(rand(2, 4))
    del run.module.left.offset, run.module.scales[3]
    yield run(rand())


class Settings:
    pass


class Guesses(Settings):
    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        return 7.0


class Finds(Two):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.chain = {"one": 1.0, "two": 2.0}, ChainMap({"one": 1.0}, {"two": 2.0})
        self.guesses, self.method, self.generator = Guesses(), torch.Tensor.sin, random.Random(3)
        self.this, self.that = Settings(), Settings()


class LooksUp(Finds):
    def forward(self, x: Tensor) -> Tensor:
        found = self.chain["three"] if "three" in self.chain else self.chain.get("four", 1.0)
        return self.left(x) * found * self.guesses.scale + self.right(x) * vars(self).get("scale", 3.0)


@more(LooksUp)
def found_later(run: Run) -> Steps:
    """A key in a later mapping, an attribute in the place of one that ``__getattr__`` gave, one of the instance's own."""
    yield run(rand())
    run.module.chain.maps[1]["three"] = 5.0
    yield run(rand())
    run.module.chain["four"] = 6.0
    del run.module.chain.maps[1]["three"]
    yield run(rand())
    run.module.guesses.scale = 2.0
    run.module.scale = 4.0
    yield run(rand())
    del run.module.guesses.scale, run.module.scale
    yield run(rand())


class Orders(Finds):
    def folded(self, x: Tensor, **weights: float) -> Tensor:
        for index, weight in enumerate(weights.values()):
            x = x + index * weight
        return x

    def forward(self, x: Tensor, **others: float) -> Tensor:
        left = self.folded(self.left(x), **self.table) + self.folded(x, **{**self.table}) * 2
        right = self.folded(self.right(x), **self.table.copy()) + self.folded(x, **(self.table | {"three": 3.0})) * 4
        return self.folded(left, **others) + right


@more(Orders)
def order_of_keys(run: Run) -> Steps:
    """Dynamo guards which keys a dictionary has, and their order only where it is iterated over."""
    yield run(rand())
    run.module.table = {"two": 2.0, "one": 1.0}
    yield run(rand())
    yield run(rand(), first=1.0, second=2.0), run(rand(), second=2.0, first=1.0)


class Compares(Finds):
    def forward(self, x: Tensor) -> Tensor:
        tied = 2.0 if self.left.weight is self.right.weight else 1.0
        same = 3.0 if self.this is self.that else 1.0
        return self.method(self.left(x)) * tied * same + self.right(x) * len(list(self.parameters()))


@more(Compares)
def one_object_later(run: Run) -> Steps:
    """Weights that are tied after the first call, objects that become one, another method of tensors."""
    yield run(rand())
    untied = run.module.right.weight
    run.module.right.weight = run.module.left.weight
    yield run(rand())
    run.module.this = run.module.that
    yield run(rand())
    run.module.right.weight, run.module.this = untied, Settings()
    yield run(rand())
    run.module.method = torch.Tensor.cos
    yield run(rand())


class Draws(Finds):
    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.generator.random() + self.right(x)


@more(Draws)
def generator_of_its_own(run: Run) -> Steps:
    yield run(rand()), run(rand()), run.module.generator.random()
    run.module.generator.seed(5)
    yield run(rand()), run.module.generator.random()


class AsksTensors(Two):
    def forward(self, x: Tensor) -> Tensor:
        leaf, drawn = 2.0 if x.is_leaf else 1.0, 3.0 if x.grad_fn is None else 1.0
        view, kept = 5.0 if x._base is None else 1.0, 7.0 if x.retains_grad else 1.0
        return self.left(x) * leaf * drawn * view + self.right(x) * kept * (11.0 if x._backward_hooks else 1.0)


@more(AsksTensors)
def asked_of_tensors(run: Run) -> Steps:
    """Whether an input is a leaf, a view, has hooks: guarded, or the graph ends."""
    made = rand().requires_grad_() * 1
    yield run(rand()), run(rand().requires_grad_()), run(made), run(torch.stack([rand(), rand()])[0])
    made.retain_grad()
    yield run(made)
    made.register_hook(lambda gradient: gradient)
    yield run(made), run(rand())


class OfNumpy(Two):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = np.random.RandomState(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * float(self.numbers.rand()) + self.right(x)


@more(OfNumpy)
def numpy_generator_of_the_old_kind(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())


@more(two(lambda self, x: {x: self.left(x), "right": self.right(x)}))
def results_under_tensors(run: Run) -> Steps:
    """The comparison with eager asked whether the keys are equal, which of tensors gives no answer."""
    x = rand()
    found = run(x)
    yield x in found, list(found.values())
