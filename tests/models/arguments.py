"""What goes in and comes out: keywords, options, nested containers, dataclasses, and things that are not tensors."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import Model, model, numbers


class Heads(Model):
    """Two layers for two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)


@model
class KeywordOnly(Heads):
    """An argument that can be given by name alone."""

    def forward(self, x: Tensor, *, shift: Tensor) -> Tensor:
        return self.left(x) + self.right(shift)

    def example_kwargs(self) -> dict[str, object]:
        return {"shift": numbers(3, 6, seed=1)}


@model
class OptionalArgument(Heads):
    """An argument that may be None: two structures of inputs, two programs."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.left(x)
        return h if mask is None else self.right(h * mask)


@model
class Defaults(Heads):
    """Arguments with defaults that are plain numbers and flags."""

    def forward(self, x: Tensor, scale: float = 2.0, bias: float = 1.0) -> Tensor:
        return self.left(x) * scale + self.right(x) * bias


@model
class NestedInput(Heads):
    """A batch as a data loader makes it: tensors in a dict in a dict, and a list beside them."""

    def forward(self, batch: dict[str, dict[str, Tensor]], extra: list[Tensor]) -> Tensor:
        return self.left(batch["image"]["pixels"]) + self.right(batch["text"]["tokens"]) + extra[0] * extra[1]

    def example_inputs(self) -> tuple[object, ...]:
        batch = {"image": {"pixels": numbers(3, 6)}, "text": {"tokens": numbers(3, 6, seed=1)}}
        return batch, [numbers(3, 6, seed=2), numbers(6, seed=3)]


@dataclass
class Scores:
    """An output with names, as Hugging Face models return."""

    logits: Tensor
    hidden: tuple[Tensor, Tensor]


@model
class DataclassOutput(Heads):
    """A dataclass made in the forward from both branches."""

    def forward(self, x: Tensor) -> Scores:
        left, right = self.left(x), self.right(x)
        return Scores(logits=left + right, hidden=(left, right))


Pair = namedtuple("Pair", ["left", "right"])


@model
class NamedTupleOutput(Heads):
    """A named tuple made in the forward."""

    def forward(self, x: Tensor) -> Pair:
        return Pair(self.left(x), right=self.right(x))


@model
class NestedOutput(Heads):
    """Containers in containers, in an order that is part of the answer, with one tensor in two places."""

    def forward(self, x: Tensor) -> dict[str, object]:
        left, right = self.left(x), self.right(x)
        return {"z": [left, (right,)], "a": {"second": right, "first": left}, "none": None, "number": 3}


@model
class OrderedOutput(Heads):
    """An ordered dict made in the forward."""

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        return OrderedDict(second=self.right(x), first=self.left(x))


@model
class ManyOutputs(Heads):
    """Ops that return several tensors, of which one branch each takes one; integers among them."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        best, where = torch.max(self.left(x), dim=1)
        ordered, order = torch.sort(self.right(x), dim=1)
        return best, where, ordered[:, 0], order


@model
class VariableInputs(Heads):
    """As many inputs as the caller likes."""

    def forward(self, *xs: Tensor) -> Tensor:
        return self.left(xs[0]) + sum(self.right(x) for x in xs[1:])

    def example_inputs(self) -> tuple[object, ...]:
        return numbers(3, 6), numbers(3, 6, seed=1), numbers(3, 6, seed=2)


@model
class SameInputTwice(Heads):
    """The caller passes one tensor as both arguments, and the forward writes one of them."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        before = self.left(x)
        y.add_(1.0)
        return before.detach() + self.right(x + y)

    def example_inputs(self) -> tuple[object, ...]:
        x = numbers(3, 6)
        return x, x


@model
class NoBranches(Heads):
    """A chain: there is nothing to run at once, and the plan should say so."""

    def forward(self, x: Tensor) -> Tensor:
        return self.right(torch.relu(self.left(x)))
