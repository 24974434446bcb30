"""What PyTorch keeps for each thread and ops depend on: grad mode, inference mode, autocast. Read, and taken over.

A mode is ``(grad, inference, autocast, cache)``: two flags; for each device type that has autocast, whether it is on and its
dtype; whether autocast keeps the weights that it has cast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache as cached
from typing import Protocol

import torch
from torch.autograd.graph import saved_tensors_hooks

Autocast = tuple[tuple[str, bool, str], ...]

SMALLEST = 5e-324
"""The smallest number of Python's, far below the normal ones."""


def modes_here() -> tuple[bool, bool, Autocast, bool]:
    """The modes of the calling thread."""
    autocast = tuple(
        (kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind)).removeprefix("torch."))
        for kind in device_types()
    )
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.is_autocast_cache_enabled()


def autocast_here() -> str:
    """Where autocast is on, in words.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     autocast_here()
        'on for cpu in bfloat16'
    """
    return ", ".join(f"on for {kind} in {dtype}" for kind, enabled, dtype in modes_here()[2] if enabled) or "off"


def flushes() -> bool:
    """Whether this thread takes numbers below the normal ones for zero: `torch.set_flush_denormal` is for one thread."""
    return SMALLEST * 1.0 == 0.0


def has_hooks() -> bool:
    """Whether hooks see the tensors that this thread saves for backward, as those of a checkpoint, which may end the call."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


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
def under(grad: bool, inference: bool | None, autocast: Autocast, cache: bool) -> Iterator[None]:
    """A block under the given modes. What autocast has cast stays until `casts_kept` ends."""
    before = modes_here()
    with nullcontext() if inference in (None, before[1]) else torch.inference_mode(bool(inference)):
        take_over(grad, autocast, cache)
        try:
            yield
        finally:
            take_over(before[0], *before[2:])


class Moded(Protocol):
    """What has modes of its own, as an op's are."""

    @property
    def flags(self) -> tuple[bool, bool | None, Autocast, bool]:
        """What a thread is put under."""


def in_mode(mode: Moded | None) -> AbstractContextManager[None]:
    """A block under the modes of an op; ``None`` for those of the call."""
    return nullcontext() if mode is None else under(*mode.flags)


def hooks_hidden() -> AbstractContextManager[object]:
    """A block in which hooks on saved tensors are told of none: what runs in it is no call of the user's."""
    return saved_tensors_hooks(_same, _same) if has_hooks() else nullcontext()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def hooks_refused() -> str | None:
    """What torch says to hooks for saved tensors, if they are refused here, as within `torch.func.grad`."""
    return torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()


def refuse_hooks(message: str | None) -> None:
    """Have such hooks refused, or taken."""
    if message is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    elif message != hooks_refused():
        torch._C._autograd._saved_tensors_hooks_disable(message, False)


@contextmanager
def casts_kept() -> Iterator[None]:
    """A block in which weights that autocast has cast are kept, and dropped at its end unless the caller keeps them on.

    Otherwise each lane that leaves a mode would drop what others still need.
    """
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


@contextmanager
def uncached() -> Iterator[None]:
    """A block in which autocast keeps nothing of what it casts, as on several devices: gradients are then summed in float32."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """A block in which ops of this thread may use so many threads.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
