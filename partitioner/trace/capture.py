"""What every front end takes and gives: a call flattened into tensors, and a torch.fx graph over those tensors.

Both front ends trace ``forward`` of the model with its arguments already flattened: each tensor leaf is one graph input,
everything else (flags, ``None``, numbers, the structure itself) is burned in and becomes a guard of the program. So nested
inputs, keyword arguments and dataclass outputs need no handling anywhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from partitioner.ir.graph import Signature


@dataclass(frozen=True)
class Call:
    """One call's arguments, flattened. A leaf is a tensor, or a constant that tracing burns in."""

    spec: TreeSpec
    leaves: tuple[Any, ...]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Flatten ``(args, kwargs)``."""
        leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
        return Call(spec, tuple(leaves))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensor leaves, in order: the graph's inputs."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    @property
    def constants(self) -> tuple[tuple[int, Any], ...]:
        """Position and value of every leaf that is no tensor."""
        return tuple((n, leaf) for n, leaf in enumerate(self.leaves) if not isinstance(leaf, torch.Tensor))

    def fill(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` with other values in the tensors' places."""
        following = iter(tensors)
        leaves = [next(following) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return args, kwargs

    def names(self, forward: Callable[..., Any]) -> list[str]:
        """A readable Python identifier for each tensor leaf, from the parameters of ``forward``."""
        parameters = [p.name for p in inspect.signature(forward).parameters.values() if p.kind != p.VAR_POSITIONAL]
        args, kwargs = tree_unflatten(list(range(len(self.leaves))), self.spec)
        labels: dict[int, str] = {}
        for number, arg in enumerate(args):
            _label(arg, parameters[number] if number < len(parameters) else f"arg{number}", labels)
        for key, arg in kwargs.items():
            _label(arg, key, labels)
        return [labels[n] for n, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]


def _label(tree: Any, name: str, labels: dict[int, str]) -> None:
    leaves, _ = tree_flatten(tree)
    for number, leaf in enumerate(leaves):
        label = name if len(leaves) == 1 else f"{name}_{number}"
        labels[leaf] = label if label.isidentifier() else f"input_{leaf}"


def guess_call(module: nn.Module) -> Call:
    """The call to trace when there are no example inputs: one tensor for each parameter of forward without a default."""
    args: list[torch.Tensor] = []
    kwargs: dict[str, torch.Tensor] = {}
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.default is parameter.empty:
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                args.append(torch.empty(0))
            elif parameter.kind == parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = torch.empty(0)
    return Call.of(args, kwargs)


@dataclass(frozen=True)
class Capture:
    """What a front end gives.

    Args:
        fx: placeholders, ``get_attr``, calls and one ``output`` whose argument is the flat list of results.
        signature: the calling convention.
        frontend: its name.
        constants: tensors and graph modules lifted out of the model, by ``get_attr`` target.
        sources: ``file:line`` of each node, by name.
        paths: module path of each node, by name.
        notes: what had to be given up.
    """

    fx: torch.fx.Graph
    signature: Signature
    frontend: str
    constants: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Refused(Exception):
    """A front end cannot trace this model. ``path`` is the submodule that was to blame, where that is known."""

    def __init__(self, reason: str, path: str = "", source: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path, self.source = reason, path, source


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
    generator = torch.get_rng_state()
    try:
        yield assigned
    finally:
        torch.set_rng_state(generator)
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


def _equal(one: Any, other: Any) -> bool:
    """Whether two attributes that are not the same object are equal; export rebuilds containers, for instance."""
    if isinstance(one, _TENSORS) or isinstance(other, _TENSORS):
        return False
    try:
        return bool(one == other)
    except Exception:  # a user's own type may compare as it likes
        return False


_TENSORS = (torch.Tensor, torch.fx.Proxy)
