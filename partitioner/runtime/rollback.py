"""What a call that fails on lanes has changed is put back, and it is made again in order: then all is as eager leaves it.

Lanes run ahead of each other. Where an op fails, others that come after it have counted statistics and drawn numbers by then,
and some before it have not; where two fail, it is chance which does first. Orders between every op and all that may fail would
leave little to overlap, and what a call changes is small, as a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack

from partitioner.ir.access import ANY, RNG, SENT
from partitioner.ir.graph import Graph
from partitioner.ir.plan import Plan
from partitioner.ir.program import Run
from partitioner.model.modes import has_hooks
from partitioner.model.storage import set_version, version_of

LARGEST = 2**20
"""Bytes up to which tensors are copied before each call: 0.1 ms. Statistics of a few hundred layers are less, caches more."""

EXCHANGING = frozenset(("set_", "shallow_copy_data_"))
"""What ``weight.data = ...`` is called in graphs: another storage takes the place of the one that was there."""


@dataclass(eq=False)
class Rollback:
    """Keeps what a program changes, while it runs.

    Args:
        kept: positions of the arguments that it writes, and of those that share memory with them.
        draws: whether it draws random numbers.
        exchanges: whether an op may give one of them another storage.
        spare: tensors to copy to, which no call uses.
    """

    kept: tuple[int, ...]
    draws: bool
    exchanges: bool = False
    spare: list[list[Tensor]] = field(default_factory=list)

    @staticmethod
    def of(graph: Graph, shared: Sequence[Sequence[int]], inputs: Sequence[Any]) -> Rollback | None:
        """For the program of a graph; ``None`` where it changes what is too large, no plain tensor, or nobody knows what.

        Args:
            graph: what is run.
            shared: positions of what shares memory with each argument that is written.
            inputs: arguments of the first call.
        """
        if graph.written & {ANY, SENT}:
            return None
        kept = tuple(sorted({position for each in shared for position in each}))
        values = [inputs[position] for position in kept]
        if not all(map(_is_plain, values)) or sum(value.nbytes for value in values) > LARGEST:
            return None
        return Rollback(kept, RNG in graph.written, any(op.target in EXCHANGING for op in graph.ops))

    def begin(self, arguments: Sequence[Any]) -> Before | None:
        """What there is before a call.

        Returns:
            ``None`` if that is too large or has a history, if what fails may be a hook that is meant to, or if a mode sees all.
        """
        if not self.kept and not self.draws:
            return NOTHING
        if has_hooks() or _len_torch_dispatch_stack():
            return None
        tensors: list[Tensor] = [arguments[position] for position in self.kept]
        if sum([tensor.nbytes for tensor in tensors]) > LARGEST or any(tensor.grad_fn is not None for tensor in tensors):
            return None
        numbers = torch.default_generator.get_state() if self.draws else None
        memory = [tensor.detach() for tensor in tensors] if self.exchanges else []
        return Before(tensors, self._copies(tensors), [version_of(tensor) for tensor in tensors], numbers, memory)

    def end(self, before: Before) -> None:
        """A call has ended well: another may use its copies."""
        if before is not NOTHING:
            self.spare.append(before.values)

    def _copies(self, tensors: list[Tensor]) -> list[Tensor]:
        if not tensors:
            return []
        try:
            copies = self.spare.pop()
        except IndexError:
            copies = []
        with torch.no_grad():
            if [copy.shape for copy in copies] != [tensor.shape for tensor in tensors]:
                with torch.inference_mode(False):
                    copies = [torch.empty_like(tensor) for tensor in tensors]
            torch._foreach_copy_(copies, tensors)
        return copies


@dataclass(frozen=True, eq=False)
class Before:
    """What a call changes, as it was.

    Args:
        tensors: what it writes.
        values: copies of those.
        versions: how often they had been written.
        numbers: the state of the random generator, if it draws.
        memory: the same tensors over the memory that they had, if they may be given another.
    """

    tensors: list[Tensor]
    values: list[Tensor]
    versions: list[int]
    numbers: Tensor | None
    memory: list[Tensor] = field(default_factory=list)

    def restore(self) -> None:
        """Put it back."""
        for tensor, memory in zip(self.tensors, self.memory, strict=False):
            tensor.data = memory
        with torch.no_grad():
            for tensor, value, version in zip(self.tensors, self.values, self.versions, strict=True):
                if tensor.grad_fn is not None and not tensor._is_view():  # what was written had a history
                    tensor.detach_()
                with torch.inference_mode() if tensor.is_inference() else nullcontext():
                    tensor.copy_(value)
                set_version(tensor, version)
        if self.numbers is not None:
            torch.default_generator.set_state(self.numbers)


NOTHING = Before([], [], [], None)
"""Of a program that changes nothing."""


def runs_ahead(plan: Plan) -> bool:
    """Whether a plan runs ops on CPU lanes in another order than eager.

    On accelerators an op that fails on data ends the process, and one that fails on anything else is issued by the caller.
    """
    if any(lane.torch_device != "cpu" for lane in plan.program.lanes):
        return False
    runs = [item for item in plan.program.instructions if isinstance(item, Run)]
    order = [name for run in runs for name in plan.tasks.by_name[run.task].ops]
    return len({run.lane for run in runs}) > 1 or order != [op.name for op in plan.graph.ops]


def _is_plain(value: Any) -> bool:
    """Whether a tensor can be copied back: it is dense, and no two elements are one."""
    if type(value) not in (Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    return not any(size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True))
