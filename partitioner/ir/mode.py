"""What PyTorch keeps for each thread and an op depends on: grad mode, inference mode, autocast. A property of an op."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """The modes that an op is under.

    Args:
        grad: whether gradients are recorded.
        inference: whether tensors are made that can never be trained.
        autocast: device type, whether it is on, and its dtype, for each type that has autocast.
        cache: whether autocast keeps the weights that it has cast.
    """

    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, bool, str], ...] = ()
    cache: bool = True

    def __str__(self) -> str:
        grad = "inference" if self.inference else "grad" if self.grad else "no grad"
        return " ".join([grad, *(f"autocast {kind} {dtype}" for kind, enabled, dtype in self.autocast if enabled)])
