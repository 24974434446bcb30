"""A recipe: the short frozen description that a random test module is written from.

A recipe never has to be legal. Each `Step` names a kind of step and picks its operands by counting back from the newest value,
modulo how many there are, so every tuple of steps is a module, and a step can be taken away or a number made smaller without
breaking the rest. That is what lets hypothesis shrink a failing example to the two or three lines that matter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of a recipe.

    Args:
        kind: a name in `partitioner.testing.KINDS`, such as `"add"` or `"view_write"`.
        picks: the operands, counted back from the newest value that fits: 0 is the newest.
        choice: a small number that the kind may read: which slice, which module slot, which spelling.
    """

    kind: str
    picks: tuple[int, int] = (0, 0)
    choice: int = 0


@dataclass(frozen=True)
class Recipe:
    """A whole module: its steps, the sizes of its inputs and the form of its output.

    Args:
        steps: what the forward does, in order.
        batch: size of dimension 0 of each input, 2 to 4.
        width: size of dimension 1 of each input, 4 to 8.
        inputs: 1 to 3. The third, `state`, requires no gradient, so that the forward may write it in place.
        image: whether the first input is (batch, width, 4, 4) rather than (batch, width).
        outputs: `"tensor"`, `"tuple"`, `"list"`, `"dict"` or `"nested"`.
        seed: what parameters and constants are drawn from.

    >>> Recipe((Step("add"), Step("relu_"))).steps[1].kind
    'relu_'
    """

    steps: tuple[Step, ...]
    batch: int = 3
    width: int = 6
    inputs: int = 2
    image: bool = False
    outputs: str = "tensor"
    seed: int = 0


OUTPUTS = ("tensor", "tuple", "list", "dict", "nested")
INPUT_NAMES = ("x", "y", "state")
