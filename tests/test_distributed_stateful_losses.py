"""Loss functions that are called once more: they see nothing of it, and what they give of other rows may be no evidence."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_distributed_losses import COLUMNS, RANKS, batches_for, batches_of, job, squares
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional

from partitioner.distributed.loss.counts import refuse_other_mean
from partitioner.distributed.loss.loss import Loss
from partitioner.errors import InputError

COUNT, ROWS = 3, 4
Loss_ = Callable[[Tensor, dict[str, Tensor]], Tensor]


def mse(x: Tensor, t: dict[str, Tensor]) -> Tensor:
    return functional.mse_loss(x, t["v"]) * ROWS


class Annealed:
    """Counts its calls."""

    def __init__(self, factor: Callable[[int], float]) -> None:
        self.factor, self.calls = factor, 0

    def __call__(self, x: Tensor, t: dict[str, Tensor]) -> Tensor:
        self.calls += 1
        return mse(x, t) * self.factor(self.calls)


class Normalized(nn.Module):
    """Takes a mean of all losses so far for one, which microbatches move otherwise than a batch does."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.mean = how, torch.ones(()).double()

    def forward(self, x: Tensor, t: dict[str, Tensor]) -> Tensor:
        found = mse(x, t)
        if self.how == "in place":
            self.mean.mul_(0.9).add_(0.1 * found.detach())
        else:
            self.mean = 0.9 * self.mean + 0.1 * found.item()
        return found * (1 / self.mean)


def of_mixture(x: Tensor, t: dict[str, Tensor]) -> Tensor:
    share = random.random() * float(np.random.rand())
    return mse(x, t) * share + functional.l1_loss(x, t["v"]) * (1 - share)


def penalized(x: Tensor, t: dict[str, Tensor]) -> Tensor:
    """The more rows a mean is of, the smaller its gradient by each."""
    found = mse(x, t)
    (gradient,) = torch.autograd.grad(found, x, create_graph=True)
    return found + (gradient.square().sum(1) * ROWS).mean()


def written(x: Tensor, t: dict[str, Tensor]) -> Tensor:
    t["v"].add_(1.0)
    return mse(x, t)


def for_four(x: Tensor, t: dict[str, Tensor]) -> Tensor:
    assert len(x) == ROWS
    return squares(x, t["v"]).sum() / ROWS


normal = nn.BatchNorm1d(COLUMNS, affine=False).double()
labels = torch.arange(ROWS)
RIGHT: dict[str, Callable[[], Loss_]] = {
    "warmed up": lambda: Annealed(lambda calls: min(1.0, calls / 100)),
    "twice as much each time": lambda: Annealed(lambda calls: 2.0**calls),
    "another after the first": lambda: Annealed(lambda calls: 1.0 if calls < 2 else 0.5),
    "with dropout": lambda: lambda x, t: mse(functional.dropout(x, 0.5), t),
    "with noise": lambda: lambda x, t: mse(x + torch.randn_like(x), t),
    "with random weights": lambda: of_mixture,
    "which writes its target": lambda: written,
    "for four rows": lambda: for_four,
    "of labels that it has": lambda: lambda x, t: functional.cross_entropy(x, labels) * ROWS,
    "of ones that it has": lambda: lambda x, t: functional.mse_loss(x, torch.ones(ROWS, COLUMNS).double()) * ROWS,
    "of nothing": lambda: lambda x, t: (squares(x, t["v"]) * (t["v"] > 9)).sum() / (t["v"] > 9).sum().clamp(min=1) * ROWS,
    "of an empty selection": lambda: lambda x, t: x[t["v"] > 9].mean() * ROWS,
    "halves": lambda: lambda x, t: (squares(x.bfloat16(), t["v"].bfloat16()).sum() / len(x)).float(),
    "logged": lambda: lambda x, t: (mse(x, t), print(mse(x, t).item(), end=""))[0],
}


@pytest.mark.parametrize("name", RIGHT)
def test_who_cannot_be_asked_is_taken(name: str) -> None:
    job(RIGHT[name](), COUNT, ROWS)


WRONG: dict[str, Callable[[], Loss_]] = {
    "normalized by an item": lambda: Normalized("item"),
    "normalized in place": lambda: Normalized("in place"),
    "with a penalty of gradients": lambda: penalized,
    "behind a norm": lambda: lambda x, t: mse(normal(x), t),
}


@pytest.mark.parametrize("name", WRONG)
def test_who_makes_another_loss_of_all_rows_is_refused_although_it_has_a_state(name: str) -> None:
    with pytest.raises(InputError, match="no mean over rows: of two microbatches it is "):
        job(WRONG[name](), COUNT, ROWS)


def test_who_is_asked_sees_nothing_of_it() -> None:
    """A loss that counted its calls saw one more than there were microbatches, and one that kept a list had one item more."""
    calls, held, drawing = Annealed(lambda _: 1.0), Normalized("item"), Annealed(lambda _: float(torch.rand(())))
    for each in (calls, drawing):
        job(each, COUNT, ROWS)
    assert [each.calls for each in (calls, drawing)] == [COUNT, COUNT]
    with pytest.raises(InputError):
        job(held, COUNT, ROWS)
    batches, results = batches_of(COUNT, ROWS)
    known = Normalized("item")
    for number in range(COUNT):
        known(results[number], batches.targets[number])
    assert held.mean == known.mean


def test_numbers_that_are_in_no_way_to_the_loss_do_not_count() -> None:
    """The share of rows that are right, which is put aside, is divided by how many there are."""
    shares: list[Tensor] = []

    def loss(x: Tensor, t: dict[str, Tensor]) -> Tensor:
        shares.append((x.argmax(1) == t["c"]).sum() / len(x))
        return functional.cross_entropy(x, t["c"])

    job(loss, COUNT, ROWS)
    assert len(shares) == COUNT


def test_numbers_are_drawn_as_if_nobody_had_asked() -> None:
    def drawn() -> list[float]:
        return [random.random(), float(np.random.rand()), torch.rand(()).item()]

    def seeded() -> None:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)

    batches, results = batches_of(COUNT, ROWS)
    seeded()
    for number, each in enumerate(results):
        of_mixture(each, batches.targets[number])
    wanted = drawn()
    seeded()
    job(of_mixture, COUNT, ROWS)
    assert drawn() == wanted


def test_results_and_targets_are_not_written_once_more() -> None:
    """A loss that changes its target in place did so once for each time that it was asked."""
    batches, _ = batches_of(COUNT, 6)
    before = batches.targets[0]["v"].clone()
    job(lambda x, t: functional.mse_loss(x, t["v"].add_(1.0)) * 6, COUNT, 6)
    assert torch.equal(batches.targets[0]["v"], before + 1)


def test_what_is_compiled_is_asked_and_stays_so() -> None:
    backend = CompileCounter()
    compiled = torch.compile(lambda x, t: squares(x, t["v"]).sum() / ROWS, backend=backend)
    with pytest.raises(InputError, match="is a sum"):
        job(compiled, COUNT, ROWS)
    assert backend.frame_count == 0
    batches, results = batches_of(COUNT, ROWS)
    compiled(results[0], batches.targets[0])
    assert backend.frame_count == 1


def test_a_cond_in_a_loss_can_be_called_afterwards() -> None:
    """A mode of dispatch around its first call had `torch.cond` fail in that process from then on."""
    job(lambda x, t: torch.cond(t["w"].sum() > 0, lambda x: x.square().mean(), lambda x: x.mean(), (x,)), COUNT, ROWS)
    assert torch.equal(torch.cond(torch.ones(3).sum() > 9, torch.sin, torch.cos, (torch.ones(3),)), torch.ones(3).cos())


class Telling(nn.Module):
    """Gives more than rows: a sum over them, how many there are, and weights of which there are as many."""

    def __init__(self, counted: bool) -> None:
        super().__init__()
        self.layer, self.tasks, self.counted = nn.Linear(COLUMNS, COLUMNS), nn.Parameter(torch.ones(ROWS)), counted

    def forward(self, x: Tensor) -> dict[str, Any]:
        found = self.layer(x)
        return {
            "x": found,
            "sum": found.square().sum(),
            "rows": x.shape[0] if self.counted else None,
            "tasks": self.tasks * 2,
            "mean": found.mean(),
        }


TOLD: dict[str, tuple[Callable[[dict[str, Any], Any], Tensor], bool]] = {
    "a sum by rows": (lambda o, t: o["x"].square().mean() + o["sum"] / len(o["x"]), True),
    "by how many it says there are": (lambda o, t: o["x"].square().sum() / o["rows"], True),
    "weights of as many tasks": (lambda o, t: functional.mse_loss(o["x"], t["v"]) * 4 + (o["tasks"] * 0.25).sum(), True),
    "a mean": (lambda o, t: o["mean"] * 4, True),
    "a sum of it all": (lambda o, t: o["x"].square().sum() + o["sum"], False),
}


@pytest.mark.parametrize("name", TOLD)
def test_of_what_has_no_rows_nothing_is_made_twice(name: str) -> None:
    """A sum that the model made of four rows was divided by eight."""
    loss, right = TOLD[name]
    batches, results = batches_for(Telling(name.startswith("by how many")).double(), COUNT, ROWS)
    made = Loss(loss, batches)
    made.begin(RANKS, watched=True)
    try:
        for number, each in enumerate(results):
            made([each[name] for name in ("x", "sum", "tasks", "mean")], torch.tensor(number))
        refuse_other_mean(made.watched, RANKS, 0)  # type: ignore[arg-type]
        taken = True
    except InputError:
        taken = False
    assert taken == right
