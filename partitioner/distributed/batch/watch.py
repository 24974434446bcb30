"""What is done to a model behind the back of its stages, noticed before the next batch: refused, for no stage would see it.

    part, step = parallelize(model, ...)
    model.dropout.eval()                  stages drop as before            refused
    model.temperature = 0.5               stages have the old number       refused, where forward reads it
    model.head.weight = other             stages have the old one          refused
    model.load_state_dict(...)            right, but for what was replaced (fsdp2, tensor axis, another device): a warning

Whether a change matters, the tracer's own guards say: what forward does not read may change. A model that was switched as a
whole, to make an `inference` of it beside the step, is no change: its stages are others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from partitioner.distributed.batch.touched import Touched, has_hooks
from partitioner.distributed.ranks import here
from partitioner.distributed.traced.example import Example
from partitioner.errors import InputError
from partitioner.model.call import Call
from partitioner.model.modes import autocast_here
from partitioner.model.state import all_state
from partitioner.model.storage import version_of

PLACE = "another tensor in its place (under fsdp2, a tensor axis, on another device, or beside a part of other layers)"

_PLAIN = (bool, int, float, str, tuple, type(None))

_SEEN: WeakKeyDictionary[nn.Module, list[list[bool]]] = WeakKeyDictionary()
"""The modes, layer by layer, in which stages were made of a model."""


@dataclass(frozen=True, eq=False)
class _Slot:
    """Where a tensor of the model lay when stages were made: its key, the dictionary that has it, and how it was."""

    key: str
    where: dict[str, torch.Tensor | None]
    tensor: torch.Tensor
    needs: bool
    version: int

    @property
    def now(self) -> torch.Tensor | None:
        """What lies there."""
        return self.where.get(self.key.rpartition(".")[2])


class Watch:
    """How a model was when stages were made of it.

    Args:
        model: the whole model.
        example: its call, as it was traced.
        part: what this rank holds, under the model's keys.
        stages: likewise, buffers that are no part of a state_dict among them.
        touched: sees what was done to the part.
        traceable: whether the call can be looked at again: not, where weights were read into a model without storage.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Example,
        part: nn.Module,
        stages: Iterable[nn.Module],
        touched: Touched,
        *,
        traceable: bool,
    ) -> None:
        self.model, self.example, self.touched, self.traceable = model, example, touched, traceable
        self.modes, self.autocast = _modes(model), autocast_here()
        self.attributes = dict(_attributes(model))
        held = {key: tensor for each in (*stages, part) for key, tensor in all_state(each).items()}
        self.slots = list(_slots(model))
        self.replaced = [slot for slot in self.slots if held.get(slot.key, slot.tensor) is not slot.tensor]
        self.warned = False
        _SEEN.setdefault(model, []).append(self.modes)

    def refuse_changes(self) -> None:
        """Refuse a model that is another one since.

        Raises:
            InputError: names what has changed, and what it was.
        """
        if (mode := autocast_here()) != self.autocast:
            raise InputError(
                f"autocast is {mode}, and was {self.autocast} when the stages were made: call parallelize, and each step, in "
                "the same autocast"
            )
        if torch.get_default_device().type == "meta":
            raise InputError('tensors are made on the meta device here, without values: step outside of torch.device("meta")')
        self.touched.refuse_changes()
        modes = _modes(self.model)
        if modes not in _SEEN.get(self.model, ()):
            _refuse(self._switched())
        for slot in self.slots:
            now = slot.now
            if now is not slot.tensor and (now is None or not now.is_meta):  # the model may go to meta, to take no memory
                _refuse(f"{slot.key} is another tensor")
        for slot in self.replaced:
            self._see_replaced(slot)
        if self.traceable:
            with _in_modes(self.model, modes, self.modes):
                if not self.example.is_current():
                    _refuse(self._changed())

    def reads(self, call: Call) -> bool:
        """Whether forward reads what a call has beside tensors and the example had not; it does, where none can tell."""
        with _in_modes(self.model, _modes(self.model), self.modes):
            return not (self.traceable and self.example.is_current(call))

    def _see_replaced(self, slot: _Slot) -> None:
        if has_hooks(slot.tensor):
            raise InputError(
                f"{slot.key} of the model has a hook on its gradient, and the stages have {PLACE}: register it with "
                f"part.get_parameter({slot.key!r}), or use that one's grad after each step"
            )
        if slot.tensor.requires_grad != slot.needs:
            raise InputError(
                f"{slot.key} of the model was {'un' * (not slot.needs)}frozen since its stages were made, and they have "
                f"{PLACE}: do it with the part, part.get_parameter({slot.key!r})"
            )
        if not self.warned and slot.version >= 0 and slot.tensor._version != slot.version:
            self.warned = True
            if here() == 0:
                warnings.warn(
                    f"{slot.key} of the model was written since its stages were made, and they have {PLACE}: load weights "
                    "before parallelize, or distributed.load(checkpoint, part) after it",
                    stacklevel=8,
                )

    def _switched(self) -> str:
        """Which layer was switched, or that all were."""
        now, names = _modes(self.model), [name for name, _ in self.model.named_modules()]
        if len(now) != len(self.modes):
            return f"the model has {len(now)} layers, and had {len(self.modes)},"
        pairs = zip(names, now, self.modes, strict=True)
        name, mode = next((name, mode) for name, mode, then in pairs if mode != then)
        return f"{name or 'the model'} is in {'train' if mode else 'eval'} mode"

    def _changed(self) -> str:
        """Which attributes are others, of those that can be compared."""
        lines = [
            f"{name} is {value!r}" + (f", and was {self.attributes[name]!r}" if name in self.attributes else "")
            for name, value in _attributes(self.model)
            if name not in self.attributes or self.attributes[name] != value
        ]
        if _has_any_global_hook():  # type: ignore[no-untyped-call]
            lines.append("a hook of all modules was registered (FlopCounterMode has one)")
        return "; ".join(lines[:3]) or "forward reads something that has changed: an attribute, a config, a hook, a method"


def _refuse(what: str) -> None:
    raise InputError(
        f"{what} since the stages were made of the model, and they go on as it was then. Put it back, parallelize the model "
        "anew, or, for a number that changes from step to step, keep it in a buffer and write that in place"
    )


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in _layers(model)]


def _layers(model: nn.Module) -> list[nn.Module]:
    """What `model.modules()` gives, which takes a generator for each level of each layer: every step asks for it."""
    found: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += [each for each in reversed(module._modules.values()) if each is not None]
    return list(found)


@contextmanager
def _in_modes(model: nn.Module, before: list[bool], modes: list[bool]) -> Iterator[None]:
    """A block in which each layer is in a mode of its own, and not in the one before."""
    _switch(model, modes if modes != before else None)
    try:
        yield
    finally:
        _switch(model, before if modes != before else None)


def _switch(model: nn.Module, modes: list[bool] | None) -> None:
    for module, mode in zip(_layers(model), modes, strict=True) if modes is not None else ():
        module.training = mode


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The plain attributes of all layers, by qualified name."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, _PLAIN) and not name.startswith("_") and name != "training":
                yield f"{path}.{name}".lstrip("."), value


def _slots(model: nn.Module) -> Iterator[_Slot]:
    """Where each parameter and buffer lies."""
    for key, tensor in all_state(model).items():
        owner = model.get_submodule(key.rpartition(".")[0])
        where: Any = owner._parameters if isinstance(tensor, nn.Parameter) else owner._buffers
        yield _Slot(key, where, tensor, tensor.requires_grad, version_of(tensor))
