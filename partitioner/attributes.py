"""What a model's plain attributes held when a program was traced, and the caller's modes: a guard, looked at in every call.

    model.scale = 2.0             ->  the program multiplies by 2.0
    model.scale = 3.0             ->  that program no longer holds; another one is traced

Only what the forward read is looked at, and whatever lies in it: the fields of a config, the items of a list. A comparison by
identity goes first, so that a guard that holds costs some nanoseconds an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import contains, is_not, itemgetter
from typing import Any

import torch
from torch import nn

from partitioner.ir.graph import Signature
from partitioner.ir.inside import inside

MOST_ITEMS = 1000
"""A larger container (a vocabulary, say) is known by its identity alone."""


@dataclass(frozen=True, eq=False)
class Held:
    """A dictionary, list or set, how its items are read, and what they were."""

    live: Any
    read: Callable[[Any], tuple[Any, ...]]
    items: tuple[Any, ...]

    def holds(self) -> bool:
        """Whether the items are still the same, or equal and of the same types."""
        try:
            now = self.read(self.live)
        except (KeyError, RuntimeError):  # an attribute was deleted; a set changed while it was read
            return False
        if len(now) != len(self.items):
            return False
        return not any(map(is_not, now, self.items)) or all(map(_same, now, self.items))


@dataclass(frozen=True, eq=False)
class Attributes:
    """What the attributes that a program depends on held.

    Args:
        held: the modules' classes, their attributes, and the containers in these.
        absent: dictionaries of modules, and beside each a name that it did not have. Its class may have it: a default that
            an instance overrides, or a method.
        names: those names.
        dtype: torch's default.
        modes: gradients, inference and autocast, if forward asked for them.
    """

    held: tuple[Held, ...]
    absent: tuple[dict[str, Any], ...]
    names: tuple[str, ...]
    dtype: torch.dtype
    modes: tuple[Any, ...] | None

    @staticmethod
    def of(root: nn.Module, signature: Signature) -> Attributes:
        """Note what ``root`` holds now of what its forward read."""
        wanted: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
        absent: list[tuple[dict[str, Any], str]] = []
        for read in signature.reads:
            module = root.get_submodule(read.path)
            key, home = _home(module, read.name)
            if home is not None and not isinstance(home[read.name], torch.Tensor | nn.Module):  # those are read anew in a call
                wanted.setdefault(key, (home, []))[1].append(read.name)
            if _may_be_set(module, read.name):
                absent.append((module.__dict__, read.name))
        modules = [root.get_submodule(path) for path in {read.path for read in signature.reads}]
        known: set[int] = set()
        held = [_attributes(home, list(dict.fromkeys(names))) for home, names in wanted.values()]
        contents = [inner for part in held for item in part.items for inner in _contents(item, known)]
        unset = tuple(part for part, _ in absent), tuple(name for _, name in absent)
        modes = modes_here() if signature.modes else None
        return Attributes((Held(modules, _types, _types(modules)), *held, *contents), *unset, torch.get_default_dtype(), modes)

    def hold(self) -> bool:
        """Whether everything is as it was."""
        for held in self.held:
            if not held.holds():
                return False
        if any(map(contains, self.absent, self.names)) or self.dtype is not torch.get_default_dtype():
            return False
        return self.modes is None or self.modes == modes_here()


def modes_here() -> tuple[Any, ...]:
    """What a forward may ask of the thread that it runs on: gradients, inference mode, autocast for each device type."""
    kinds = {"cpu", "cuda", *filter(None, [_accelerator()])}
    autocast = ((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in sorted(kinds))
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast


@cache
def _accelerator() -> str | None:
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


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


def _attributes(part: Mapping[str, Any], names: list[str]) -> Held:
    get = itemgetter(*names)
    read = get if len(names) > 1 else (lambda mapping: (get(mapping),))
    return Held(part, read, read(part))


def _contents(value: Any, known: set[int]) -> Iterator[Held]:
    """``value``, if it is a container, and the containers in it, each once."""
    if isinstance(value, tuple):
        for item in value:
            yield from _contents(item, known)
        return
    live = inside(value)
    if live is None or id(live) in known or len(live) > MOST_ITEMS:
        return
    known.add(id(live))
    items = _items(live) if isinstance(live, dict) else tuple(live)
    yield Held(live, _items if isinstance(live, dict) else tuple, items)
    for item in items:
        yield from _contents(item, known)


def _types(modules: list[nn.Module]) -> tuple[type, ...]:
    """Some tools give a module another class to change its forward."""
    return tuple(map(type, modules))


def _items(mapping: dict[Any, Any]) -> tuple[Any, ...]:
    return (*mapping, *mapping.values())


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    try:
        return bool(one == other)
    except Exception:  # a user's own type may compare as it likes
        return False
