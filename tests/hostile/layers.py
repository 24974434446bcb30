"""Layers whose options are changed between calls, or that were made with unusual ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, program, rand


class Both(nn.Module):
    """One kind of layer twice, so that there is something for two lanes."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.left, self.right = make(), make()

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x) * 2


def both(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Both(make)


def _changes(run: Run, x: Callable[[], Tensor], *changes: tuple[str, Any]) -> Steps:
    yield run.learn(x())
    for name, value in changes:
        setattr(run.module.left, name, value)
        yield run.learn(x())


@program(both(lambda: nn.Dropout(0.5)), lambda: rand(5, 4))
def dropout(run: Run) -> Steps:
    yield from _changes(
        run, lambda: rand(5, 4), ("p", 0.25), ("p", 0), ("p", 1.0), ("inplace", True), ("p", 0.5), ("training", False)
    )


@program(both(lambda: nn.ReLU()))
def relu_in_place(run: Run) -> Steps:
    x = rand()
    yield run(x), x
    run.module.left.inplace = True
    yield run(x), x
    run.module.left.inplace = False
    yield run(rand())


@program(both(lambda: nn.BatchNorm1d(4)))
def batch_norm(run: Run) -> Steps:
    changes = (
        ("momentum", 0.5),
        ("eps", 0.1),
        ("momentum", None),
        ("track_running_stats", False),
        ("training", not run.training),
    )
    yield from _changes(run, rand, *changes)


@program(both(lambda: nn.BatchNorm1d(4, track_running_stats=False)))
def batch_norm_without_statistics(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.train(not run.module.training)
    yield run(rand())


@program(both(lambda: nn.BatchNorm1d(4)))
def statistics_reset_and_replaced(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.left.reset_running_stats()
    yield run.learn(rand())
    run.module.left.running_mean = torch.ones(4)
    run.module.right.num_batches_tracked = torch.tensor(7)
    yield run.learn(rand())
    run.module.left.running_mean = run.module.left.running_var = None
    yield run.learn(rand())


def _tokens() -> Tensor:
    return torch.tensor([[1, 2, 1], [3, 0, 6]])


@program(both(lambda: nn.Embedding(7, 4)), _tokens)
def embedding(run: Run) -> Steps:
    """With a largest norm, forward writes the weights."""
    changes = ("max_norm", 0.5), ("norm_type", 1.0), ("scale_grad_by_freq", True), ("max_norm", None), ("padding_idx", 1)
    yield from _changes(run, _tokens, *changes)


@program(both(lambda: nn.Embedding(7, 4, max_norm=0.5)), _tokens)
def embedding_that_writes_its_weight(run: Run) -> Steps:
    yield run.learn(_tokens())
    run.module.right.weight = run.module.left.weight
    yield run.learn(_tokens() + 0)


@program(both(lambda: nn.Embedding(7, 4, sparse=True)), _tokens)
def sparse_gradients(run: Run) -> Steps:
    yield run.learn(_tokens())
    if run.training:
        torch.optim.SparseAdam(list(run.module.parameters()), lr=0.1).step()
    yield run(_tokens())


@program(both(lambda: nn.EmbeddingBag(7, 4, mode="mean")), _tokens)
def embedding_bag(run: Run) -> Steps:
    yield from _changes(run, _tokens, ("mode", "sum"), ("padding_idx", 1), ("mode", "max"))


@program(both(lambda: nn.Conv1d(2, 2, 3, padding=1)), lambda: rand(2, 2, 6))
def convolution(run: Run) -> Steps:
    def x() -> Tensor:
        return rand(2, 2, 6)

    yield run.learn(x())
    run.module.left.padding_mode = "reflect"
    yield run.learn(x())
    run.module.left.padding_mode, run.module.left.dilation, run.module.left.padding = "zeros", (2,), (2,)
    yield run.learn(x())
    run.module.right.padding = "same"
    yield run.learn(x())


@program(both(lambda: nn.LayerNorm(4)))
def layer_norm(run: Run) -> Steps:
    yield from _changes(run, rand, ("eps", 1.0), ("weight", None), ("bias", None), ("normalized_shape", (4,)))


@program(both(lambda: nn.GroupNorm(2, 4)))
def group_norm(run: Run) -> Steps:
    yield from _changes(run, rand, ("num_groups", 4), ("eps", 0.5))


@program(both(lambda: nn.Softmax(dim=1)))
def softmax(run: Run) -> Steps:
    yield from _changes(run, rand, ("dim", 0), ("dim", -1), ("dim", None))


@program(both(lambda: nn.LeakyReLU(0.1)))
def leaky_relu(run: Run) -> Steps:
    yield from _changes(run, rand, ("negative_slope", 0.5), ("negative_slope", 1), ("inplace", True))


@program(both(lambda: nn.RReLU()))
def random_slopes(run: Run) -> Steps:
    yield from _changes(run, rand, ("lower", 0.2), ("upper", 0.9))


@program(both(lambda: nn.Upsample(scale_factor=2)), lambda: rand(1, 2, 4))
def upsampling(run: Run) -> Steps:
    def x() -> Tensor:
        return rand(1, 2, 4)

    yield run.learn(x())
    for part in (run.module.left, run.module.right):
        part.mode, part.scale_factor = "linear", 3.0
    yield run.learn(x())


class Outputs(nn.Module):
    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.left, self.right = make(), make()

    def forward(self, x: Tensor) -> tuple[Any, Any]:
        return self.left(x), self.right(x)


@program(lambda: Outputs(lambda: nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True)), lambda: rand(2, 3, 4))
def recurrent_layers(run: Run) -> Steps:
    def x() -> Tensor:
        return rand(2, 3, 4)

    yield run.learn(x())
    run.module.left.dropout = 0.0
    yield run.learn(x())
    run.module.right.batch_first = False
    yield run.learn(x())
    run.module.left.flatten_parameters()
    yield run.learn(x())


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = True) -> tuple[Any, Any]:
        return self.left(x, x, x, attn_mask=mask, need_weights=weights), self.right(x, x, x, need_weights=weights)


@program(Attending, lambda: rand(2, 3, 4))
def attention(run: Run) -> Steps:
    yield run.learn(rand(2, 3, 4))
    yield run.learn(rand(2, 3, 4), torch.ones(3, 3).triu(1).bool())
    yield run.learn(rand(2, 3, 4), None, False)
    run.module.left.batch_first = False
    yield run.learn(rand(2, 3, 4))


@program(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), lambda: rand(2, 3, 4))
def encoder_layer(run: Run) -> Steps:
    """In eval mode it takes a path of its own, by what it reads of its hooks, weights and modes."""
    yield run.learn(rand(2, 3, 4))
    with torch.no_grad():
        yield run(rand(2, 3, 4))
    run.module.norm_first = True
    yield run.learn(rand(2, 3, 4))
    run.module.activation = nn.functional.silu
    yield run.learn(rand(2, 3, 4))


@program(both(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))))
def weight_norm(run: Run) -> Steps:
    yield run.learn(rand())
    nn.utils.parametrize.remove_parametrizations(run.module.left, "weight")
    yield run.learn(rand())


@program(both(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))))
def spectral_norm(run: Run) -> Steps:
    for _ in range(3):
        yield run.learn(rand())
    run.module.train(not run.module.training)
    yield run(rand())


@program(both(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))))
def orthogonal_weights(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.left.weight = torch.eye(4)
    yield run(rand())


@program(both(lambda: nn.Bilinear(4, 4, 3)), refused=True)
def layer_that_wants_two_inputs(run: Run) -> Steps:
    yield run(rand())
