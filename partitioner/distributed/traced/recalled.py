"""Calls of ops on fakes, each distinct one made once: layers are alike, and so is what their ops give.

    layer 0    view(x, 2, 4)    called           a view of x
    layer 1    view(y, 2, 4)    as in layer 0    a view of y

What a call gives is told by the forms of its arguments, and by which of them share a storage. It is made again of these alone:
a new tensor, one of the arguments, or a view of one, as torch makes again what single ops of ATen's give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from partitioner.model.modes import modes_here
from partitioner.model.node import call_target
from partitioner.model.storage import storage_key, version_of

_CONSTANTS = (bool, int, float, str, type(None))
"""What a result may have beside tensors; symbolic numbers are others in each call."""


@dataclass(frozen=True)
class _Made:
    """How a tensor of a result is made again.

    Args:
        source: the number of the argument, or behind these of the result, that it is or is a view of; -1: it is new.
        same: whether it is that tensor itself.
        form: its shape, strides and offset.
        dtype, device: of it.
    """

    source: int
    same: bool
    form: tuple[tuple[int, ...], tuple[int, ...], int]
    dtype: torch.dtype
    device: torch.device

    def again(self, known: Sequence[Any], fake: FakeTensorMode) -> torch.Tensor:
        """A tensor like it, where the arguments and the results before it are these."""
        if self.same:
            return known[self.source]  # type: ignore[no-any-return]
        if self.source < 0:
            bare = torch.empty_strided(*self.form[:2], dtype=self.dtype, device="meta")
        else:
            with in_kernel_invocation_manager(fake):
                bare = torch.as_strided(known[self.source], *self.form)
        return FakeTensor(fake, bare, self.device)


@dataclass(eq=False)
class Calls:
    """Calls ops on fakes, without gradients and in the caller's autocast, or tells what they would give.

    Attributes:
        known: what calls gave, by what tells them apart; ``None`` where that cannot be made again.
    """

    known: dict[Any, tuple[tuple[Any, ...], TreeSpec] | None] = field(default_factory=dict)

    def __call__(self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], fake: FakeTensorMode) -> Any:
        """What a call gives.

        Args:
            kind, target, args, kwargs: as for `call_target`.
            fake: the mode of all fakes among them.

        Example:
            >>> fake, calls = FakeTensorMode(), Calls()
            >>> with fake:
            ...     one, other = torch.empty(2, 3), torch.empty(2, 3)
            >>> first, second = (calls("call_method", "t", [each], {}, fake) for each in (one, other))
            >>> second.shape, storage_key(second) == storage_key(other)
            (torch.Size([3, 2]), True)
        """
        leaves, structure = tree_flatten((args, kwargs))
        key: Any = (kind, target, structure, modes_here()[2:], *_forms(leaves, fake))
        known = None
        try:
            known = self.known.get(key)
        except TypeError:  # an argument cannot be hashed
            key = None
        with torch.no_grad():
            if known is not None:
                found = list(leaves)
                for each in known[0]:
                    found.append(each.again(found, fake) if isinstance(each, _Made) else each)
                return tree_unflatten(found[len(leaves) :], known[1])
            before = _versions(leaves)
            with fake:
                result = call_target(kind, target, args, kwargs)
            if key is not None and _versions(leaves) == before:
                self.known[key] = _given(leaves, result, fake)
            return result

    def as_in(
        self, like: Any, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], fake: FakeTensorMode
    ) -> Any:
        """What a call gives; as no gradients are followed here, another value tells which of its tensors need one.

        Args:
            like: that value, such as the one of a whole copy, of which this one has a part.
            kind, target, args, kwargs, fake: as for a call.
        """
        found = self(kind, target, args, kwargs, fake)
        needed = iter([leaf.requires_grad for leaf in tree_leaves(like) if isinstance(leaf, torch.Tensor)])
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor) and next(needed, False):
                leaf.requires_grad_()
        return found


def _forms(leaves: Sequence[Any], fake: FakeTensorMode) -> list[Any]:
    """What tells arguments apart: the forms of tensors, and which of them share a storage."""
    numbers: dict[int, int] = {}
    forms: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            forms.append((type(leaf), leaf))
        elif _is_plain(leaf, fake):
            number = numbers.setdefault(storage_key(leaf), len(numbers))
            forms.append((number, _form(leaf), leaf.dtype, leaf.device))
        else:
            forms.append([])  # cannot be hashed: nothing is known of it
    return forms


def _form(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _is_plain(tensor: torch.Tensor, fake: FakeTensorMode) -> bool:
    """Whether a fake is told by its form: dense, of sizes that are numbers, and its bits are what it says."""
    return (
        isinstance(tensor, FakeTensor)
        and tensor.fake_mode is fake
        and tensor.layout is torch.strided
        and all(type(size) is int for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))
        and not tensor.is_inference()  # of these nobody counts how often they are written
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _versions(leaves: Sequence[Any]) -> list[int]:
    """How often each tensor was written: a call that writes is made each time, for it may change what it is given."""
    return [version_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _given(leaves: Sequence[Any], result: Any, fake: FakeTensorMode) -> tuple[tuple[Any, ...], TreeSpec] | None:
    """How a result is made again of the arguments; ``None`` if it has what is told by more than its form."""
    made, structure = tree_flatten(result)
    known, found = list(leaves), []
    for leaf in made:
        if isinstance(leaf, torch.Tensor):
            again = _made(known, leaf) if _is_plain(leaf, fake) else None
            if again is None:
                return None
            found.append(again)
        elif type(leaf) in _CONSTANTS:
            found.append(leaf)
        else:
            return None
        known.append(leaf)
    return tuple(found), structure


def _made(known: Sequence[Any], leaf: torch.Tensor) -> _Made | None:
    key = storage_key(leaf)
    shared = [place for place, each in enumerate(known) if isinstance(each, torch.Tensor) and storage_key(each) == key]
    same = [place for place in shared if known[place] is leaf]
    source = (*same, *shared, -1)[0]
    if source >= 0 and known[source].dtype != leaf.dtype:
        return None  # its bits under another dtype
    return _Made(source, bool(same), _form(leaf), leaf.dtype, leaf.device)
