"""A call in which an op fails leaves what eager leaves: statistics, random numbers, arguments; and raises what eager raises.

Lanes run ahead of each other: what came after the op that failed had been counted by then, or what came before it had not.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pretend
import pytest
import torch
from hostile.program import rand
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import spread
from torch import Tensor, nn

from partitioner.backends.executable import Executable
from partitioner.ir.plan import Plan
from partitioner.runtime import rollback
from partitioner.runtime.again import run_again

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")

GOOD, BAD = torch.tensor([0, 3, 5]), torch.tensor([0, 3, 99])


class Towers(nn.Module):
    """One counts and drops, the other looks words up; then both the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(4))
        self.words = nn.ModuleList(nn.Embedding(7, 4) for _ in range(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        self.reached = "the first word"
        left = self.norms[0](x).tanh()
        right = self.norms[1](self.words[0](ids)) * 2
        left = nn.functional.dropout(left, 0.5, self.training) + self.norms[2](left)
        self.calls += 1
        self.reached = "the second"
        right = right + self.norms[3](self.words[1](ids + 0)) + torch.rand_like(right)
        return left * right


class Catches(Towers):
    """What eager has counted by the time at which a model catches its error stays counted."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        try:
            return super().forward(x, ids)
        except IndexError:
            return self.norms[0](x) + self.calls


class Mixes(nn.Module):
    """Fails under autocast alone, where nobody who has no values knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("load", torch.zeros(4))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for layer in self.layers:
            out = out.index_add(0, ids % 3, layer(x))
            self.load += x.detach().sum(0)
        return out


def seen(model: nn.Module, call: Callable[[], Any]) -> list[Any]:
    """What a call gives or raises, and all that it leaves."""
    torch.manual_seed(3)
    before = [buffer._version for buffer in model.buffers()]
    try:
        result = call()
    except Exception as error:
        result = torch.tensor([ord(letter) for letter in f"{type(error).__name__}: {error}"])
    versions = [torch.tensor(buffer._version - then) for buffer, then in zip(model.buffers(), before, strict=True)]
    reached = torch.tensor([ord(letter) for letter in getattr(model, "reached", "")])
    return [result, reached, torch.get_rng_state(), *model.state_dict().values(), *versions]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Towers, Catches])
@pytest.mark.parametrize("training", [True, False])
def test_what_fails_leaves_what_eager_leaves(kind: type[nn.Module], training: bool) -> None:
    model = kind().train(training)
    parallel = spread(model, rand(3, 4), GOOD, lanes=3, copy=True)
    for ids in (GOOD, BAD, BAD, GOOD):
        for each in (ids, ids.clone()):
            wanted = seen(model, lambda each=each: model(rand(3, 4), each))
            found = seen(parallel, lambda each=each: parallel(rand(3, 4), each))
            assert all(map(torch.equal, found, wanted)), (ids, found, wanted)


def test_what_fails_under_autocast_alone() -> None:
    model = Mixes()
    parallel = spread(model, rand(3, 4), GOOD, lanes=3, copy=True)
    for enabled in (True, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            wanted = seen(model, lambda: model(rand(3, 4), GOOD))
            found = seen(parallel, lambda: parallel(rand(3, 4), GOOD))
        assert all(map(torch.equal, found, wanted))


class Refuses(Towers):
    """Counts, draws and notes what it catches before it finds that it cannot go on with so many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: list[str] = []

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        self.calls += 1
        y = self.norms[0](x) + torch.rand_like(x)
        try:
            assert x.shape[0] == 3, "three rows"
        except AssertionError as error:
            self.caught.append(str(error))
            raise ValueError("so many rows") from error
        return y * self.words[0](ids)


@pytest.mark.parametrize("several", [False, True], ids=["one graph", "several devices"])
def test_an_error_that_tracing_finds_leaves_what_eager_leaves(several: bool, request: pytest.FixtureRequest) -> None:
    """The model was called to see what it raises, and all that it had done by then was put back."""
    plain = Refuses()
    model = copy.deepcopy(plain)
    if several:
        request.getfixturevalue("world")
        parallel = pretend.spread(model, (rand(), GOOD), pretend.TWO)
    else:
        parallel = spread(model, rand(), GOOD, fullgraph=True)
    found = []
    for module in (plain, parallel):
        torch.manual_seed(1)
        with pytest.raises(ValueError, match="so many rows"):
            module(rand(5, 4), GOOD)
        found.append([module.caught, int(module.calls), module.norms[0].running_mean.tolist(), float(torch.rand(()))])
    assert found[0] == found[1]
    assert torch.equal(parallel(rand(), GOOD), parallel(rand(), GOOD)) is False  # it goes on, and draws


class Writes(nn.Module):
    """Writes its arguments, a view of one among them, on the one side, and looks up on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Embedding(7, 4)

    def forward(self, x: Tensor, ids: Tensor, total: Tensor) -> Tensor:
        y = self.left(x)
        total[1:].add_(1)
        z = self.right(ids) * y
        total.mul_(2)
        return z + total


def test_an_argument_and_who_has_kept_it_are_as_they_were() -> None:
    """A backward that is still to come asks for the version of what it has kept."""
    model = Writes()
    parallel = spread(model, rand(3, 4), GOOD, torch.ones(4), lanes=2, copy=True)
    for one in (model, parallel):
        base = torch.ones(5)
        with pytest.raises(IndexError):
            one(rand(3, 4), BAD, base[1:])
        assert base.tolist() == [1, 1, 2, 2, 2] and base._version == 1
        assert not base.requires_grad
    weight = torch.ones(4, requires_grad=True)
    kept = torch.ones(4)
    product = weight * kept
    before = rollback.Rollback((0,), draws=False).begin([kept])
    assert before is not None
    kept.add_(1)
    before.restore()
    product.sum().backward()


def test_the_error_is_always_the_first() -> None:
    """Two fail; which was met first was chance."""

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Embedding(7, 4), nn.EmbeddingBag(7, 4)

        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            slow = x
            for _ in range(20):
                slow = slow.tanh()
            return self.one(ids + slow.long().sum()) * self.other(ids[None]) + slow

    model = Fails()
    parallel = spread(model, torch.zeros(3, 4), GOOD, lanes=2, copy=True)
    wanted = seen(model, lambda: model(torch.zeros(3, 4), BAD))
    for _ in range(20):
        assert torch.equal(seen(parallel, lambda: parallel(torch.zeros(3, 4), BAD))[0], wanted[0])


def test_what_is_too_large_to_copy_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Writes()
    parallel = spread(model, rand(3, 4), GOOD, torch.ones(4), lanes=2, copy=True)
    monkeypatch.setattr(rollback, "LARGEST", 8)
    monkeypatch.setattr(rollback.Rollback, "_copies", None)
    assert torch.equal(parallel(rand(3, 4), GOOD, torch.ones(4)), model(rand(3, 4), GOOD, torch.ones(4)))


class Replaces(Writes):
    """Gives a parameter another storage, into which a copy of the old values would not fit, and draws after what may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor, ids: Tensor, total: Tensor) -> Tensor:
        if self.training:
            self.scale.data = total[:2] * 2
        made = torch.zeros(1)
        made.set_(x.detach().clone())
        return self.left(x) + self.right(ids) * torch.rand(4) + made + self.scale.sum()


@pytest.mark.parametrize("training", [True, False])
def test_a_storage_that_is_exchanged_is_put_back(training: bool) -> None:
    """Nothing was, where an op gave any tensor another storage, and one that forward has made itself counted as well."""
    model = Replaces().train(training)
    parallel = spread(model, rand(3, 4), GOOD, torch.ones(4), lanes=2, copy=True)
    found = []
    for one in (model, parallel):
        torch.manual_seed(0)
        with pytest.raises(IndexError):
            one(rand(3, 4), BAD, torch.full((4,), 3.0))
        found.append((one.scale.detach(), torch.rand(2), one(rand(3, 4), GOOD, torch.ones(4)).detach()))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def test_memory_that_was_exchanged_is_the_old_one_again() -> None:
    """A view of it shows what is written later, which a copy of the values would not."""
    scale = torch.arange(4.0)
    view, kept = scale[1:], rollback.Rollback((0,), False, True)
    before = kept.begin([scale])
    assert before is not None
    scale.data = torch.ones(2)
    view.zero_()
    before.restore()
    assert torch.equal(scale, torch.arange(4.0)) and scale[1:].data_ptr() == view.data_ptr()


class Sets(Writes):
    """Writes its argument after what fails."""

    def forward(self, x: Tensor, ids: Tensor, total: Tensor) -> Tensor:
        found = self.left(x) + self.right(ids)
        x[:1] = 0.25
        return found


def test_an_argument_of_inference_mode_is_put_back() -> None:
    """That could not be written outside of it, which was raised in the place of eager's error."""
    model = Sets()
    parallel = spread(model, rand(3, 4), GOOD, torch.ones(4), lanes=2, copy=True)
    with torch.inference_mode():
        x = rand(3, 4)
    for one in (model, parallel):
        with pytest.raises(RuntimeError, match="cannot be saved for backward"):
            one(x, GOOD, torch.ones(4))
        with pytest.raises(IndexError), torch.no_grad():
            one(x, BAD, torch.ones(4))
    assert torch.equal(x, rand(3, 4))


@dataclass
class Broken:
    """A program whose lanes fail when they have done their work."""

    right: Executable

    @property
    def plan(self) -> Plan:
        return self.right.plan

    def __call__(self, arguments: Any) -> Any:
        self.right(arguments)
        raise TypeError("a fault of ours")


@pytest.mark.parametrize("later", [False, True])
def test_lanes_that_fail_alone_are_told_of(later: bool) -> None:
    """Right results must not hide a fault for good."""

    class Model(Towers):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            if later:
                torch._dynamo.graph_break()
            return super().forward(x, ids)

    model = Model()
    parallel = spread(model, rand(3, 4), GOOD, lanes=3, copy=True)
    (piece,) = parallel._partitioner_programs.pieces
    piece.executable = Broken(piece.executable)
    wanted = seen(model, lambda: model(rand(3, 4), GOOD))
    with pytest.warns(UserWarning, match=r"lanes failed.*TypeError\('a fault of ours'\)"):
        found = seen(parallel, lambda: parallel(rand(3, 4), GOOD))
    assert all(map(torch.equal, found, wanted))


class Steps(nn.Module):
    """Random steps, of which one looks up a word that may not be there."""

    def __init__(self, seed: int, *others: str) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.steps = [chance.choice(["count", "draw", "look", "mix", "norm", *others]) for _ in range(12)]
        self.number, self.told = 0, list[str]()
        self.sides = [chance.randrange(3) for _ in self.steps]
        self.words, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        self.register_buffer("load", torch.zeros(4))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        sides = [x, x + 1, x * 2]
        for step, side in zip(self.steps, self.sides, strict=True):
            match step:
                case "count":
                    self.load += sides[side].detach().sum(0)
                case "draw":
                    sides[side] = sides[side] + torch.rand_like(x)
                case "look":
                    sides[side] = sides[side] + self.words(ids + side)
                case "mix":
                    sides[side] = sides[side] * sides[side - 1]
                case "norm":
                    sides[side] = self.norm(sides[side])
                case "tell":
                    self.number += 1
                    self.told.append(f"{side}")
                case "break":
                    torch._dynamo.graph_break()
                case "part":
                    sides[side] = self.part(sides[side], ids + side)
                case "try":
                    try:
                        sides[side] = self.words(ids + 2 * side)
                    except IndexError:
                        self.number += 10
        return sides[0] + sides[1] * sides[2]

    def part(self, x: Tensor, ids: Tensor) -> Tensor:
        self.number += 100
        self.load += 1
        found = self.words(ids) + torch.rand_like(x)
        self.told.append("part")
        return found


@settings(max_examples=7, deadline=None)
@given(st.integers(0, 10**6))
def test_random_steps(seed: int) -> None:
    model = Steps(seed)
    parallel = spread(copy.deepcopy(model), rand(3, 4), torch.tensor([0, 1, 2]), lanes=3)
    for ids in ([0, 1, 2], [0, 5, 4], [6, 1, 1], [0, 0, 7]):
        wanted = seen(model, lambda ids=ids: model(rand(3, 4), torch.tensor(ids)))
        found = seen(parallel, lambda ids=ids: parallel(rand(3, 4), torch.tensor(ids)))
        assert all(map(torch.equal, found, wanted)), (model.steps, model.sides, ids)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 3])
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_random_steps_with_python_between(lanes: int, seed: int) -> None:
    """What forward sets before it fails is set, and what it catches is caught, wherever Python has begun the call."""
    model = Steps(seed, "tell", "break", "part", "try")
    parallel = spread(copy.deepcopy(model), rand(3, 4), torch.tensor([0, 1, 2]), lanes=lanes)
    for ids in ([0, 1, 2], [0, 5, 4], [6, 1, 1], [0, 0, 7], [0, 1, 0]):
        wanted = seen(model, lambda ids=ids: model(rand(3, 4), torch.tensor(ids)))
        found = seen(parallel, lambda ids=ids: parallel(rand(3, 4), torch.tensor(ids)))
        assert all(map(torch.equal, found, wanted)), (model.steps, model.sides, ids)
        assert (parallel.number, parallel.told) == (model.number, model.told), (model.steps, model.sides, ids)


def test_a_function_runs_again_with_all_that_it_was_given() -> None:
    seen: list[Any] = []
    scale = 3

    def function(one: int, /, two: int, *rest: int, three: int, four: int = 4, **named: int) -> None:
        seen.append((one, two, rest, three, four, named, scale))
        if len(seen) == 1:
            run_again(function.__code__)

    function(1, 2, 5, 6, three=3, other=7)
    assert seen == [(1, 2, (5, 6), 3, 4, {"other": 7}, 3)] * 2
