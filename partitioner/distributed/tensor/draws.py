"""Random numbers of the ranks of a tensor axis: the same where ranks do the same, different ones where each does its part.

    dropout of what all ranks have       every rank drops the same elements
    dropout of what each has a part of   each draws for its own part

At each step the ranks agree on a seed, which the first draws from torch's generator: it goes on with a checkpoint as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


class Draws:
    """Two streams of random numbers for one rank, which ops take turns to draw from.

    Args:
        device: whose generator is meant.
        rank: on the axis.
    """

    def __init__(self, device: torch.device, rank: int) -> None:
        self.device, self.rank, self.used = device, rank, False
        self.states: dict[bool, torch.Tensor] = {}

    def start(self, seed: int) -> None:
        """Begin both streams anew: with the same seed on every rank, one is alike on all and one apart."""
        before = self._state()
        for alike in (True, False):
            torch.manual_seed(seed if alike else (seed + 1 + self.rank) % 2**63)
            self.states[alike] = self._state()
        self._set(before)

    @contextmanager
    def from_states(self, states: Mapping[bool, torch.Tensor]) -> Iterator[None]:
        """Draw once more what was drawn from earlier states; then both streams go on where they are now."""
        now, self.states = self.states, dict(states)
        try:
            yield
        finally:
            self.states = now

    def drawing(self, op: str, target: Any, *, alike: bool) -> Drawing:
        """A call that draws from one of the streams."""
        self.used = True
        return Drawing(self, op, target, alike)

    def _state(self) -> torch.Tensor:
        return torch.get_rng_state() if self.device.type == "cpu" else torch.get_device_module(self.device).get_rng_state()

    def _set(self, state: torch.Tensor) -> None:
        if self.device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self.device).set_rng_state(state)


class Drawing:
    """Calls what draws random numbers, from a stream of its own.

    Args:
        draws: both streams.
        op: ``call_function`` or ``call_method``.
        target: what is called.
        alike: whether the stream is the one that is alike on all ranks.
    """

    def __init__(self, draws: Draws, op: str, target: Any, alike: bool) -> None:
        name: str = target if isinstance(target, str) else getattr(target, "__name__", "call")
        self.__name__, self.__qualname__ = name, name
        self.draws, self.method, self.alike = draws, target if op == "call_method" else None, alike
        self.function: Callable[..., Any] | None = None if op == "call_method" else target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        draws = self.draws
        if self.alike not in draws.states:  # on fakes, where no number is drawn
            return self._call(args, kwargs)
        before = draws._state()
        draws._set(draws.states[self.alike])
        try:
            return self._call(args, kwargs)
        finally:
            draws.states[self.alike] = draws._state()
            draws._set(before)

    def _call(self, args: Any, kwargs: Any) -> Any:
        if self.function is None:
            return getattr(args[0], str(self.method))(*args[1:], **kwargs)
        return self.function(*args, **kwargs)
