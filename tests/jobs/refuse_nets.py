"""Models of which ranks are asked something that must be refused; see refuse.py."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


class Layers(nn.Module):
    """Three layers, and what a case adds to them."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Echo(Layers):
    """What it is given is one of its results, which no graph makes."""

    def forward(self, x: Tensor) -> Any:
        return x, super().forward(x)


class Choosing(Layers):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = -x
        return super().forward(x)


class Scaled(Layers):
    def forward(self, x: Tensor, scale: int) -> Tensor:
        return super().forward(x) * torch.arange(scale).sum()


class Placed(Layers):
    """Of two arguments that may be left out, and of a record of which it reads one entry."""

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None, record: Any = None) -> Tensor:
        x = super().forward(x if shift is None else x + shift)
        return (x if scale is None else x * scale) + (0 if record is None else record["shift"])


class Checkpointed(Layers):
    """Its norm writes buffers, and no weight."""

    def __init__(self, reentrant: bool, **options: Any) -> None:
        super().__init__()
        self.options, self.block = {"use_reentrant": reentrant, **options}, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(checkpoint(self.block, x, **self.options))


def keeping_products() -> Any:
    """Contexts of a checkpoint that keeps what layers give."""
    return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])


class Counted(Layers):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class Noted(Layers):
    """Notes once what kind it is, as configs of Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.kind: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        if self.kind is None:
            self.kind = "regression"
        return x * (1.0 if self.kind == "regression" else 2.0)


class Started(Layers):
    """Does something else in its first call."""

    started = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.started:
            self.started, x = True, x * 2
        return super().forward(x)


class Logged(Layers):
    """As the losses of transformers."""

    def forward(self, x: Tensor) -> Tensor:
        LOGGER.warning_once("an unknown loss")
        return super().forward(x)


logging.Logger.warning_once = cache(logging.Logger.warning)  # type: ignore[attr-defined]
LOGGER: Any = logging.getLogger(__name__)


class Weighed(Layers):
    """Gives the weights of its tasks, too, of which there are as many as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), self.tasks * 1.0


class Averaged(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().forward(x - self.mean)


class Picking(Layers):
    def forward(self, x: Tensor) -> Tensor:
        (rows,) = torch.where(x[:, 0] > 0)
        return x.index_add(0, rows, super().forward(x[rows]))


class Dropping(Layers):
    """Reads an attribute, a mode and what it does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.scale, self.epoch = nn.Dropout(0.0), 1.0, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(super().forward(x)) * self.scale


class Gated(Layers):
    """Of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gate(x.bfloat16()).float()


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


class Measured(Layers):
    """Gives its loss beside its output."""

    def forward(self, x: Tensor) -> Any:
        x = super().forward(x)
        return {"loss": x.square().mean(), "output": x}


class Noting(Layers):
    def forward(self, x: Tensor) -> Any:
        NOTES["norm"] = self.layers[0].weight.norm()
        return super().forward(x)


NOTES: dict[str, Tensor] = {}


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


class Cached(Layers):
    """While it runs, a weight that is no row of a batch lies in torch's cache."""

    def __init__(self) -> None:
        super().__init__()
        parametrize.register_parametrization(self.layers[0], "weight", Doubled())

    def forward(self, x: Tensor) -> Any:
        with parametrize.cached():
            return super().forward(x)


class Hidden:
    def __init__(self, inside: Tensor) -> None:
        self.inside = inside


class Spread(Layers):
    """Buffers that lie otherwise than new ones: one number for all, a row and columns of a wider table, columns for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(1).expand(1000, 4))
        self.register_buffer("row", torch.randn(1, 8)[:, :4])
        self.register_buffer("columns", torch.randn(3, 8)[:, :4])
        self.register_buffer("turned", torch.randn(3, 4).t())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale[0] + self.row + self.columns[1] + self.turned[:, 2])


class Real(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.real)


class Hiding(Layers):
    def forward(self, x: Tensor) -> Hidden:
        return Hidden(super().forward(x))


class Weight(Layers):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.layers[0].weight
