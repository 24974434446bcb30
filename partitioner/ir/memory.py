"""What a graph's ops take while they run, and what they keep for backward: the facts from which footprints are reckoned.

    memory Net, training with adamw
      conv  makes %0 (2.0 MiB)  keeps x, %0  backward 3.1 MiB at most
      relu  makes %1 (2.0 MiB)  keeps %1     backward 2.0 MiB at most

A *storage* is a number: several values may have one (views), and a value may have several (a tuple of tensors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from partitioner.ir.optimizer import OPTIMIZERS, Optimizer
from partitioner.ir.units import format_size


@dataclass(frozen=True)
class Storage:
    """A piece of memory: the op, input or state that it comes from, its bytes, and which of the three it comes from."""

    name: str
    bytes: int
    origin: Literal["op", "input", "state"] = "op"


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant.

    Args:
        storage: what tells its storage from those of others; tied ones have one.
        bytes: of the storage that it keeps alive.
        parameter: whether it is a parameter.
        gradient: bytes of its gradient; 0 if it is not trained.
        optimizer: bytes that the optimizer keeps for it.
    """

    storage: int
    bytes: int
    parameter: bool = False
    gradient: int = 0
    optimizer: int = 0

    @property
    def total(self) -> int:
        """Bytes that it takes on its device, for good, once the model is trained."""
        return self.bytes + self.gradient + self.optimizer


@dataclass(frozen=True)
class OpMemory:
    """What one op takes and keeps.

    Args:
        results: the storages of the tensors in its result.
        workspace: bytes that it takes at most while it runs, beyond what it leaves.
        saved: the storages, of its arguments and its result, that its backward needs.
        kept: bytes of other storages that its backward needs, such as the mask of a dropout.
        backward: bytes that its backward takes at most, beyond what was there when that began.
        gradients: the values that it gives a gradient to, each with the bytes that this takes; 0 where it is the result's.
        trains: the parameters that it gives a gradient to, by qualified name.
    """

    results: tuple[int, ...] = ()
    workspace: int = 0
    saved: tuple[int, ...] = ()
    kept: int = 0
    backward: int = 0
    gradients: tuple[tuple[str, int], ...] = ()
    trains: tuple[str, ...] = ()

    @property
    def differentiable(self) -> bool:
        """Whether backward goes through it."""
        return bool(self.gradients or self.trains)

    def scaled(self, factor: float, fixed: int) -> OpMemory:
        """The same for values ``factor`` times as large, while ``fixed`` bytes of backward, gradients of parameters, stay."""
        fixed = min(fixed, self.backward)
        return replace(
            self,
            workspace=round(self.workspace * factor),
            kept=round(self.kept * factor),
            backward=fixed + round((self.backward - fixed) * factor),
            gradients=tuple((name, round(size * factor)) for name, size in self.gradients),
        )


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory of a graph's ops, and of the state that they use.

    Args:
        name: the graph's.
        storages: every storage, by its number.
        ops: by op name; of every op of the graph.
        inputs: the storages of each graph input, by name.
        state: by qualified name.
        training: whether a backward follows.
        optimizer: what steps the parameters after that.
    """

    name: str
    storages: tuple[Storage, ...]
    ops: Mapping[str, OpMemory]
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    state: Mapping[str, Weight] = field(default_factory=dict)
    training: bool = False
    optimizer: Optimizer = OPTIMIZERS["none"]

    @cached_property
    def values(self) -> dict[str, tuple[int, ...]]:
        """The storages of each op's result and of each input, by name."""
        return {**{name: each.results for name, each in self.ops.items()}, **self.inputs}

    def resized(self, sizes: Mapping[str, int], before: Mapping[str, int]) -> Memory:
        """The memory of calls of other sizes: what an op takes is taken to grow as its result does.

        Args:
            sizes: bytes of the result of each op (and of inputs) in such a call; those of others stay.
            before: likewise, in the call that this was told of.
        """
        factors = {name: size / before[name] for name, size in sizes.items() if before.get(name)}
        storages = (
            replace(each, bytes=round(each.bytes * factors.get(each.name, 1.0))) if each.origin != "state" else each
            for each in self.storages
        )
        ops = dict(self.ops)
        for name in factors.keys() & ops.keys():
            ops[name] = ops[name].scaled(factors[name], sum(self.state[each].gradient for each in ops[name].trains))
        return replace(self, storages=tuple(storages), ops=ops)

    def __str__(self) -> str:
        purpose = f"training with {self.optimizer.name}" if self.training else "inference"
        lines = [f"memory {self.name}, {purpose}"]
        for name, each in self.ops.items():
            made = (f"%{number} ({format_size(self.storages[number].bytes)})" for number in each.results)
            kept = ", ".join(self.storages[number].name for number in each.saved)
            words = [name, *(["makes", *made] if each.results else []), *([f"keeps {kept}"] if kept else [])]
            words += [f"backward {format_size(each.backward)} at most"] if each.differentiable else []
            lines.append(f"  {'  '.join(words)}")
        return "\n".join(lines)
