"""The caller's modes: what PyTorch keeps for each thread, and a forward may ask for or switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch


class Modes(NamedTuple):
    """Gradients, inference mode, and autocast: for each device type whether it is on and its dtype, and whether it caches."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @staticmethod
    def of_this_thread(kinds: Sequence[str] | None = None) -> Modes:
        """The modes of the calling thread, with autocast for the given device types, or for all that this machine may have."""
        known = _device_types() if kinds is None else kinds
        autocast = tuple([(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in known])
        return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.is_autocast_cache_enabled())

    def run(self, job: Callable[[], None]) -> None:
        """Call ``job`` under these modes. The thread is a worker's own, so nothing is put back but inference mode."""
        with torch.inference_mode(self.inference):
            torch.set_grad_enabled(self.grad)
            for kind, enabled, dtype in self.autocast:
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_cache_enabled(self.cache)
            job()


@cache
def _device_types() -> tuple[str, ...]:
    found = torch.accelerator.current_accelerator()
    return tuple(dict.fromkeys(["cpu", "cuda", *([] if found is None else [found.type])]))
