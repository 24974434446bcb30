"""Whether rows of a batch meet in a model is asked by values: a sort, a roll, or a sum along the batch shows in no size.

And so are losses that draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import zoo
from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.apart import Untold
from partitioner.distributed.loss.counts import refuse_other_mean
from partitioner.distributed.loss.level import Level
from partitioner.distributed.loss.loss import Loss
from partitioner.distributed.loss.meeting import meeting
from partitioner.distributed.loss.mixing import mixing, warn_of_mixing
from partitioner.distributed.traced.example import Example, example_in
from partitioner.distributed.traced.larger import larger
from partitioner.errors import InputError

COLUMNS = 6
ROWS = 8
RANKS: Any = SimpleNamespace(sizes={"data": 1}, device=torch.device("cpu"), wide=lambda *_: ())

Between = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """Two layers with a dropout, a batch norm and something between them."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS), nn.BatchNorm1d(COLUMNS)
        self.dropout, self.between = nn.Dropout(0.2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.norm(self.dropout(self.first(x)))))


MEET: dict[str, tuple[Between, str]] = {
    "sorted": (lambda x: x.sort(0).values, "sort"),
    "in another order": (lambda x: x[x[:, 0].argsort()], "getitem"),
    "summed up": (lambda x: x.cumsum(0), "cumsum"),
    "largest so far": (lambda x: x.cummax(0).values, "cummax"),
    "one row for all": (lambda x: x + x[-1], "getitem"),
    "next row": (lambda x: x + x.roll(1, 0), "roll"),
    "next one": (lambda x: torch.cat([x[1:], x[:1]]), "getitem"),
    "temperature": (lambda x: x.softmax(0), "softmax"),
    "normed": (lambda x: functional.normalize(x, dim=0), "normalize"),
    "mixed up": (lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))], "getitem"),
    "reversed": (lambda x: x * x.flip(0), "flip"),
    "distances": (lambda x: x * torch.cdist(x, x).mean(1, keepdim=True), "cdist"),
    "attention without a batch": (
        lambda x: functional.scaled_dot_product_attention(*[x[None]] * 3)[0],
        "scaled_dot_product_attention",
    ),
    "pooled": (lambda x: functional.avg_pool1d(x.T[None], 3, 1, 1)[0].T, "avg_pool1d"),
    "buckets": (lambda x: torch.zeros_like(x).index_add(0, x.argmax(1) % len(x), x), "index_add"),
}


def put_back(x: Tensor) -> Tensor:
    """Rows in another order, and back."""
    order = x[:, 0].argsort()
    return torch.zeros_like(x).index_copy(0, order, x[order].tanh())


def routed(x: Tensor) -> Tensor:
    """Each of two experts takes some rows."""
    expert = x.argmax(1) % 2
    taken = [torch.where(expert == number)[0] for number in range(2)]
    return sum((torch.zeros_like(x).index_add(0, rows, x[rows] * (2 + number)) for number, rows in enumerate(taken)), x)


BY_THEMSELVES: dict[str, Between] = {
    "nothing": lambda x: x,
    "there and back": lambda x: x.flip(0).tanh().flip(0),
    "put back": put_back,
    "experts": routed,
    "along columns": lambda x: x.cumsum(1).sort(1).values.roll(1, 1),
    "turned": lambda x: x.T.cumsum(0).T,
    "several of a row": lambda x: x.repeat_interleave(3, 0).view(-1, 3, COLUMNS).softmax(1).sum(1),
    "several batches": lambda x: x.repeat(3, 1).view(3, -1, COLUMNS).softmax(0).sum(0),
    "noise": lambda x: x + torch.randn_like(x) + torch.empty_like(x).uniform_(2, 3),
    "gates": lambda x: x * torch.bernoulli(x.sigmoid()) * (torch.rand(len(x), 1) > 0.3),
    "picked": lambda x: x * x[torch.arange(len(x)), x.argmax(1)][:, None],
}


def example_of(model: nn.Module, x: Tensor) -> Example:
    return example_in(model, x, None, 2)


@pytest.mark.parametrize("name", MEET)
def test_rows_that_meet_are_seen_by_values(name: str) -> None:
    """A model that sorts, sums up or rolls its batch was another one in each microbatch, and nobody said so."""
    between, op = MEET[name]
    torch.manual_seed(0)
    model, x = Net(between), torch.randn(ROWS, COLUMNS)
    example = example_of(model, x)
    found = mixing(model, example)
    assert found is not None
    assert found.target == op
    with pytest.warns(UserWarning, match=r"Net takes rows of a batch together \(.*test_distributed_meeting.py:"):
        warn_of_mixing(model, example, 2)


@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_no_alarm_where_rows_are_by_themselves(name: str) -> None:
    """Nor where they are put in order for a while, or numbers are drawn for them."""
    torch.manual_seed(0)
    model, x = Net(BY_THEMSELVES[name]), torch.randn(ROWS, COLUMNS)
    example = example_of(model, x)
    before, drawn = {key: each.clone() for key, each in model.state_dict().items()}, torch.get_rng_state()
    assert meeting(model, example, lambda: larger(model, example)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mixing(model, example, 2)
    assert all(torch.equal(each, before[key]) for key, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


class Own(nn.Module):
    """Makes its loss, of rows that are sorted before the last layer."""

    def __init__(self, *, sorts: bool) -> None:
        super().__init__()
        self.first, self.last, self.sorts = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS), sorts

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x.sort(0).values if self.sorts else x).square().mean()


@pytest.mark.parametrize("sorts", [False, True])
def test_of_a_model_that_makes_its_loss_what_comes_of_the_last_weights_is_asked(sorts: bool) -> None:
    model, x = Own(sorts=sorts), torch.randn(ROWS, COLUMNS)
    found = mixing(model, example_of(model, x))
    assert (found.target if found is not None else "") == ("sort" if sorts else "")


@pytest.mark.parametrize("x", [torch.zeros(ROWS, COLUMNS), torch.randn(2, COLUMNS).mean(0).expand(ROWS, -1).round() * 0])
def test_rows_that_are_all_alike_tell_nothing(x: Tensor) -> None:
    """Sizes are asked then: that of a mean over rows shows."""
    model = Net(lambda x: x - x.mean(0))
    example = example_of(model, x)
    with pytest.raises(Untold):
        meeting(model, example, lambda: larger(model, example))
    found = mixing(model, example)
    assert found is not None
    assert found.target == "mean"


@pytest.mark.parametrize("between", [lambda x: x + x.new_zeros(1, COLUMNS), lambda x: x + torch.zeros_like(x).sum()])
def test_what_asks_a_tensor_for_its_size_alone_takes_no_rows_together(between: Between) -> None:
    """Swin's mask of windows is zeros of the input's dtype: too large a model to be run, it was told to take rows together."""
    model = Net(between).to("meta")
    assert mixing(model, example_in(model, torch.randn(ROWS, COLUMNS), None, 1)) is None


class Paired(Net):
    """Gives similarities of all pairs, which are no rows, beside the rows that these are made of; and checks a number."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        torch._assert_async((y.square().sum() >= 0).all())
        return y, y @ y.T


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_leads_to_no_result_or_shows_in_none_is_no_alarm(device: str) -> None:
    """GroupViT's similarities were no rows, so sizes were asked; they told of numbers that Gumbel's distribution checks."""
    model = Paired(lambda x: x + (x.sum() - x.sum(0).sum()) * 0 if device == "cpu" else x).to(device)
    assert mixing(model, example_of(model, torch.randn(ROWS, COLUMNS))) is None


@pytest.mark.parametrize("name", ["funnel", pytest.param("mamba", marks=pytest.mark.slow)])
def test_sizes_that_are_those_of_rows_by_chance_are_no_alarm(name: str) -> None:
    """A state of Mamba's, and a mask of Funnel's, looked like what three rows make together."""
    zoo.import_transformers()
    entry = zoo.ZOO[f"transformers/{name}"]
    model, (args, kwargs) = entry.build(), entry.inputs(batch=6)
    example = example_in(model, args, kwargs, 2)
    assert mixing(model, example) is None


def test_what_draws_gives_the_same_for_each_row() -> None:
    x = torch.randn(4, 3)
    with Level():
        drawn = [torch.rand(4, 3), torch.randn_like(x), torch.randint(2, 9, (4,)), functional.dropout(x, 0.5) / x]
        order = torch.randperm(4)
        with pytest.raises(TypeError, match="draws, and makes something of that"):
            functional.rrelu(x, training=True)
    assert all(len(each.unique()) == 1 for each in (each.float().round(decimals=4) for each in drawn))
    assert order.tolist() == [3, 2, 1, 0]


DRAWING: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "noise": (lambda o, t: (o + torch.randn_like(o) - t).square().mean(), True),
    "dropout": (lambda o, t: (functional.dropout(o, 0.3) - t).square().mean(), True),
    "a number for all": (lambda o, t: ((o - t).square() * torch.rand(())).mean(), True),
    "a sum": (lambda o, t: (o + torch.randn_like(o) - t).square().sum(), False),
    "negatives": (lambda o, t: (o * t[torch.randperm(len(o))]).mean(), False),
    "all pairs": (lambda o, t: (functional.dropout(o, 0.3) @ t.T).logsumexp(1).mean(), False),
    "the hardest": (lambda o, t: ((o - t).square().mean(1) + torch.rand(len(o))).topk(2).values.mean(), False),
}


@pytest.mark.parametrize("name", DRAWING)
def test_a_loss_that_draws_is_asked_too(name: str) -> None:
    """It was another one each time, so nothing was said: negatives of a microbatch are not those of the batch."""
    loss, taken = DRAWING[name]
    model, x, target = nn.Linear(COLUMNS, COLUMNS), torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    batches = Batches(model, example_of(model, x), 2, torch.device("cpu"))
    batches.fill(x, target)
    made = Loss(loss, batches)
    made.begin(RANKS, watched=True)
    for number in range(2):
        made(model(*batches.call(number)[0]), torch.tensor(number))
    assert made.watched is not None
    with nullcontext() if taken else pytest.raises(InputError, match=r"the loss is (no mean over rows|a sum)"):
        refuse_other_mean(made.watched, RANKS, 0)
