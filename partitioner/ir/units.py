"""The words of a spec: quantities with units, and device strings. Text in, numbers out, and back again for reports.

Decimal and binary prefixes are never confused: ``GB`` is 10**9 bytes, ``GiB`` is 2**30. Letter case counts: ``Gb`` is
commonly a gigabit. Bare numbers are in the base unit (bytes, bytes/s, FLOP/s, seconds), also when they come as text,
because YAML 1.1 reads ``1e9`` as a string.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from partitioner.errors import SpecError

# Lengths are bounded so that text such as 1e999999999 cannot make an integer of a gigabyte.
NUMBER = r"(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?"

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES = {f"{prefix}B": Fraction(scale) for prefix, scale in {**_DECIMAL, **_BINARY}.items()}
_SECONDS = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 10**3), "s": Fraction(1)}
_MICRO_SIGNS = {"\u00b5s": _SECONDS["us"], "\u03bcs": _SECONDS["us"]}  # what people paste: the micro sign, the Greek mu


@dataclass(frozen=True)
class Quantity:
    """A kind of quantity: what it is called, its base unit, the units that advice lists, others that are read too."""

    noun: str
    base: str
    units: Mapping[str, Fraction]
    limit: int
    example: str
    aliases: Mapping[str, Fraction] = field(default_factory=dict)

    @property
    def pattern(self) -> str:
        """The regular expression (ECMA dialect, for JSON Schema too) of the texts that :meth:`parse` reads."""
        names = "|".join(sorted({**self.units, **self.aliases}))
        return rf"^\s*{NUMBER}\s*(?:{names})?\s*$"

    def parse(self, value: object) -> float:
        """``value`` in the base unit.

        Raises:
            SpecError: it is no number and no text of this kind, it is negative, or it is not finite.

        >>> BANDWIDTH.parse("64GB/s"), DURATION.parse("10us"), FLOPS.parse("10TFLOP/s")
        (64000000000.0, 1e-05, 10000000000000.0)
        """
        return float(self.exactly(value))

    def exactly(self, value: object) -> Fraction:
        """As :meth:`parse`, without rounding."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = Fraction(value) if isinstance(value, int) or math.isfinite(value) else None
        else:
            number = self._read(value) if isinstance(value, str) else None
        if number is None or number < 0:
            raise SpecError(f"{quote(value)} is not {self.noun}; {self._advice(value)}")
        if number > self.limit:
            raise SpecError(f"{quote(value)} is more than the {float(self.limit):.3g} {self.base} that a spec may ask for")
        return number

    def _read(self, text: str) -> Fraction | None:
        found = re.fullmatch(rf"({NUMBER})\s*(\S+)?", text.strip())
        if found is None:
            return None
        number, unit = found.groups()
        scale = Fraction(1) if unit is None else self.units.get(unit) or self.aliases.get(unit)
        return None if scale is None else Fraction(number) * scale

    def _advice(self, value: object) -> str:
        advice = f"write {self.base} or a number with {', '.join(self.units)}, for example {quote(self.example)}"
        found = re.search(r"[^\s0-9.].*", value.strip()) if isinstance(value, str) else None
        same = [name for name in self.units if found and name.lower() == found.group().lower()]
        return f'did you mean "{same[0]}"? Case counts; {advice}' if same else advice


SIZE = Quantity("a size", "bytes", _BYTES, 2**62, "16GiB")
BANDWIDTH = Quantity("a bandwidth", "bytes/s", {f"{name}/s": scale for name, scale in _BYTES.items()}, 10**24, "900GB/s")
DURATION = Quantity("a duration", "seconds", _SECONDS, 10**9, "10us", _MICRO_SIGNS)

FLOPS = Quantity(
    "a compute rate",
    "FLOP/s",
    {f"{prefix}FLOP/s": Fraction(scale) for prefix, scale in _DECIMAL.items()},
    10**24,
    "10TFLOP/s",
    {f"{prefix}FLOPS": Fraction(scale) for prefix, scale in _DECIMAL.items()},
)


def parse_size(value: object) -> int:
    """Bytes in ``value``, as `Quantity.parse` reads it; part of a byte is dropped, so that a cap is never raised.

    >>> parse_size("16GiB"), parse_size("16GB"), parse_size(4096)
    (17179869184, 16000000000, 4096)
    """
    return math.floor(SIZE.exactly(value))


def quote(value: object) -> str:
    """``value`` as an error shows it: one short line, whatever it is.

    >>> quote("16GiBB"), quote(-1), quote([1, 2])
    ('"16GiBB"', '-1', 'a list of 2')
    """
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print integers of 4300 digits
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"a mapping of {len(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def format_size(size: float) -> str:
    """``size`` bytes to three digits, with binary prefixes.

    >>> format_size(1572864), format_size(0)
    ('1.5 MiB', '0 B')
    """
    return _format(size, {"B": Fraction(1), **{f"{prefix}B": Fraction(scale) for prefix, scale in _BINARY.items()}})


def format_duration(seconds: float) -> str:
    """``seconds`` to three digits.

    >>> format_duration(42e-6), format_duration(0.0015)
    ('42 us', '1.5 ms')
    """
    return _format(seconds, _SECONDS)


def format_count(count: float, unit: str = "FLOP") -> str:
    """``count`` of ``unit`` to three digits, with decimal prefixes.

    >>> format_count(3.1e9), format_count(5e10, "B/s")
    ('3.1 GFLOP', '50 GB/s')
    """
    return _format(count, {f"{prefix}{unit}": Fraction(scale) for prefix, scale in _DECIMAL.items()})


def _format(value: float, scales: Mapping[str, Fraction]) -> str:
    """``value`` in the largest unit that leaves at least 1 *after* rounding: 999.9 us is 1 ms, not 1000 us."""
    if value == 0 or not math.isfinite(value):
        base = next(name for name, scale in scales.items() if scale == 1)
        return f"{value:.0f} {base}"
    (name, scale), *larger = scales.items()
    for next_name, next_scale in larger:
        if float(_digits(abs(value) / float(scale))) < next_scale / scale:
            break
        name, scale = next_name, next_scale
    return f"{_digits(value / float(scale))} {name}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
