"""A program prints, and reads back as what it was: the text is what people look at, diff, and hand to the verifier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import PartitionerError
from partitioner.ir.access import Access
from partitioner.ir.machine import Lane
from partitioner.ir.parse import parse
from partitioner.ir.program import Copy, Free, Instruction, Program, Record, Run, Value, Wait, inputs_of, outputs_of
from programs import Lowered, lowered_programs

NAMES = st.text(max_size=6) | st.sampled_from(["", "''", "->", "a b", "a,b", "(x)", "e0", "%41", "w:x", "\u2028", "\n", "run"])
NUMBERS = st.integers(0, 9)
ACCESSES = st.lists(st.builds(Access, NAMES, st.booleans()), max_size=2).map(tuple)
SOME_NAMES = st.lists(NAMES, max_size=3).map(tuple)
INSTRUCTIONS: st.SearchStrategy[Instruction] = st.one_of(
    st.builds(Run, NUMBERS, NAMES, SOME_NAMES, SOME_NAMES, ACCESSES),
    st.builds(Copy, NUMBERS, NAMES, NAMES),
    st.builds(Record, NUMBERS, NUMBERS),
    st.builds(Wait, NUMBERS, NUMBERS),
    st.builds(Free, NUMBERS, NAMES),
)
LANES = st.tuples(NAMES, NUMBERS, NAMES).map(lambda parts: Lane(f"{parts[0]}/{parts[1]}", parts[0], parts[2]))
PROGRAMS = st.builds(
    Program,
    NAMES,
    st.lists(LANES, max_size=2).map(tuple),
    st.lists(st.builds(Value, NAMES, NAMES, NUMBERS, SOME_NAMES), max_size=2).map(tuple),
    SOME_NAMES,
    SOME_NAMES,
    st.lists(INSTRUCTIONS, max_size=5).map(tuple),
)

TWO_TOWERS = """\
program TwoTowers
lane 0 cpu/0 cpu
lane 1 cpu/1 cpu
value x cpu 64 x
value a cpu 64 a
value b '' 0
input x
output a
0 record e0
1 wait e0
1 run t0 (x) -> (a, b) r:x w:a
0 run t1 () -> ()
0 copy a -> a@cuda:0
1 free b"""


@given(lowered_programs())
def test_a_lowered_program_reads_back(lowered: Lowered) -> None:
    assert parse(str(lowered.program)) == lowered.program


@given(PROGRAMS)
def test_any_program_reads_back_whatever_its_names(program: Program) -> None:
    """Module paths, resources and model names are the user's: blanks, commas, arrows and line breaks must not cut a line."""
    assert parse(str(program)) == program


def test_the_text_of_each_instruction() -> None:
    program = parse(TWO_TOWERS)
    assert str(program) == TWO_TOWERS
    assert program.lanes[1] == Lane("cpu/1", "cpu", "cpu")
    assert program.by_name["b"] == Value("b", "", 0, ())
    assert program.instructions == (
        Record(0, 0),
        Wait(1, 0),
        Run(1, "t0", ("x",), ("a", "b"), (Access("x"), Access("a", True))),
        Run(0, "t1", (), ()),
        Copy(0, "a", "a@cuda:0"),
        Free(1, "b"),
    )


def test_blank_lines_and_indents_are_nothing() -> None:
    """A program pasted from a report or an error message is indented."""
    assert parse("\n\n".join(f"    {line}" for line in TWO_TOWERS.splitlines())) == parse(TWO_TOWERS)


@pytest.mark.parametrize(
    "line",
    [
        "0 jump e0",
        "0",
        "one wait e0",
        "0 wait",
        "0 wait x0",
        "0 wait e0 e1",
        "0 free",
        "0 free a b",
        "0 copy a",
        "0 copy a b",
        "0 copy a to b",
        "0 run t0",
        "0 run t0 (x)",
        "0 run t0 (x) -> a",
        "0 run t0 (x) -> (a) q:x",
        "lane 0",
        "lane 7 cpu/7 cpu",
        "value a",
        "value a cpu many a",
        "input",
        "output a b",
        "program",
    ],
)
def test_a_bad_line_is_named(line: str) -> None:
    """The message has the number and the text of the line, for a program is written and edited by hand in bug reports."""
    with pytest.raises(PartitionerError) as error:
        parse(f"program P\n\n  {line}\n")
    assert str(error.value) == f"line 3 of the program is not understood: {line!r}"


def test_what_instructions_touch() -> None:
    """A Copy reads the storages of its source and makes that of its target. Events and Frees touch nothing."""
    source, target = Value("a", "cuda:0", 4, ("a", "x")), Value("a@cpu", "cpu", 4, ("a@cpu",))
    program = Program("P", (), (source, target), (), (), ())
    touched = [str(access) for access in program.accesses(Copy(0, "a", "a@cpu"))]
    assert touched == ["r:%a", "r:a", "r:x", "w:%a@cpu", "w:a@cpu"]
    run = Run(0, "t", ("a",), ("b",), (Access("s", True),))
    assert [str(access) for access in program.accesses(run)] == ["r:%a", "w:%b", "w:s"]
    assert all(program.accesses(item) == () for item in (Record(0, 0), Wait(0, 0), Free(0, "a")))
    assert (inputs_of(run), outputs_of(run)) == (("a",), ("b",))
    assert (inputs_of(Copy(0, "a", "c")), outputs_of(Copy(0, "a", "c"))) == (("a",), ("c",))
    assert (inputs_of(Free(0, "a")), outputs_of(Free(0, "a"))) == ((), ())
