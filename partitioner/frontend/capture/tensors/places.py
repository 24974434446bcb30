"""Places in tensors that no tracer knows, for they are numbers that follow from values: of the largest score, of a ring's end.

    memory[usage.argmin()] = written          as ``memory[usage.argmin().item()]``, which is what torch makes of it
    scores[:, best.item()]                    a number among other parts of a key
    rows[found.any()]                         all, or none: as ``rows[None][found.any()[None]]``

Dynamo would end the graph at each: a fake tensor has no number for its kernel, and in a key of several parts that kernel wants
one. So the part that such a number names is an op of its own, and what else stands in the key is asked of that part.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._dynamo.variables import BuiltinVariable, ConstantVariable, SliceVariable, TensorVariable, TupleVariable
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack

from partitioner.frontend.capture.amended import amends, method_of_tensors

_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8)
"""What torch takes the number of; of bytes it makes masks."""


@amends(BuiltinVariable, "call_function")
def _operate(plain: Callable[..., Any], self: Any, tx: Any, args: Any, *named: Any) -> Any:
    if self.fn is operator.getitem and len(args) == 2 and type(args[0].realize()) is TensorVariable:
        args = _asked(tx, *args)
        return plain(self, tx, args, *named) if len(args) == 2 else args[0]
    return plain(self, tx, args, *named)


@amends(*method_of_tensors("__getitem__"))
def _get(plain: Callable[..., Any], self: Any, tx: Any, key: Any) -> Any:
    tensor, *rest = _asked(tx, self, key)
    return plain(tensor, tx, *rest) if rest else tensor


@amends(*method_of_tensors("__setitem__"))
def _set(plain: Callable[..., Any], self: Any, tx: Any, key: Any, value: Any) -> Any:
    tensor, *rest = _asked(tx, self, key)
    return plain(tensor, tx, *(rest or [ConstantVariable.create(...)]), value)


def _as_mask(tx: Any, tensor: Any, key: Any) -> list[Any]:
    """A tensor and a key that is one truth, with one more dimension each: fakes know how many a mask of one dimension takes."""
    is_truth = type(key) is TensorVariable and key.ndim == 0 and key.dtype is torch.bool
    return [each.call_method(tx, "unsqueeze", [ConstantVariable.create(0)], {}) if is_truth else each for each in (tensor, key)]


def _asked(tx: Any, tensor: Any, key: Any) -> list[Any]:
    """The part of a tensor that the open numbers of a key name, and the rest of the key, if any, which is for that part."""
    if _by_tensors(tx):
        return [tensor, key]
    tensor, key = _as_mask(tx, tensor.realize(), key.realize())
    parts = [_number(tx, each.realize()) for each in (key.items if type(key) is TupleVariable else [key])]
    taken = [count for count in map(_taken, parts) if count is not None]
    if len(taken) < len(parts) or not any(isinstance(each, SymNodeVariable) for each in parts):
        return [tensor, key]
    dimension, others = 0, list[Any]()
    for number, part in enumerate(parts):
        if isinstance(part, SymNodeVariable):
            given = tensor.as_proxy(), dimension, part.as_proxy()
            tensor = wrap_fx_proxy(tx, tx.output.create_proxy("call_function", part_at, given, {}))
        else:
            others.append(part)
            ends = part.is_constant_match(...)
            dimension = tensor.ndim - sum(taken[number + 1 :]) if ends else dimension + taken[number]
    return [tensor] if all(each.is_constant_match(...) for each in others) else [tensor, TupleVariable(others)]


def _by_tensors(tx: Any) -> bool:
    """Whether no number is asked of a key: what `flex_attention` is given, and a mask of its, has many places in one tensor."""
    traced = [getattr(mode, "value", None) for mode in tx.symbolic_torch_function_state.mode_stack]
    modes = [*_get_current_function_mode_stack(), *traced]  # type: ignore[no-untyped-call]
    return any(isinstance(mode, TransformGetItemToIndex) for mode in modes)


def _number(tx: Any, part: Any) -> Any:
    """A part of a key; of a tensor its number, if torch would ask it for that."""
    is_number = type(part) is TensorVariable and part.ndim == 0 and part.dtype in _NUMBERS
    return part.call_method(tx, "item", [], {}) if is_number else part


def _taken(part: Any) -> int | None:
    """How many of a tensor's dimensions a part of a key speaks of, if that is known."""
    if type(part) is TensorVariable:
        return part.ndim if part.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(part, ConstantVariable):
        return _OF_CONSTANTS.get(type(part.value))
    return 1 if isinstance(part, SliceVariable | SymNodeVariable) else None


_OF_CONSTANTS = {int: 1, slice: 1, bool: 0, type(None): 0, type(...): 0}


def part_at(tensor: Tensor, dimension: int, place: int) -> Tensor:
    """One of the parts of a tensor along a dimension: on fakes one that is found again after a write without a new number."""
    if not isinstance(tensor, FakeTensor):
        key: list[Any] = [slice(None)] * dimension
        return tensor[(*key, place)]
    if not isinstance(place, SymInt) or tensor.layout is not torch.strided:
        return tensor.select(dimension, place)
    sizes, steps = [*tensor.shape], [*tensor.stride()]
    start = tensor.storage_offset() + place % sizes.pop(dimension) * steps.pop(dimension)
    return tensor.as_strided(sizes, steps, start)
