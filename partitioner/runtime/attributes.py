"""What a model's plain attributes held when a program was traced, and the caller's modes: a guard, looked at in every call.

    model.scale = 2.0             ->  the program multiplies by 2.0
    model.scale = 3.0             ->  that program no longer holds; another one is traced

Only what the forward read is looked at, and whatever lies in it: the fields of a config, the items of a list. A comparison by
identity goes first, so that a guard that holds costs some nanoseconds an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import contains, getitem, is_not
from typing import Any

import torch
from torch import nn

from partitioner.ir.signature import Signature
from partitioner.model.inside import inside
from partitioner.model.modes import Modes

MOST_ITEMS = 1000
"""A larger container (a vocabulary, say) is known by its identity alone."""


@dataclass(frozen=True, eq=False)
class Container:
    """A dictionary, list or set, and what was in it."""

    live: Any
    items: tuple[Any, ...]

    def holds(self) -> bool:
        """Whether the same is in it, or equals of the same types."""
        try:
            now = _items(self.live)
        except RuntimeError:  # it changed while it was read
            return False
        return len(now) == len(self.items) and _alike(now, self.items)


@dataclass(frozen=True, eq=False)
class Attributes:
    """What the attributes that a program depends on held.

    Args:
        homes, names, values: the dictionary of each attribute, a module's or a class's; its name; what it held.
        modules, kinds: the modules that were traced, and the class of each.
        without, absent: dictionaries of modules, and beside each a name that it did not have. Its class may have it: a default
            that an instance overrides, or a method.
        containers: what the attributes held, if it can be changed inside.
        dtype: torch's default.
        modes: gradients, inference and autocast, if forward asked for them.
    """

    homes: tuple[Mapping[str, Any], ...]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    modules: tuple[nn.Module, ...]
    kinds: tuple[type, ...]
    without: tuple[dict[str, Any], ...]
    absent: tuple[str, ...]
    containers: tuple[Container, ...]
    dtype: torch.dtype
    modes: Modes | None

    @staticmethod
    def of(root: nn.Module, signature: Signature) -> Attributes:
        """Note what ``root`` holds now of what its forward read."""
        modules = {path: root.get_submodule(path) for path in dict.fromkeys(read.path for read in signature.attribute_reads)}
        present: dict[tuple[int, str], Mapping[str, Any]] = {}
        absent: list[tuple[dict[str, Any], str]] = []
        for read in signature.attribute_reads:
            module = modules[read.path]
            key, home = _home(module, read.name)
            if home is not None and not isinstance(home[read.name], torch.Tensor | nn.Module):  # those are read anew in a call
                present[key, read.name] = home
            if _may_be_set(module, read.name):
                absent.append((module.__dict__, read.name))
        names = tuple(name for _, name in present)
        values = tuple(map(getitem, present.values(), names))
        known: set[int] = set()
        return Attributes(
            homes=tuple(present.values()),
            names=names,
            values=values,
            modules=tuple(modules.values()),
            kinds=tuple(map(type, modules.values())),
            without=tuple(part for part, _ in absent),
            absent=tuple(name for _, name in absent),
            containers=tuple(inner for value in values for inner in _containers(value, known)),
            dtype=torch.get_default_dtype(),
            modes=Modes.of_this_thread() if signature.modes else None,
        )

    def hold(self) -> bool:
        """Whether everything is as it was. On every call's way."""
        try:
            same = _alike(tuple(map(getitem, self.homes, self.names)), self.values)
        except KeyError:  # an attribute was deleted
            return False
        if not same or any(map(is_not, map(type, self.modules), self.kinds)) or any(map(contains, self.without, self.absent)):
            return False
        for container in self.containers:
            if not container.holds():
                return False
        return self.dtype is torch.get_default_dtype() and (self.modes is None or self.modes == Modes.of_this_thread())


def _own(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return module.__dict__, module._parameters, module._buffers, module._modules


def _home(module: nn.Module, name: str) -> tuple[int, Mapping[str, Any] | None]:
    """The dictionary in which an attribute lies, with a key for it: the module's own, or that of a class of a model."""
    for part in _own(module):
        if name in part:
            return id(part), part
    for owner in type(module).__mro__:
        if name in vars(owner):
            return id(owner), None if owner.__module__.startswith("torch.") else vars(owner)
    return 0, None


def _may_be_set(module: nn.Module, name: str) -> bool:
    """Whether a name is not the module's own, but may become it, and would then be what forward reads.

    Methods but `forward` are left out: nobody sets them on one module, and there are many.
    """
    if any(name in part for part in _own(module)):
        return False
    default = getattr(type(module), name, None)
    return name == "forward" or not (callable(default) or hasattr(default, "__get__"))


def _containers(value: Any, known: set[int]) -> Iterator[Container]:
    """``value``, if it is a container, and the containers in it, each once."""
    if isinstance(value, tuple):
        for item in value:
            yield from _containers(item, known)
        return
    live = inside(value)
    if live is None or id(live) in known or len(live) > MOST_ITEMS:
        return
    known.add(id(live))
    items = _items(live)
    yield Container(live, items)
    for item in items:
        yield from _containers(item, known)


def _items(live: Any) -> tuple[Any, ...]:
    return (*live, *live.values()) if isinstance(live, dict) else tuple(live)


def _alike(now: tuple[Any, ...], then: tuple[Any, ...]) -> bool:
    """Whether values are the same, or equal and of the same types. The first is found out without a line of Python."""
    return not any(map(is_not, now, then)) or all(map(_same, now, then))


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    try:
        return bool(one == other)
    except Exception:  # a user's own type may compare as it likes
        return False
