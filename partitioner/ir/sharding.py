"""How the ranks of a tensor axis hold a value together: all of it each, a part each, or a summand each.

    R          every rank has the whole value
    S(1)       cut along dimension 1, a part for each rank
    S(1, 3)    dimension 1 is three blocks side by side, such as a query, a key and a value; each block is cut
    P          every rank has a tensor of the whole shape, and the value is the sum of them

Gradients follow: that of R is R, of S is S, and of P is R, for each summand counts fully. Where ops whose results are parts
read an R value, each rank knows a summand of its gradient only: they read it as F, which is R with a gradient that is summed.

Source: the placements of `torch.distributed.tensor`, Replicate, Shard and Partial; F and the sum of P are f and g in
Shoeybi et al., "Megatron-LM", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal


@dataclass(frozen=True, order=True)
class Placement:
    """How ranks hold a value.

    Args:
        kind: R, S, P or F, as above.
        dim: of S, the dimension.
        blocks: of S, how many blocks the dimension consists of.
    """

    kind: Literal["R", "S", "P", "F"]
    dim: int = 0
    blocks: int = 1

    def local(self, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
        """The shape of what one rank has.

        >>> shard(1).local((2, 8), 4)
        (2, 2)
        """
        if self.kind != "S":
            return shape
        return (*shape[: self.dim], shape[self.dim] // ranks, *shape[self.dim + 1 :])

    def runs(self, size: int, ranks: int, rank: int) -> tuple[int, tuple[int, ...]]:
        """Of a dimension of so many elements that is cut: how many in a row are a rank's, and where each such run begins.

        >>> shard(0, 3).runs(24, 2, 1)
        (4, (4, 12, 20))
        """
        each = size // self.blocks // ranks
        return each, tuple((block * ranks + rank) * each for block in range(self.blocks))

    def fits(self, shape: tuple[int, ...], ranks: int) -> bool:
        """Whether a value of that shape can be held so.

        >>> shard(0).fits((3,), 2), shard(0, 2).fits((8,), 2)
        (False, True)
        """
        return self.kind != "S" or (
            self.dim < len(shape) and shape[self.dim] > 0 and shape[self.dim] % (ranks * self.blocks) == 0
        )

    def __str__(self) -> str:
        if self.kind != "S":
            return self.kind
        return f"S({self.dim})" if self.blocks == 1 else f"S({self.dim}, {self.blocks})"


R, P, F = Placement("R"), Placement("P"), Placement("F")


def shard(dim: int, blocks: int = 1) -> Placement:
    """A value that is cut along a dimension."""
    return Placement("S", dim, blocks)


def reshaped(placement: Placement, shape: tuple[int, ...], into: tuple[int, ...], ranks: int) -> Placement | None:
    """How a value is held once it has another shape, if each rank need only reshape its part; ``None`` if it must do more.

    What is in front of a cut says all: if that is A places, each of A runs of elements is cut into as many parts as there are
    ranks.

    >>> print(reshaped(shard(2), (2, 4, 8), (2, 4, 2, 4), 2), reshaped(shard(1), (2, 4, 8), (8, 8), 2))
    S(2) S(0, 2)
    >>> print(reshaped(shard(2), (2, 4, 8), (8, 2, 4), 4))
    None
    >>> print(reshaped(shard(2, 3), (2, 4, 24), (2, 4, 3, 8), 2))
    S(3)
    """
    if placement.kind != "S":
        return placement
    before = prod(shape[: placement.dim]) * placement.blocks
    for dim in reversed(range(len(into))):
        ahead = prod(into[:dim])
        if ahead and into[dim] > 1 and before % ahead == 0:
            found = shard(dim, before // ahead)
            return found if found.fits(into, ranks) else None
    return None
