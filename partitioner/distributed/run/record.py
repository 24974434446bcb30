"""The ops that a loss function calls, written down while it is called, to be called again with other rows.

A user's function may count and keep what it is called with, so it is called once, as it would be; what stands between its ops
is not run by Python a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from partitioner.frontend.analysis.static import draws, mutated_arguments

NO_SIZES = frozenset(
    """correction delta dim dim0 dim1 dim2 dims dtype eps exponent ignore_index implicit label_smoothing layout margin max min
    negative_slope norm p pin_memory reduction""".split()
)
"""Arguments of ATen's ops that are no number of rows, and multiply by none."""

MOST, MUCH = 2**24, 2**20
"""Elements beyond which nobody looks, and beyond which nobody looks more than twice: each op is called again on as many."""

VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)
"""What lays rows out otherwise: its sizes divide nothing."""

COMPARISONS = frozenset("eq ge gt le lt ne".split())

Told = TypeVar("Told")


@dataclass(frozen=True)
class _Place:
    number: int


class Record(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the ops of ATen's that are called within it.

    Args:
        given: the tensors that may have other values when they are called again.
        by_row: whether whatever has rows is among them.

    Attributes:
        complete: whether none talks to other ranks, writes to what was there before, or is unknown to ATen.
        constants: tensors that were there before, and are none of those given.
        drawn: whether numbers were drawn.
        told: whether Python was told a value, of which it may make numbers.

    Example:
        >>> x = torch.tensor([1.0, 2.0])
        >>> with Record([x]) as record:
        ...     y = (x * 2).sum()
        >>> record.replay([torch.tensor([3.0, 4.0])], [y])
        [tensor(14., dtype=torch.float64)]
    """

    supports_higher_order_operators = True  # which are called, and end the record

    def __init__(self, given: Sequence[torch.Tensor], *, by_row: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given, self.by_row = given, by_row
        self.complete, self.drawn, self.told = True, False, False
        self.constants: list[torch.Tensor] = []
        self._calls: list[tuple[Any, Any, list[_Place | None]]] = []
        self._places: Any = WeakTensorKeyDictionary()  # what comes between is kept alive by nothing here
        self._count = 0
        self._last: dict[_Place, int] = {}  # the last op that reads a value
        for each in given:
            self._place(each)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or "c10d" in func.namespace:
            self.complete = False
            return func(*args, **kwargs)
        written = [leaf for leaf in tree_leaves([*mutated_arguments(func, args, kwargs)]) if isinstance(leaf, torch.Tensor)]
        self.complete &= all(each in self._places for each in written)
        self.told |= func is torch.ops.aten._local_scalar_dense.default
        noted = tree_map_only(torch.Tensor, self._noted, (args, kwargs))
        made = func(*args, **kwargs)
        if func in VIEWS:
            noted = ((noted[0][0], list(made.shape)), {})
        if draws(func, args, kwargs):  # the same numbers, when ops are called again
            self.drawn = True
            for leaf in (each for each in tree_leaves(made) if isinstance(each, torch.Tensor)):
                self.complete &= all(leaf is not each for each in self.given)
                self._places.pop(leaf, None)
        else:
            self._last |= dict.fromkeys((leaf for leaf in tree_leaves(noted) if isinstance(leaf, _Place)), len(self._calls))
            self._calls.append((func, noted, [self._place(each) for each in tree_leaves(made)]))
        return made

    def _place(self, value: Any) -> _Place | None:
        if not isinstance(value, torch.Tensor):
            return None
        if value not in self._places:
            self._places[value], self._count = _Place(self._count), self._count + 1
        place: _Place = self._places[value]
        return place

    def _noted(self, tensor: torch.Tensor) -> Any:
        if tensor not in self._places:
            self.constants.append(tensor)
        return self._places.get(tensor, tensor)

    def made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was given, or is a result of an op."""
        return tensor in self._places

    def reads(self, given: torch.Tensor) -> bool:
        """Whether an op reads one of those given."""
        return self._places[given] in self._last

    @property
    def read(self) -> int:
        """Elements of those given that an op reads."""
        return sum(each.numel() for each in self.given if self.reads(each))

    def repeats(self, loss: torch.Tensor) -> bool:
        """Whether it can be asked what the loss would be of other values: nothing is in the way, nor is that much work."""
        return self.complete and self.made(loss) and self.read <= MOST

    def knows(self, rows: int) -> bool:
        """Whether all that has rows was given."""
        return self.by_row and not any(has_rows(each, rows) for each in self.constants)

    def numbers(self, loss: torch.Tensor) -> tuple[list[float], list[float]]:
        """What may be a size, among the arguments of the ops behind a loss; and what may multiply something."""
        sizes, factors = list[float](), list[float]()
        for func, (args, kwargs) in self._behind(loss):
            named = {**dict(zip((each.name for each in func._schema.arguments), args, strict=False)), **kwargs}
            tensors = (leaf for leaf in tree_leaves(named) if isinstance(leaf, torch.Tensor) and leaf.numel() == 1)
            factors += [float(leaf.item()) for leaf in tensors]
            kind = func.overloadpacket.__name__
            for argument in () if kind in COMPARISONS or func in VIEWS else func._schema.arguments:
                if argument.name not in NO_SIZES:
                    leaves = [each for each in tree_leaves(named.get(argument.name)) if type(each) in (int, float) and each]
                    found = sizes if "int" in str(argument.type) else factors
                    found += [1 / each if kind.startswith("div") else each for each in leaves]
        return sizes, factors

    def _behind(self, loss: torch.Tensor) -> Iterator[tuple[Any, Any]]:
        """The ops that a loss is made by, and those that write, for it may be to a view; the last first."""
        needed: set[_Place | None] = {self._places[loss]}
        for func, noted, places in reversed(self._calls):
            if func._schema.is_mutable or not needed.isdisjoint(places):
                needed.update(leaf for leaf in tree_leaves(noted) if isinstance(leaf, _Place))
                yield func, noted

    def replay(self, given: Sequence[torch.Tensor], wanted: Iterable[torch.Tensor], rows: int = 1) -> list[torch.Tensor]:
        """Call the ops again, in double precision.

        Args:
            given: other values in place of those given.
            wanted: results, as they were the first time.
            rows: that there were, where there are several times as many.

        Returns:
            what they are now.
        """
        kept = [self._places[each] for each in wanted]
        held = {self._places[known]: each.detach() for known, each in zip(self.given, given, strict=True)}
        held = {place: _doubled(held[place].clone()) for place in (*self._last, *kept) if place in held}
        for number, (func, noted, places) in enumerate(self._calls):
            args, kwargs = tree_map(lambda leaf: held[leaf] if isinstance(leaf, _Place) else _doubled(leaf), noted)
            args = _resized(args[0], args[1], rows) if func in VIEWS else _doubled_options(func, args)
            made = tree_leaves(func(*args, **kwargs))
            held.update((place, each) for place, each in zip(places, made, strict=True) if place is not None)
            for place in [each for each in held if self._last.get(each, 0) <= number and each not in kept]:
                del held[place]
        return [held[each] for each in kept]


def _doubled(leaf: Any) -> Any:
    """A tensor in double precision, or that dtype."""
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _doubled_options(func: Any, args: Sequence[Any]) -> list[Any]:
    """A softmax of half precision gives single precision if it is asked to, and cannot of double precision."""
    names = [each.name for each in func._schema.arguments]
    return [False if name == "half_to_float" else value for name, value in zip(names, args, strict=False)]


def _resized(tensor: torch.Tensor, sizes: Sequence[int], rows: int) -> tuple[Any, Any]:
    """The arguments of a view, of a tensor that has several times as many rows now."""
    times = tensor.numel() // max(prod(sizes), 1)
    along = [place for place, size in enumerate(sizes) if size % rows == 0]
    if times != 1 and len(along) != 1:
        raise ValueError("it cannot be said in which dimension the rows are")
    return tensor, [size * times if place in along else size for place, size in enumerate(sizes)]


def unless_refuted(ask: Callable[[], Told]) -> Told | None:
    """What replays tell; ``None`` where an op takes no double precision, or no other sizes."""
    try:
        with torch.no_grad(), torch._C._DisableAutocast():
            return ask()
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None


def has_rows(value: torch.Tensor, rows: int) -> bool:
    """Whether a value has a row for each of a batch's."""
    return value.dim() > 0 and len(value) == rows
