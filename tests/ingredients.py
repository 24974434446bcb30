"""Small models, one for each ingredient that real models are made of, for `test_crossed.py`.

INGREDIENTS["gru_loop"].build()        the module, in training mode
INGREDIENTS["gru_loop"].inputs(3, 1)   positional arguments with three rows; the second number draws other values
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hostile.program import rand
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune, rnn

Inputs = Callable[[int, int], tuple[Any, ...]]


@dataclass(frozen=True)
class Ingredient:
    """A model and what it is called with: ``inputs(rows, seed)``."""

    build: Callable[[], nn.Module]
    inputs: Inputs


INGREDIENTS: dict[str, Ingredient] = {}


def floats(*shape: int) -> Inputs:
    """One tensor of normal numbers, of this shape behind its rows."""
    return lambda rows, seed: (rand(rows, *shape, seed=seed),)


def tokens(length: int, most: int = 11) -> Inputs:
    """One tensor of whole numbers below ``most``."""
    return lambda rows, seed: (integers(most, rows, length, seed=seed),)


def integers(most: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(seed))


def ingredient(inputs: Inputs | None = None) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Registers the decorated class, or function that builds a model; by default it takes a (rows, 4) tensor."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        INGREDIENTS[build.__name__] = Ingredient(build, inputs or floats(4))
        return build

    return register


# -- recurrent layers -------------------------------------------------------------------------------------------------


@ingredient(floats(5, 4))
class packed_lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)

    def forward(self, x: Tensor) -> Any:
        lengths = torch.arange(x.shape[0]) % 5 + 1
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, (h, _) = self.lstm(packed)
        return rnn.pad_packed_sequence(out, batch_first=True)[0], h


@ingredient(floats(5, 4))
class returns_packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.scale = nn.GRU(4, 3, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        packed = rnn.pack_sequence(list(self.scale(x).unbind(0)), enforce_sorted=False)
        return self.gru(packed)


@ingredient(floats(5, 4))
class gru_loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.start, self.head = nn.GRUCell(4, 4), nn.Parameter(torch.zeros(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        h, seen = self.start.expand(x.shape[0], -1), []
        for step in x.unbind(1):
            h = self.cell(step, h)
            seen.append(self.head(h))
        return torch.stack(seen, 1), h


@ingredient(floats(5, 4))
class stateful_lstm(nn.Module):
    """Keeps its state from call to call, without its history."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.state = nn.LSTMCell(4, 4), None

    def forward(self, x: Tensor) -> Tensor:
        state = self.state
        if state is None or state[0].shape[0] != x.shape[0] or state[0].dtype != x.dtype:
            state = (x.new_zeros(x.shape[0], 4), x.new_zeros(x.shape[0], 4))
        for step in x.unbind(1):
            state = self.cell(step, state)
        self.state = tuple(part.detach() for part in state)
        return state[0]


# -- norms --------------------------------------------------------------------------------------------------------------


class Norms(nn.Module):
    """Two branches with a norm each."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.left, self.right = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1)
        self.a, self.b = norm(), norm()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.left(x)) + self.b(self.right(x)).tanh()


@ingredient(floats(4, 6))
def cumulative_norm() -> nn.Module:
    return Norms(lambda: nn.BatchNorm1d(4, momentum=None))


@ingredient(floats(4, 6))
def instance_norm() -> nn.Module:
    return Norms(lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True))


@ingredient(floats(4, 6))
def batch_norm_without_statistics() -> nn.Module:
    return Norms(lambda: nn.BatchNorm1d(4, track_running_stats=False))


@ingredient(floats(4, 6))
def group_norm() -> nn.Module:
    return Norms(lambda: nn.GroupNorm(2, 4))


@ingredient(floats(4, 6))
def shared_batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    return Norms(lambda: norm)


# -- weights that are computed ----------------------------------------------------------------------------------------


class Layers(nn.Module):
    """Two branches and a head; each layer is dressed."""

    def __init__(self, dress: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> None:
        super().__init__()
        self.left, self.right, self.head = (dress(nn.Linear(4, 4)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.left(x)) * self.right(x))


@ingredient()
def weight_norm() -> nn.Module:
    return Layers(lambda layer: parametrizations.weight_norm(layer))


@ingredient()
def old_weight_norm() -> nn.Module:
    return Layers(lambda layer: nn.utils.weight_norm(layer))


@ingredient()
def spectral_norm() -> nn.Module:
    return Layers(lambda layer: parametrizations.spectral_norm(layer))


@ingredient()
def old_spectral_norm() -> nn.Module:
    return Layers(lambda layer: nn.utils.spectral_norm(layer))


@ingredient()
def orthogonal() -> nn.Module:
    return Layers(lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


@ingredient()
def parametrized_twice() -> nn.Module:
    def dress(layer: nn.Module) -> nn.Module:
        parametrize.register_parametrization(layer, "weight", Symmetric())
        return parametrize.register_parametrization(layer, "weight", Symmetric())

    return Layers(dress)


@ingredient()
def pruned() -> nn.Module:
    return Layers(lambda layer: prune.l1_unstructured(layer, "weight", 0.4))


@ingredient()
def pruned_structured() -> nn.Module:
    return Layers(lambda layer: prune.ln_structured(layer, "weight", 0.5, 2, 0))


# -- attention -------------------------------------------------------------------------------------------------------


@ingredient(floats(5, 4))
class masked_attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        causal = torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1)
        padding = torch.zeros(x.shape[0], 5, dtype=torch.bool, device=x.device)
        padding[:, 4:] = True
        seen, weights = self.attention(x, x, x, key_padding_mask=padding, attn_mask=causal)
        plain, none = self.attention(x, x, x, need_weights=False)
        return seen + plain, weights, none


@ingredient(floats(5, 4))
def transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@ingredient(floats(5, 4))
class encoder_with_padding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=False)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(5) >= 1 + torch.arange(x.shape[0])[:, None] % 5
        return self.encoder(x, src_key_padding_mask=padding)


@ingredient(floats(5, 4))
class rotary(nn.Module):
    """Tables of rotations that grow with what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.cached = nn.Linear(4, 4), nn.Linear(4, 4), 0
        self.register_buffer("cosines", torch.zeros(0), persistent=False)

    def table(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.cached or self.cosines.dtype != x.dtype:
            self.cached = x.shape[1]
            self.cosines = torch.cos(torch.arange(self.cached)[:, None] / torch.arange(1, 5)).to(x.dtype)
        return self.cosines[: x.shape[1]]

    def forward(self, x: Tensor) -> Tensor:
        table = self.table(x)
        return F.scaled_dot_product_attention(self.query(x) * table, self.key(x) * table, x)
