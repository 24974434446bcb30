"""A traced method, as those know it who trace its frames, and what they raise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType

from torch import nn

from partitioner.errors import PartitionerError

MOST = 64
"""Programs that one code may have. What makes more of them has a constant that differs in every call."""


class Owner:
    """A traced method, as far as its frames concern it: what it may do, what failed so far, how many programs it has.

    Attributes:
        entry: the function that is traced.
        failures: why frames run as they are, by their code.
        pending: likewise, of the call that runs.
        fixed: why code cannot be one graph if sizes or numbers vary: each of its further programs is for those of one call.
        layers: code of torch's own layers that are traced where what calls them runs as it is. Dynamo traces them with their
            callers alone, and leaves them out there, for one layer gains nothing. But its weights may belong to another device.
    """

    def __init__(self, root: nn.Module, whole: bool, home: Callable[[], str | None], once: bool, apart: bool) -> None:
        self.root, self.whole, self.ask_home, self.once = root, whole, home, once
        self.between, self.apart = apart and not whole, apart and whole and not once
        self.layers = frozenset(_layers(root) if self.between else ())
        self.entry: FunctionType
        self.failures: dict[CodeType, str] = {}
        self.pending: dict[CodeType, str] = {}
        self.fixed: dict[CodeType, str] = {}
        self.programs: Counter[CodeType] = Counter()

    @property
    def home(self) -> str | None:
        """Where all tensors are taken to lie while a frame of this call is traced."""
        return self.ask_home()


class Untraceable(Exception):
    """A frame cannot be traced, and may not run as it is."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class AsItIs(PartitionerError):
    """A frame could be traced, and runs as it is all the same, in this call and in all others."""


def _layers(root: nn.Module) -> Iterator[CodeType]:
    """The code of forward of torch's own layers in a model that have weights, or hold others that do."""
    for module in root.modules():
        if type(module).__module__.startswith("torch.nn.") and any(True for _ in module.parameters()):
            yield type(module).forward.__code__
