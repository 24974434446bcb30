"""Sizes of inputs: other ones than in the example, none, one; and what Python makes of a size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, program, raised, rand, two


@program(Towers)
def other_batch_sizes(run: Run) -> Steps:
    run.module.eval()
    for rows in (3, 2, 1, 5, 0, 7, 3):
        yield run(rand(rows, 4))


@program(Towers)
def learning_on_other_batch_sizes(run: Run) -> Steps:
    for rows in (3, 2, 5, 8):
        yield run.learn(rand(rows, 4, grad=True))


@program(two(lambda self, x: self.left(x) + self.right(x)), lambda: rand(1, 4))
def example_of_one_row(run: Run) -> Steps:
    for rows in (1, 4, 2, 0):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: self.left(x) + self.right(x)), lambda: rand(0, 4))
def example_of_no_rows(run: Run) -> Steps:
    for rows in (0, 1, 4):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: self.left(x) + self.right(x)))
def other_numbers_of_dimensions(run: Run) -> Steps:
    for shape in ((3, 4), (4,), (2, 3, 4), (1, 1, 1, 4), (2, 0, 4)):
        yield run.learn(rand(*shape))


@program(two(lambda self, x: self.left(x) / x.shape[0] + self.right(x) * len(x)))
def size_used_as_a_number(run: Run) -> Steps:
    for rows in (3, 1, 6, 2):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: (self.left(x), x.shape, x.size(0), tuple(self.right(x).size()), x.numel(), x.dim())))
def sizes_given_back(run: Run) -> Steps:
    for rows in (3, 1, 6):
        result = run(rand(rows, 4))
        yield result
        yield [type(part).__name__ for part in result]


@program(two(lambda self, x: self.left(x) if x.shape[0] > 4 else self.right(x)))
def branch_on_a_size(run: Run) -> Steps:
    for rows in (3, 4, 5, 9, 1):
        yield run.learn(rand(rows, 4))


def _one_layer_per_row(self: nn.Module, x: Tensor) -> Tensor:
    result = self.left(x)
    for row in range(x.shape[0]):
        result = result + self.right(x[row]) * row
    return result


@program(two(_one_layer_per_row))
def loop_over_a_size(run: Run) -> Steps:
    for rows in (3, 1, 5, 0):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: self.left(x) + torch.arange(x.shape[0]).unsqueeze(1) + torch.zeros(x.shape).add_(self.right(x))))
def constants_of_the_input_size(run: Run) -> Steps:
    for rows in (3, 1, 5):
        yield run(rand(rows, 4))


@program(two(lambda self, x, y: self.left(x) + self.right(y)), rand, rand)
def two_inputs_of_one_size_then_of_two(run: Run) -> Steps:
    """The sizes are the same number in the example by chance; later one input is broadcast over the other."""
    for rows, others in ((3, 3), (5, 5), (5, 1), (1, 5)):
        yield run.learn(rand(rows, 4), rand(others, 4, seed=4))


@program(two(lambda self, x, y: self.left(x) + self.right(y)), rand, rand)
def sizes_that_do_not_fit(run: Run) -> Steps:
    yield run(rand(), rand())
    yield raised(lambda: run(rand(3, 4), rand(2, 4)))
    yield raised(lambda: run(rand(3, 5), rand(3, 5)))
    yield run(rand(), rand(seed=5))


@program(two(lambda self, x: self.left(x) @ self.right(x).T), lambda: rand(4, 4))
def batch_as_large_as_the_width(run: Run) -> Steps:
    """In the example two sizes are equal that have nothing to do with each other."""
    for rows in (4, 3, 1, 6):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: self.left(x).reshape(-1, 2, 2).mean(0) + self.right(x).view(x.size(0) * 2, 2)[:2]))
def reshaped_by_sizes(run: Run) -> Steps:
    for rows in (3, 1, 4):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: (self.left(x).sum(0) + self.right(x).max(0).values) * (2 if x.shape[0] % 2 else 3)))
def parity_of_a_size(run: Run) -> Steps:
    for rows in (3, 4, 5, 2, 1):
        yield run(rand(rows, 4))


@program(two(lambda self, x: [self.left(row) for row in x.unbind(0)] + list(self.right(x).split(2))))
def as_many_results_as_rows(run: Run) -> Steps:
    for rows in (3, 1, 5):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: self.left(x) * 2 + self.right(x)), lambda: rand(64, 4), slow=True)
def forty_sizes(run: Run) -> Steps:
    for rows in range(40, 0, -1):
        yield run(rand(rows, 4))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 1)
        self.norm = nn.GroupNorm(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.relu(self.left(x)) + self.norm(self.right(x))
        return nn.functional.interpolate(mixed, size=x.shape[-2:][::-1], mode="nearest").flatten(1)


@program(Images, lambda: rand(2, 2, 5, 6))
def images_of_other_sizes(run: Run) -> Steps:
    for shape in ((2, 2, 5, 6), (1, 2, 5, 6), (2, 2, 7, 4), (2, 2, 1, 1), (3, 2, 6, 6)):
        yield run.learn(rand(*shape))


@program(Images, lambda: rand(2, 2, 5, 6))
def images_without_a_batch(run: Run) -> Steps:
    yield run(rand(2, 2, 5, 6))
    yield raised(lambda: run(rand(2, 5, 6)))
    yield raised(lambda: run(rand(2, 3, 5, 6)))


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.left, self.right = nn.LSTM(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = self.embed(tokens)
        result, state = self.left(x, state)
        return result + self.right(x)[0], state


@program(Sequences, lambda: torch.arange(6).view(2, 3))
def sequences_of_other_lengths(run: Run) -> Steps:
    state = None
    for length in (3, 1, 5):
        result, state = run(torch.arange(2 * length).view(2, length), state)
        yield result, state
        state = tuple(part.detach() for part in state)
