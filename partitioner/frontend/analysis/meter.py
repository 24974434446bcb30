"""What one call of an op takes, measured by PyTorch itself: the op runs forward and backward on fakes, and a meter counts.

What a kernel takes inside of itself fakes do not show; `kernels.py` tells it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode

from partitioner.frontend.analysis.kernels import NOTHING, Kernels
from partitioner.model.fakes import number_of, tensors_in
from partitioner.model.storage import storage_key, storage_span

aten = torch.ops.aten

ZEROS = frozenset({aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default})

IN_PLACE = frozenset(
    {aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_put.default, aten.index_add.default}
)
"""What autograd's formulas do in place, on zeros that they have made, where no dispatch mode looks."""


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that ops make while it is entered, as long as they live. Fakes count as if they were real.

    Args:
        kernels: tells what kernels take inside of themselves; left out, nothing.

    >>> with Meter() as meter:
    ...     for _ in range(3):
    ...         x = torch.ones(256)
    >>> meter.now, meter.peak
    (1024, 2048)
    """

    def __init__(self, kernels: Kernels | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = kernels
        self.live: dict[int, int] = {}
        self.zeros: set[int] = set()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inside = NOTHING if self.kernels is None else self.kernels.inside(func, args, kwargs, result)
        if func in IN_PLACE and (key := storage_key(args[0])) in self.zeros:
            self.now -= self.live[key]
            self.live[key] = 0
        made = list(tensors_in(result))
        sizes = inside.results if len(inside.results) == len(made) else [0] * len(made)
        for tensor, size in zip(made, sizes, strict=True):
            self.count(tensor, size)
        if func in ZEROS:
            self.zeros.update(map(storage_key, made))
        self.peak = max(self.peak, self.now + inside.hidden)
        return result

    def count(self, tensor: torch.Tensor, empty: int = 0) -> None:
        """Count the storage of a tensor from now on until it is gone; of an empty one as if it took so many bytes."""
        key = storage_key(tensor)
        if key in self.live or key < 0:
            return
        storage = tensor.untyped_storage()
        size = int(number_of(storage.nbytes())) or empty
        self.live[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key).atexit = False

    def _gone(self, key: int) -> None:
        self.now -= self.live.pop(key)
        self.zeros.discard(key)

    def start(self) -> int:
        """Begin to look for a peak; the bytes that live now."""
        self.peak = self.now
        return self.now


@dataclass(frozen=True)
class Taken:
    """What one call takes. Arguments and results are the tensors in them, by number.

    Args:
        workspace: bytes at most while it runs, beyond what it leaves.
        kept: bytes of storages that are no argument's and no result's, and live until backward.
        saved_arguments, saved_results: those whose storages live until backward.
        backward: bytes at most while backward runs, beyond what was there when it began: the results' gradients, which go as
            soon as they have been used.
        gradients: for each argument, the bytes of its gradient, 0 if it has the storage of a result's; -1 if it gets none.
        differentiable: for each result, whether it has a history.
        written: for each argument, whether it has another history than before: it was written in place.
    """

    workspace: int = 0
    kept: int = 0
    saved_arguments: frozenset[int] = frozenset()
    saved_results: frozenset[int] = frozenset()
    backward: int = 0
    gradients: tuple[int, ...] = ()
    differentiable: tuple[bool, ...] = ()
    written: tuple[bool, ...] = ()


@dataclass
class _Backward:
    """A call's history, once nothing else holds on to its arguments and results.

    Nodes of autograd hold what they saved: whose storages still live was saved.
    """

    arguments: list[int]
    results: list[int]
    starts: list[torch.Tensor]  # of what has a history
    given: _Arrived
    into: list[GradientEdge | None]
    differentiable: tuple[bool, ...]
    written: tuple[bool, ...]
    others: set[int]  # storages that have nothing to do with the call


class _Arrived:
    """The gradients of a call's results, which backward gets as in a model: nobody else holds on to them.

    Attributes:
        bytes: of all of them.
        alive: their storages that live still.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.alive: set[int] = set()

    def take_in(self, gradient: torch.Tensor) -> torch.Tensor:
        """Note a gradient, which is given back."""
        storage, key = gradient.untyped_storage(), storage_key(gradient)
        self.bytes += int(number_of(storage.nbytes()))
        self.alive.add(key)
        weakref.finalize(storage, self.alive.discard, key).atexit = False
        return gradient


class _Start(torch.autograd.Function):
    """Where the backward of a result starts: makes its gradient, and holds neither."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, arrived: _Arrived) -> torch.Tensor:
        ctx.arrived, ctx.size, ctx.form = arrived, result.size(), {"dtype": result.dtype, "device": result.device}
        ctx.stride = result.stride() if result.layout is torch.strided else None
        return torch.zeros((), **ctx.form)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.stride is None:  # what it takes is not counted either
            return torch.zeros(ctx.size, **ctx.form), None
        return ctx.arrived.take_in(torch.empty_strided(ctx.size, ctx.stride, **ctx.form)), None


def take(call: Callable[[Sequence[torch.Tensor]], Any], arguments: Callable[[], list[torch.Tensor]], meter: Meter) -> Taken:
    """Measure a call, and its backward if it has one.

    Args:
        call: of the tensors that ``arguments`` makes; its result holds tensors.
        arguments: makes fakes; those that get a gradient have a history.
        meter: entered.
    """
    history, workspace = _forward(call, arguments, meter)
    saved = meter.live.keys() - history.others - {storage_key(start) for start in history.starts}
    kept = sum(meter.live[key] for key in saved - {*history.arguments, *history.results})
    backward, gradients = _backward(history, meter)
    return Taken(
        workspace,
        kept,
        frozenset(number for number, key in enumerate(history.arguments) if key in saved),
        frozenset(number for number, key in enumerate(history.results) if key in saved),
        backward,
        gradients,
        history.differentiable,
        history.written,
    )


def _forward(
    call: Callable[[Sequence[torch.Tensor]], Any], arguments: Callable[[], list[torch.Tensor]], meter: Meter
) -> tuple[_Backward, int]:
    """Call; the history that is left of it, and the bytes that it took beyond what it leaves."""
    given = arguments()
    into = [_edge(tensor) for tensor in given]
    keys = [storage_key(tensor) for tensor in given]
    others = meter.live.keys() - set(keys)
    start = meter.start()
    results = list(tensors_in(call(given)))
    peak = meter.peak - start
    made = [storage_key(tensor) for tensor in results]
    flags = tuple(tensor.requires_grad for tensor in results)
    written = tuple(edge != before for edge, before in zip(map(_edge, given), into, strict=True))
    ends = [*results, *(tensor for tensor, new in zip(given, written, strict=True) if new and storage_key(tensor) not in made)]
    left = meter.now - start
    arrived = _Arrived()
    starts = [_Start.apply(tensor, arrived) for tensor in ends if tensor.requires_grad]  # type: ignore[no-untyped-call]
    return _Backward(keys, made, starts, arrived, into, flags, written, others), peak - left


def _edge(tensor: torch.Tensor) -> GradientEdge | None:
    """Where the gradient of a tensor goes, if it has a history."""
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def _backward(history: _Backward, meter: Meter) -> tuple[int, tuple[int, ...]]:
    """Bytes of the backward at most, beyond the gradients that it is given, and those of each argument's gradient."""
    wanted = [number for number, edge in enumerate(history.into) if edge is not None]
    sizes = [-1] * len(history.into)
    if not wanted or not history.starts:
        return 0, tuple(sizes)
    inputs = [edge for edge in history.into if edge is not None]
    given = [start.detach() for start in history.starts]
    start = meter.start()
    found = torch.autograd.grad(history.starts, inputs, given, allow_unused=True)
    seen = set(history.given.alive)
    for number, gradient in zip(wanted, found, strict=True):
        if gradient is not None:
            key = storage_key(gradient)
            sizes[number] = 0 if key in seen else meter.live.get(key, storage_span(gradient)[1])
            seen.add(key)
    return max(0, meter.peak - start - history.given.bytes), tuple(sizes)
