"""What PyTorch keeps for each thread and an op depends on: grad mode, inference mode, autocast. A property of an op."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """The modes that an op is under.

    Args:
        grad: whether gradients are recorded.
        inference: whether tensors are made that can never be trained; ``None`` for whatever the caller is in.
        autocast: device type, whether it is on, and its dtype, for each type that has autocast.
        cache: whether autocast keeps the weights that it has cast.
        block: the outermost block of autocast that the op is in: 0 for none, -1 for one of the caller's.
    """

    grad: bool = True
    inference: bool | None = None
    autocast: tuple[tuple[str, bool, str], ...] = ()
    cache: bool = True
    block: int = 0

    @property
    def flags(self) -> tuple[bool, bool | None, tuple[tuple[str, bool, str], ...], bool]:
        """What a thread is put under."""
        return self.grad, self.inference, self.autocast, self.cache

    def __str__(self) -> str:
        grad = "inference" if self.inference else "grad" if self.grad else "no grad"
        return " ".join([grad, *(f"autocast {kind} {dtype}" for kind, enabled, dtype in self.autocast if enabled)])
