"""What a model's own losses are means of, told before the model is called."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from partitioner.distributed.run.between import between
from partitioner.distributed.run.counts import Watched, counts_in, losses_in
from partitioner.distributed.run.pairs import compares_rows
from partitioner.distributed.run.sums import is_sum
from partitioner.distributed.traced.example import example_in


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


def test_of_what_the_batch_alone_says_and_nothing_is_drawn() -> None:
    labels = torch.tensor([3, 4, 2, 3])
    example = example_in(Losses(), {"x": torch.randn(4, 4), "labels": labels}, None, 1)
    drawn = torch.get_rng_state()
    found = counts_in(losses_in(example), example.arguments(example.call.tensors))
    assert [each.item() for each in found] == [2, 4 + 2 + 3, 3]
    assert torch.equal(torch.get_rng_state(), drawn)


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


def test_a_sum_of_rows_is_told_from_what_may_be_a_mean() -> None:
    """Its mean over four microbatches was a fourth of the loss of one process, and so was each gradient."""
    x, target, classes = torch.randn(4, 5, requires_grad=True) * 1.0, torch.randn(4, 5), torch.tensor([3, 1, 2, 0])
    apart = functional.cross_entropy(x, classes, reduction="none")
    sums = (
        (x - target).square().sum(),
        apart.sum(),
        -x.log_softmax(-1).gather(1, classes[:, None]).sum(),
        functional.l1_loss(x, target, reduction="sum") + apart[classes > 1].sum(),
        functional.binary_cross_entropy_with_logits(x, target.sigmoid(), reduction="none").sum(1).sum(),
    )
    others = (
        (x - target).square().sum() / 4,
        (apart * 0.25).sum(),
        x.square().mean(0).sum(),
        torch.stack([functional.cross_entropy(x, classes), functional.mse_loss(x, target)]).sum(),
        functional.cross_entropy(x, classes) + (x - target).square().sum(),
        functional.huber_loss(x, target),
        functional.kl_div(x.log_softmax(-1), target.softmax(-1), reduction="batchmean"),
    )
    assert all(is_sum(between(each, [x]), [x], 4) for each in sums)
    assert not any(is_sum(between(each, [x]), [x], 4) for each in others)
    assert not is_sum(between(x.sum(), [x]), [x], 2)  # of a result that has no row for each of the batch's


def test_who_chooses_among_rows_compares_them() -> None:
    """Each of four microbatches took its own hardest row: another loss than of the four hardest rows, without a word."""
    x, target, classes = torch.randn(4, 5, requires_grad=True) * 1.0, torch.randn(4, 5), torch.tensor([3, 1, 2, 0])
    apart = functional.cross_entropy(x, classes, reduction="none")
    chosen = (
        apart.topk(2)[0].mean(),
        apart.sort(descending=True)[0][:2].mean(),
        apart.max(),
        apart.median(),
        (x - target).abs().amax((0, 1)),
        (x - target).abs().max(dim=0)[0].mean(),
        (x - target).abs().flatten().kthvalue(3)[0],
    )
    each_alone = (
        apart.mean(),
        (x - target).square().topk(2)[0].mean(),
        x.max(1)[0].mean() + x.sort(-1)[0][:, 0].mean(),
        (x.amax(1) - x.amin(-1)).mean(),
        x.clamp(min=0).cummax(1)[0].mean(),
    )
    assert all(compares_rows(each, between(each, [x]), [x], 4) for each in chosen)
    assert not any(compares_rows(each, between(each, [x]), [x], 4) for each in each_alone)
