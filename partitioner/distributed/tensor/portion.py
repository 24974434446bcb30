"""A part of a tensor as a checkpoint sees it: which boxes of the whole lie here.

    weight S(0, 3) on rank 1 of 2     rows 4-7, 12-15 and 20-23 of 24: three boxes

So a checkpoint holds the whole under its one name, and any other layout finds in it what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from partitioner.ir.sharding import Placement


@dataclass(frozen=True)
class Box:
    """Elements side by side.

    Args:
        here: where they begin in what lies here.
        there: where they begin in the whole.
        sizes: how many there are along each dimension.
    """

    here: tuple[int, ...]
    there: tuple[int, ...]
    sizes: tuple[int, ...]


class Portion(torch.Tensor):
    """What one rank has of a tensor, under the shape of the whole; `torch.distributed.checkpoint` writes and fills it.

    Args:
        part: one rank's part; sharded once more along its rows, where it is a `DTensor`.
        form: of the whole.
        ranks: how many parts there are.
        rank: which part this is.
    """

    part: torch.Tensor
    held: torch.Tensor
    boxes: dict[tuple[int, ...], Box]

    @staticmethod
    def __new__(cls, part: torch.Tensor, form: Placement, ranks: int, rank: int) -> Portion:
        """Without memory of its own."""
        whole = [size * (ranks if dim == form.dim else 1) for dim, size in enumerate(part.shape)]
        made: Portion = torch.Tensor._make_wrapper_subclass(cls, whole, dtype=part.dtype, device=part.device)
        return made

    def __init__(self, part: torch.Tensor, form: Placement, ranks: int, rank: int) -> None:
        self.part, first = part, 0
        if isinstance(part, DTensor):
            _, offsets = compute_local_shape_and_global_offset(part.shape, part.device_mesh, part.placements)
            first = offsets[0]
        self.held = part.to_local() if isinstance(part, DTensor) else part
        boxes = _boxes(tuple(self.held.shape), first, tuple(self.shape), form, ranks, rank)
        self.boxes = {box.there: box for box in boxes}

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Nothing is computed with it."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func} of a part that is to be saved")

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.held)
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(box.there)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=_chunk(box), properties=properties, size=self.shape),
            )
            for box in self.boxes.values()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_chunk(box) for box in self.boxes.values()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        found = self.held
        box = self.boxes[tuple(index.offset or ())]
        for dim, (start, size) in enumerate(zip(box.here, box.sizes, strict=True)):
            found = found.narrow(dim, start, size)
        return found


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.there), sizes=torch.Size(box.sizes))


def _boxes(held: tuple[int, ...], first: int, whole: tuple[int, ...], form: Placement, ranks: int, rank: int) -> Iterator[Box]:
    """The boxes of a part of which the rows from ``first`` lie here.

    >>> [box.there for box in _boxes((12,), 0, (24,), Placement("S", 0, 3), 2, 1)]
    [(4,), (12,), (20,)]
    """
    each, starts = form.runs(whole[form.dim], ranks, rank)
    for block, start in enumerate(starts):
        here, there, sizes = [0] * len(held), [first, *[0] * (len(held) - 1)], list(held)
        begin, end = block * each, (block + 1) * each
        if form.dim == 0:
            begin, end = max(begin, first), min(end, first + held[0])
        here[form.dim] = begin - (first if form.dim == 0 else 0)
        there[form.dim] = start + begin - block * each
        sizes[form.dim] = end - begin
        if all(size > 0 for size in sizes) or 0 in whole:
            yield Box(tuple(here), tuple(there), tuple(sizes))
