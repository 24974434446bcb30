"""Devices and shapes that a forward asks for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Model, model


class Head(Model):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)


@model
class DeviceOfInput(Head):
    """`arange` on the device of the input, as long as the input."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + torch.arange(x.shape[1], device=x.device)


@model
class DeviceByName(Head):
    """A device written into the source: moved elsewhere, this op must move too."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + torch.zeros(x.shape[0], 1, device="cpu")


@model
class NewZeros(Head):
    """`new_zeros` asks for no device and follows its input."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.head(x)
        return h + h.new_zeros(x.shape[0], 1) + torch.full_like(h, 2.0)


@model
class ToDevice(Head):
    """`to(device)`: a copy between devices, or the tensor itself where it is there already."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(self.head.weight.device)
        return self.head(h) + x.to("cpu") + x.to(device="cpu", dtype=torch.float32) + x.cpu()


@model
class ToOther(Head):
    """`to(other)`: the device is that of another tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + x.double().to(self.head.bias)


@model
class PlainConstant(Head):
    """A tensor that is neither parameter nor buffer: no `.to` moves it, and it is in no state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.arange(6.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.offset


@model
class LiteralTensor(Head):
    """Tensors made from literals in the forward."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 3.0]) + torch.tensor(0.5)


@model
class Positions(Head):
    """Positions made from the input's shape and device, as every transformer has."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.size(0), device=x.device).unsqueeze(1)
        mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool, device=x.device).tril()
        return self.head(self.embed(positions)[:, 0] + x) * mask.sum(1, keepdim=True)


@model
class BatchInView(Head):
    """The batch size goes through `view`: burned in, the model takes one batch size."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.view(x.shape[0], 2, 3).transpose(1, 2).reshape(x.shape[0], -1))
