"""A batch as stages see it: divided into microbatches, once it is seen to be what the stages were made for."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from reprlib import repr
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from partitioner.distributed.batch.watch import Watch
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.rows import refuse_not_dense
from partitioner.errors import InputError
from partitioner.model.call import Call, call_with


@dataclass(eq=False)
class Batches:
    """The microbatches of the step that is under way: stages ask for what they need of them.

    Args:
        model: the whole model, for its signature.
        example: a call with a microbatch, as it was traced.
        count: microbatches of a step.
        device: where they are wanted.
        watch: sees what was done to the model since its stages were made, if there are stages yet.

    Attributes:
        tensors, targets: of each microbatch; the tensors as a call has them.
        whole: the inputs of all of them together, as they were given.
    """

    model: nn.Module
    example: Example
    count: int
    device: torch.device
    watch: Watch | None = None
    tensors: list[list[torch.Tensor]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    whole: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def call(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the model for one microbatch."""
        return self.example.call.fill(self.tensors[number])

    def __call__(self, number: int) -> Mapping[str, torch.Tensor]:
        """The graph's inputs of one microbatch, by name.

        Raises:
            InputError: there is no batch yet.
        """
        if not self.tensors:
            raise InputError("the stages have no batch: call batches.fill(inputs, target) before each step of the schedule")
        return self.example.arguments(self.tensors[number])

    def fill(self, inputs: Any, target: Any) -> None:
        """Divide a batch.

        Raises:
            InputError: it is not like the example, or does not divide; or the model is not as it was.
        """
        if self.watch is not None:
            self.watch.refuse_changes()
        refuse_not_dense((inputs, target), "the batch has")
        call = call_with(self.model, inputs, fitting=self.example.call)
        if call is None:
            raise InputError(
                "the batch is None: give what the example inputs were, and with a loss that takes a target, a pair"
            )
        if call.spec != self.example.call.spec:
            raise InputError("the batch has another structure than the example inputs")
        self._refuse_constants(call)
        rows = self.rows(call)
        if self.count > 1:
            self._refuse_target(target, rows)
        self.whole = self.example.arguments(call.tensors)
        self.tensors = [
            [
                (self._rows(tensor, number, rows) if by_row else tensor).to(self.device)
                for tensor, by_row in zip(call.tensors, self.example.by_rows, strict=True)
            ]
            for number in range(self.count)
        ]
        by_row = partial(is_by_row, rows=rows)
        self.targets = [
            tree_map(lambda leaf, number=number: self._rows(leaf, number, rows), target, is_leaf=by_row)
            for number in range(self.count)
        ]

    def _refuse_constants(self, call: Call) -> None:
        """Numbers and texts of the example are part of the stages: others are right where forward does not read them."""
        pairs = [pair for pair in zip(self.example.call.leaves, call.leaves, strict=True) if not _is_same(*pair)]
        for known, given in pairs:
            if isinstance(known, torch.Tensor) or isinstance(given, torch.Tensor):
                raise InputError(
                    f"the batch has a {type(given).__name__} where the example inputs had a {type(known).__name__}: give what "
                    "was left out, or make stages for such batches"
                )
        if pairs and (self.watch is None or self.watch.reads(call)):
            texts = ", ".join(f"{repr(given)} where the example inputs had {repr(known)}" for known, given in pairs[:3])
            raise InputError(
                f"the batch has {texts}, and the stages go on with that. Give the same, leave out what forward does not read, "
                "or, for a number that changes from step to step, a tensor of it: torch.tensor(0.5)"
            )

    def _refuse_target(self, target: Any, rows: int) -> None:
        """A target of as many rows as a microbatch would be taken whole for each of them, and no loss function would notice.

        Where there is but one it is taken whole as it should be, boxes of all images in one tensor included.
        """
        for leaf in tree_leaves(target, is_leaf=lambda each: type(each) is list or is_by_row(each, rows)):
            if is_by_row(leaf, rows):
                continue
            if type(leaf) is list:
                self._refuse_list(leaf, rows)
            elif shape := tuple(getattr(leaf, "shape", ())):
                raise InputError(
                    f"the target has a {type(leaf).__name__.lower()} of shape {shape}, and the batch {rows} rows: a target's "
                    "tensors have a row for each of them, and its lists an item; what else a loss needs, let loss_fn hold it"
                )
            elif _hides_tensors(leaf):
                raise InputError(
                    f"the target has a {type(leaf).__name__} with tensors inside, which would go whole to each microbatch: "
                    "give a tuple or dict of them, or tell torch of the class, torch.utils._pytree.register_dataclass"
                )

    def _refuse_list(self, items: list[Any], rows: int) -> None:
        """Refuse a list of which none can tell whether an item, or each of its tensors, has a row of the batch."""
        if len(items) == rows:
            raise InputError(
                f"the target has a list of {rows} items for {rows} rows, whose tensors have {rows} rows each: give a tuple if "
                "each tensor has a row for each of the batch's, and stacked tensors if each item is of one row"
            )
        for each in items:
            self._refuse_target(each, rows)

    def rows(self, call: Call) -> int:
        """How many rows a batch has, once each of its tensors is seen to be that many times the example's.

        Raises:
            InputError: a tensor has another shape or dtype than the stages were made for.
        """
        for place, (tensor, known) in enumerate(zip(call.tensors, self.example.call.tensors, strict=True)):
            by_row = self.example.by_rows[place]
            wanted = (known.shape[0] * self.count, *known.shape[1:]) if by_row else tuple(known.shape)
            if tuple(tensor.shape) != wanted or tensor.dtype != known.dtype:
                name = call.names(self.model.forward)[place]
                each = f": {self.count} microbatches of {tuple(known.shape)}" if by_row else ""
                raise InputError(
                    f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, and the stages were made for {known.dtype} of "
                    f"shape {wanted}{each}. Pad it, drop the last batch of an "
                    "epoch (drop_last=True), or make stages for this size"
                )
        return self.example.rows * self.count

    def checksum(self) -> torch.Tensor:
        """What tells one batch from another: that of the bytes of its microbatches.

        Sums of numbers would be rounded, and otherwise on ranks with another number of threads.
        """
        found = 0
        given = [*map(self, range(self.count))], self.targets
        for each in (leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)):
            flat = each.detach().cpu().resolve_conj().resolve_neg().flatten().contiguous()
            found = zlib.crc32(flat.view(torch.uint8).numpy().data, found)
        return torch.tensor(found)

    def _rows(self, leaf: Any, number: int, rows: int) -> Any:
        """The rows of one microbatch, of what has a row for each of the batch's; anything else as it is."""
        if not is_by_row(leaf, rows):
            return leaf
        each = rows // self.count
        return leaf[number * each : (number + 1) * each]


def is_by_row(value: Any, rows: int) -> bool:
    """Whether a value has a row for each of a batch's: a tensor, an array, or a list with an item for each.

    Such items are texts, numbers, or what else one row is told by: a dict of its boxes. They are not, where each tensor in the
    list has a row for each of the batch's.
    """
    if type(value) not in (list, tuple):
        return tuple(getattr(value, "shape", ()))[:1] == (rows,)
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return len(value) == rows and (not shapes or any(shape[0] != rows for shape in shapes))


def _hides_tensors(value: Any, depth: int = 3) -> bool:
    """Whether an object that torch's pytree does not know has tensors with rows: a dataclass, a subclass of a dict or tuple.

    Or such an object in it, as boxes lie within instances.
    """
    plain = torch.Tensor | bool | int | float | str | ModuleType
    if not depth or value is None or isinstance(value, plain) or callable(value):
        return False
    inside = tree_leaves(gc.get_referents(value))
    return any((isinstance(each, torch.Tensor) and each.dim()) or _hides_tensors(each, depth - 1) for each in inside)


def _is_same(known: Any, given: Any) -> bool:
    """Whether two leaves of a call are alike: both tensors, or equal and of one type."""
    if type(known) is not type(given) or isinstance(known, torch.Tensor):
        return isinstance(known, torch.Tensor) and isinstance(given, torch.Tensor)
    try:
        return known is given or bool(known == given)
    except ValueError:  # of arrays
        return False
