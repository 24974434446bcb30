"""Losses as users write them: a job has the loss that one process has of the whole batch, or refuses it.

What is right is not written down, but asked: whether the mean of a loss over microbatches is the loss of the batch.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.counts import refuse_other_mean
from partitioner.distributed.loss.loss import Loss
from partitioner.distributed.loss.mixing import mixing, warn_of_mixing
from partitioner.distributed.traced.example import example_in
from partitioner.errors import InputError

COLUMNS = 6
SIZES = [(2, 4), (2, 5), (4, 4), (4, 5)]
"""Microbatches, and the rows of each."""

RANKS: Any = SimpleNamespace(sizes={"data": 1}, device=torch.device("cpu"), wide=lambda *_: ())

Loss_ = Callable[[Tensor, dict[str, Tensor]], Tensor]


class Layer(nn.Module):
    """A model whose results are rows of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(COLUMNS, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def batches_for(model: nn.Module, count: int, rows: int) -> tuple[Batches, list[Any]]:
    """Microbatches with targets of many kinds, and the model's results."""
    torch.manual_seed(0)
    every = count * rows
    x = torch.randn(every, COLUMNS).double()
    batches = Batches(model, example_in(model, x, None, count), count, torch.device("cpu"))
    target = {
        "c": torch.randint(COLUMNS, (every,)),
        "v": torch.rand(every, COLUMNS).double(),
        "w": torch.rand(every).double() + 0.5,
        "kept": torch.tensor([True, False, True, *[True] * (rows - 3)] * count),  # as many in each microbatch
        "some": torch.arange(every) > 1,
        "first": torch.arange(every) % rows == 0,
    }
    target["ignored"] = target["c"].where(target["kept"], -100)
    batches.fill(x, target)
    return batches, [model(*batches.call(number)[0]) for number in range(count)]


@functools.cache
def batches_of(count: int, rows: int) -> tuple[Batches, list[Tensor]]:
    torch.manual_seed(1)
    return batches_for(Layer().double(), count, rows)


def job(loss: Any, count: int, rows: int, count_fn: Callable[..., Any] | None = None) -> Tensor:
    """What a step makes of a loss.

    Raises:
        InputError: it refuses it.
    """
    return job_of(loss, *batches_of(count, rows), count_fn)


def job_of(loss: Any, batches: Batches, results: list[Tensor], count_fn: Callable[..., Any] | None = None) -> Tensor:
    made = Loss(loss, batches, count_fn)
    made.begin(RANKS, watched=True)
    found = sum(made(each, torch.tensor(number)) for number, each in enumerate(results))
    if made.watched is not None:
        refuse_other_mean(made.watched, RANKS, 0)
    return found


def one_process(loss: Any, count: int, rows: int) -> Tensor:
    batches, results = batches_of(count, rows)
    each = [batches.targets[number] for number in range(count)]
    return loss(torch.cat(results), {key: torch.cat([target[key] for target in each]) for key in each[0]})


def reparametrized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of a variational model, as its results would be."""
    return x[:, :3], x[:, 3:]


def kl(x: Tensor) -> Tensor:
    mean, log_variance = reparametrized(x)
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp())


def triplet(x: Tensor) -> Tensor:
    return functional.triplet_margin_loss(x[:, :2], x[:, 2:4], x[:, 4:], reduction="none")


def dice(x: Tensor, v: Tensor) -> Tensor:
    p = x.sigmoid()
    return 1 - 2 * (p * v).sum(1) / (p.sum(1) + v.sum(1))


def focal(x: Tensor, c: Tensor) -> Tensor:
    each = functional.cross_entropy(x, c, reduction="none")
    return (1 - (-each).exp()) ** 2 * each


def ctc(x: Tensor, c: Tensor, reduction: str) -> Tensor:
    spoken = x[:, None].expand(-1, 5, -1).log_softmax(-1).transpose(0, 1)
    targets = c[:, None].clamp(min=1)
    lengths = torch.full((len(x),), 5), torch.ones(len(x), dtype=torch.int64)
    return functional.ctc_loss(spoken, targets, *lengths, reduction=reduction)


apart = functools.partial(functional.cross_entropy, reduction="none")
squares = functools.partial(functional.mse_loss, reduction="none")

RIGHT: dict[str, Loss_] = {
    "mse": lambda x, t: functional.mse_loss(x, t["v"]),
    "mse halved": lambda x, t: 0.5 * functional.mse_loss(x, t["v"]),
    "mse / 2": lambda x, t: functional.mse_loss(x, t["v"]) / 2,
    "mse * 0.01": lambda x, t: functional.mse_loss(x, t["v"]) * 0.01,
    "mse * 4": lambda x, t: functional.mse_loss(x, t["v"]) * 4,
    "mse / 4": lambda x, t: functional.mse_loss(x, t["v"]) / 4,
    "mse * 5": lambda x, t: functional.mse_loss(x, t["v"]) * 5,
    "mse * 0.2": lambda x, t: functional.mse_loss(x, t["v"]) * 0.2,
    "mse * 784": lambda x, t: functional.mse_loss(x, t["v"]) * 784,
    "mse * 20": lambda x, t: functional.mse_loss(x, t["v"]) * 20,
    "mse, of columns": lambda x, t: squares(x, t["v"]).sum(1).mean(),
    "mse, of rows": lambda x, t: squares(x, t["v"]).mean(0).sum(),
    "mse, by numel": lambda x, t: squares(x, t["v"]).sum() / x.numel(),
    "mse, by a product": lambda x, t: squares(x, t["v"]).sum() / (x.shape[0] * x.shape[1]),
    "mse, reduced late": lambda x, t: squares(x, t["v"]).mean(),
    "l1": lambda x, t: functional.l1_loss(x, t["v"]),
    "smooth l1": lambda x, t: functional.smooth_l1_loss(x, t["v"], beta=0.25),
    "huber": lambda x, t: functional.huber_loss(x, t["v"], delta=0.2),
    "mse and l1": lambda x, t: functional.mse_loss(x, t["v"]) + 0.2 * functional.l1_loss(x, t["v"]),
    "cross entropy": lambda x, t: functional.cross_entropy(x, t["c"]),
    "cross entropy smoothed": lambda x, t: functional.cross_entropy(x, t["c"], label_smoothing=0.25),
    "cross entropy of some": lambda x, t: functional.cross_entropy(x, t["ignored"]),
    "cross entropy of some by hand": lambda x, t: (apart(x, t["c"]) * t["kept"]).sum() / t["kept"].sum(),
    "cross entropy of some by item": lambda x, t: (apart(x, t["c"]) * t["kept"]).sum() / max(t["kept"].sum().item(), 1),
    "cross entropy of some, clamped": lambda x, t: apart(x, t["ignored"]).sum() / (t["ignored"] != -100).sum().clamp(min=1),
    "cross entropy of one, clamped": lambda x, t: (apart(x, t["c"]) * t["first"]).sum() / t["first"].sum().clamp(min=1),
    "cross entropy of one, at least": lambda x, t: (apart(x, t["c"]) * t["first"]).sum() / (t["first"].sum() + 1e-8),
    "cross entropy of a selection": lambda x, t: apart(x, t["c"])[t["kept"]].mean(),
    "cross entropy by rows": lambda x, t: apart(x, t["c"]).sum() / len(x),
    "cross entropy by the target": lambda x, t: apart(x, t["c"]).sum() / t["c"].size(0),
    "cross entropy of probabilities": lambda x, t: functional.cross_entropy(x, t["v"].softmax(-1)),
    "likelihood": lambda x, t: -x.log_softmax(-1)[torch.arange(len(x)), t["c"]].mean(),
    "likelihood gathered": lambda x, t: -x.log_softmax(-1).gather(1, t["c"][:, None]).sum() / len(x),
    "nll": lambda x, t: functional.nll_loss(x.log_softmax(-1), t["c"]),
    "one-hot": lambda x, t: -(functional.one_hot(t["c"], COLUMNS) * x.log_softmax(-1)).sum(-1).mean(),
    "two heads": lambda x, t: (
        functional.cross_entropy(x[:, :3], t["c"] % 3) + 0.5 * functional.mse_loss(x[:, 3:], t["v"][:, 3:])
    ),
    "weighed rows": lambda x, t: (apart(x, t["c"]) * t["w"]).mean(),
    "weighed rows by a sum": lambda x, t: (apart(x, t["c"]) * t["w"]).sum() / t["w"].shape[0],
    "focal": lambda x, t: focal(x, t["c"]).mean(),
    "focal / 4": lambda x, t: 0.25 * focal(x, t["c"]).mean(),
    "bce": lambda x, t: functional.binary_cross_entropy(x.sigmoid(), t["v"]),
    "bce with logits": lambda x, t: functional.binary_cross_entropy_with_logits(x, t["v"]),
    "bce with weights": lambda x, t: functional.binary_cross_entropy_with_logits(
        x, t["v"], pos_weight=torch.arange(1.0, COLUMNS + 1)
    ),
    "bce of rows": lambda x, t: functional.binary_cross_entropy_with_logits(x, t["v"], reduction="none").sum(1).mean(),
    "bce by rows": lambda x, t: functional.binary_cross_entropy_with_logits(x, t["v"], reduction="sum") / len(x),
    "kl": lambda x, t: functional.kl_div(x.log_softmax(-1), t["v"].softmax(-1), reduction="batchmean"),
    "distilled": lambda x, t: (
        4 * 4 * functional.kl_div((x / 4).log_softmax(-1), (t["v"] / 4).softmax(-1), reduction="batchmean")
    ),
    "dice of rows": lambda x, t: dice(x, t["v"]).mean(),
    "dice by rows": lambda x, t: dice(x, t["v"]).sum() / len(x),
    "triplet": lambda x, t: functional.triplet_margin_loss(x[:, :2], x[:, 2:4], x[:, 4:]),
    "triplet by rows": lambda x, t: triplet(x).sum() / x.shape[0],
    "ctc": lambda x, t: ctc(x, t["c"], "mean"),
    "ctc of rows": lambda x, t: ctc(x, t["c"], "none").sum() / len(x),
    "elbo, mean of sums": lambda x, t: squares(x, t["v"]).sum(1).mean() + kl(x).sum(1).mean(),
    "elbo, by size": lambda x, t: (squares(x, t["v"]).sum() + kl(x).sum()) / x.size(0),
    "elbo, by len": lambda x, t: functional.mse_loss(x, t["v"], reduction="sum") / len(x) + 0.01 * kl(x).sum() / len(x),
    "elbo, by torch.sum": lambda x, t: functional.mse_loss(x, t["v"]) + 0.25 * torch.sum(kl(x)) / x.shape[0],
    "elbo, torch.mean": lambda x, t: functional.mse_loss(x, t["v"]) + torch.mean(torch.sum(kl(x), dim=1), dim=0),
    "elbo, einsum": lambda x, t: torch.einsum("ij,ij->", x, t["v"]) / len(x) + kl(x).mean(),
    "gan hinge": lambda x, t: functional.relu(1 - x[:, 0]).mean() + functional.relu(1 + x[:, 1]).mean(),
    "gan": lambda x, t: functional.binary_cross_entropy_with_logits(x[:, 0], torch.ones(len(x)).double()),
    "wgan": lambda x, t: x[:, 0].mean() - x[:, 1].mean(),
    "ppo": lambda x, t: (
        -torch.min(x[:, 0].exp() * t["w"], x[:, 0].exp().clamp(0.8, 1.2) * t["w"]).mean()
        + 0.5 * (x[:, 1] - t["w"]).square().mean()
        - 0.01 * torch.distributions.Categorical(logits=x).entropy().mean()
    ),
    "policy gradient": lambda x, t: -(torch.distributions.Categorical(logits=x).log_prob(t["c"]) * t["w"]).mean(),
    "gaussian": lambda x, t: functional.gaussian_nll_loss(x[:, :3], t["v"][:, :3], x[:, 3:].exp()),
    "normal": lambda x, t: -torch.distributions.Normal(x[:, :3], x[:, 3:].exp()).log_prob(t["v"][:, :3]).sum(-1).mean(),
    "poisson": lambda x, t: functional.poisson_nll_loss(x, t["v"]),
    "cosine": lambda x, t: 1 - functional.cosine_similarity(x, t["v"]).mean(),
    "margins": lambda x, t: functional.multi_margin_loss(x, t["c"]),
    "norms": lambda x, t: (x - t["v"]).norm(dim=1).mean(),
    "quantiles": lambda x, t: torch.max(0.25 * (x - t["v"]), -0.75 * (x - t["v"])).mean(),
    "log cosh": lambda x, t: (x - t["v"]).cosh().log().mean(),
    "a loop of rows, by len": lambda x, t: sum(functional.mse_loss(x[i], t["v"][i]) for i in range(len(x))) / len(x),
    "a loop of rows, stacked": lambda x, t: torch.stack([squares(a, b).sum() for a, b in zip(x, t["v"], strict=True)]).mean(),
    "a loop of rows, each added": lambda x, t: (
        sum(apart(x[i : i + 1], t["c"][i : i + 1]).sum() for i in range(len(x))) / len(t["c"])
    ),
    "a loop of columns": lambda x, t: sum(functional.mse_loss(x[:, i], t["v"][:, i]) for i in range(COLUMNS)),
    "a loop of columns, by how many": lambda x, t: sum(squares(x[:, i], t["v"][:, i]).mean() for i in range(4)) / 4,
    "the worst column": lambda x, t: squares(x, t["v"]).amax(1).mean(),
    "the worst four columns": lambda x, t: squares(x, t["v"]).topk(4)[0].mean(),
    "the worst four columns, by rows": lambda x, t: squares(x, t["v"]).topk(4)[0].sum() / len(x),
    "first four columns": lambda x, t: squares(x, t["v"])[:, :4].sum(1).mean(),
    "all rows sorted": lambda x, t: apart(x, t["c"]).sort()[0].mean(),
    "all rows chosen": lambda x, t: apart(x, t["c"]).topk(len(x))[0].mean(),
    "expanded": lambda x, t: squares(x, t["v"].mean(1, keepdim=True).expand(len(x), COLUMNS)).mean(),
    "ones": lambda x, t: squares(x, torch.ones(len(x), COLUMNS).double()).sum(1).mean(),
    "less the largest": lambda x, t: functional.cross_entropy(x - x.max(), t["c"]),  # which softmax does not notice
    "clamped in place": lambda x, t: functional.cross_entropy(x.clone().clamp_(-1, 1), t["c"].clone().clamp_(max=3)),
    "running maxima": lambda x, t: x.clamp(min=0).cummax(1)[0].mean(),
    "embeddings": lambda x, t: functional.cosine_embedding_loss(x, t["v"], torch.ones(len(x))),
    "transposed": lambda x, t: (x.t().reshape(-1) - t["v"].t().reshape(-1)).view(COLUMNS, -1).square().sum(0).mean(),
    "of all rows and columns": lambda x, t: (x.view(-1, COLUMNS, 1) - t["v"].view(-1, COLUMNS, 1)).square().mean(),
    "dot by numel": lambda x, t: torch.dot(x.flatten(), t["v"].flatten()) / x.numel(),
    "reshaped": lambda x, t: squares(x.reshape(-1), t["v"].reshape(-1)).view(len(x), -1).sum(1).mean(),
}

WRONG: dict[str, Loss_] = {
    "a sum": lambda x, t: squares(x, t["v"]).sum(),
    "a sum asked for": lambda x, t: functional.mse_loss(x, t["v"], reduction="sum"),
    "a sum * 0.01": lambda x, t: squares(x, t["v"]).sum() * 0.01,
    "a sum / 100": lambda x, t: squares(x, t["v"]).sum() / 100,
    "a sum / 4": lambda x, t: squares(x, t["v"]).sum() / 4,
    "a sum / 5": lambda x, t: squares(x, t["v"]).sum() / 5,
    "a sum / 16": lambda x, t: squares(x, t["v"]).sum() / 16,
    "a sum / 20": lambda x, t: squares(x, t["v"]).sum() / 20,
    "a sum * 0.25": lambda x, t: apart(x, t["c"]).sum() * 0.25,
    "a sum * 0.05": lambda x, t: apart(x, t["c"]).sum() * 0.05,
    "a sum * 10": lambda x, t: apart(x, t["c"]).sum() * 10,
    "a sum / 784": lambda x, t: squares(x, t["v"]).sum() / 784,
    "a sum / columns": lambda x, t: squares(x, t["v"]).sum() / 20,
    "a mean times rows": lambda x, t: functional.mse_loss(x, t["v"]) * len(x),
    "a mean times all": lambda x, t: functional.mse_loss(x, t["v"]) * x.numel(),
    "a mean by rows": lambda x, t: functional.mse_loss(x, t["v"]) / len(x),
    "a mean of one row fewer": lambda x, t: squares(x, t["v"]).sum() / (len(x) - 1),
    "elbo of a mean and a sum": lambda x, t: functional.mse_loss(x, t["v"]) + kl(x).sum(),
    "elbo of a mean and a sum * 0.01": lambda x, t: functional.mse_loss(x, t["v"]) + 0.01 * kl(x).sum(),
    "elbo of sums": lambda x, t: functional.mse_loss(x, t["v"], reduction="sum") + 0.05 * torch.sum(kl(x)),
    "a loop of rows": lambda x, t: sum(functional.mse_loss(x[i], t["v"][i]) for i in range(len(x))),
    "a loop of rows / 16": lambda x, t: sum(functional.mse_loss(x[i], t["v"][i]) for i in range(len(x))) / 16,
    "a loop of pairs": lambda x, t: sum(functional.mse_loss(a, b) for a, b in zip(x, t["v"], strict=True)),
    "a loop of pairs * 0.01": lambda x, t: sum(functional.mse_loss(a, b) for a, b in zip(x, t["v"], strict=True)) * 0.01,
    "a loop of slices": lambda x, t: sum(apart(x[i : i + 1], t["c"][i : i + 1]).sum() for i in range(len(x))),
    "a loop, stacked": lambda x, t: torch.stack([squares(a, b).mean() for a, b in zip(x, t["v"], strict=True)]).sum(),
    "four hardest rows": lambda x, t: apart(x, t["c"]).topk(4)[0].mean(),
    "four hardest rows, summed": lambda x, t: apart(x, t["c"]).topk(4)[0].sum(),
    "five hardest rows": lambda x, t: apart(x, t["c"]).topk(min(5, len(x)))[0].mean(),
    "four hardest rows, sorted": lambda x, t: apart(x, t["c"]).sort(descending=True)[0][:4].mean(),
    "half of the rows": lambda x, t: apart(x, t["c"]).topk(len(x) // 2)[0].mean(),
    "the hardest row": lambda x, t: apart(x, t["c"]).max(),
    "pairs": lambda x, t: functional.cross_entropy(x @ t["v"].T, torch.arange(len(x))),
    "the root": lambda x, t: functional.mse_loss(x, t["v"]).sqrt(),
    "dice": lambda x, t: 1 - 2 * (x.sigmoid() * t["v"]).sum() / (x.sigmoid().sum() + t["v"].sum()),
    "the spread": lambda x, t: x.std(0).mean(),
    "perplexity": lambda x, t: functional.cross_entropy(x, t["c"]).exp(),
    "the median": lambda x, t: apart(x, t["c"]).median(),
    "the third": lambda x, t: (x - t["v"]).abs().flatten().kthvalue(3)[0],
    "the largest of each column": lambda x, t: (x - t["v"]).abs().amax(0).mean(),
    "weights over their sum": lambda x, t: (apart(x, t["c"]) * t["w"] / t["w"].sum()).sum(),
    "weights by softmax": lambda x, t: (apart(x, t["c"]) * t["w"].softmax(0)).sum(),
    "distances": lambda x, t: functional.cross_entropy(x, t["c"]) + torch.pdist(x).mean(),  # whose backward has none
    "contrastive": lambda x, t: functional.cross_entropy(x @ x.T, torch.arange(len(x))),
    "centred": lambda x, t: functional.mse_loss(x - x.mean(0).detach(), t["v"]),
    "explained variance": lambda x, t: squares(x, t["v"]).sum() / (t["v"] - t["v"].mean()).square().sum(),
    "decorrelated": lambda x, t: (torch.corrcoef(x.T) - torch.eye(COLUMNS)).square().sum(),
    "dot": lambda x, t: torch.dot(x.flatten(), t["v"].flatten()),
    "einsum": lambda x, t: torch.einsum("ij,ij->", x, t["v"]),
    "uneven masks": lambda x, t: apart(x, t["c"])[t["some"]].mean(),
    "weighed by rows": lambda x, t: (apart(x, t["c"]) * t["w"]).sum() / t["w"].sum(),
}


@pytest.mark.parametrize("count, rows", SIZES)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_taken(name: str, count: int, rows: int) -> None:
    torch.testing.assert_close(job(RIGHT[name], count, rows), one_process(RIGHT[name], count, rows))


@pytest.mark.parametrize("count, rows", SIZES)
@pytest.mark.parametrize("name", WRONG)
def test_what_would_be_another_loss_is_refused(name: str, count: int, rows: int) -> None:
    with pytest.raises(InputError, match=r"is a sum, |no mean over rows|is divided by "):
        pytest.fail(f"it is {job(WRONG[name], count, rows)}, and {one_process(WRONG[name], count, rows)} in one process")


class Judged(nn.Module):
    """A model that computes its loss itself."""

    def __init__(self, loss: Loss_) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(COLUMNS, COLUMNS), loss

    def forward(self, x: Tensor, target: dict[str, Tensor]) -> Tensor:
        return self.loss(self.layer(x), target)


def told_by_a_model(loss: Loss_, count: int, rows: int, scaled: Callable[[Tensor], Tensor] = lambda found: found) -> Any:
    """What a step makes of a loss that the model gives, and what that is of the whole batch."""
    known, _ = batches_of(count, rows)
    x, targets = torch.cat([each for (each,) in known.tensors]), [known.targets[number] for number in range(count)]
    call = x, {key: torch.cat([target[key] for target in targets]) for key in targets[0]}
    model = Judged(loss).double()
    batches = Batches(model, example_in(model, call, None, count), count, torch.device("cpu"))
    batches.fill(call, None)
    return job_of(scaled, batches, [model(*batches.call(number)[0]) for number in range(count)]), model(*call)


@pytest.mark.parametrize(
    "name",
    [
        *("mse * 4", "mse * 0.01", "cross entropy by rows", "elbo, by torch.sum", "kl", "ctc of rows"),
        *("a loop of rows, by len", "a loop of rows, stacked", "all rows chosen", "reshaped"),
    ],
)
def test_what_is_right_is_taken_of_a_model(name: str) -> None:
    torch.testing.assert_close(*told_by_a_model(RIGHT[name], 2, 4))


@pytest.mark.parametrize(
    "name",
    [
        *("a sum * 0.01", "a sum / 4", "a mean times rows", "elbo of a mean and a sum * 0.01"),
        *("a loop of rows", "a loop of pairs * 0.01", "a loop, stacked", "four hardest rows", "four hardest rows, sorted"),
    ],
)
def test_what_would_be_another_loss_is_refused_of_a_model(name: str) -> None:
    """Numbers in a graph say less than those of a function: of none it was said which were those of its rows."""
    with pytest.raises(InputError, match=r"is a sum, |no mean over rows"):
        told_by_a_model(WRONG[name], 2, 4)


def test_what_the_refusal_of_a_sum_asks_for_is_the_sum_over_the_batch() -> None:
    with pytest.raises(InputError, match=r"or, for the sum over the whole batch, 2 times that sum, and count_fn="):
        job(WRONG["a sum"], 2, 4)
    found = job(lambda x, t: 2 * WRONG["a sum"](x, t), 2, 4, lambda *_, **__: 1)
    torch.testing.assert_close(found, one_process(WRONG["a sum"], 2, 4))


class Crossed(nn.Module):
    """Has rows in its second dimension, or behind each other with something else, where its loss begins."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.layer, self.flat = nn.Linear(COLUMNS, COLUMNS), flat

    def forward(self, x: Tensor, target: dict[str, Tensor]) -> Tensor:
        turned = x[:, None].expand(-1, 3, -1).transpose(0, 1)
        found = self.layer(turned.flatten(0, 1)) if self.flat else self.layer(turned).flatten(0, 1)
        return (found.mean(1) - target["v"][:, :3].T.flatten()).square().sum() / len(found)


@pytest.mark.parametrize("flat", [False, True])
def test_rows_may_lie_in_another_dimension_of_what_a_model_makes(flat: bool) -> None:
    known, _ = batches_of(2, 4)
    call, model = (known.tensors[0][0], known.targets[0]), Crossed(flat).double()
    batches = Batches(model, example_in(model, call, None, 1), 1, torch.device("cpu"))
    batches.fill(call, None)
    ranks = SimpleNamespace(**{**vars(RANKS), "sizes": {"data": 2}})
    made = Loss(lambda found: found, batches)
    made.begin(ranks, watched=True)
    made(model(*call), torch.tensor(0))


class TimeFirst(nn.Module):
    """Gives rows in the second dimension, behind as many times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, :4, None]).transpose(0, 1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, t: functional.cross_entropy(x.permute(1, 2, 0), t["c"][:, None].repeat(1, 4)),
        lambda x, t: functional.cross_entropy(x.flatten(0, 1), t["c"].repeat(4), reduction="sum") / x.shape[1],
        lambda x, t: x.square().sum(0).mean(),
        lambda x, t: (x.square().mean(2).T * t["w"][:, None]).mean(),
    ],
)
def test_as_many_times_as_rows_are_not_taken_for_them(loss: Loss_) -> None:
    """A loss of four rows of four times was refused: the first dimension of what a model gives was taken for its rows."""
    job_of(loss, *batches_for(TimeFirst().double(), 2, 4))


@pytest.mark.parametrize("name", ["cross entropy", "mse, by numel", "elbo, by size"])
def test_as_many_columns_as_rows_are_no_rows(name: str) -> None:
    torch.testing.assert_close(job(RIGHT[name], 2, COLUMNS), one_process(RIGHT[name], 2, COLUMNS))
    with pytest.raises(InputError, match="is a sum, "):
        job(lambda x, t: squares(x, t["v"]).sum() / COLUMNS, 2, COLUMNS)


class Similarities(nn.Module):
    """A model that compares all rows, as CLIP does, before its last weight: a scale, which is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        self.scale = nn.Parameter(torch.ones(COLUMNS))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) @ self.right(x).T * self.scale.mean()


def of_pairs(loss: Callable[[Tensor], Tensor], rows: int) -> tuple[Tensor, Tensor]:
    """What a step makes of a loss of similarities, and what that is of the whole batch."""
    model, x = Similarities().double(), torch.randn(2 * rows, COLUMNS).double()
    batches = Batches(model, example_in(model, x, None, 2), 2, torch.device("cpu"))
    batches.fill(x, None)
    return job_of(loss, batches, [model(*batches.call(number)[0]) for number in range(2)]), loss(model(x))


@pytest.mark.parametrize("rows", [1, 2, COLUMNS])
@pytest.mark.parametrize(
    "loss",
    [
        lambda pairs: pairs.square().mean(),
        lambda pairs: (1 + pairs.where(torch.eye(len(pairs)) == 0, -1.0) - 1e3).relu().mean() + pairs.mean(),
        lambda pairs: functional.cross_entropy(pairs, torch.arange(len(pairs))),
    ],
    ids=["squares", "hinge", "contrastive"],
)
def test_a_loss_of_all_pairs_of_rows_is_refused(loss: Callable[[Tensor], Tensor], rows: int) -> None:
    """A mean over a matrix of similarities looks like one over rows and columns; two microbatches have half of its numbers."""
    with pytest.raises(InputError, match="the loss is no mean over rows"):
        of_pairs(loss, rows)


@pytest.mark.parametrize("rows", [2, COLUMNS])
def test_a_loss_of_each_row_with_itself_is_taken(rows: int) -> None:
    """It was refused: a row that another one's place is given reads another number of that row's."""
    torch.testing.assert_close(*of_pairs(lambda pairs: pairs.diagonal().square().mean(), rows))


class Both(Similarities):
    """Gives its rows, too, each in three parts behind each other."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.left(x).reshape(-1, 2)


@pytest.mark.parametrize("rows", [2, COLUMNS])
def test_a_loss_of_pairs_and_of_what_has_rows_nobody_knows_where_is_refused(rows: int) -> None:
    """Nothing was said of a loss of similarities where a model also gave results of which a batch's rows were not known.

    It asks for what requires a gradient, as results of a model do.
    """
    model, x = Both().double(), torch.randn(2 * rows, COLUMNS).double()
    batches = Batches(model, example_in(model, x, None, 2), 2, torch.device("cpu"))
    batches.fill(x, None)
    results: list[Any] = [model(*batches.call(number)[0]) for number in range(2)]
    job_of(lambda given: given[1].square().mean(), batches, results)
    with pytest.raises(InputError, match="the loss is no mean over rows"):
        job_of(lambda given: sum(each.square().mean() for each in given if each.requires_grad), batches, results)


class Meeting(nn.Module):
    """A model in which rows may meet before its last weight."""

    def __init__(self, meet: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.last, self.norm, self.meet = nn.Embedding(9, 5), nn.Linear(5, 5), nn.BatchNorm1d(5), meet

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.last(self.meet(self.table(ids))))


MEET: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "centred": (lambda x: x - x.mean(0), "mean"),
    "over all": (lambda x: x / x.square().sum().sqrt(), "sum"),
    "attention among rows": (lambda x: (x @ x.T).softmax(-1) @ x, "matmul"),
    "one row for all": (lambda x: x + x[0], "getitem"),
    "centred rows": (lambda x: x - x.mean(1, keepdim=True), ""),
    "in parts": (lambda x: x.view(-1, 5).softmax(-1), ""),
    "chosen": (lambda x: torch.where(x > 0, x, x[x > 0].new_zeros(())), ""),
    "counted": (lambda x: x * torch.histc(x.argmax(1).float(), 5, 0, 4), "mul"),
}


@pytest.mark.parametrize("name", MEET)
def test_a_model_in_which_rows_meet_is_told_of(name: str) -> None:
    """A mean over rows within a model was another one in each microbatch, without a word."""
    meet, op = MEET[name]
    torch.manual_seed(0)
    model, ids = Meeting(meet), torch.arange(8)
    example = example_in(model, ids, None, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_mixing(model, example, 1)
        assert not caught
        warn_of_mixing(model, example, 2)
    found = mixing(model, example)
    assert (found.target if found is not None else "") == op
    assert [
        bool(re.search(r"Meeting takes rows of a batch together \(.*test_distributed_losses.py:", str(each.message)))
        for each in caught
    ] == [True] * bool(op)


@pytest.mark.parametrize("copies", [1, 2])
def test_one_microbatch_takes_its_target_as_it_is(copies: int) -> None:
    """Boxes of all images in one tensor, as detectors have them, are no rows of the batch; and nothing is divided.

    They were refused, as they still are where several microbatches would each get all of them.
    """
    model, x = Layer(), torch.randn(4, COLUMNS)
    boxes = torch.cat([torch.tensor([0, 0, 1, 2, 2, 3, 3])[:, None].float(), torch.randn(7, COLUMNS)], 1)

    def loss_fn(output: Tensor, boxes: Tensor) -> Tensor:
        return (output[boxes[:, 0].long()] - boxes[:, 1:]).square().mean()

    batches = Batches(model, example_in(model, x, None, 1), 1, torch.device("cpu"))
    batches.fill(x, boxes)
    made = Loss(loss_fn, batches)
    made.begin(SimpleNamespace(**{**vars(RANKS), "sizes": {"data": copies}}), watched=True)
    assert made(model(x), torch.tensor(0)).item() == pytest.approx(loss_fn(model(x), boxes).item())
    told = made.watched.told if made.watched is not None else None
    assert (told is not None) == (copies > 1)  # copies have other numbers of boxes: count_fn=len says what counts
    several = Batches(model, example_in(model, x, None, 2), 2, torch.device("cpu"))
    with pytest.raises(InputError, match=r"the target has a tensor of shape \(7, 7\), and the batch 4 rows"):
        several.fill(x, boxes)


def test_a_batch_of_none_is_refused_in_words() -> None:
    """A loader that gave nothing, or a dataset's missing input, was an AssertionError without a word."""
    model, x = Layer(), torch.randn(4, COLUMNS)
    batches = Batches(model, example_in(model, x, None, 2), 2, torch.device("cpu"))
    with pytest.raises(InputError, match="the batch is None: give what the example inputs were"):
        batches.fill(None, x)
