"""Programs around a partitioned module: classes that it makes more of, methods that stop halfway, what forward leaves behind.

Each is judged as those of `hostile` are: it does what the plain model does.
"""

from __future__ import annotations

import array
import asyncio
import contextvars
import copy
import functools
import gc
import inspect
import io
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from hostile.judge import Change, Variant, assert_equal
from hostile.program import Program, Run, Steps, Towers, Two, kept_in, raised, rand
from torch import Tensor, nn

from partitioner import InputError, partition

WORLDS: dict[str, Program] = {}

world = kept_in(WORLDS)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", WORLDS)
def test_equal(name: str, example: bool) -> None:
    assert_equal(WORLDS[name], Variant(example, example))


class ClonesItself(Two):
    def clone(self) -> ClonesItself:
        new = type(self)()
        new.load_state_dict(self.state_dict())
        return new

    def hollow(self) -> ClonesItself:
        new = type(self).__new__(type(self))
        vars(new).update(copy.deepcopy(vars(self)))
        return new


@world(ClonesItself)
def another_of_its_class(run: Run) -> Steps:
    """A class of ours held the programs, so what ``type(self)()`` made computed with the weights of the first one."""
    yield run(rand())
    for new in (run.module.clone(), run.module.hollow()):
        with torch.no_grad():
            new.left.weight.mul_(3)
        yield new(rand()), run(rand()), isinstance(run.module, ClonesItself), isinstance(new, ClonesItself)


class Closes(Two):
    closed: ClassVar[list[str]] = []

    def __del__(self) -> None:
        self.closed.append("closed")


@world(Closes)
def finaliser(run: Run) -> Steps:
    """The partitioned module has the model's attributes, and called its finaliser beside the model's own."""
    run(rand())
    gc.collect()
    other, before = copy.deepcopy(run.module), len(Closes.closed)
    del other
    gc.collect()
    yield len(Closes.closed) - before


class Registered(Two):
    known: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, *, tag: str) -> None:
        Registered.known[tag] = cls


class Leaf(Registered, tag="leaf"):
    pass


@world(Leaf)
def class_that_asks_its_heirs_for_a_tag(run: Run) -> Steps:
    yield run(rand()), Registered.known == {"leaf": Leaf}


def injecting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def inner(self: Any, x: Tensor, times: int = 1, *, scale: float = 2.0) -> Tensor:
        return function(self, x, torch.full((4,), scale)) * times

    return inner


class Injected(Two):
    @injecting
    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.left(x) * weights + self.right(x)


@world(Injected)
def argument_that_a_decorator_gives(run: Run) -> Steps:
    """Examples were refused: "missing a required argument: 'weights'", for they were held against what it wraps."""
    yield run.learn(rand(grad=True)), run(rand(5, 4), 3), run(x=rand(), scale=1.5)
    yield raised(lambda: run.module(rand(), torch.ones(4), torch.ones(4)))


class Single(Two):
    @functools.singledispatchmethod
    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


class Found:
    """Gives a function that is no method, whoever asks."""

    def __get__(self, model: Any, kind: type | None = None) -> Any:
        return self if model is None else lambda x: model.left(x) * model.right(x)


class Described(Two):
    forward = Found()


class Asked(Two):
    @property
    def forward(self) -> Any:
        return lambda x: self.left(x) * self.right(x)


class Static(nn.Module):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin() + x.cos()


class Holds(nn.Module):
    """Models of other kinds, one of them partitioned already where that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.single, self.described, self.asked, self.fixed = Two(), Single(), Described(), Asked(), Static()

    def forward(self, x: Tensor) -> Tensor:
        return self.single(x) + self.described(x) * self.asked(x) + self.plain(x) * self.fixed(x)


def forward_of_another_kind(run: Run) -> Steps:
    """It was taken for a method: "first argument must be callable"."""
    yield run.learn(rand(grad=True)), run(rand(5, 4)), str(inspect.signature(run.module.forward))
    yield copy.deepcopy(run.module)(rand())


for _kind in (Single, Described, Asked, Static):
    WORLDS[f"forward_of_another_kind_{_kind.__name__}"] = Program(
        f"forward_of_another_kind_{_kind.__name__}", _kind, forward_of_another_kind, lambda: ((rand(),), {})
    )


@world(Holds)
def parts_whose_forward_is_of_another_kind(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    for name, part in list(run.module.named_children()):
        setattr(run.module, name, partition(part, ["cpu", "cpu"]) if run.module is not run.model else part)
        yield run.learn(rand(grad=True)), run(rand(5, 4))


class Moves(Two):
    """Is told of what is done to its tensors, as models were before torch gave them a second argument."""

    told = 0

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> Moves:  # type: ignore[override]
        self.told += 1
        return super()._apply(fn)  # type: ignore[return-value]


@world(Moves)
def tensors_are_changed_by_an_older_method(run: Run) -> Steps:
    """It was given an argument that it does not take."""
    run(rand())
    yield run.module.double().told, run(rand(dtype=torch.float64)), run.module.to(torch.float32).told, run(rand())


class Disguised(Two):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        return Two


@world(Disguised)
def class_that_says_that_it_is_another(run: Run) -> Steps:
    """There was an error of Python's: its ``__class__`` cannot be set."""
    yield run.learn(rand(grad=True)), isinstance(run.module, Disguised), run.module.__class__.__name__


class Streams(Two):
    def stream(self, x: Tensor) -> Iterator[Tensor]:
        for part in (self.left, self.right):
            x = part(x)
            yield x

    async def later(self, x: Tensor) -> Tensor:
        y = self.left(x)
        await asyncio.sleep(0)
        return y * self.right(x)

    async def stream_later(self, x: Tensor) -> AsyncIterator[Tensor]:
        for part in (self.left, self.right):
            x = part(x)
            yield x


@world(Streams)
def methods_that_stop_halfway(run: Run) -> Steps:
    """They were traced, and ran to their end at once."""
    steps = run.module.stream(rand())
    first = next(steps)
    with torch.no_grad():
        run.module.right.weight.zero_()  # before the second part is called
    yield first, next(steps), inspect.isgenerator(steps)

    async def all_of_them() -> object:
        return await asyncio.gather(*(run.module.later(rand(seed=seed)) for seed in range(2))), [
            step async for step in run.module.stream_later(rand())
        ]

    yield asyncio.run(all_of_them()), inspect.iscoroutinefunction(run.module.later)


class Waits(Two):
    async def forward(self, x: Tensor) -> Tensor:
        return self.left(x)


def test_a_forward_that_is_a_coroutine_is_refused() -> None:
    with pytest.raises(InputError, match="forward is declared with async def"):
        partition(Waits(), ["cpu:0", "cpu:1"], example_inputs=rand())


CALLS = contextvars.ContextVar("CALLS", default=0)


class LeavesTraces(Two):
    """What it leaves is neither an item of a container nor an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.turns, self.drawn = itertools.count(1), itertools.cycle([2.0, 3.0]), (n / 2 for n in range(99))
        self.listed = iter([1.0, 5.0] * 20)
        self.text, self.octets, self.log, self.array = io.StringIO(), io.BytesIO(b"begin"), bytearray(), array.array("d")

    def forward(self, x: Tensor) -> Tensor:
        CALLS.set(CALLS.get() + 1)
        self.text.write("call ")
        self.octets.write(b"!")
        self.log.append(7)
        self.array.append(0.5)
        taken = next(self.numbers) + next(self.turns) + next(self.drawn) + next(self.listed)
        return self.left(x) * taken + self.right(x) * len(self.log) * CALLS.get()


@world(LeavesTraces)
def what_forward_leaves_outside_of_attributes(run: Run) -> Steps:
    """Whatever partition() runs beforehand, to look or to compare, is not seen: iterators, streams, context variables."""

    def calls() -> object:
        return [run(rand()) for _ in range(3)], CALLS.get()

    yield contextvars.copy_context().run(calls), CALLS.get()
    module = run.module
    yield module.text.getvalue(), module.octets.getvalue(), bytes(module.log), list(module.array)
    yield next(module.numbers), next(module.turns), next(module.drawn), next(module.listed)


@world(Towers)
def tensors_swapped(run: Run) -> Steps:
    """torch refuses to swap tensors that somebody refers to weakly, as the fakes did on which the model was traced."""
    run(rand())
    run.module.zero_grad()
    torch.utils.swap_tensors(run.module.left.weight, nn.Parameter(torch.ones(4, 4)))
    yield run.learn(rand())


@functools.cache
def noise(width: int) -> Tensor:
    return torch.randn(width)


class Noisy(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        table = noise(x.shape[-1])
        return self.left(x) + self.right(x) * table, table


def noisy() -> nn.Module:
    noise.cache_clear()
    return Noisy()


@world(noisy)
def function_with_a_cache(run: Run) -> Steps:
    """Dynamo looks through the cache: each call drew other numbers, and gave a tensor of its own."""
    first, second = run(rand())[1], run(rand(2, 4))[1]
    yield first, first is second, first is noise(4)
    first.zero_()
    yield run.learn(rand())


class Tiny(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x * 1 for _ in range(6))


@world(Tiny)
def tiny_numbers_taken_for_zero(run: Run) -> Steps:
    """The processor's flag belongs to a thread, and workers kept the one that they were started with."""
    x = torch.full((3, 4), 1e-39)
    try:
        for flag in (False, True, False):
            torch.set_flush_denormal(flag)
            result = run(x)
            torch.set_flush_denormal(False)
            yield result
    finally:
        torch.set_flush_denormal(False)


def on_lanes(model: nn.Module, program: Program) -> nn.Module:
    lanes: dict[str, Any] = {"devices": ["cpu:0", "cpu:1"], "policy": "scatter", "grain": 0, "backward": "lanes"}
    return partition(model, example_inputs=rand(), **lanes)


def fused(model: nn.Module, program: Program) -> nn.Module:
    return partition(model, ["cpu:0", "cpu:1"], policy="scatter", grain=0, example_inputs=rand(), compile_tasks="torchscript")


@pytest.mark.parametrize("made", [on_lanes, fused])
def test_tangents_reach_the_result(made: Change) -> None:
    """Forward-mode differentiation: the autograd function around a call on lanes dropped tangents without a word."""

    def script(run: Run) -> Steps:
        for seed in range(3):
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(rand(), rand(seed=seed))
                yield tuple(torch.autograd.forward_ad.unpack_dual(run(dual)))
            yield run.learn(rand(grad=True))

    assert_equal(Program("tangents", Two, script, lambda: ((rand(),), {})), Variant(True, True), made)
