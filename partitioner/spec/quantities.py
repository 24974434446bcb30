"""Fields that read numbers and texts with a unit alike: ``16GiB``, ``900GB/s``, ``10us``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from partitioner.ir import units


def _quantity(kind: units.Quantity, parse: Callable[[object], float], least: int) -> tuple[object, ...]:
    """The metadata of such a field, in Python and in the JSON Schema."""
    schema = {"anyOf": [{"type": "number", "minimum": least}, {"type": "string", "pattern": kind.pattern}]}
    return BeforeValidator(parse), Field(ge=least), WithJsonSchema({**schema, "examples": [kind.example]})


Count = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
# A rate under one unit per second is a slip of the prefix, and would make a time that overflows.
Size = Annotated[int, *_quantity(units.SIZE, units.parse_size, 1)]
Bandwidth = Annotated[float, *_quantity(units.BANDWIDTH, units.BANDWIDTH.parse, 1)]
Flops = Annotated[float, *_quantity(units.FLOPS, units.FLOPS.parse, 1)]
Duration = Annotated[float, *_quantity(units.DURATION, units.DURATION.parse, 0)]
