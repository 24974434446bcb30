"""The state of a model: parameters, buffers and tensor attributes by qualified name, and how it gets to its devices."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from partitioner.ir.graph import Graph
from partitioner.ir.storage import parts, storage_key, tensor_bytes


def attribute(root: nn.Module, path: str) -> Any:
    """The attribute of a module, or of a module in it, by qualified name.

    Raises:
        AttributeError: there is none.
    """
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part)
    return value


def load_state(root: nn.Module, path: str, constants: Mapping[str, Any]) -> Any:
    """A parameter, buffer or constant, as the module has it now."""
    return constants[path] if path in constants else attribute(root, path)


def call_target(root: nn.Module, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a torch.fx call node gives: of a module in ``root``, of a method of its first argument, or of a function."""
    if kind == "call_module":
        return root.get_submodule(str(target))(*args, **kwargs)
    if kind == "call_method":
        return getattr(args[0], str(target))(*args[1:], **kwargs)
    return target(*args, **kwargs)


def lookup(root: nn.Module, path: str) -> object:
    """The attribute of a module, or of a module in it, by qualified name; ``None`` if there is none."""
    value: object = root
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def state_tensors(module: nn.Module, graph: Graph) -> dict[str, torch.Tensor]:
    """Every tensor that the graph's ops use as state, by qualified name."""
    found: dict[str, torch.Tensor] = {}
    for op in graph.ops:
        for name in op.state:
            value = graph.constants[name] if name in graph.constants else lookup(module, name)
            if isinstance(value, torch.Tensor):
                found[name] = value
    return found


def state_keys(state: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """Names whose tensors share a storage have the same key: they must stay on one device."""
    return {name: storage_key(tensor) for name, tensor in state.items()}


def state_bytes(state: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Size of each tensor in bytes."""
    return {name: tensor_bytes(tensor) for name, tensor in state.items()}


def all_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer of a module by qualified name, tied ones under each of their names."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return dict(named)


def move_state(module: nn.Module, devices: Mapping[str, str], default: str) -> None:
    """Move parameters and buffers to their devices, in place: optimizers and ties that hold them go on holding them.

    Args:
        module: whose state.
        devices: torch device by qualified name.
        default: where everything goes that no op uses.
    """
    by_storage: defaultdict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    everything = all_state(module)
    for name in devices:
        extra = lookup(module, name)
        if name not in everything and isinstance(extra, torch.Tensor):
            everything[name] = extra
    for name, tensor in everything.items():
        by_storage[storage_key(tensor)].append((name, tensor))
    for members in by_storage.values():
        wanted = next((devices[name] for name, _ in members if name in devices), default)
        _move_together([tensor for _, tensor in members], torch.device(wanted))


def _move_together(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Move tensors that share one storage so that they still share one."""
    distinct = {id(tensor): tensor for tensor in tensors}
    if all(tensor.device == device for tensor in distinct.values()):
        return
    with torch.no_grad():
        if len(distinct) == 1:
            (tensor,) = distinct.values()
            _move_one(tensor, tensor.detach().to(device))
            return
        first = next(iter(distinct.values()))
        whole = torch.empty(0, dtype=torch.uint8, device=first.device).set_(first.untyped_storage()).to(device)
        for tensor in distinct.values():
            view = torch.empty(0, dtype=tensor.dtype, device=device)
            _move_one(tensor, view.set_(whole.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()))


def _move_one(tensor: torch.Tensor, moved: torch.Tensor) -> None:
    tensor.data = moved
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(moved.device)


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
