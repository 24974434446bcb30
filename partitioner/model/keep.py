"""A model, left as it was: what tracing and comparing do to it is undone, and what its forward assigned is told."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from partitioner.model.storage import parts


@dataclass(frozen=True)
class Assigned:
    """An attribute that the model's forward assigned while it was traced: qualified name, and whether it held a tensor."""

    name: str
    tensor: bool


@contextmanager
def untouched(module: nn.Module) -> Iterator[list[Assigned]]:
    """Undo whatever tracing does to the model and to the CPU's random generator; tell what its forward assigned.

    Tracing runs the user's forward, and that may assign attributes: a cache, a counter, a proxy that must not stay. The
    list that is yielded is filled when the block ends.
    """
    assigned: list[Assigned] = []
    before = [(name, child, [dict(part) for part in _parts(child)]) for name, child in module.named_modules()]
    contents = [
        (f"{name}.{key}".lstrip("."), value, copy.copy(value))
        for name, child in module.named_modules()
        for key, value in child.__dict__.items()
        if type(value) in (list, dict, set) and not key.startswith("_")
    ]
    generator = torch.get_rng_state()
    try:
        yield assigned
    finally:
        torch.set_rng_state(generator)
        assigned += (Assigned(name, held) for name, value, old in contents for held in _refill(value, old))
        for name, child, old in before:
            for now, then in zip(_parts(child), old, strict=True):
                assigned += (Assigned(f"{name}.{key}".lstrip("."), tensor) for key, tensor in _restore(now, then))


def _parts(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """The dictionaries that hold a module's attributes."""
    own = module.__dict__
    return own["_parameters"], own["_buffers"], own["_modules"], own


def _restore(now: dict[str, Any], then: dict[str, Any]) -> list[tuple[str, bool]]:
    """Put old attributes back; each key whose value differed, and whether a tensor was there."""
    missing = object()
    keys = [key for key in {**then, **now} if now.get(key, missing) is not then.get(key, missing)]
    rebuilt = [key for key in keys if key in now and key in then and _equal(now[key], then[key])]
    tensor = [isinstance(now.get(key), _TENSORS) or isinstance(then.get(key), _TENSORS) for key in keys]
    for key in keys:
        if key in then:
            now[key] = then[key]
        else:
            del now[key]
    return [(key, held) for key, held in zip(keys, tensor, strict=True) if key not in rebuilt]


def _refill(value: Any, old: Any) -> Iterator[bool]:
    """Put the old items back into a list, dict or set that was changed in place; whether the change held a tensor."""
    now, then = (list(each.items()) if isinstance(each, dict) else list(each) for each in (value, old))
    if len(now) != len(then) or any(not _same_item(one, other) for one, other in zip(now, then, strict=True)):
        yield any(isinstance(leaf, _TENSORS) for leaf in tree_leaves([now, then]))
        value.clear()
        getattr(value, "extend" if isinstance(value, list) else "update")(old)


def _same_item(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same_item, one, other))
    return one is other or _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    """Whether two attributes that are not the same object are equal; export rebuilds containers, for instance."""
    if isinstance(one, _TENSORS) or isinstance(other, _TENSORS):
        return False
    try:
        return bool(one == other)
    except Exception:  # a user's own type may compare as it likes
        return False


_TENSORS = (torch.Tensor, torch.fx.Proxy)


@contextmanager
def state_kept(module: nn.Module, written: Collection[str] = ()) -> Iterator[list[Assigned]]:
    """Put back buffers, tensor attributes and assigned attributes, whatever runs inside; tell as `untouched` does.

    Args:
        module: whose state.
        written: parameters to put back as well. All of them would take as much memory as the model.
    """
    attributes = [value for child in module.modules() for value in child.__dict__.values() if isinstance(value, torch.Tensor)]
    parameters = (parameter for name, parameter in module.named_parameters() if name in written)
    tensors = [*module.buffers(), *parameters, *attributes]
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    plain = [tensor for tensor in tensors if not tensor.requires_grad]
    with untouched(module) as assigned:
        try:
            yield assigned
        finally:
            with torch.no_grad():
                for tensor, value in kept:
                    if tensor.shape == value.shape and not all(map(torch.equal, parts(tensor), parts(value))):
                        tensor.detach().copy_(value)
                for tensor in plain:
                    if tensor.requires_grad:  # what was written to it had a history
                        tensor.detach_()
