"""How much memory a program's values take: random programs against a plain replay, and the cases worth telling."""

from __future__ import annotations

from collections import Counter

from hypothesis import given

from partitioner.ir.liveness import peak_bytes
from partitioner.ir.parse import parse
from partitioner.ir.program import Free, Program, outputs_of
from programs import Lowered, lowered_programs

HEADER = "program P\nlane 0 cuda0/0 cuda:0\nlane 1 cpu/0 cpu\n"


def program(text: str) -> Program:
    return parse(HEADER + text)


def replayed(known: Program) -> dict[str, list[int]]:
    """Bytes on each device after each instruction: every storage that a live value may hold, once."""
    sizes: Counter[str] = Counter()
    for value in known.values:
        for storage in value.storages:
            sizes[storage] = max(sizes[storage], value.bytes)
    callers = {storage for name in known.inputs for storage in known.by_name[name].storages}
    live: list[str] = []
    history: dict[str, list[int]] = {value.torch_device: [] for value in known.values}
    for item in known.instructions:
        live += outputs_of(item)
        if isinstance(item, Free):
            live.remove(item.value)
        for device, sums in history.items():
            held = {s for name in live if known.by_name[name].torch_device == device for s in known.by_name[name].storages}
            sums.append(sum(sizes[storage] for storage in held - callers))
    return history


@given(lowered_programs())
def test_the_peak_is_the_largest_sum_of_a_replay(lowered: Lowered) -> None:
    history, peaks = replayed(lowered.program), peak_bytes(lowered.program)
    for device, sums in history.items():
        size, index = peaks.get(device, (0, -1))
        assert size == max(sums, default=0)
        if size:
            assert sums[index] == size and max(sums[:index], default=0) < size, "the first instruction at which it is"


def test_a_view_takes_nothing() -> None:
    """A value and its view are one storage, which lives until the last of both is freed."""
    text = """
    value a cuda:0 100 a
    value v cuda:0 50 a
    value b cuda:0 10 b
    0 run t0 () -> (a) w:a
    0 run t1 (a) -> (v) r:a
    0 free a
    0 run t2 (v) -> (b) r:a w:b
    0 free v
    """
    assert peak_bytes(program(text)) == {"cuda:0": (110, 3)}


def test_a_free_makes_room() -> None:
    text = """
    value a cuda:0 100 a
    value b cuda:0 100 b
    0 run t0 () -> (a) w:a
    0 free a
    0 run t1 () -> (b) w:b
    """
    assert peak_bytes(program(text)) == {"cuda:0": (100, 0)}


def test_inputs_are_the_callers_and_copies_are_not() -> None:
    text = """
    value x cpu 100 x
    value x@cuda:0 cuda:0 100 x@cuda:0
    input x
    0 copy x -> x@cuda:0
    0 free x@cuda:0
    """
    assert peak_bytes(program(text)) == {"cuda:0": (100, 0)}
