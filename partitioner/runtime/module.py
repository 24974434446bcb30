"""What `partition` gives: an ordinary nn.Module around the original module tree and one or more verified programs.

The whole tree is kept, so every key of the state_dict is the original one and parts that the traced path never calls are still
there. State is placed once, by the first program. Tracing burns in the training mode, the structure of the inputs and sometimes
a shape; when a call needs another program it is made then, with the state where it is.

    key = training flags, input structure and constants, shapes and dtypes  ->  program
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_unflatten
from torch.utils.hooks import RemovableHandle

from partitioner.backends.workers import in_a_lane
from partitioner.errors import InputError, PartitionerError, PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.graph import Graph
from partitioner.ir.plan import Plan
from partitioner.ir.program import Program
from partitioner.model.call import Call, flatten_call, is_traced, refuse_unusual, sharing
from partitioner.model.hooks import hooked
from partitioner.runtime.attributes import Attributes
from partitioner.runtime.entry import Entry, Make, moving
from partitioner.runtime.gate import Gate

MANY_PROGRAMS = 8
"""Programs of one module after which a warning says what keeps changing."""

MOST_PROGRAMS = 64
"""Programs that one module keeps; the oldest goes first."""


class Parallel(nn.Module):
    """A partitioned model. Made by `partition`, not by hand.

    Args:
        original: the model; its state has been placed.
        entry: the first program.
        make: makes further ones.
    """

    def __init__(self, original: nn.Module, entry: Entry, make: Make) -> None:
        super().__init__()
        for name in self.__dict__.keys() & original.__dict__.keys():  # the very same parameters, buffers, modules and hooks
            self.__dict__[name] = original.__dict__[name]
        self.__dict__.update(_original=original, _make=make, _entries=[entry], _chosen={}, _epoch=0)
        self.__dict__.update(_lock=threading.RLock(), _gate=Gate(), _writes_inputs=entry.plan.graph.writes_inputs)
        self._look_at_tree()

    @property
    def original(self) -> nn.Module:
        """The model that was given, with its own forward."""
        original: nn.Module = self.__dict__["_original"]
        return original

    @property
    def plan(self) -> Plan:
        """The plan of the program that ran last, or of the first one."""
        entry: Entry = self.__dict__.get("_last", self._entries[0])
        return entry.plan

    @property
    def graph(self) -> Graph:
        """The traced model: ops, accesses, levels."""
        return self.plan.graph

    @property
    def dag(self) -> Any:
        """The ops as a `networkx.DiGraph`."""
        return self.plan.graph.dag

    @property
    def placement(self) -> Assignment:
        """Where every task runs, and why."""
        return self.plan.placement

    @property
    def program(self) -> Program:
        """The verified instructions."""
        return self.plan.program

    @property
    def code(self) -> str:
        """The generated source."""
        entry: Entry = self.__dict__.get("_last", self._entries[0])
        return entry.execute.code

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As for any module.

        But past what a tracer on another thread has put in the place of `nn.Module.__call__`, for the whole process: this call
        is no part of what it traces. A tracer on this thread is noticed in `forward`.
        """
        return self._wrapped_call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original's forward gives."""
        tensors, structure = flatten_call(args, kwargs)
        if is_traced(structure):  # tracers are to see the model itself
            return self.original.forward(*args, **kwargs)
        entry = self._choose(tensors, structure, args, kwargs)
        homes = zip(tensors, entry.homes, strict=True)
        placed = [tensor if tensor.device == home else tensor.to(home) for tensor, home in homes]
        visit = self._gate.enter(in_a_lane())
        try:
            leaves = entry.execute(self.original, placed)
        finally:
            self._gate.leave(visit)
        spec = entry.plan.graph.signature.out_spec
        return leaves[0] if spec.is_leaf() else tree_unflatten(leaves, spec)

    def _choose(self, tensors: tuple[torch.Tensor, ...], structure: Any, args: Any, kwargs: Any) -> Entry:
        self._notice_changes()
        flags = tuple([module.training for module in self._tree])
        try:
            shapes = tuple([(tensor.shape, tensor.dtype) for tensor in tensors])
        except RuntimeError:  # a nested tensor has no shape
            refuse_unusual([f"tensor {number}" for number in range(len(tensors))], tensors)
            raise
        shared = sharing(tensors) if self._writes_inputs else None
        key = (structure, shapes, flags, self._epoch, shared, self._hooked)
        entry: Entry | None = self._chosen.get(key)
        if entry is None or not entry.attributes.hold():
            with self._lock:
                entry = self._find(tensors, structure, flags) or self._add(Call.of(args, kwargs), structure, flags, shapes)
                if len(self._chosen) > 1000:  # shapes that one open program serves are only remembered, never traced
                    self._chosen.clear()
                self._chosen[key] = entry
        self.__dict__["_last"] = entry
        return entry

    def _notice_changes(self) -> None:
        if self._children != self._known:  # a submodule was replaced, added or parametrized
            self._look_at_tree()
            self.__dict__["_epoch"] += 1
        elif self._hooked or RemovableHandle.next_id != self._handles:  # hooks were added, or may have been removed
            self._look_at_hooks()

    def _look_at_tree(self) -> None:
        """Remember the submodules: their training flags are part of every call's key, and who they are of every program."""
        tree = list(self.original.modules())
        children = [module._modules for module in tree]
        self.__dict__.update(_tree=tree, _children=children, _known=[dict(found) for found in children])
        self._look_at_hooks()

    def _look_at_hooks(self) -> None:
        """Remember which submodules have hooks, and the hooks that were registered anywhere so far."""
        self.__dict__.update(_handles=RemovableHandle.next_id, _hooked=hooked(self.original))

    def _find(self, tensors: tuple[torch.Tensor, ...], structure: Any, flags: tuple[bool, ...]) -> Entry | None:
        wanted = (structure, flags, self._epoch)
        for entry in reversed(self._entries):
            if (entry.structure, entry.flags, entry.epoch) == wanted and entry.accepts(tensors, self._hooked):
                return entry  # type: ignore[no-any-return]
        return None

    def _add(
        self, call: Call, structure: Any, flags: tuple[bool, ...], shapes: tuple[tuple[torch.Size, torch.dtype], ...]
    ) -> Entry:
        siblings = [entry for entry in self._entries if (entry.structure, entry.flags) == (structure, flags)]
        try:
            with self._gate.alone(in_a_lane()):
                execute = self._make(self.original, call, self._entries[0].plan, moving(siblings, shapes))
        except InputError as error:
            raise error.__cause__ or error from None  # a call that the model does not take raises what the model raises
        attributes = Attributes.of(self.original, execute.plan.graph.signature)
        shared = sharing(call.tensors)
        entry = Entry(execute, structure, flags, self._epoch, shapes, shared, attributes, self._hooked)
        self._entries.append(entry)
        self.__dict__["_writes_inputs"] |= execute.plan.graph.writes_inputs
        if len(self._entries) == MANY_PROGRAMS:
            warnings.warn(
                f"{type(self.original).__name__} has needed {MANY_PROGRAMS} programs so far, each of them traced. Arguments "
                "that are no tensors are burned in, and so are attributes that forward reads; pass what varies as a tensor, "
                "or pad inputs to a few shapes.",
                stacklevel=5,
            )
        if len(self._entries) > MOST_PROGRAMS:
            del self._entries[1]
            self._chosen.clear()
        return entry

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_original" not in self.__dict__:
                raise
            return getattr(self.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """An attribute that the model has is the model's: its forward reads it there."""
        original = self.__dict__.get("_original")
        if original is not None and name in original.__dict__:
            setattr(original, name, value)
            if name not in self.__dict__:
                return
        super().__setattr__(name, value)

    @property
    def training(self) -> bool:
        """The model's mode, whoever sets it; the other mode's program is made when first needed."""
        return self.original.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_original" in self.__dict__:  # not yet, while nn.Module initialises itself
            self.original.training = mode

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Parallel:
        devices = {tensor.device for tensor in (*self.parameters(), *self.buffers())}
        for device in devices:
            wanted = _destination(fn, device)
            if wanted != device:
                raise PlacementError(_cannot_move(self, device, wanted))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.__dict__["_epoch"] += 1
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The original's, key for key."""
        return self.original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the original's; tensors are copied to where the parameters lie."""
        return self.original.load_state_dict(*args, **kwargs)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.original._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.original._load_from_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parallel:
        self._notice_changes()
        original = copy.deepcopy(self.original, memo)
        entries = [entry.of_twin(original, self._epoch) for entry in self._entries]
        twin = Parallel(original, entries[0], self._make)
        twin.__dict__.update(_entries=entries, _epoch=self._epoch, _writes_inputs=self._writes_inputs)
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PartitionerError(
            "a partitioned module is not pickled: generated code and streams do not travel. Save parallel.state_dict(), "
            "build the model again, call partition() on it, and load the state_dict."
        )

    def __repr__(self) -> str:
        return self.plan.summary()


def _destination(fn: Callable[..., Any], device: torch.device) -> torch.device | str:
    """Where ``fn``, which `nn.Module.to` and its like apply to every tensor, would put a tensor of ``device``."""
    try:
        result: torch.device = fn(torch.empty(0, device=device)).device
        return result
    except (AssertionError, RuntimeError) as error:  # torch was built without it, or it is not there
        return f"a device that fails with {error}"


def _cannot_move(module: Parallel, device: torch.device, wanted: torch.device | str) -> str:
    places = sorted({str(tensor.device) for tensor in (*module.parameters(), *module.buffers())})
    return (
        f"{type(module.original).__name__} is partitioned over {', '.join(places)}; moving what lies on {device} to {wanted} "
        "would break its plan. Call partition(parallel.original, devices=[...]) for other devices; dtypes may be changed."
    )
