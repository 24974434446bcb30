"""What Python asks of tensors, and can be told before the call: a graph ended there, and on two devices it was refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hostile.program import Asserts, AssertsFinite, Two, rand
from lanes import programs
from lanes import spread as on_lanes
from pretend import TWO, World, spread
from torch import Tensor, nn

from partitioner import TraceError
from partitioner.distributed import outlook
from partitioner.distributed.traced.example import example_in

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """To the last bit, wherever they lie."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, check_device=False)


class Asks(Two):
    """Two branches, and a factor that depends on what Python reads."""

    def factor(self, x: Tensor) -> Any:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return (self.left(x) + self.right(x)) * self.factor(x)


# -- constants -----------------------------------------------------------------------------------------------------------------


class Rates(Asks):
    def factor(self, x: Tensor) -> Any:
        return sum(torch.linspace(0, 0.7, 3).tolist()) + sum(each.item() for each in torch.arange(3))


class Dimensions(Asks):
    def factor(self, x: Tensor) -> Any:
        return x.sum(dim=torch.arange(0, x.dim()).tolist(), keepdim=True)


class Triangle(Asks):
    def factor(self, x: Tensor) -> Any:
        return 2.0 if torch.ones(4, 4).triu(1).any() and not torch.zeros(2).all() else 3.0


class Written(Asks):
    """The read comes after writes, through a view and in place."""

    def factor(self, x: Tensor) -> Any:
        table = torch.zeros(4)
        table[1] = 5.0
        table[2:].add_(2.0)
        table -= 3.0
        nn.functional.relu(table, True)
        factor = table.sum().item()
        table.fill_(9.0)
        return factor


class Whole(Asks):
    def factor(self, x: Tensor) -> Any:
        return int(torch.tensor(3)) + float(torch.tensor(0.5)) + (1 if bool(torch.tensor([True])) else 2)


class Loops(Asks):
    def factor(self, x: Tensor) -> Any:
        count = torch.tensor(0)
        while count < 3:
            count = count + 1
        return [1.0, 2.0, 4.0, 8.0][count]


class Cast(Asks):
    def factor(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            made = torch.full((3, 3), 1.001) @ torch.full((3, 3), 1.001)
        return made.float().sum().item()


CONSTANTS = [Rates, Dimensions, Triangle, Written, Whole, Loops]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", CONSTANTS)
def test_what_is_made_of_constants_is_known(kind: type[Asks], world: World) -> None:
    model, x = kind(), rand()
    for parallel in (on_lanes(model, x, lanes=2, copy=True), spread(model, (x,), TWO, copy=True)):
        assert_equal(parallel(x), model(x))
        assert programs(parallel) == 1
        for given in (rand(5, 4), rand(2, 4)):
            assert_equal(parallel(given), model(given))


def test_what_autocast_made_is_not_made_without_it() -> None:
    model, x = Cast(), rand()
    assert_equal(on_lanes(model, x, lanes=2, copy=True)(x), model(x))


class Draws(Asks):
    def factor(self, x: Tensor) -> Any:
        return torch.rand(3).sum().item()


class HalfWritten(Asks):
    """What is read is a constant, into which part of the input was written."""

    def factor(self, x: Tensor) -> Any:
        table = torch.zeros(4)
        table[0] = x.detach().sum()
        return table.sum().item()


@pytest.mark.parametrize("kind", [Draws, HalfWritten])
def test_what_is_not_known_is_read_in_each_call(kind: type[Asks], world: World) -> None:
    model, x = kind(), rand()
    for parallel in (on_lanes(model, x, lanes=1, copy=True), spread(model, (x,), TWO, copy=True)):
        for seed in range(3):
            torch.manual_seed(seed)
            expected = model(rand(seed=seed))
            torch.manual_seed(seed)
            assert_equal(parallel(rand(seed=seed)), expected)


# -- values of the call --------------------------------------------------------------------------------------------------------


class Positive(Asks):
    def factor(self, x: Tensor) -> Any:
        return 2.0 if x.sum() > 0 else -3.0


class Halves(Asks):
    def factor(self, x: Tensor) -> Any:
        number = 1
        while x.abs().max() > number and number < 6:
            number *= 2
        return number


class Both(Asks):
    def factor(self, x: Tensor) -> Any:
        if not (x > 0).any() or bool((x > 2).all()):
            return 2.0
        return 4.0


class Gives(Asks):
    """What ``or`` and ``and`` give is one of the two tensors, and no truth value."""

    def factor(self, x: Tensor) -> Any:
        return ((x.sum() > 0) or x.min()).double() + ((x.sum() > 9) and x.max()).double()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Positive, Halves, Both, Gives])
def test_values_of_the_call_choose_the_program_on_two_devices(kind: type[Asks], world: World) -> None:
    """On one device Python stays between graphs; on two this was refused."""
    model, x = kind(), rand()
    parallel = spread(model, (x,), TWO, copy=True)
    for given in (x, -x.abs(), x.abs() + 3, rand(5, 4), -rand(5, 4).abs(), x * 0, x * 4):
        assert_equal(parallel(given), model(given))
    assert 2 <= programs(parallel) <= 8


def test_what_is_asserted_fails_as_in_eager(world: World) -> None:
    """``assert not`` of what layers compute was refused, and other assertions raised torch's error, not Python's."""
    model, x = Asserts(), rand()
    parallel = spread(model, (x,), TWO, copy=True)
    for factor in (float("inf"), float("nan"), 1e9):
        with pytest.raises(AssertionError) as expected:
            model(x.abs() * factor)
        with pytest.raises(AssertionError) as raised:
            parallel(x.abs() * factor)
        assert raised.value.args == expected.value.args
    assert_equal(parallel(x), model(x))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_where_there_are_no_values_nothing_is_asserted(device: str) -> None:
    """A model on the meta device was not planned for ranks: its assertions asked tensors for values that they have not."""
    with torch.device(device):
        model, x = AssertsFinite(), torch.ones(4, *rand().shape[1:])
    spec = {"devices": [{"device": "cuda:0"}], "distributed": {"mesh": {"pipeline": 2}, "microbatches": 2, "schedule": "1f1b"}}
    assert outlook(model, x, spec).step > 0


def test_a_job_has_one_graph_for_all_batches() -> None:
    """So no value of its example may decide which one that is."""
    with pytest.raises(TraceError, match="Python decides on the value of a tensor"):
        example_in(Positive(), (rand(),), None, 1)


class Masked(nn.Module):
    """Layers of torch's own, which look whether a mask is the causal one."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.beside = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 8)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.encoder(x, mask=self.mask if mask is None else mask) * self.beside(x)


def test_a_transformer_with_a_mask_runs_on_two_devices(world: World) -> None:
    """The mask may change: in place, or because it comes with the call, of another size, too."""
    model, x = Masked(), torch.randn(2, 5, 8)
    parallel = spread(model, (x,), TWO, copy=True)

    def equal(*given: Tensor) -> None:
        assert_equal(parallel(*given), model(*given))

    equal(x)
    for each in (model, parallel):
        each.mask[0, 3] = 0.0
    equal(x)
    equal(torch.randn(3, 7, 8), nn.Transformer.generate_square_subsequent_mask(7))
    equal(torch.randn(3, 4, 8), torch.zeros(4, 4))


class Weighs(Asks):
    """Decides on what its weights make of the input."""

    def factor(self, x: Tensor) -> Any:
        return 2.0 if self.left(x).sum() > 0 else 3.0


class WritesFirst(Asks):
    """Decides on what it has written."""

    def factor(self, x: Tensor) -> Any:
        x.detach().fill_(1.0)
        return 2.0 if x.sum() > 0 else 3.0


@pytest.mark.parametrize("kind", [Weighs, WritesFirst])
def test_what_weights_or_writes_decide_is_refused_on_two_devices(kind: type[Asks], world: World) -> None:
    with pytest.raises(TraceError, match="Python decides on the value of a tensor"):
        spread(kind(), (rand(),), TWO, copy=True)
