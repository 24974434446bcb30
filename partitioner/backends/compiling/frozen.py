"""A task's weights as constants, laid out for their kernels once and not in each call, as long as nobody writes to them.

    linear(x, w, b)                         matmul(x, v) + b     v is w turned: kernels for few rows read it in one piece
    batch_norm(conv2d(x, w), ...)           conv2d(x, v, c)      what a layer does to all results alike is in its weights
    linear(x, w, b), linear(x, u, c)        linear(x, v, d)      v is w and u, one below the other
    conv2d(x, w)                            oneDNN's own         v is w in blocks

Before each call weights are asked whether they are the same tensors in the same memory, and how often they were written. Where
one has changed, the call is made on the weights as they are. A write that torch does not count, through ``weight.data`` or an
array of numpy that shares the memory, goes unnoticed.

Passes are those of `torch.jit.freeze` and `torch.jit.optimize_for_inference`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner.backends.bodies import STATE
from partitioner.backends.compiling.batched import outside, put_together
from partitioner.backends.compiling.scripted import LOCK, Scripted, torchscript
from partitioner.backends.race import MATTERS, measured

FIRST = ("constant_propagation", "optimize_frozen_graph")
"""Passes of torch over every graph: what is made of weights alone is a constant; then what `torch.jit.freeze` does."""

LAYOUTS = (("transpose_frozen_linear",), ("convert_frozen_ops_to_mkldnn",))
"""Passes that each lay weights out: turned, and in oneDNN's blocks, as `torch.jit.optimize_for_inference` does."""

ROUNDING = 1e-3
"""How far a result may be from that of the weights as they lie, as a part of the largest value."""

SHORTEST = 2e-3
"""Seconds that a function is timed at least: there may be many, each in several ways."""

AGAIN = 100
"""Calls on weights that have changed, after which they are laid out once more."""

_VERSION: Callable[[Tensor], int] = attrgetter("_version")


@dataclass(frozen=True, eq=False)
class Laid:
    """A function that holds weights as they were.

    Args:
        function: takes all arguments, and reads only those that are no weights.
        positions: of weights among the arguments.
        weights: whose values it has.
        stamp: how often these were written by then, and where they lay.
        memory: what lies there, so that nobody else gets that memory meanwhile.
    """

    function: Scripted
    positions: Sequence[int]
    weights: Sequence[Tensor]
    stamp: Sequence[int]
    memory: Sequence[Tensor]

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether its weights are among the arguments, and nobody has written to them."""
        weights = [arguments[position] for position in self.positions]
        return all(map(is_, weights, self.weights)) and stamp(weights) == self.stamp


Lay = Callable[[Sequence[Any]], Laid]
"""Lays out the weights among some arguments."""


@dataclass(eq=False)
class Frozen:
    """What a task is called as.

    Args:
        plainly: takes the weights as they are.
        lay: makes the fastest function of those among the arguments.
        laid: what holds those of the last calls.
    """

    plainly: Scripted
    lay: Lay
    laid: Laid

    def __post_init__(self) -> None:
        self.lock, self.seen, self.calls = threading.Lock(), self.laid.stamp, 0

    def __call__(self, *arguments: Any) -> Any:
        """The results."""
        laid = self.laid
        return laid.function(*arguments) if laid.holds(arguments) else self._changed(arguments)

    def _changed(self, arguments: Sequence[Any]) -> Any:
        """On weights as they are; the last of many calls on the same ones lays them out."""
        with self.lock:
            weights = [arguments[position] for position in self.laid.positions]
            now = stamp(weights) if can_freeze(weights) else []
            self.calls = self.calls + 1 if now and now == self.seen else 0
            self.seen = now
            if self.calls == AGAIN:
                self.laid = self.lay(arguments)
        return self.plainly(*arguments)


def stamp(weights: Sequence[Tensor]) -> list[int]:
    """How often tensors were written, and where they lie."""
    return [*map(_VERSION, weights), *map(Tensor.data_ptr, weights)]


def can_freeze(weights: Sequence[Any]) -> bool:
    """Whether there are weights, on a CPU, whose writes torch counts."""
    plain = all(type(each) in (Tensor, nn.Parameter) and each.device.type == "cpu" for each in weights)
    return bool(weights) and plain and not any(each.is_inference() for each in weights)


def frozen(module: torch.fx.GraphModule, arguments: Sequence[Any], *others: Sequence[Any]) -> Scripted | Frozen:
    """What `torchscript` makes of a module, or the fastest function that holds its weights.

    Weights are the arguments whose positions are in ``module.meta``. With gradients, or on accelerators, they stay as they are.
    """
    plainly = torchscript(module, arguments, *others)
    weights = [arguments[position] for position in module.meta[STATE]]
    recorded = torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in arguments)
    if recorded or not can_freeze(weights):
        return plainly
    try:
        seen, wanted = outside(_twice(plainly), arguments), tree_leaves(plainly(*arguments))
    except Exception:  # it fails on these values, and may not on others
        return plainly
    ways: list[Frozen] = []
    for function in _versions(module, plainly, None if others else arguments):
        for passes in LAYOUTS:
            lay = partial(_laid_out, function, module.meta[STATE], passes)
            with suppress(Exception):  # what torch's passes do not take
                made = lay(arguments)
                alike = outside(_twice(made.function), arguments) == seen  # as many results, that lie alike
                if alike and _are_near(wanted, made.function(*arguments)):
                    ways.append(Frozen(plainly, lay, made))
    return _fastest(plainly, ways, arguments)


def _versions(module: torch.fx.GraphModule, plainly: Scripted, arguments: Sequence[Any] | None) -> Iterator[Scripted]:
    """The ops as they are and, if all sizes are known, with equal ones put together, whose weights then are one constant."""
    yield plainly
    together = None if arguments is None else put_together(module, arguments)
    if arguments is not None and together is not None:
        yield torchscript(together, arguments)


def _laid_out(function: Scripted, positions: Sequence[int], passes: Sequence[str], arguments: Sequence[Any]) -> Laid:
    """The function with arguments at some positions as constants, after some passes of torch."""
    weights = [arguments[position] for position in positions]
    now, memory = stamp(weights), [each.detach() for each in weights]
    graph = function.function.graph.copy()
    given, first = list(graph.inputs()), next(iter(graph.nodes()))
    with LOCK, torch.no_grad():
        with graph.insert_point_guard(first):
            for position, value in zip(positions, memory, strict=True):
                given[position].replaceAllUsesWith(graph.insertConstant(value))
        for name in (*FIRST, *passes):
            run = getattr(torch._C, f"_jit_pass_{name}")
            run(graph, True) if name == "optimize_frozen_graph" else run(graph)
        made = Scripted(torch._C._create_function_from_graph(function.function.name, graph))
    return Laid(made, positions, weights, now, memory)


def _twice(function: Scripted) -> Callable[..., Any]:
    """Two calls of a function: what lies in memory of its own in each call is seen from outside."""
    return lambda *arguments: (function(*arguments), function(*arguments))


def _are_near(wanted: Sequence[Tensor], results: Any) -> bool:
    """Whether results are those of the weights as they lie, but for rounding."""
    return all(map(_is_near, wanted, tree_leaves(results)))


def _is_near(wanted: Tensor, given: Tensor) -> bool:
    if wanted.dtype != given.dtype or not wanted.dtype.is_floating_point:
        return wanted.dtype == given.dtype and torch.equal(wanted, given)
    largest = float(wanted.abs().nan_to_num(0.0, 0.0, 0.0).max()) if wanted.numel() else 0.0
    return torch.allclose(given, wanted, rtol=0.0, atol=ROUNDING * largest, equal_nan=True)


def _fastest(plainly: Scripted, others: Sequence[Frozen], arguments: Sequence[Any]) -> Scripted | Frozen:
    """The one of ``others`` that takes least time, with what it asks of weights, or ``plainly`` if none is clearly faster."""
    if not others:
        return plainly
    ways: list[Scripted | Frozen] = [plainly, *others]
    calls = {str(number): partial(way, *arguments) for number, way in enumerate(ways)}
    serial, *seconds = measured(calls, shortest=SHORTEST).values()
    return others[seconds.index(min(seconds))] if min(seconds) * MATTERS < serial else plainly
