"""What forward leaves behind for the next call: tensors, counters, lists, state of a sequence, in the module or outside."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from .program import Run, Steps, Two, program, rand, two


class Lazy(Two):
    """Makes a table when it is first needed."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(4.0)
        return self.left(x) + self.right(x) * self.table


@program(Lazy, watch="table")
def table_made_at_the_first_call(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.table = torch.ones(4)
    yield run.learn(rand())
    run.module.table = None
    yield run.learn(rand())


class Grown(Lazy):
    """A table that is made anew when an input is longer."""

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(float(len(x))).unsqueeze(1)
        return self.left(x) + self.right(x) * self.table[: len(x)]


@program(Grown, watch="table")
def table_that_grows(run: Run) -> Steps:
    for rows in (3, 2, 6, 4):
        yield run.learn(rand(rows, 4)), run.module.table


class ByKey(Two):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[Any, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        key = (x.shape[0], x.dtype)
        if key not in self.cache:
            self.cache[key] = self.left(x).detach()
        return self.right(x) + self.cache[key]


@program(ByKey, watch="cache")
def dict_of_results(run: Run) -> Steps:
    for seed, rows in enumerate((3, 2, 3, 2)):
        yield run.learn(rand(rows, 4, seed=seed)), list(run.module.cache)
    run.module.cache.clear()
    yield run.learn(rand())


class Counting(Two):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.log = 0, []

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.log.append(tuple(x.shape))
        return self.left(x) * self.count + self.right(x)


@program(Counting, watch="count log")
def counter_and_log(run: Run) -> Steps:
    for rows in (3, 3, 2, 3):
        yield run(rand(rows, 4)), run.module.count


class Recurrent(Two):
    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(4) if self.state is None else self.state
        self.state = torch.tanh(self.left(x) + state)
        return self.right(self.state)


@program(Recurrent)
def state_of_a_sequence(run: Run) -> Steps:
    outputs = [run(rand(seed=seed)) for seed in range(3)]
    yield outputs, run.module.state
    if run.training:
        outputs[-1].sum().backward()
    run.module.state = None
    yield run(rand())


class Detached(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        self.state = self.state.detach()
        return result


@program(Detached, watch="state")
def detached_state_of_a_sequence(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed))
    with torch.no_grad():
        yield run(rand())
    yield run.learn(rand())


class Replacing(Two):
    """Buffers that are replaced, not written; one of them starts as None."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", None)
        self.register_buffer("hidden", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.last = self.left(x).detach()
        self.hidden = self.hidden + 1
        return self.left(x) - self.mean + self.right(x) * self.hidden


@program(Replacing)
def buffers_replaced(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed)), list(run.module.state_dict())


class Registering(Two):
    """Tables that are buffers, not saved, and registered again whenever a longer input comes."""

    NAMES = ("sines", "cosines", "scales", "bias", "mask", "steps")

    def __init__(self) -> None:
        super().__init__()
        for name in self.NAMES:
            self.register_buffer(name, None, persistent=False)

    def tables(self, rows: int) -> list[Tensor]:
        if self.sines is None or len(self.sines) < rows:
            steps = torch.arange(rows, device=self.left.weight.device)[:, None] / 8
            for number, name in enumerate(self.NAMES):
                self.register_buffer(name, (steps + number).sin(), persistent=False)
        return [getattr(self, name)[:rows] for name in self.NAMES]

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.tables(len(x))
        return self.left(x + first) * self.right(x - sum(others))


@program(Registering)
def buffers_registered_when_a_longer_input_comes(run: Run) -> Steps:
    for rows in (3, 2, 5, 3):
        yield run.learn(rand(rows, 4)), list(run.module.state_dict()), [name for name, _ in run.module.named_buffers()]


class Statistics(Two):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("largest", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.largest.copy_(torch.maximum(self.largest, x.detach().abs().max()))
        return self.left(x) * self.largest + self.right(x) / (self.steps + 1)


@program(Statistics)
def buffers_written(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed))
    run.module.train(not run.module.training)
    yield run(rand())


HISTORY: list[Tensor] = []
TOTALS: dict[str, Any] = {}


def _remembers(self: nn.Module, x: Tensor) -> Tensor:
    HISTORY.append(self.left(x).detach())
    TOTALS["count"] = TOTALS.get("count", 0) + 1
    return self.right(x) + sum(HISTORY) * TOTALS["count"]


def _fresh_globals() -> nn.Module:
    HISTORY.clear()
    TOTALS.clear()
    return two(_remembers)()


@program(_fresh_globals)
def history_in_globals(run: Run) -> Steps:
    for seed in range(3):
        yield run(rand(seed=seed)), list(HISTORY), dict(TOTALS)


class OfAllOfThem(Two):
    calls = 0
    seen: ClassVar[list[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        self.seen.append(x)
        return self.left(x) * type(self).calls


def _fresh_class() -> nn.Module:
    OfAllOfThem.calls = 0
    OfAllOfThem.seen.clear()
    return OfAllOfThem()


@program(_fresh_class)
def counter_of_the_class(run: Run) -> Steps:
    for seed in range(3):
        x = rand(seed=seed)
        yield run(x), OfAllOfThem.calls, OfAllOfThem.seen[-1] is x, [type(kept).__name__ for kept in OfAllOfThem.seen]


class KeysAndValues(Two):
    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        keys, values = self.left(x), self.right(x)
        if past is not None:
            keys, values = torch.cat([past[0], keys]), torch.cat([past[1], values])
        return torch.softmax(x @ keys.T, -1) @ values, (keys, values)


@program(KeysAndValues)
def keys_and_values_handed_on(run: Run) -> Steps:
    past = None
    with torch.no_grad():
        for length in (3, 1, 1, 2, 1):
            result, past = run(rand(length, 4, seed=length), past)
            yield result, past


class WithCache(Two):
    def forward(self, x: Tensor, cache: DynamicCache | None = None) -> tuple[Tensor, DynamicCache | None]:
        keys, values = self.left(x).view(1, 1, -1, 4), self.right(x).view(1, 1, -1, 4)
        if cache is not None:
            keys, values = cache.update(keys, values, 0)
        return torch.softmax(x @ keys[0, 0].T, -1) @ values[0, 0], cache


@program(WithCache)
def cache_object_handed_on(run: Run) -> Steps:
    cache = DynamicCache()
    with torch.no_grad():
        for length in (3, 1, 1, 2):
            result, again = run(rand(length, 4, seed=length), cache)
            yield result, again is cache, cache.get_seq_length(), cache.layers[0].keys
        yield run(rand())


class OutsideTheTree(nn.Module):
    """Its layers lie in a list, a dict, a tuple and a closure, where `parameters()` does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = [nn.Linear(4, 4), nn.BatchNorm1d(4)]
        self.named = {"a": nn.Linear(4, 4)}
        self.__dict__["hidden"] = nn.Linear(4, 4)
        self.plain = torch.nn.Parameter(torch.ones(4)), torch.ones(4)
        inner = nn.Linear(4, 4)
        self.call = lambda x: inner(x)
        self.inner = [inner]

    def forward(self, x: Tensor) -> Tensor:
        first = self.listed[1](self.listed[0](x)) * self.plain[0] + self.plain[1]
        return first + self.named["a"](x) * self.call(x) + self.hidden(x)


@program(OutsideTheTree)
def modules_outside_of_the_tree(run: Run) -> Steps:
    for seed in range(2):
        yield run.learn(rand(seed=seed))
    model = run.module
    yield model.listed[0].weight.grad, model.named["a"].weight.grad, model.hidden.weight.grad, model.inner[0].weight.grad
    yield model.plain[0].grad, model.listed[1].running_mean
    with torch.no_grad():
        model.listed[0].weight.fill_(1)
        model.inner[0].weight.fill_(2)
        model.plain[1].fill_(3)
    yield run(rand())
    model.listed[0] = nn.Linear(4, 4, bias=False)
    yield run(rand()).shape
