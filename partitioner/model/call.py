"""An example call: its tensors on one side, structure and constants on the other, so that it can be made again with others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from partitioner.errors import InputError, PartitionerError
from partitioner.model.keep import state_kept
from partitioner.model.storage import storage_key, storage_span

SHOWN = 5
"""Lines of the model's own error that a refusal repeats, at most."""


@dataclass(frozen=True)
class Call:
    """One call's arguments, flattened. A leaf is a tensor or anything else."""

    spec: TreeSpec
    leaves: tuple[Any, ...]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Flatten ``(args, kwargs)``."""
        leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
        return Call(spec, tuple(leaves))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensor leaves, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    def fill(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` with other values in the tensors' places."""
        following = iter(tensors)
        leaves = [next(following) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return args, kwargs

    def on(self, device: str) -> Call:
        """The same call with its tensors on a device, each once. What has no values cannot be moved, and stays where it is."""
        tensors = (leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor) and not leaf.is_meta)
        moved = {id(leaf): leaf.to(device) for leaf in tensors}
        return Call(self.spec, tuple(moved.get(id(leaf), leaf) for leaf in self.leaves))

    def lies_partly_on(self, device: str) -> bool:
        """Whether some of its tensors lie on a device, and others do not."""
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor) and not leaf.is_meta]
        return len({leaf.device == torch.device(device) for leaf in tensors}) > 1

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


def sharing(values: Sequence[Any], written: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each of the ``written`` values, by position: the positions of those that share its memory.

    Example:
        >>> x = torch.ones(4)
        >>> sharing([x, torch.ones(4), x[1:]], written=[2])
        ((0, 2),)
    """
    if not written:
        return ()
    keys = memory(values)
    members: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        members.setdefault(key, []).append(position)
    return tuple([tuple(members[keys[position]]) for position in written])


def memory(values: Sequence[Any]) -> list[int]:
    """A number for each value: the same for tensors whose storages are in one piece of memory.

    Two storages may be: of arrays of numpy, say, which own the memory.
    """
    numbers, spans = [-1 - position for position in range(len(values))], []
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            numbers[position] = storage_key(value)
            start, size = storage_span(value)
            if start:
                spans.append((start, start + size, position))
    spans.sort()
    end, number = 0, 0
    for start, stop, position in spans:
        if start >= end:
            number = numbers[position]
        numbers[position], end = number, max(end, stop)
    return numbers


class Planned(BaseException):
    """Ends a call that was made to be traced and not to be run."""


class CheckFailed(PartitionerError):
    """A program finds that it cannot go on with this call, and that the model may: only the model knows what it does.

    Args:
        place: where the model raises an error.
        taken: what the program takes for granted of a size that forward computes.
    """

    def __init__(self, place: str, taken: str = "") -> None:
        at = f"forward raises an error at {place}, which only a call of the whole model could make, and none does"
        super().__init__(f"forward computes a size for which its program is not made: {taken} does not hold" if taken else at)


def end_here(*_arguments: Any) -> Any:
    """Stands in the place of a program in such a call."""
    raise Planned


def example_call(model: nn.Module, inputs: Any, kwargs: Mapping[str, Any] | None) -> Call | None:
    """The call of forward that the example inputs make, or ``None`` if there are none.

    Args:
        model: what will be called.
        inputs, kwargs: as `call_with` takes them.

    Raises:
        InputError: as `call_with`; or parameters are sharded.
    """
    sharded = [name for name, value in model.named_parameters() if hasattr(value, "device_mesh")]
    if sharded and not (inputs is None and kwargs is None):
        raise InputError(
            f"{sharded[0]} is a DTensor, which hooks of the model gather for a call; examples call forward alone. Partition "
            "the model first and shard what comes out, or leave example_inputs out, so that it is traced in its first call"
        )
    return call_with(model, inputs, kwargs)


def call_with(
    model: nn.Module, inputs: Any, kwargs: Mapping[str, Any] | None = None, *, fitting: Call | None = None
) -> Call | None:
    """The call of forward that a call of the model with some inputs makes, or ``None`` if there are none.

    Args:
        model: what will be called.
        inputs: a tuple or list of positional arguments, a dict of keyword arguments by name, or one argument.
        kwargs: keyword arguments by name.
        fitting: a call that fits: others of its structure are not held against the signature again.

    Raises:
        InputError: the inputs do not fit the signature of the model's forward, or can be read only once, or what the model
            does before its forward fails on them.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"example_kwargs is of type {type(kwargs).__name__}; give a dict of keyword arguments by name")
    if inputs is None and kwargs is None:
        return None
    hint = ""
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs) and not kwargs:
        inputs, kwargs = (), inputs
        hint = ". A dict is taken for keyword arguments by name; one that is an argument itself goes into a tuple: ({...},)"
    inputs = () if inputs is None else inputs
    args, kwargs = tuple(inputs) if type(inputs) in (tuple, list) else (inputs,), dict(kwargs or {})
    call = repeatable(_reaching_forward(model, repeatable(Call.of(args, kwargs))))
    if fitting is not None and call.spec == fitting.spec:
        return call
    args, kwargs = call.fill(call.tensors)
    try:
        inspect.signature(model.forward, follow_wrapped=False).bind(*args, **kwargs)  # a decorator may give what is missing
    except TypeError as error:
        raise InputError(f"example inputs do not fit {type(model).__name__}.forward: {error}{hint}") from error
    except ValueError:  # a callable without a signature
        return call
    return call


def _reaching_forward(model: nn.Module, call: Call) -> Call:
    """The call of forward that a call of the model makes: hooks before it, and a ``__call__`` of its class, change arguments.

    A model that has any is called on copies, with a forward that notes its arguments and stops, and put back.

    Raises:
        InputError: it fails before that.
    """
    everywhere = nn.modules.module._global_forward_pre_hooks
    if type(model).__call__ is nn.Module.__call__ and not model._forward_pre_hooks and not everywhere:
        return call
    made = [call]

    def forward(*args: Any, **kwargs: Any) -> None:
        made.append(Call.of(args, kwargs))
        raise Planned

    args, kwargs = call.fill([tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in call.tensors])
    with state_kept(model, args, kwargs), suppress(Planned), on_examples(model):
        vars(model)["forward"] = forward
        model(*args, **kwargs)
    return made[-1]


@contextmanager
def on_examples(model: nn.Module) -> Iterator[None]:
    """A block in which the model runs on its example inputs: what it raises is the caller's to mend.

    Raises:
        InputError: it raises anything that is no error of this package.
    """
    try:
        yield
    except PartitionerError:
        raise
    except Exception as error:
        text = "".join([_beginning(str(error)), *(f" ({note})" for note in getattr(error, "__notes__", ()))])
        raise InputError(f"{type(model).__name__} fails on the example inputs. {type(error).__name__}: {text}") from error


def _beginning(text: str) -> str:
    """The first lines of an error's text. torch may list forty kernels that are there; the cause has all of it."""
    lines = text.splitlines()
    if len(lines) <= SHOWN:
        return text
    return "\n".join([*lines[:SHOWN], f"... and {len(lines) - SHOWN} more lines, in the cause"])


def repeatable(call: Call) -> Call:
    """``call``, if it can be made more than once: to be traced, and to be run.

    Raises:
        InputError: an argument can be read only once.
    """
    for leaf in call.leaves:
        if isinstance(leaf, Iterator):
            raise InputError(
                f"an argument is of type {type(leaf).__name__}, which can be read only once, and this call is traced before it "
                "runs; give a list"
            )
    return call
