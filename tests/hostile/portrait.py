"""What can be seen of a value, written down at once, so that later writes do not change it; and how two such pictures differ.

Numbers may differ by rounding, for gradients are summed in another order on lanes. Signs of zeros may not, nor classes, dtypes,
shapes, strides, or whether a gradient is wanted.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROUNDING = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type, enum.Enum, torch.dtype, torch.device)
DEEPEST = 12


@dataclass(frozen=True, eq=False)
class Picture:
    """A value's class, its other plain properties, and what lies in it, by name."""

    kind: str
    facts: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, Any], ...] = ()
    numbers: Tensor | None = None


def portrait(value: Any, depth: int = 0) -> Picture:
    """The picture of any value."""
    if isinstance(value, Picture):
        return value
    kind = _name(type(value))
    if depth > DEEPEST:
        return Picture("something deep")
    if isinstance(value, nn.parameter.UninitializedTensorMixin):
        return Picture(kind)
    if isinstance(value, Tensor):
        return _tensor(value, kind)
    if isinstance(value, PLAIN):
        return Picture(kind, (("value", repr(value)),))
    if isinstance(value, BaseException):
        return Picture(kind, (("message", str(value)),))
    if isinstance(value, np.ndarray | np.generic):
        return Picture(kind, (("dtype", str(value.dtype)), ("shape", str(value.shape)), ("value", repr(value.tolist()))))
    if isinstance(value, nn.Module):
        return Picture(kind)
    parts = [(name, portrait(part, depth + 1)) for name, part in _parts(value)]
    return Picture(kind, (("length", str(len(parts))),), tuple(parts))


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
        yield ("keys", [_name(type(key)) for key in value])
    elif isinstance(value, set | frozenset):
        yield ("members", sorted(repr(part) for part in value))
    elif isinstance(value, tuple | list) or type(value).__name__ in ("deque", "UserList", "dict_values", "dict_keys"):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif dataclasses.is_dataclass(value):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value))
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        found = {
            **getattr(value, "__dict__", {}),
            **{name: getattr(value, name, None) for name in slots if hasattr(value, name)},
        }
        yield from ((f".{name}", part) for name, part in found.items() if not name.startswith("__") and not callable(part))


def _tensor(value: Tensor, kind: str) -> Picture:
    """A tensor's properties and its numbers, whatever kind of tensor it is."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        facts = {
            "dtype": value.dtype,
            "layout": value.layout,
            "device": value.device,
            "requires_grad": value.requires_grad,
            "has a graph": value.grad_fn is not None,
            "inference": value.is_inference(),
            "conjugated": value.is_conj(),
        }
        if not value.is_nested:
            facts["shape"] = tuple(value.shape)
        if value.layout == torch.strided and not value.is_nested and value.numel() > 1:
            facts["strides"] = tuple(step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1)
        if value.is_quantized:
            facts["scale"] = str(
                value.q_scale() if value.qscheme() == torch.per_tensor_affine else value.q_per_channel_scales()
            )
        plain = tuple((name, str(fact)) for name, fact in facts.items())
        inner = value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") and type(value) is not Tensor else ()
        if inner and not value.is_nested:
            return Picture(kind, plain, tuple((f".{name}", portrait(getattr(value, name))) for name in inner))
        if value.is_meta or type(value).__name__ in ("FakeTensor", "FunctionalTensor"):
            return Picture(kind, plain)
        if value.is_nested:
            return Picture(kind, plain, tuple((f"[{number}]", portrait(part)) for number, part in enumerate(value.unbind())))
        return Picture(kind, plain, numbers=_numbers(value))


def _numbers(value: Tensor) -> Tensor:
    value = value.detach()
    if type(value) is not Tensor:
        value = value.as_subclass(Tensor)
    if value.is_quantized:
        return value.int_repr().clone()
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.dtype.is_floating_point and value.dtype.itemsize == 1:
        return value.float()
    value = value.resolve_conj().resolve_neg()
    return torch.view_as_real(value).clone() if value.is_complex() else value.clone()


def differences(expected: Picture, actual: Picture, where: str = "") -> Iterator[str]:
    """Every difference, with its place; none if the pictures show the same."""
    if expected.kind != actual.kind:
        found = dict(actual.facts).get("message", "")
        wanted = dict(expected.facts).get("message", "")
        yield f"{where}: {actual.kind} {found[:200]}, and in eager {expected.kind} {wanted[:200]}"
        return
    facts = dict(actual.facts)
    for name, fact in expected.facts:
        if facts.get(name) != fact:
            yield f"{where}: {name} is {_short(facts.get(name))}, and in eager {_short(fact)}"
    here, there = dict(expected.parts), dict(actual.parts)
    if list(here) != list(there):
        yield f"{where}: has {_short(list(there))}, and in eager {_short(list(here))}"
    for name in here.keys() & there.keys():
        yield from differences(here[name], there[name], where + name)
    if expected.numbers is not None and actual.numbers is not None:
        yield from _number_differences(expected.numbers, actual.numbers, where)


def _number_differences(expected: Tensor, actual: Tensor, where: str) -> Iterator[str]:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return  # said already
    if expected.is_floating_point():
        rounding = ROUNDING.get(expected.dtype, 2e-2)
        scale = float(expected.double().abs().nan_to_num(0, 0, 0).max()) if expected.numel() else 0.0
        wrong = ~torch.isclose(expected.double(), actual.double(), rounding, rounding * scale * 0.1, equal_nan=True)
        wrong |= (expected == 0) & (actual == 0) & (torch.signbit(expected) != torch.signbit(actual))
    else:
        wrong = expected != actual
    if wrong.any():
        first = tuple(int(index) for index in wrong.nonzero()[0])
        yield (
            f"{where}: {int(wrong.sum())} of {wrong.numel()} numbers differ, such as {actual[first].item()} "
            f"at {first}, and in eager {expected[first].item()}"
        )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 200 else text[:200] + "..."
