"""What a model's own losses are means of, told before the model is called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional

from partitioner.distributed.run.counts import Watched, counts_in, held_in, is_sum, losses_in
from partitioner.distributed.run.record import Record
from partitioner.distributed.run.separable import separable
from partitioner.distributed.run.sums import is_mean
from partitioner.distributed.run.weights import weights_of
from partitioner.distributed.run.within import again, tails_of
from partitioner.distributed.traced.example import Example, example_in
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
        assert is_sum(tail.loss) == (reduction == "sum")


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


def written(loss: Callable[..., Tensor], *targets: Tensor) -> tuple[Record, Tensor, list[Tensor]]:
    """A loss of four rows of five, its ops, and what it is divided by."""
    torch.manual_seed(0)
    results = torch.randn(4, 5, requires_grad=True) * 1.0
    watched = Watched(2)
    watched.found.append([])
    with Record([results, *targets]) as record, watched:
        made = loss(results, *targets)
    return record, made, watched.found[0]


def of_rows(loss: Callable[..., Tensor], *targets: Tensor) -> bool:
    """Whether it is seen to be a mean or sum over rows."""
    record, made, counts = written(loss, *targets)
    return separable(record, made, counts, [True] + [False] * len(targets), [len(each) == 4 for each in record.given], 4)


def of_all(loss: Callable[..., Tensor]) -> bool | None:
    """Whether it is a mean over rows, where microbatches of all copies are three, if its ops tell."""
    record, made, _ = written(loss, CLASSES.abs() % 5, VALUES, WEIGHTS)
    return is_mean(record, made, [True] * 4, 4, 3)


CLASSES, VALUES, WEIGHTS = (
    torch.tensor([3, 1, 2, -100]),
    torch.linspace(-1, 2, 20).view(4, 5).cos(),
    torch.tensor([1.0, 2, 3, 9]),
)
apart = functools.partial(functional.cross_entropy, reduction="none")


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, c, _v, _w: functional.cross_entropy(x, c),
        lambda x, c, _v, _w: functional.cross_entropy(x, c, label_smoothing=0.1),
        lambda x, c, _v, _w: (apart(x, c) * (c > 0)).sum() / (c > 0).sum(),
        lambda x, c, _v, _w: apart(x, c)[c > 0].mean(),
        lambda x, c, _v, w: (apart(x, c) * w).sum() / w.sum(),
        lambda x, c, _v, _w: apart(x, c).sum() / (c > 0).sum().item(),
        lambda x, c, _v, _w: functional.cross_entropy(x.bfloat16(), c).float(),
        lambda x, c, _v, _w: functional.cross_entropy(x - x.max(), c),  # which softmax does not notice
        lambda x, c, v, _w: functional.cross_entropy(x, c) + functional.huber_loss(x, v),
        lambda x, _c, v, _w: torch.stack([(a - b).square().mean() for a, b in zip(x, v, strict=True)]).mean(),
        lambda x, _c, v, _w: functional.mse_loss(functional.dropout(x, 0.5), v),
        lambda x, _c, v, _w: functional.cosine_embedding_loss(x, v, torch.ones(4)),
        lambda x, _c, v, _w: (x - v).square().topk(2)[0].mean() + (x.amax(1) - x.amin(-1)).mean(),
        lambda x, _c, _v, _w: x.max(1)[0].mean() + x.sort(-1)[0][:, 0].mean(),
        lambda x, _c, _v, _w: x.clamp(min=0).cummax(1)[0].mean(),
        lambda x, c, _v, _w: functional.cross_entropy(x.clone().clamp_(-1, 1), c.clone().masked_fill_(c == 3, -100)),
        lambda x, c, _v, _w: functional.cross_entropy(x, c, torch.arange(5.0)),
        lambda x, _c, v, _w: (x - v).square().sum(),
    ],
)
def test_what_is_a_mean_over_rows(loss: Callable[..., Tensor]) -> None:
    assert of_rows(loss, CLASSES, VALUES, WEIGHTS)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, c, _v, _w: apart(x, c).topk(2)[0].mean(),
        lambda x, c, _v, _w: apart(x, c).sort(descending=True)[0][:2].mean(),
        lambda x, c, _v, _w: apart(x, c).max(),
        lambda x, c, _v, _w: apart(x, c).median(),
        lambda x, _c, v, _w: (x - v).abs().amax((0, 1)),
        lambda x, _c, v, _w: (x - v).abs().max(dim=0)[0].mean(),
        lambda x, _c, v, _w: (x - v).abs().flatten().kthvalue(3)[0],
        lambda x, c, _v, w: (apart(x, c) * w / w.sum()).sum(),  # by product, and nothing that learns is divided
        lambda x, _c, v, _w: functional.cross_entropy(x @ v.T, torch.arange(4)),  # a row against others' targets
        lambda x, _c, _v, _w: torch.cdist(x, x).mean(),  # which has no gradient of its gradient
        lambda x, _c, _v, _w: functional.cross_entropy(x @ x.T, torch.arange(4)),
        lambda x, c, _v, _w: functional.cross_entropy(x, c) + torch.pdist(x).mean(),
        lambda x, _c, v, _w: functional.mse_loss(x, v).sqrt(),
        lambda x, _c, v, _w: functional.mse_loss(x - x.mean(0).detach(), v),
        lambda x, _c, v, _w: (x - v).square().sum() / (v - v.mean()).square().sum(),
        lambda x, _c, v, _w: 1 - 2 * (x.sigmoid() * v).sum() / (x.sigmoid().sum() + v.sum()),  # Dice
        lambda x, _c, _v, _w: (torch.corrcoef(x.T) - torch.eye(5)).square().sum(),
    ],
)
def test_what_holds_rows_against_each_other(loss: Callable[..., Tensor]) -> None:
    """Each of four microbatches took its own hardest row: another loss than of the four hardest rows, without a word."""
    assert not of_rows(loss, CLASSES, VALUES, WEIGHTS)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, _c, v, _w: (x - v).square().sum(),
        lambda x, c, _v, _w: apart(x, c).sum(),
        lambda x, _c, v, _w: torch.dot(x.flatten(), v.flatten()),  # views, of as many as there are rows times columns
        lambda x, _c, v, _w: torch.einsum("ij,ij->", x, v),
        lambda x, _c, v, _w: (x.view(4, 5, 1) - v.view(-1, 5, 1)).square().sum(),
        lambda x, c, _v, _w: -x.log_softmax(-1).gather(1, c[:, None]).sum(),
        lambda x, c, v, _w: functional.l1_loss(x, v, reduction="sum") + apart(x, c)[c > 1].sum(),
        lambda x, _c, v, _w: functional.binary_cross_entropy_with_logits(x, v.sigmoid(), reduction="none").sum(1).sum(),
        lambda x, _c, v, _w: (x - v).square().sum() - 0.6 * (1 + x - x.exp()).sum(),  # of a variational model
        lambda x, _c, v, _w: functional.mse_loss(x, v, reduction="sum") / 3.5,
        lambda x, c, v, _w: functional.cross_entropy(x, c) + (x - v).square().sum(),
    ],
)
def test_a_sum_over_rows_is_no_mean(loss: Callable[..., Tensor]) -> None:
    """Its mean over four microbatches was a fourth of the loss of one process, and so was each gradient."""
    assert of_all(loss) is False


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, _c, v, _w: (x - v).square().sum() / 4,
        lambda x, _c, v, _w: (x - v).square().sum() / torch.tensor(len(x)),
        lambda x, c, _v, _w: (apart(x, c) * 0.25).sum(),
        lambda x, c, _v, _w: 3 * apart(x, c).sum(),  # of three parts: the sum over the batch
        lambda x, _c, v, _w: (x - v).square().sum() / v.numel(),
        lambda x, _c, v, _w: torch.dot(x.flatten(), v.flatten()) / v.numel(),
        lambda x, _c, v, _w: (x.flatten() - v.flatten()).square().sum() / x.flatten().shape[0],
        lambda x, _c, v, _w: (x.view(2, 2, 5) - v.view(-1, 2, 5)).square().mean(),  # nobody knows where the rows are
        lambda x, _c, v, _w: (x.view(4, 5, 1) - v.view(-1, 5, 1)).square().mean(),
        lambda x, _c, v, _w: (x.t().reshape(-1) - v.t().reshape(-1)).view(5, 4).square().sum(0).mean(),
        lambda x, _c, v, _w: torch.stack([(a - b).square().sum() for a, b in zip(x, v, strict=True)]).mean(),
        lambda x, _c, _v, _w: x.square().mean(0).sum(),
        lambda x, _c, v, _w: x.view(4, -1).square().sum(1).mean() + v.mean(),
        lambda x, c, v, _w: torch.stack([functional.cross_entropy(x, c), functional.mse_loss(x, v)]).sum(),
        lambda x, _c, v, _w: functional.huber_loss(x, v),
        lambda x, _c, v, _w: functional.kl_div(x.log_softmax(-1), v.softmax(-1), reduction="batchmean"),
        lambda x, c, _v, w: (apart(x, c) * w / w.sum()).sum(),
        lambda x, _c, v, _w: functional.mse_loss(functional.dropout(x, 0.5), v) * 0.3,
    ],
)
def test_what_may_be_a_mean(loss: Callable[..., Tensor]) -> None:
    assert of_all(loss) is not False


def test_nothing_is_said_of_results_without_a_row_for_each_of_the_batchs() -> None:
    record, made, _ = written(lambda x: x.sum())
    assert is_mean(record, made, [False], 2, 3)


class Towers(nn.Module):
    """Computes a loss itself."""

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.other, self.scale, self.loss = nn.Linear(5, 6), nn.Linear(7, 6), nn.Parameter(torch.ones(())), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.one(x), self.other(y).view(-1, 3), self.scale)


OWN: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], tuple[bool, bool | None]]] = {
    "all pairs": (lambda a, b, scale: functional.cross_entropy(a @ b.view(4, 6).T * scale, torch.arange(4)), (False, None)),
    "use of experts": (lambda a, b, _: a.mean() + (b.softmax(-1).mean(0) * (b > 0).float().mean(0)).sum(), (False, True)),
    "root": (lambda a, b, scale: (a.square().mean() + b.square().mean() * scale).sqrt(), (False, True)),
    "sum": (lambda a, b, scale: a.square().sum() * 0.6 + b.logsumexp(1).sum() * scale, (True, False)),
    "mean": (lambda a, b, scale: functional.mse_loss(a, b.view(4, 6).tanh()) * scale, (True, True)),
    "rows": (lambda a, b, _: a.square().sum(1).sqrt().mean() + b.view(4, 2, 3).amax((1, 2)).mean(), (True, True)),
}


@pytest.mark.parametrize("name", OWN)
def test_of_a_loss_within_a_model_the_ops_behind_its_weights_are_asked(name: str) -> None:
    """Copies of a model of two towers each compared their own pairs: another loss than of all pairs, without a word."""
    loss, told = OWN[name]
    example = example_in(Towers(loss), {"x": torch.randn(4, 5), "y": torch.randn(4, 7)}, None, 1)
    (tail,) = tails_of(example)
    own = again(example, tail, example.arguments(example.call.tensors), torch.device("cpu"))
    assert own is not None
    found = separable(own.record, own.loss, None, own.trained, own.by_row, 4), is_mean(own.record, own.loss, own.by_row, 4, 3)
    assert found == told


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
    example = example_in(Weighed(), {"x": torch.randn(4, 5), "y": torch.randn(4, 7)}, None, 1)
    (tail,) = tails_of(example)
    own = again(example, tail, example.arguments(example.call.tensors), torch.device("cpu"))
    assert own is not None and own.trained.count(True) == 2 < len(own.trained)
    assert separable(own.record, own.loss, None, own.trained, own.by_row, 4)


def test_a_model_whose_loss_is_asked_draws_no_other_numbers_and_keeps_its_batch() -> None:
    def loss(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
        return (a + torch.randn_like(a)).mul_(2).square().mean() + b.square().mean()

    example = example_in(Towers(loss), {"x": torch.randn(4, 5), "y": torch.randn(4, 7)}, None, 1)
    (tail,) = tails_of(example)
    before = torch.get_rng_state()
    own = again(example, tail, example.arguments(example.call.tensors), torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert own is not None and separable(own.record, own.loss, None, own.trained, own.by_row, 4)


def test_who_keeps_something_of_each_batch_is_called_once() -> None:
    kept: list[float] = []

    def loss(x: Tensor, target: Tensor) -> Tensor:
        found = functional.mse_loss(x, target)
        kept.append(found.item())
        return found

    assert of_rows(loss, VALUES)
    assert len(kept) == 1


def test_nothing_is_said_of_what_cannot_be_called_again() -> None:
    """Neither of state that a loss writes, for it would be written again, nor of rows that it has from elsewhere."""
    scale = torch.ones(())

    def moved(x: Tensor, target: Tensor) -> Tensor:
        scale.mul_(0.5).add_(x.detach().square().mean() * 0.5)
        return functional.mse_loss(x, target) / scale

    assert of_rows(moved, VALUES)
    torch.manual_seed(0)
    assert torch.equal(scale, 0.5 + torch.randn(4, 5).square().mean() * 0.5)
    assert of_rows(lambda x: (functional.cross_entropy(x, CLASSES.abs() % 5, reduction="none") * WEIGHTS).mean())
    assert of_rows(lambda x: x)  # a loss that the model gave
    assert of_rows(lambda x, noise: (x * noise.uniform_()).square().mean().sqrt(), VALUES.clone())
    assert of_rows(lambda x: torch.cond(x.sum() > 0, lambda x: x.sum().sqrt(), lambda x: (x - x).mean(), (x,)))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, v: functional.mse_loss(x, v).sqrt(),
        lambda x, v: (x - v).square().sum() / (v - v.mean()).square().sum(),
    ],
)
def test_what_is_compiled_is_asked_as_it_is_and_compiled_later(loss: Callable[..., Tensor]) -> None:
    """A mode around its first call had torch.compile leave a loss uncompiled for good, or fail; ``torch.cond``, too."""
    backend = CompileCounter()
    compiled = torch.compile(loss, backend=backend)
    assert not of_rows(compiled, VALUES)
    assert torch.equal(compiled(VALUES, VALUES.sin()), loss(VALUES, VALUES.sin()))
    assert backend.frame_count == 1
    written(lambda x: torch.cond(x.sum() > 0, lambda x: x.sum(), lambda x: x.mean(), (x,)))
    assert torch.equal(torch.cond(VALUES.sum() > 99, torch.sin, torch.cos, (VALUES,)), VALUES.cos())
