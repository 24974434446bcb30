"""What a model's own losses are means of, told before the model is called."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.counts import Watched, counts_in, held_in, losses_in
from partitioner.distributed.loss.weights import weights_of
from partitioner.distributed.loss.within import asked_of, tails_of
from partitioner.distributed.traced.example import Example, example_in
from partitioner.distributed.traced.larger import larger
from partitioner.errors import InputError


class Losses(nn.Module):
    """Of targets that are drawn, written, given, moved on, and of another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)
        self.register_buffer("own", torch.tensor([1, 2, -100, 0]))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.layer(x)
        drawn = labels.masked_fill(torch.rand(labels.shape) < 0.5, -100)
        written = labels.clone()
        written[0] = -100
        given = functional.cross_entropy(logits, labels.view(-1), ignore_index=3)
        moved = functional.nll_loss(logits.log_softmax(-1)[:-1], labels[1:], torch.arange(5.0))
        divided = (
            logits.square().sum() / (labels > 2).sum() + logits.sum() / drawn.sum() + logits.sum() / 3 + logits.sum() / moved
        )
        return sum((functional.cross_entropy(logits, each) for each in (drawn, written, self.own)), given + moved + divided)


def told(example: Example) -> list[Tensor]:
    held = held_in(example)
    return counts_in(losses_in(example, held), held | example.arguments(example.call.tensors))


def test_of_what_the_batch_alone_says_and_nothing_is_drawn() -> None:
    labels = torch.tensor([3, 4, 2, 3])
    example = example_in(Losses(), {"x": torch.randn(4, 4), "labels": labels}, None, 1)
    drawn = torch.get_rng_state()
    found = told(example)
    assert [each.item() for each in found] == [2, 4 + 2 + 3, 3, 3]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_weights_of_classes_that_a_model_holds_count() -> None:
    """A loss with weights as a module within the model was not watched: each microbatch was divided by other weights."""
    weight = torch.arange(1.0, 6.0)

    class Judge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.loss = nn.Linear(4, 5), nn.CrossEntropyLoss(weight, label_smoothing=0.1)
            self.register_buffer("calls", torch.ones(5))

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            self.calls.add_(1)
            logits = self.layer(x)
            return self.loss(logits, labels) + functional.cross_entropy(logits, labels, self.calls)

    example = example_in(Judge(), {"x": torch.randn(4, 4), "labels": torch.tensor([3, 4, 2, 3])}, None, 1)
    found = told(example)
    assert [each.item() for each in found] == [4 + 5 + 3 + 4]


def test_a_loss_within_a_model_that_is_asked_for_a_sum_is_one() -> None:
    """Of a `ctc_loss`, which cannot be called again with other rows, nobody saw it."""

    class Heard(nn.Module):
        def __init__(self, reduction: str) -> None:
            super().__init__()
            self.layer, self.reduction = nn.Linear(4, 5), reduction

        def forward(self, x: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
            spoken = self.layer(x).log_softmax(-1).transpose(0, 1)
            return functional.ctc_loss(spoken, labels, torch.full((4,), 9), lengths, reduction=self.reduction)

    inputs = {"x": torch.randn(4, 9, 4), "labels": torch.ones(4, 3, dtype=torch.int64), "lengths": torch.tensor([1, 2, 3, 3])}
    for reduction in ("sum", "mean"):
        (tail,) = tails_of(example_in(Heard(reduction), inputs, None, 1))
        assert tail.is_sum == (reduction == "sum")


def test_what_a_loss_function_takes_the_mean_of_is_seen() -> None:
    watched, logits, target = Watched(2), torch.randn(4, 5, requires_grad=True), torch.tensor([3, -100, 2, 0])
    watched.found.append([])
    with watched:
        nn.CrossEntropyLoss()(logits, target)
        functional.cross_entropy(logits, target, torch.arange(5.0))
        functional.cross_entropy(logits, logits.softmax(-1))  # probabilities, and all rows count
        functional.cross_entropy(logits, target, reduction="none").mean()
        logits[target > 0].mean(1).mean()
        functional.mse_loss(logits[target > 0], torch.zeros(2, 5))
        logits.sum() / (target > 0).sum() + torch.div(logits.sum(), 3) + logits.sum().div_(2.0)
        logits.sum() / logits.norm() + (logits.detach().sum() / 5) + (logits / 7).sum(), logits.sum() / torch.ones(2)
        total = nn.NLLLoss(reduction="sum")(logits, target)
    assert [[each.item() for each in row] for row in watched.found] == [[3, 3 + 2 + 0, 20, 4, 2, 10, 2, 3, 2]]
    assert watched.sums == [total]


def test_a_mean_of_each_row_is_not_one_of_the_batch() -> None:
    watched, rows = Watched(2), torch.randn(3, 5, requires_grad=True)
    watched.found.append([])
    with watched:
        torch.stack([row[: place + 1].mean() for place, row in enumerate(rows)]).mean()
    assert [each.isnan().item() for each in watched.found[0]] == [True, True, True, False]


class Towers(nn.Module):
    """Computes a loss itself."""

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.other, self.scale, self.loss = nn.Linear(5, 6), nn.Linear(7, 6), nn.Parameter(torch.ones(())), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.one(x), self.other(y).view(-1, 3), self.scale)


OWN: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "all pairs": (
        lambda a, b, scale: functional.cross_entropy(a @ b.view(len(a), 6).T * scale, torch.arange(len(a))),
        "neither",
    ),
    "use of experts": (lambda a, b, _: a.mean() + (b.softmax(-1).mean(0) * (b > 0).float().mean(0)).sum(), "neither"),
    "root": (lambda a, b, scale: (a.square().mean() + b.square().mean() * scale).sqrt(), "neither"),
    "sum": (lambda a, b, scale: a.square().sum() * 0.6 + b.logsumexp(1).sum() * scale, "sum"),
    "sum by a number": (lambda a, b, scale: (a.square().sum() + b.sum()) / 4, "sum"),
    "mean": (lambda a, b, scale: functional.mse_loss(a, b.view(len(a), 6).tanh()) * scale, "mean"),
    "rows": (lambda a, b, _: a.square().sum(1).sqrt().mean() + b.view(len(a), 2, 3).amax((1, 2)).mean(), "mean"),
    "by rows": (lambda a, b, _: a.square().sum() / len(a), "mean"),
    "of those that are numbers": (lambda a, b, _: a.square().nanmean() + b.mean(), "mean"),
    "drawn": (lambda a, b, _: functional.dropout(a, 0.5).square().mean(), "mean"),
    "drawn rows": (lambda a, b, _: (a * a[torch.randperm(len(a))]).mean() + b.mean(), "neither"),
}


def told_of(model: nn.Module) -> str:
    """What is said of the loss that a model computes itself."""
    batches = Batches(model, example_in(model, INPUTS, None, 1), 1, torch.device("cpu"))
    batches.fill(INPUTS, None)
    more = larger(model, batches.example)
    (tail,) = tails_of(batches.example)
    assert more is not None
    told = asked_of(tail, batches, more)
    return "unknown" if told is None else "mean" if told.is_mean else "sum" if told.is_sum else "neither"


INPUTS = {"x": torch.randn(4, 5), "y": torch.randn(4, 7)}


@pytest.mark.parametrize("name", OWN)
def test_of_a_loss_within_a_model_the_ops_behind_its_weights_are_asked(name: str) -> None:
    """Copies of a model of two towers each compared their own pairs: another loss than of all pairs, without a word."""
    loss, told = OWN[name]
    assert told_of(Towers(loss)) == told


@pytest.mark.parametrize(
    ("loss", "known"),
    [
        (lambda a, b, _: functional.cross_entropy(a.float().view(-1, 3), torch.arange(2 * len(a)) % 3), True),
        (lambda a, b, _: functional.cross_entropy(a @ b.view(len(a), 6).T, torch.arange(len(a))), False),
        (lambda a, b, _: functional.cross_entropy(a - a.mean(0), torch.arange(len(a))), False),
        (lambda a, b, _: functional.cross_entropy(a, torch.arange(len(a)), reduction="sum"), False),
    ],
    ids=["laid out", "pairs", "centred", "a sum"],
)
def test_a_cross_entropy_is_a_mean_of_what_nothing_else_is_made_of(loss: Callable[..., Tensor], known: bool) -> None:
    """One of all pairs of rows was taken for such, and was not asked."""
    (tail,) = tails_of(example_in(Towers(loss), INPUTS, None, 1))
    assert tail.is_mean == known


class Weighed(Towers):
    """Weighs its losses by numbers that it learns, of which there are as many as rows."""

    def __init__(self) -> None:
        super().__init__(lambda a, b, scale: torch.stack([a.mean(), b.square().mean()]) @ (-scale[:2]).exp() + scale.sum())
        self.scale = nn.Parameter(torch.linspace(0.0, 1.0, 4))


@pytest.mark.parametrize("counted", [-1, float("nan"), float("inf"), torch.tensor(1j), 1j, None, torch.ones(2)])
def test_what_is_no_count_is_refused(counted: Any) -> None:
    """Microbatches of which less than nothing counts were left out, and the others weighed too much, without a word."""
    ranks: Any = SimpleNamespace(sizes={"data": 1}, device=torch.device("cpu"))
    with pytest.raises(InputError, match="count_fn gave "):
        weights_of([3, counted], ranks)


def test_weights_of_microbatches_have_no_gradient() -> None:
    """A count that had one was sent back through once for each microbatch, and torch failed in the second."""
    ranks: Any = SimpleNamespace(sizes={"data": 1}, device=torch.device("cpu"))
    found = weights_of([torch.ones((), requires_grad=True), 3], ranks)
    assert found.tolist() == [0.25, 0.75] and not found.requires_grad


def test_weights_of_tasks_are_no_rows() -> None:
    """A loss of four tasks was refused where microbatches had four rows: it seemed to compare these."""
    assert told_of(Weighed()) == "mean"


def test_a_model_whose_loss_is_asked_draws_no_other_numbers_and_keeps_its_batch() -> None:
    def loss(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
        return (a + torch.randn_like(a)).mul_(2).square().mean() + b.square().mean()

    model = Towers(loss)
    before, known = torch.get_rng_state(), {name: each.clone() for name, each in INPUTS.items()}
    assert told_of(model) == "mean"
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(each, known[name]) for name, each in INPUTS.items())
