"""What the first call of a model leaves for the next ones, once the length is known: a mask, a table of positions, in a dict.

    first call      self.mask = torch.ones(n, n).tril()      another graph than that of all others
    second call     self.mask[:n, :n]                        what the steps of a job are

So the model is called once as it is, where nothing else comes of it: what is left is made of nothing that the call gives or
draws, of no state, and the first call gives and writes what the second one does. A mean of the first batch is not such a thing,
nor is a count. A first call that cannot be traced (Hugging Face's install hooks, under a lock) may leave no tensor at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from partitioner.ir.access import ANY, RNG
from partitioner.ir.graph import Graph
from partitioner.model.call import Call
from partitioner.model.keep import state_kept
from partitioner.model.process import process_undo
from partitioner.model.quiet import quiet
from partitioner.model.state import all_parameters, all_state, lies_on_meta
from partitioner.model.storage import version_of
from partitioner.model.undo import tensor_undo


def begun(model: nn.Module, call: Call, graph: Graph, left: Iterable[str], trace: Callable[[], Graph | None]) -> bool:
    """Call a model for the first time, if that leaves what all other calls go on with, and changes nothing else.

    Args:
        model: whose attributes are then those after the call; its parameters and buffers have the values that they had.
        call: its arguments.
        graph: of the first call.
        left: the results of the graph that the model holds after it, or that are none of what it returns.
        trace: gives the graph of which the call would be now.

    Returns:
        Whether it was called.
    """
    parameters = {f"self.{key}" for key in all_parameters(model)}
    if lies_on_meta(model) or parameters & graph.written or not _made_alone(graph, left):
        return False
    if not _settles(model, call, graph, trace):
        return False
    _called_for_good(model, call)
    return True


def begun_unseen(model: nn.Module, call: Call) -> bool:
    """Call a model whose first call cannot be traced, if that leaves flags and hooks, and changes nothing else.

    Args:
        model, call: as for `begun`.

    Returns:
        Whether it was called, and so may be traced now.
    """
    if lies_on_meta(model):
        return False
    buffers, parameters, before = _buffers(model), [*model.parameters()], _tensors_in(model)
    versions, undo = [version_of(each) for each in parameters], [tensor_undo(each) for each in buffers]

    def found() -> list[torch.Tensor]:
        for each in undo:
            each()
        return [*_called(model, call), *(each.clone() for each in buffers)]

    try:
        with state_kept(model, *call.leaves) as left:
            repeats = _repeats(model, call, found)
            same = before == _tensors_in(model) and versions == [version_of(each) for each in parameters]
    except Exception:  # the model's own
        return False
    if not (left and repeats and same):
        return False
    _called_for_good(model, call)
    return True


def _called_for_good(model: nn.Module, call: Call) -> None:
    """Call a model, and put back all that is no attribute."""
    with ExitStack() as block:
        block.enter_context(quiet())
        for undo in (process_undo(), *map(tensor_undo, _buffers(model))):
            block.callback(undo)
        _called(model, call)


def held_in(model: nn.Module, results: Iterable[tuple[str, Any]]) -> set[str]:
    """The names of those results that lie in attributes of a model, or in containers there."""
    held = _tensors_in(model)
    return {name for name, value in results if id(value) in held}


def instead_of(model: nn.Module, changed: Sequence[str]) -> str:
    """What to do about attributes that forward replaces: hooks of torch are such, for some of which it has something newer."""
    layers, owners = dict(model.named_modules()), {key.rpartition(".")[0] for key in changed}  # or what is no layer, a global
    hooks = [hook for path in owners & layers.keys() for hook in layers[path]._forward_pre_hooks.values()]
    for kind, advice in _NEWER.items():
        if any(isinstance(hook, kind) for hook in hooks):
            return advice
    return "let it be a buffer, and write it in place: self.count.add_(1), self.mean.copy_(new); or give it that value before"


_NEWER: dict[type, str] = {
    WeightNorm: "take torch.nn.utils.parametrizations.weight_norm in place of torch.nn.utils.weight_norm, which is deprecated",
    SpectralNorm: "take torch.nn.utils.parametrizations.spectral_norm in place of torch.nn.utils.spectral_norm",
    BasePruningMethod: "make what is pruned so for good, torch.nn.utils.prune.remove(layer, name), or give the layer a "
    "parametrization that multiplies by the mask",
}


def _tensors_in(model: nn.Module) -> set[int]:
    """The identities of what lies there."""
    return {
        id(leaf) for module in model.modules() for leaf in tree_leaves(dict(vars(module))) if isinstance(leaf, torch.Tensor)
    }


def _buffers(model: nn.Module) -> list[torch.Tensor]:
    return [each for each in all_state(model).values() if not isinstance(each, nn.Parameter)]


def _made_alone(graph: Graph, names: Iterable[str]) -> bool:
    """Whether values are made of numbers in the code alone."""
    given, written = {*graph.arguments}, set[str]()
    for op in graph.ops:
        touched = {access.resource for access in op.accesses}
        if op.state or given.intersection(op.inputs) or touched & {ANY, RNG, *written}:
            given.add(op.name)
            written.update(access.resource for access in op.accesses if access.write)
    return all(name not in given and not written & {*graph.by_name[name].storages} for name in names)


def _settles(model: nn.Module, call: Call, graph: Graph, trace: Callable[[], Graph | None]) -> bool:
    """Whether a second call changes nothing, and gives and writes what the first one does. Afterwards all is as it was."""
    with state_kept(model, *call.leaves):
        if not _repeats(model, call, lambda: _called(model, call)):
            return False
        with state_kept(model):
            later = trace()
    return later is not None and _writes(later) == _writes(graph)


def _repeats(model: nn.Module, call: Call, run: Callable[[], list[torch.Tensor]]) -> bool:
    """Whether a second call, with the same random numbers, gives what the first one does and changes no attribute."""
    drawn = torch.get_rng_state()
    first = run()
    torch.set_rng_state(drawn)
    try:
        with state_kept(model, *call.leaves) as changed:
            second = run()
    except Exception:  # the model's own, of a call that is none of the user's
        return False
    return not changed and len(first) == len(second) and all(map(torch.equal, first, second))


def _writes(graph: Graph) -> Counter[tuple[str, str]]:
    """What is written of a model's state, and by which ops."""
    pairs = ((access.resource, op.target) for op in graph.ops for access in op.accesses if access.write)
    return Counter(pair for pair in pairs if pair[0].startswith("self."))


def _called(model: nn.Module, call: Call) -> list[torch.Tensor]:
    args, kwargs = call.fill(call.tensors)
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
