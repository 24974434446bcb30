"""What PyTorch keeps for each thread and ops depend on: grad mode, inference mode, autocast. Read, and taken over.

A mode is ``(grad, inference, autocast, cache)``: two flags; for each device type that has autocast, whether it is on and its
dtype; whether autocast keeps the weights that it has cast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache as cached

import torch

Autocast = tuple[tuple[str, bool, str], ...]


def modes_here() -> tuple[bool, bool, Autocast, bool]:
    """The modes of the calling thread."""
    autocast = tuple(
        (kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind)).removeprefix("torch."))
        for kind in device_types()
    )
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.is_autocast_cache_enabled()


@cached
def device_types() -> tuple[str, ...]:
    """The device types whose autocast matters in this process."""
    found = torch.accelerator.current_accelerator()
    return tuple(dict.fromkeys(["cpu", "cuda", *([] if found is None else [found.type])]))


def take_over(grad: bool, autocast: Autocast, cache: bool) -> None:
    """Put the calling thread under the modes of another one. Inference mode can only be had as a block."""
    torch.set_grad_enabled(grad)
    for kind, enabled, dtype in autocast:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, getattr(torch, dtype))
    torch.set_autocast_cache_enabled(cache)


@contextmanager
def under(grad: bool, inference: bool, autocast: Autocast, cache: bool) -> Iterator[None]:
    """A block under the given modes, entered and left as a ``with`` in a model is: what autocast kept is dropped at its end."""
    now = {kind: (enabled, dtype) for kind, enabled, dtype in modes_here()[2]}
    with ExitStack() as stack:
        if inference != torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, enabled, dtype in autocast:
            if now.get(kind) != (enabled, dtype):
                stack.enter_context(torch.autocast(kind, getattr(torch, dtype), enabled, cache_enabled=cache))
        yield
