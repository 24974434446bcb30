"""One program of a partitioned module, and the calls it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from partitioner.backends import Executable
from partitioner.ir.plan import Plan
from partitioner.ir.signature import Open
from partitioner.model.call import Call, flatten_call, guess_call, sharing
from partitioner.model.hooks import hooked
from partitioner.runtime.attributes import Attributes


@dataclass(frozen=True)
class Entry:
    """One program, and the calls it is for.

    Args:
        execute: the program.
        structure: structure and constants of the arguments.
        flags: training flag of every submodule.
        epoch: how often the module's dtypes had changed.
        shapes: shapes and dtypes that it was traced with; ``None`` without example inputs.
        shared: which inputs shared a storage when it was traced.
        attributes: what the plain attributes that forward reads held.
        hooked: modules that had hooks when it was traced, by qualified name. It calls them as a whole, and in order.
    """

    execute: Executable
    structure: Any
    flags: tuple[bool, ...]
    epoch: int
    shapes: tuple[tuple[torch.Size, torch.dtype], ...] | None
    shared: tuple[int, ...]
    attributes: Attributes
    hooked: tuple[str, ...]

    def of_twin(self, model: nn.Module, epoch: int) -> Entry:
        """The same program for a copy of the model; one that does not hold any more is for no call."""
        if self.epoch != epoch or not self.attributes.hold():
            return replace(self, flags=())
        return replace(self, attributes=Attributes.of(model, self.plan.graph.signature))

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self.execute.plan

    @cached_property
    def homes(self) -> tuple[torch.device, ...]:
        """Where the program wants each input."""
        values = self.plan.program.by_name
        return tuple(torch.device(values[name].torch_device) for name in self.plan.program.inputs)

    def accepts(self, tensors: tuple[torch.Tensor, ...], hooked: tuple[str, ...]) -> bool:
        """Whether the program computes the right thing for these tensors now.

        Looked at: attributes of the model, hooks, shapes, dtypes and, if the program writes any of the tensors, storages.
        """
        if not self.attributes.hold() or not set(hooked) <= set(self.hooked):
            return False
        if self.plan.graph.writes_inputs and sharing(tensors) != self.shared:
            return False
        if self.shapes is None or self.plan.graph.tracer.startswith("symbolic_trace"):
            return True
        if [tensor.dtype for tensor in tensors] != [dtype for _, dtype in self.shapes]:
            return False
        return self.plan.graph.signature.accepts(tensors) is None


Make = Callable[[nn.Module, Call, Plan, Open], Executable]
"""Makes a further program: model, call, first plan (whose placement of state holds), dimensions to leave open."""


def moving(siblings: Iterable[Entry], shapes: tuple[tuple[torch.Size, torch.dtype], ...]) -> Open:
    """The dimensions in which a call differs from the programs there are: the next program leaves them open."""
    found: set[tuple[int, int]] = set()
    for entry in siblings:
        for number, ((new, _), (old, _)) in enumerate(zip(shapes, entry.shapes or (), strict=False)):
            if len(new) == len(old):
                found.update((number, dim) for dim in range(len(new)) if new[dim] != old[dim])
    return frozenset(found)


def first_entry(model: nn.Module, call: Call | None, execute: Any) -> Entry:
    """The entry of the program that was made from the examples, or from a guessed call."""
    used = guess_call(model) if call is None else call
    tensors, structure = flatten_call(*used.fill(used.tensors))
    shapes = None if call is None else tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    flags = tuple(module.training for module in model.modules())
    attributes = Attributes.of(model, execute.plan.graph.signature)
    return Entry(execute, structure, flags, 0, shapes, sharing(tensors), attributes, hooked(model))
