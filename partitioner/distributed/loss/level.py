"""Draws of random numbers that are the same for every row: what is then made of a row can be asked again, among other rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from partitioner.frontend.analysis.static import draws

VALUES = frozenset("normal normal_ rand rand_like randn randn_like exponential_ log_normal_ cauchy_".split())
"""What draws floating-point numbers."""

NUMBERS = frozenset("randint randint_like random random_ multinomial geometric_".split())
"""What draws whole numbers."""


class Level(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each op within it that draws gives the same number everywhere, and each permutation is the reverse one.

    A dropout drops nothing. An op that draws, and makes something of what it draws, is refused.

    Raises:
        TypeError: nobody knows what such an op would give.

    Example:
        >>> with Level():
        ...     torch.randn(2), torch.randperm(3), torch.nn.functional.dropout(torch.ones(2), 0.5)
        (tensor([0.5000, 0.5000]), tensor([2, 1, 0]), tensor([2., 2.]))
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload) or not draws(func, args, kwargs):
            return made
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0] / (1 - args[1]), torch.ones_like(made[1])
        if name == "randperm":
            return made.copy_(torch.arange(len(made)).flip(0))
        return made.fill_(_level(name, func, args, kwargs))


def _level(name: str, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> float:
    """The number that stands for all that an op would draw."""
    given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    if name in ("bernoulli", "bernoulli_"):
        return 1.0
    if name in ("uniform", "uniform_"):
        return (float(given.get("from", 0.0)) + float(given.get("to", 1.0))) / 2
    if name in VALUES:
        return 0.5
    if name in NUMBERS:
        return int(given.get("low", given.get("from", 0)) or 0)
    raise TypeError(f"{func} draws, and makes something of that")
