"""Sizes that depend on data: masks, experts for some rows, splits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .program import Run, Steps, program, rand, two


@program(two(lambda self, x: self.left(x[x[:, 0] > 0]).sum(0) + self.right(x)))
def as_many_rows_as_are_positive(run: Run) -> Steps:
    for x in (rand(), rand(5, 4, seed=9), -rand().abs(), rand().abs()):
        yield run.learn(x)


@program(two(lambda self, x: (torch.nonzero(x > 0), torch.unique(x.round()), self.left(x).masked_select(self.right(x) > 0))))
def results_of_unknown_size(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        chosen, result = self.gate(x).argmax(1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            if len(rows):
                result = result.index_add(0, rows, expert(x[rows]))
        return result


@program(Experts, lambda: rand(6, 4))
def experts_for_some_rows(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(6, 4, seed=seed))


def _splits(self: nn.Module, x: Tensor, lengths: Tensor) -> list[Tensor]:
    return [self.left(part) for part in x.split(lengths.tolist())]


@program(two(_splits), lambda: rand(6, 4), lambda: torch.tensor([2, 4]))
def splits_by_data(run: Run) -> Steps:
    for lengths in ([2, 4], [1, 5], [1, 2, 3], [6]):
        yield run.learn(rand(6, 4), torch.tensor(lengths))
