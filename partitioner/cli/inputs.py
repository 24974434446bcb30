"""Example inputs: written on the command line, or defined beside the model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from partitioner.cli.user_code import LoadError, quoted, user_code
from partitioner.ir.units import format_size

_DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("uint8", "int8", "int16", "int32", "int64", "bool"),
)
_INPUT = re.compile(r"(?:([A-Za-z_]\w*)=)?([a-z]+[0-9]*)\[([0-9, ]*)\]", re.ASCII)
_LARGEST = 2**34


def parse_inputs(texts: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors for a call, the same each time: normal floats, integers and booleans of zeros and ones.

    Raises:
        LoadError: a text is no input, or too large.

    >>> (x,), named = parse_inputs(["float32[1,3]", "mask=bool[2]"])
    >>> x.shape, named["mask"].dtype
    (torch.Size([1, 3]), torch.bool)
    """
    found = [_parse_input(text, seed) for seed, text in enumerate(texts)]
    named = [name for name, _ in found if name]
    if len(set(named)) < len(named):
        raise LoadError(f"an input is given twice: {', '.join(named)}")
    return tuple(tensor for name, tensor in found if not name), {name: tensor for name, tensor in found if name}


def _parse_input(text: str, seed: int) -> tuple[str, torch.Tensor]:
    parts = _INPUT.fullmatch(text.strip())
    numbers = [word.strip() for word in parts[3].split(",")] if parts and parts[3].strip() else []
    if parts is None or parts[2] not in _DTYPES or not all(number.isdecimal() and len(number) < 19 for number in numbers):
        advice = 'write a dtype and a shape, such as "float32[1,3,224,224]", or "mask=bool[2,16]" for a keyword argument'
        raise LoadError(f"{quoted(text)} is no input; {advice}. The dtypes are {', '.join(_DTYPES)}.")
    shape = [int(number) for number in numbers]
    dtype: torch.dtype = getattr(torch, parts[2])
    if math.prod(shape) * dtype.itemsize > _LARGEST:
        raise LoadError(f"{quoted(text)} takes more than {format_size(_LARGEST)}; define example_inputs in the file instead")
    generator = torch.Generator().manual_seed(seed)
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return parts[1] or "", torch.randn(shape, generator=generator, dtype=dtype)
        return parts[1] or "", torch.randint(0, 2, shape, generator=generator).to(dtype)
    except (RuntimeError, MemoryError) as error:
        raise LoadError(f"{quoted(text)} cannot be made: {error}") from error


def examples_of(namespace: ModuleType) -> Any:
    """A file's ``example_inputs``, or what it gives if it is a function; for `partition` to read, so that it means the same.

    Raises:
        LoadError: its function raises.
    """
    value = getattr(namespace, "example_inputs", None)
    if callable(value):
        with user_code("calling example_inputs()"):
            value = value()
    return value
