"""Runs a module and writes down everything a caller can see of the run, then leaves module and generators as they were."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from partitioner.testing.gradients import reordered_sums


@dataclass
class Run:
    """What one run left behind, by name; every tensor is a detached copy on the CPU.

    `reorderable` names the gradients that pass through a sum of three or more, whose order autograd does not promise.
    """

    structure: list[str] = field(default_factory=list)
    outputs: dict[str, object] = field(default_factory=dict)
    inputs: dict[str, object] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    before: dict[str, object] = field(default_factory=dict)
    state: dict[str, object] = field(default_factory=dict)
    gradients: dict[str, object] = field(default_factory=dict)
    generators: dict[str, object] = field(default_factory=dict)
    reorderable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Call:
    """How both modules are called: the same arguments, mode and seed, `calls` times over."""

    inputs: tuple[object, ...]
    kwargs: Mapping[str, object]
    seed: int
    train: bool
    gradients: bool
    calls: int


def run(module: nn.Module, call: Call) -> Run:
    """Calls `module` as `call` says, with its gradients cleared before, and returns what could be seen."""
    with _left_as_found(module), _seeded(call.seed), torch.set_grad_enabled(call.gradients):
        result = Run(keys=frozenset(module.state_dict()), before=_state(module))
        if module.training != call.train:
            module.train(call.train)
        for number in range(call.calls):
            _one_call(module, call, f"call {number}: ", result)
        result.state = _state(module)
        for name, parameter in nn.Module.named_parameters(module, remove_duplicate=False):
            result.gradients[name] = _seen(parameter.grad)
        result.generators = _generators()
    return result


def _one_call(module: nn.Module, call: Call, prefix: str, result: Run) -> None:
    inputs, kwargs = copy.deepcopy((call.inputs, dict(call.kwargs)))
    given = leaves({"input": inputs, "keyword": kwargs})
    tensors = {prefix + name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    wanted = {name: value for name, value in tensors.items() if value.requires_grad and value.is_leaf}
    output = module(*inputs, **kwargs)
    found = leaves({"output": output})
    result.structure.append(structure(output))
    result.outputs |= {prefix + name: _seen(value) for name, value in found.items()}
    result.inputs |= {prefix + name: _seen(value) for name, value in given.items()}
    if call.gradients:
        reordered = {id(leaf) for leaf in _backward(list(found.values()), call.seed)}
        named = wanted | dict(nn.Module.named_parameters(module, remove_duplicate=False))
        result.reorderable |= {name for name, value in named.items() if id(value) in reordered}
        result.gradients |= {name: _seen(value.grad) for name, value in wanted.items()}


def _backward(outputs: Sequence[object], seed: int) -> list[torch.Tensor]:
    """Backward from every output at once, each weighted by its own noise so that none can stand in for another."""
    generator = torch.Generator().manual_seed(seed)
    roots, weights = [], []
    for value in outputs:
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            weight = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            if value.requires_grad:
                roots.append(value)
                weights.append(weight.to(value.device))
    reordered = reordered_sums(roots)
    if roots:
        torch.autograd.backward(roots, weights)
    return reordered


def leaves(tree: Mapping[str, object]) -> dict[str, object]:
    """Every leaf of nested containers and dataclasses, by a readable path such as `output['a'][0].logits`."""
    found: dict[str, object] = {}
    for name, value in _named_leaves(tree):
        _add_leaf(found, name, value)
    return found


def _named_leaves(tree: Mapping[str, object]) -> list[tuple[str, object]]:
    """Leaves with their paths; numbered where a container of another library has told torch no names of its items."""
    try:
        paths, _ = pytree.tree_flatten_with_path(tree)
    except ValueError:
        parts = [(name, number, leaf) for name, part in tree.items() for number, leaf in enumerate(pytree.tree_leaves(part))]
        return [(f"{name} leaf {number}", leaf) for name, number, leaf in parts]
    return [(str(getattr(first, "key", first)) + pytree.keystr(tuple(rest)), value) for (first, *rest), value in paths]


def _add_leaf(found: dict[str, object], name: str, value: object) -> None:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        found[name] = value
        return
    for item in dataclasses.fields(value):
        for path, leaf in leaves({f"{name}.{item.name}": getattr(value, item.name)}).items():
            found[path] = leaf


def structure(tree: object) -> str:
    """The containers of a value, with every leaf drawn as its type."""
    shown = pytree.tree_map(lambda leaf: type(leaf).__name__, tree)
    return repr(shown)


def _seen(value: object) -> object:
    """A copy that no later write can change."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    kept = value.detach().cpu().clone()
    return kept.requires_grad_() if value.requires_grad else kept


def _state(module: nn.Module) -> dict[str, object]:
    named = [
        *nn.Module.named_parameters(module, remove_duplicate=False),
        *nn.Module.named_buffers(module, remove_duplicate=False),
    ]
    return {name: _seen(value) for name, value in named}


def _generators() -> dict[str, object]:
    states: dict[str, object] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda:{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """All generators that a forward may draw from begin at the seed, and go on afterwards as if nobody had drawn."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def _left_as_found(module: nn.Module) -> Iterator[None]:
    """Puts parameters, buffers, gradients and modes back afterwards.

    Two modules that share their parameters can then be compared one after the other. Each tensor is put back into the name that
    held it: a forward that binds a buffer's name to a new tensor is undone too. Python state of a module is not put back.
    """
    modes = {part: part.training for part in module.modules()}
    holders: list[dict[str, Any]] = [held for part in modes for held in (part._parameters, part._buffers)]
    slots = [(held, key, value) for held in holders for key, value in held.items()]
    values = {id(value): (value, value.detach().clone(), value.grad) for _, _, value in slots if value is not None}
    for value, _, _ in values.values():
        value.grad = None
    try:
        yield
    finally:
        for held, key, old in slots:
            held[key] = old
        for value, kept, grad in values.values():
            _put_back(value, kept)
            value.grad = grad
        for part, training in modes.items():
            part.training = training


def _put_back(value: torch.Tensor, kept: torch.Tensor) -> None:
    if value.grad_fn is not None:  # a buffer that a forward wrote with a gradient
        value.detach_()
    with torch.no_grad():
        value.copy_(kept)
