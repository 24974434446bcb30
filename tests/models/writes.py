"""In-place ops and views: memory that is written under one name and read under another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Model, model, numbers


class Trunk(Model):
    """A layer in front, so that what is written in place is a value of the graph and not a leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 6)


@model
class ViewOfView(Trunk):
    """A view of a view is written; the read of the base must come after, though no data edge leads from one to the other."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        h.view(-1)[2:].view(-1, 2).mul_(0.5)
        return h + 1


@model
class TwoViews(Trunk):
    """Written through one slice, read through another that overlaps it, with the order of the reads before and after fixed."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        left, right = h[:, :4], h[:, 2:]
        before = right * 2
        left.add_(1.0)
        return before + right


@model
class Expanded(Trunk):
    """`expand` makes many elements of one memory cell; the cell is written after the view was made and before it is read."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        column = h[:, :1]
        wide = column.expand(-1, 6)
        column.mul_(3.0)
        return wide + h


@model
class ChunksOfBase(Model):
    """`chunk` returns several views from one op; their base is written, then they are read."""

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        a, b = h.chunk(2, 1)
        h.add_(1.0)
        return a * b


@model
class MaybeView(Trunk):
    """`reshape` and `contiguous` return a view here and a copy there, depending on strides that only a run can know."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        alias, copy = h.reshape(-1), h.t().reshape(-1)
        h.add_(1.0)
        return alias + copy + h.contiguous().view(-1)


@model
class OutArgument(Model):
    """`out=` writes the result to memory that a view reads; the op's return value need not be used at all."""

    def forward(self, x: Tensor) -> Tensor:
        target = torch.zeros_like(x)
        half = target[:, :3]
        torch.mul(x, 2.0, out=target)
        return half + 1


@model
class AugmentedAssignment(Trunk):
    """`part += 1` on a view writes its base, and binds the name again."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        part = h[:, :3]
        part += 1
        return h


@model
class SetItem(Trunk):
    """`h[:, 0] = ...` writes half of a value that two branches read, one before and one after."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        before = h * 2
        h[:, 0] = h[:, 1]
        return before + h


@model
class MaskedSetItem(Trunk):
    """`h[mask] = 0` writes where the data says."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        h[x > 0] = 0.0
        return h + x


@model
class CopyInto(Trunk):
    """Two branches write the two halves of one tensor, which is then read whole: a join without a join op."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        joined = torch.empty_like(x)
        joined[:, :3].copy_(torch.tanh(h[:, :3]))
        joined[:, 3:].copy_(torch.sigmoid(h[:, 3:]))
        return joined * 2


@model
class InplaceAfterFork(Trunk):
    """The classic residual block: one branch applies `relu` in place to the value that the skip has read before it."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        skip = h * 2
        return skip + self.relu(h) + h


@model
class InplaceChain(Trunk):
    """A chain of in-place ops whose results are never used by name: only the first name is."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        h.add_(1.0)
        F.hardtanh_(h, -1.0, 1.0)
        h.mul_(2.0)
        return h


@model
class InputWritten(Model):
    """The caller's own tensor is written, and the caller looks at it afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        memory.mul_(0.5).add_(x)
        return self.head(x) + memory.sum()

    def example_inputs(self) -> tuple[object, ...]:
        return numbers(3, 6), numbers(3, 6, seed=1)


@model
class DetachedWrite(Trunk):
    """Written through `detach()`: the value changes and autograd does not know."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        h.detach().clamp_(-0.5, 0.5)
        return h * 2


@model
class DataWrite(Trunk):
    """Written through `.data`: as `detach()`, and not even the version counter moves."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        h.data.mul_(0.5)
        return h + x


@model
class OutputsShareMemory(Trunk):
    """Two outputs are views of one tensor: a caller who writes one sees the other change."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return h, h[:, :3]


@model
class InputReturned(Model):
    """The output is the input itself."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x * 2

    def example_inputs(self) -> tuple[object, ...]:
        return (numbers(3, 6, gradient=True),)


@model
class WeightWritten(Trunk):
    """The forward clamps its own weight under `no_grad`, as a critic does."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.trunk.weight.clamp_(-0.1, 0.1)
        return self.trunk(x)
