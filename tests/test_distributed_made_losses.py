"""Losses put together at random, of all that a model returns: taken where the mean over microbatches is that of the batch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.counts import refuse_other_mean
from partitioner.distributed.loss.loss import Loss
from partitioner.distributed.traced.example import example_in
from partitioner.errors import InputError

COLUMNS = 6
RANKS: Any = SimpleNamespace(sizes={"data": 1}, device=torch.device("cpu"), wide=lambda *_: ())

Output = dict[str, Tensor]
Term = Callable[[Output, Output], Tensor]


class Many(nn.Module):
    """Returns rows in the first dimension, in the second, with others in one, of pairs, indices, weights, a mean and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        self.tasks = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Output:
        one, other = self.one(x), self.other(x)
        return {
            "rows": one,
            "sequence": torch.stack([one, other, one * other]),
            "pairs": one @ other.T,
            "flat": torch.stack([one, other], 1).flatten(0, 1),
            "best": one.argmax(1),
            "tasks": self.tasks * 2,
            "mean": one.square().mean(),
            "sum": other.abs().sum(),
        }


OF_ROWS: dict[str, Term] = {
    "squares": lambda o, t: (o["rows"] - t["values"]).square().mean(1),
    "entropy": lambda o, t: functional.cross_entropy(o["rows"], t["classes"], reduction="none"),
    "sequence": lambda o, t: o["sequence"].square().mean(0).mean(1),
    "flat": lambda o, t: o["flat"].view(len(o["rows"]), -1).square().mean(1),
    "best": lambda o, t: o["rows"].gather(1, o["best"][:, None])[:, 0],
    "itself": lambda o, t: o["pairs"].diagonal(),
    "others": lambda o, t: o["pairs"].logsumexp(1),
}

REDUCED: dict[str, Callable[[Tensor, Output], Tensor]] = {
    "mean": lambda each, t: each.mean(),
    "by rows": lambda each, t: each.sum() / len(each),
    "sum": lambda each, t: each.sum() / 4,
    "kept": lambda each, t: (each * t["kept"]).sum() / t["kept"].sum(),
    "weighed": lambda each, t: (each * t["weights"]).sum() / t["weights"].sum(),
    "softmax": lambda each, t: (each * t["weights"].softmax(0)).sum(),
    "largest": lambda each, t: each.max(),
    "root": lambda each, t: each.square().mean().sqrt(),
    "exponent": lambda each, t: each.mean().exp(),
}

OTHERS: dict[str, Term] = {
    "the mean": lambda o, t: 3 * o["mean"],
    "its root": lambda o, t: o["mean"].sqrt(),
    "the sum": lambda o, t: o["sum"],
    "the sum by rows": lambda o, t: o["sum"] / len(o["rows"]),
    "tasks": lambda o, t: o["tasks"].square().sum(),
}

terms = st.one_of(
    st.sampled_from([*OTHERS]).map(lambda name: (name, OTHERS[name])),
    st.tuples(st.sampled_from([*OF_ROWS]), st.sampled_from([*REDUCED]), st.sampled_from([1.0, 0.25, 2.0])).map(
        lambda made: (f"{made[2]} {made[1]} {made[0]}", lambda o, t: made[2] * REDUCED[made[1]](OF_ROWS[made[0]](o, t), t))
    ),
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    made=st.lists(terms, min_size=1, max_size=3), rows=st.integers(1, 5), count=st.sampled_from([2, 4]), seed=st.integers(0, 99)
)
def test_a_loss_is_taken_if_it_is_that_of_one_process(made: list[tuple[str, Term]], rows: int, count: int, seed: int) -> None:
    drawing, every = torch.Generator().manual_seed(seed), rows * count
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = Many().double()
    x = torch.randn(every, COLUMNS, generator=drawing).double()
    target = {
        "classes": torch.randint(COLUMNS, (every,), generator=drawing),
        "values": torch.rand(every, COLUMNS, generator=drawing).double(),
        "weights": torch.rand(every, generator=drawing).double() + 0.5,
        "kept": torch.tensor(([1.0, 0.0] + [1.0] * rows)[:rows] * count).double(),
    }

    def loss(output: Output, target: Output) -> Tensor:
        return torch.stack([term(output, target) for _, term in made]).sum()

    batches = Batches(model, example_in(model, x, None, count), count, torch.device("cpu"))
    batches.fill(x, target)
    outputs = [model(*batches.call(number)[0]) for number in range(count)]
    whole = loss(model(x), target).item()
    mean = sum(loss(output, batches.targets[number]).item() for number, output in enumerate(outputs)) / count
    gap = abs(whole - mean) / (abs(whole) + 1e-9)
    if 1e-9 < gap < 1e-3:
        return  # by chance nearly so: of two microbatches it may be, and of four not
    assert _taken(loss, batches, outputs) == (gap <= 1e-9), (whole, mean)


def _taken(loss: Term, batches: Batches, outputs: list[Output]) -> bool:
    made = Loss(loss, batches)
    made.begin(RANKS, watched=True)
    names = [name for name, _ in batches.example.leaves]
    try:
        for number, output in enumerate(outputs):
            known = dict(zip(names, tree_leaves(output), strict=True))
            made([known[name] for name in batches.example.traced.graph.outputs], torch.tensor(number))
        assert made.watched is not None
        refuse_other_mean(made.watched, RANKS, 0)
    except InputError:
        return False
    return True
