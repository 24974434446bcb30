"""Quantities: exact about prefixes, strict about everything else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import SpecError
from partitioner.ir import units
from partitioner.spec.devices import parse_device

QUANTITIES = [units.SIZE, units.BANDWIDTH, units.DURATION, units.FLOPS]
PARSERS: list[Callable[[object], float]] = [
    units.parse_size,
    units.BANDWIDTH.parse,
    units.DURATION.parse,
    units.FLOPS.parse,
]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1kB", 1000),
        ("1KiB", 1024),
        ("512MB", 512 * 10**6),
        ("16GiB", 16 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        (" 2TB ", 2 * 10**12),
        ("7", 7),
        ("1e9", 10**9),  # YAML 1.1 gives this as text
        (4096, 4096),
        (0, 0),
        (1e3, 1000),
        (2**60 + 1, 2**60 + 1),  # not through a float
        ("0.1KiB", 102),  # a cap is never rounded up
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.BANDWIDTH.parse, "900GB/s", 900e9),
        (units.BANDWIDTH.parse, "1GiB/s", 2.0**30),
        (units.BANDWIDTH.parse, 5, 5.0),
        (units.DURATION.parse, "3us", 3e-6),
        (units.DURATION.parse, "3\u00b5s", 3e-6),
        (units.DURATION.parse, "3\u03bcs", 3e-6),
        (units.DURATION.parse, "250ns", 250e-9),
        (units.DURATION.parse, "1ms", 1e-3),
        (units.DURATION.parse, "0.1s", 0.1),
        (units.DURATION.parse, 2, 2.0),
        (units.FLOPS.parse, "10TFLOP/s", 1e13),
        (units.FLOPS.parse, "10 TFLOPS", 1e13),
        (units.FLOPS.parse, 5e10, 5e10),
    ],
)
def test_rates_and_durations(parse: Callable[[object], float], text: object, value: float) -> None:
    assert parse(text) == value


HUGE = 10**5000  # Python refuses to print it


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "value",
    [
        *("", "x", "GiB", "1 2", "-1", "nan", "inf", "1e999999999GiB", "1" * 50, "16GiBB", "1k", "\u0661"),
        *(-1, -0.5, math.nan, math.inf, HUGE, True, None, [], {}, b"1", 1j),
    ],
    ids=lambda value: "huge" if value is HUGE else ascii(value),
)
def test_refuses(parse: Callable[[object], float], value: object) -> None:
    with pytest.raises(SpecError):
        parse(value)


def test_the_error_says_what_to_write() -> None:
    with pytest.raises(SpecError, match=re.escape('"16GiBB" is not a size; write bytes or a number with B, kB, MB')):
        units.parse_size("16GiBB")


@pytest.mark.parametrize(("text", "meant"), [("1gb", "GB"), ("1KB", "kB"), ("1 gib", "GiB"), ("1Mb", "MB")])
def test_case_counts(text: str, meant: str) -> None:
    """Gb is commonly a gigabit: a guess could be wrong by eight."""
    with pytest.raises(SpecError, match=f'did you mean "{meant}"'):
        units.parse_size(text)


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.noun)
@given(text=st.data())
def test_the_schema_pattern_agrees_with_the_parser(quantity: units.Quantity, text: st.DataObject) -> None:
    drawn = text.draw(st.from_regex(quantity.pattern) | st.text(max_size=8))
    try:
        quantity.parse(drawn)
        assert re.search(quantity.pattern, drawn)
    except SpecError as error:
        assert re.search(quantity.pattern, drawn) is None or "more than" in str(error)


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.noun)
@given(number=st.integers(0, 1000), place=st.integers(0, 20))
def test_every_unit_reads_back(quantity: units.Quantity, number: int, place: int) -> None:
    scales = {**quantity.units, **quantity.aliases}
    unit = sorted(scales)[place % len(scales)]
    assert quantity.exactly(f"{number}{unit}") == quantity.exactly(f"{number} {unit}") == number * scales[unit]


@given(st.integers(0, 2**62))
def test_a_formatted_size_reads_back(size: int) -> None:
    assert math.isclose(units.parse_size(units.format_size(size)), size, rel_tol=0.006, abs_tol=1)


@given(st.floats(1e-12, 1e8))
def test_a_formatted_duration_reads_back(seconds: float) -> None:
    assert math.isclose(units.DURATION.parse(units.format_duration(seconds)), seconds, rel_tol=0.006)


@given(st.floats(1e-3, 1e20))
def test_a_formatted_count_reads_back(count: float) -> None:
    assert math.isclose(units.FLOPS.parse(units.format_count(count) + "/s"), count, rel_tol=0.006)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_size(1572864), "1.5 MiB"),
        (units.format_size(2**20 - 1), "1 MiB"),  # not 1024 KiB
        (units.format_size(1023), "1023 B"),
        (units.format_size(-(2**30)), "-1 GiB"),
        (units.format_duration(42e-6), "42 us"),
        (units.format_duration(999.9e-6), "1 ms"),
        (units.format_duration(0.0), "0 s"),
        (units.format_duration(math.inf), "inf s"),
        (units.format_duration(3e-11), "0.03 ns"),
        (units.format_duration(7200), "7200 s"),
        (units.format_count(3.1e9), "3.1 GFLOP"),
        (units.format_count(5e10, "B/s"), "50 GB/s"),
        (units.format_count(12, "op"), "12 op"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cpu", "cpu"),
        ("cpu:7", "cpu"),
        ("cuda", "cuda:0"),
        ("cuda:3", "cuda:3"),
        ("xpu:1", "xpu:1"),
        ("mps", "mps:0"),
        (torch.device("cuda"), "cuda:0"),
        (torch.device("cpu", 1), "cpu"),
    ],
)
def test_devices(device: object, name: str) -> None:
    assert parse_device(device) == name


@pytest.mark.parametrize(
    "device",
    ["", "foo", "cuda:x", "cuda:-1", "cuda:01", " cuda", "CUDA:0", "meta", "cuda:0\n", torch.device("meta"), 0],
)
def test_refuses_what_is_no_device(device: object) -> None:
    with pytest.raises(SpecError, match="is not a device; write cpu, or an accelerator with its index: cuda:0"):
        parse_device(device)


def test_refuses_an_index_that_torch_would_wrap_round() -> None:
    """torch keeps the index in a signed byte: torch.device("cuda:300") is cuda:44, without an error."""
    with pytest.raises(SpecError, match="from 0 to 127"):
        parse_device("cuda:300")


@given(st.fractions(0, 10**6))
def test_fractions_of_bytes_are_dropped(size: Fraction) -> None:
    text = f"{float(size):.6f}"
    assert units.parse_size(text) == math.floor(Fraction(text))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_any_value_is_quoted_on_one_short_line(value: object) -> None:
    assert len(units.quote(value)) < 800
    assert "\n" not in units.quote(value)
