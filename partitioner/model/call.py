"""A call, flattened: tensors on one side, structure and constants on the other.

Tracing and running share one calling convention. Each tensor leaf of ``(args, kwargs)`` is an input; everything else (flags,
``None``, numbers, the structure itself) is burned in and becomes a guard. So nested inputs, keyword arguments and dataclass
outputs need no handling anywhere else.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from partitioner.errors import InputError
from partitioner.model.inside import inside
from partitioner.model.storage import storage_key


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


_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})
_UNUSUAL = object()


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[torch.Tensor, ...], Any]:
    """The tensors of a call, and a hashable description of everything else in it.

    On every call's way, so only arguments of unusual types are sent through pytree.

    Example:
        >>> x = torch.ones(2)
        >>> flatten_call((x,), {"flag": True})[1] == flatten_call((x,), {"flag": 1})[1]
        False
    """
    tensors: list[torch.Tensor] = []
    constants: list[tuple[int, type, Any]] = []
    for position, value in enumerate((*args, *kwargs.values())):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in _PLAIN:
            constants.append((position, type(value), value))
        else:
            return _flatten_nested(args, kwargs)
    return tuple(tensors), ((len(args), *kwargs), tuple(constants))


def _flatten_nested(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[torch.Tensor, ...], Any]:
    tensors: list[torch.Tensor] = []
    constants: list[tuple[int, type, Any]] = []
    shapes = [_flatten(value, tensors, constants) for value in (*args, *kwargs.values())]
    if _is_unusual(shapes):
        return _flatten_tree(args, kwargs)
    return tuple(tensors), ((len(args), *kwargs, *shapes), tuple(constants))


def _flatten(value: Any, tensors: list[torch.Tensor], constants: list[tuple[int, type, Any]]) -> Any:
    """Put the leaves of a value where they belong; its shape, in pytree's order, or `_UNUSUAL`."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return None
    if kind in _PLAIN:
        constants.append((len(tensors) + len(constants), kind, value))
        return None
    if kind is dict and all(type(key) is str for key in value):
        shapes = [_flatten(item, tensors, constants) for item in value.values()]
        return _UNUSUAL if _is_unusual(shapes) else (dict, *value, *shapes)
    if kind is list or kind is tuple:
        shapes = [_flatten(item, tensors, constants) for item in value]
        return _UNUSUAL if _is_unusual(shapes) else (kind, *shapes)
    return _UNUSUAL


def _is_unusual(shapes: list[Any]) -> bool:
    return any(shape is _UNUSUAL for shape in shapes)


def _flatten_tree(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[torch.Tensor, ...], Any]:
    leaves, spec = tree_flatten((args, kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    constants = tuple((n, *_frozen(leaf)) for n, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor))
    return tensors, (spec, constants)


def sharing(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Which tensors share a storage: for each one, the position of the first that has the same.

    Example:
        >>> x = torch.ones(4)
        >>> sharing([x, torch.ones(4), x[1:]])
        (0, 1, 0)
    """
    first: dict[int, int] = {}
    return tuple(first.setdefault(storage_key(tensor), number) for number, tensor in enumerate(tensors))


def refuse_unusual(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Refuse tensors that have neither a storage nor parts that have one.

    Raises:
        InputError: a tensor is nested, or in a layout of a library's own.
    """
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.is_nested:
            raise InputError(
                f"{name} is a nested tensor, which cannot be partitioned. Pass a padded one, and a mask or lengths."
            )
        if tensor.is_mkldnn:
            raise InputError(f"{name} has layout {tensor.layout}, which cannot be partitioned. Pass {name}.to_dense().")


def is_traced(structure: Any) -> bool:
    """Whether this call is made by a tracer: torch.fx, torch.compile or torch.export.

    Args:
        structure: what `flatten_call` gave.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    # Export says for the whole process that it is going on; only the modes of this thread tell whether it is here.
    if torch.compiler.is_exporting() and torch._C._len_torch_dispatch_stack() and get_proxy_mode() is not None:
        return True
    return bool(structure[1]) and any(issubclass(kind, torch.fx.Proxy) for _, kind, _ in structure[1])


def _frozen(value: Any) -> tuple[Any, ...]:
    """A key for a constant: equal only for equal values of one type, and by identity where equality is not known.

    What can be changed in place has what it is now in its key.
    """
    try:
        hash(value)
    except TypeError:
        return (type(value), _bytes(value))
    return (type(value), value if inside(value) is None else (value, _bytes(value)))


def _bytes(value: Any) -> Any:
    try:
        return pickle.dumps(value)
    except Exception:  # pickling runs the user's code
        return id(value)


def example_call(model: nn.Module, inputs: Any, kwargs: Mapping[str, Any] | None) -> Call | None:
    """The example call, or ``None`` if there is none.

    Raises:
        InputError: the examples do not fit the signature of the model's forward, or are of a kind that has no storage.
    """
    if inputs is None and kwargs is None:
        return None
    if inputs is None:
        inputs = ()
    args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    call = Call.of(args, dict(kwargs or {}))
    try:
        names = call.names(model.forward)
    except (TypeError, KeyError) as error:
        raise InputError(f"example inputs do not fit {type(model).__name__}.forward: {error}") from error
    refuse_unusual(names, call.tensors)
    return call
