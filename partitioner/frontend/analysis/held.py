"""The memory of a graph's ops: each distinct op is called once on fakes, forward and backward, with a meter on it.

What its backward needs is not written in a table: nodes of autograd hold what they saved, so what still lives when nothing else
holds on to it was saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map, tree_map_only

from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.analysis.kernels import Kernels, linear_outside
from partitioner.frontend.analysis.looks import form_of, remembered, value_of
from partitioner.frontend.analysis.meter import Meter, Taken, take
from partitioner.frontend.rewrite.modes import is_switch
from partitioner.frontend.rewrite.regions import is_bound
from partitioner.ir.memory import Memory, OpMemory, Storage, Weight
from partitioner.ir.optimizer import OPTIMIZERS, Optimizer
from partitioner.model.fakes import empty_like, number_of, tensors_in
from partitioner.model.modes import under
from partitioner.model.node import call_node, fill
from partitioner.model.state import sizes
from partitioner.model.storage import storage_key

_LINEAR = torch.nn.functional.linear


def memory_of(traced: Traced, *, training: bool, optimizer: Optimizer = OPTIMIZERS["none"], here: bool = True) -> Memory:
    """The memory of every op of a graph that still has its fakes, and of the state that it uses.

    Args:
        traced: the graph, and its state.
        training: whether a backward follows; without it, nothing is kept for one.
        optimizer: what steps the parameters after that.
        here: whether the ops run on this machine's CPU, whose kernels are then asked what they take inside.
    """
    held = _Held(traced, training, Kernels() if here else None)
    ops = {node.name: held.op(node) for node in traced.graph.fx.nodes if node.name in traced.graph.by_name}
    inputs = {name: held.numbers[name] for name, _ in traced.graph.inputs if name in held.numbers}
    state = {name: weight_of(tensor, training, optimizer) for name, tensor in traced.state.items()}
    return Memory(traced.graph.name, tuple(held.storages), ops, inputs, state, training, optimizer)


def weight_of(tensor: torch.Tensor, training: bool, optimizer: Optimizer) -> Weight:
    """A parameter, buffer or constant, with what comes with it while it is trained.

    >>> weight_of(torch.nn.Linear(8, 4).weight, True, OPTIMIZERS["adamw"]).total
    516
    """
    storage, size, kept, _ = sizes(tensor)
    parameter = isinstance(tensor, torch.nn.Parameter)
    if not (training and tensor.requires_grad):
        return Weight(storage, kept, parameter)
    return Weight(storage, kept, parameter, size, optimizer.bytes(tuple(tensor.shape), tensor.element_size()))


class _Held:
    """Goes through a graph.

    Attributes:
        storages: those met so far, with the name of where each came from.
        numbers: of the storages of each value, by name.
        names: of the values in each storage.
        history: for each value, whether each tensor in it has one.
        known: what calls take, by what tells them apart; ``None`` for those that cannot be called on fakes.
        kernels: what is inside of them, if anybody asks.
    """

    def __init__(self, traced: Traced, training: bool, kernels: Kernels | None) -> None:
        self.traced, self.training, self.kernels = traced, training, kernels
        self.storages: list[Storage] = []
        self.number: dict[int, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.names: defaultdict[int, list[str]] = defaultdict(list)
        self.history: dict[str, tuple[bool, ...]] = {}
        self.known: dict[Any, Taken | None] = {}
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        for node in traced.graph.fx.find_nodes(op="placeholder"):
            key = traced.graph.states.get(node.name)
            trained = training and key is not None and traced.state[key].requires_grad
            tensors = list(tensors_in(value_of(node)))
            self._number(node, tensors, "input" if key is None else "state")
            self.history[node.name] = tuple(trained or (training and key is None and t.requires_grad) for t in tensors)

    def _number(self, node: torch.fx.Node, tensors: Sequence[torch.Tensor], origin: Any = "op") -> tuple[int, ...]:
        """The storages of a value, numbered when they are first met."""
        for tensor in tensors:
            key = storage_key(tensor)
            if key not in self.number:
                self.number[key] = len(self.storages)
                name = self.traced.graph.states.get(node.name, node.name)
                self.storages.append(Storage(name, _bytes(tensor), origin))
        found = tuple(dict.fromkeys(self.number[storage_key(tensor)] for tensor in tensors))
        self.numbers[node.name] = found
        for number in found:
            self.names[number].append(node.name)
        return found

    def op(self, node: torch.fx.Node) -> OpMemory:
        """What a call takes, with its arguments and results by name."""
        made = list(tensors_in(value_of(node)))
        results = self._number(node, made)
        sources = [source for source in node.all_input_nodes if source.op != "get_attr"]
        given = [(source, tensor) for source in sources for tensor in tensors_in(value_of(source))]
        taken = self._taken(node, sources)
        if taken is None or len(taken.gradients) != len(given) or len(taken.differentiable) != len(made):
            taken = self._guess(sources, given, made)
        self.history[node.name] = taken.differentiable
        self._rewrite([tensor for (_, tensor), new in zip(given, taken.written, strict=False) if new])
        tensors = [tensor for _, tensor in given]
        kept = [tensors[number] for number in sorted(taken.saved_arguments)]
        kept += [made[number] for number in sorted(taken.saved_results)]
        gradients: dict[str, int] = {}
        for (source, _), size in zip(given, taken.gradients, strict=True):
            if size >= 0:
                gradients[source.name] = gradients.get(source.name, 0) + size
        states = self.traced.graph.states
        return OpMemory(
            results,
            taken.workspace,
            tuple(dict.fromkeys(self.number[storage_key(tensor)] for tensor in kept)),
            taken.kept,
            taken.backward,
            tuple((name, size) for name, size in gradients.items() if name not in states),
            tuple(states[name] for name in gradients if name in states),
        )

    def _rewrite(self, written: Sequence[torch.Tensor]) -> None:
        """Everything in the storage of what was written in place has a history."""
        numbers = {self.number[storage_key(tensor)] for tensor in written}
        for name in (name for number in numbers for name in self.names[number]):
            self.history[name] = (True,) * len(self.history[name])

    def _taken(self, node: torch.fx.Node, sources: Sequence[torch.fx.Node]) -> Taken | None:
        """What a call takes; calls of one form take the same. ``None`` if it cannot be called on fakes."""
        if is_switch(node) or is_bound(node):  # to call it would switch something here and now
            return None
        place = {source: number for number, source in enumerate(sources)}
        forms = tuple((form_of(value_of(source)), self.history.get(source.name, ())) for source in sources)
        form = form_of(fill((node.args, node.kwargs), lambda source: ("node", place.get(source))))
        key = node.target, form, forms, self.traced.graph.by_name[node.name].mode
        return remembered(self.known, key, lambda: self._measured(node, sources))

    def _measured(self, node: torch.fx.Node, sources: Sequence[torch.fx.Node]) -> Taken | None:
        flags = [flag for source in sources for flag in self.history[source.name]]
        likes = [tensor for source in sources for tensor in tensors_in(value_of(source))]

        def call(given: Sequence[torch.Tensor]) -> Any:
            tensors = iter(given)
            values = {source: tree_map_only(torch.Tensor, lambda _: next(tensors), value_of(source)) for source in sources}
            args, kwargs = fill((node.args, node.kwargs), lambda source: values.get(source, value_of(source)))
            args, kwargs = tree_map(number_of, (args, kwargs))
            with self._mode(node):
                return linear_outside(*args, **kwargs) if node.target is _LINEAR else call_node(node, args, kwargs)

        try:
            with torch.inference_mode(False), torch.set_grad_enabled(self.training), self.fake, Meter(self.kernels) as meter:
                return take(call, lambda: [_like(t, flag) for t, flag in zip(likes, flags, strict=True)], meter)
        except Exception:  # a fake kernel may raise anything
            return None

    def _mode(self, node: torch.fx.Node) -> AbstractContextManager[None]:
        mode = self.traced.graph.by_name[node.name].mode
        return nullcontext() if mode is None else under(mode.grad and self.training, None, mode.autocast, mode.cache)

    def _guess(
        self, sources: Sequence[torch.fx.Node], given: Sequence[tuple[torch.fx.Node, torch.Tensor]], made: list[torch.Tensor]
    ) -> Taken:
        """What a call takes at most that was not seen, unless it has insides: all that goes in and comes out is kept."""
        flags = [flag for source in sources for flag in self.history[source.name]]
        backward = self.training and any(flags)
        sizes = [_bytes(tensor) if flag else -1 for flag, (_, tensor) in zip(flags, given, strict=True)]
        floating = tuple(backward and (tensor.is_floating_point() or tensor.is_complex()) for tensor in made)
        if not any(floating):
            return Taken(gradients=(-1,) * len(given), differentiable=floating)
        everything = frozenset(range(len(given))), frozenset(range(len(made)))
        return Taken(0, 0, *everything, sum(size for size in sizes if size > 0), tuple(sizes), floating)


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of a fake's storage, with open sizes as they were in the example."""
    try:
        return int(number_of(tensor.untyped_storage().nbytes()))
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper of several tensors
        return 0


def _like(tensor: torch.Tensor, history: bool) -> torch.Tensor:
    """A new fake of the same form. One with a history is no leaf, for an op may write it in place."""
    fake = empty_like(tensor)
    return fake.requires_grad_().clone() if history else fake
