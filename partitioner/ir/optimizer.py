"""What an optimizer keeps for each parameter, by its name, and what it takes while it steps.

    adamw    2 tensors of the parameter's size, and a counter of 4 bytes
    sgd      nothing

Sizes are those of PyTorch's own optimizers with their defaults, whose state has the dtype of its parameter. Lion, which PyTorch
lacks, is that of Chen et al., "Symbolic discovery of optimization algorithms", 2023. Adafactor keeps a row and a column in the
place of a matrix: Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from partitioner.errors import SpecError
from partitioner.ir.units import quote
from partitioner.ir.words import hint

COUNTER = 4
"""Bytes of the float32 number of steps that most optimizers keep for each parameter."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, as far as memory goes.

    Args:
        name: as specs write it.
        copies: tensors of the parameter's size that it keeps for each parameter.
        counter: bytes that it keeps for each parameter whatever that's size.
        factored: whether it keeps a row and a column of a matrix, and copies of other parameters.
        scratch: tensors of a parameter's size that it makes, at most, while it steps one parameter after the other.
        together: likewise of all parameters, where it steps all of them at once (``foreach``).

    Example:
        >>> OPTIMIZERS["adamw"].bytes((100, 10), 4), OPTIMIZERS["adafactor"].bytes((100, 10), 4)
        (8004, 444)
    """

    name: str
    copies: int = 0
    counter: int = 0
    factored: bool = False
    scratch: int = 0
    together: int = 0

    def bytes(self, shape: Sequence[int], itemsize: int) -> int:
        """Bytes of its state for one parameter of a shape."""
        if self.factored and len(shape) > 1:
            row, column = math.prod(shape[:-1]), math.prod(shape[:-2]) * shape[-1]
            return (row + column) * itemsize + self.counter
        return self.copies * math.prod(shape) * itemsize + self.counter

    def stepping(self, sizes: Sequence[int], together: bool) -> int:
        """Bytes that a step takes beyond state, at most.

        Args:
            sizes: bytes of the parameters that are stepped on one device.
            together: whether all of them are stepped at once, which is what PyTorch does on accelerators.

        Example:
            >>> OPTIMIZERS["adam"].stepping([400, 800], together=False), OPTIMIZERS["adam"].stepping([400, 800], together=True)
            (1600, 1200)
        """
        return self.together * sum(sizes) if together and self.together else self.scratch * max(sizes, default=0)


OPTIMIZERS = {
    each.name: each
    for each in (
        Optimizer("none"),
        Optimizer("sgd"),
        Optimizer("sgd_momentum", 1),
        Optimizer("adam", 2, COUNTER, scratch=2, together=1),
        Optimizer("adamw", 2, COUNTER, scratch=2, together=1),
        Optimizer("adam_amsgrad", 3, COUNTER, scratch=2, together=1),
        Optimizer("adamax", 2, COUNTER, scratch=1, together=1),
        Optimizer("nadam", 2, 2 * COUNTER, scratch=2, together=1),
        Optimizer("radam", 2, COUNTER, scratch=2, together=1),
        Optimizer("adagrad", 1, COUNTER, scratch=1, together=2),
        Optimizer("adadelta", 2, COUNTER, scratch=2, together=2),
        Optimizer("asgd", 1, 3 * COUNTER, together=1),
        Optimizer("rmsprop", 1, COUNTER, scratch=1, together=1),
        Optimizer("rmsprop_momentum", 2, COUNTER, scratch=1, together=1),
        Optimizer("rprop", 2, COUNTER, scratch=3, together=2),
        Optimizer("adafactor", 1, COUNTER, factored=True, scratch=2, together=1),
        Optimizer("muon", 1, scratch=5),
        Optimizer("lion", 1, scratch=2),
    )
}
"""Every optimizer by name; ``none`` keeps nothing, and never steps."""


def optimizer_named(name: object) -> Optimizer:
    """The optimizer that a spec means.

    Raises:
        SpecError: there is none of that name.

    Example:
        >>> optimizer_named("AdamW").copies
        2
    """
    word = name.lower() if isinstance(name, str) else ""
    if word in OPTIMIZERS:
        return OPTIMIZERS[word]
    raise SpecError(f"{quote(name)} is no optimizer that is known{hint(name, OPTIMIZERS)}")
