"""The mutation score of the verifier: of many right programs, damaged in every way we know, it lets nothing harmful pass.

`mutations.py` says what is done to them, and when a mutant counts as missed. ``pytest -s`` shows the table, and so does
``python benchmarks/mutation_score.py``, for any number of programs.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from oracle import judge

from mutations import DAMAGES, Score, mutants, outcome_of, score
from partitioner.ir.program import Record, Run, Wait
from programs import Lowered, random_lowered, with_instructions

PROGRAMS = 8 * settings.default.max_examples


@pytest.fixture(scope="module")
def result() -> Score:
    return score(range(PROGRAMS))


def test_no_harmful_mutant_passes(result: Score) -> None:
    """A mutant that the verifier lets pass computes the same with every timing, as an independent oracle finds."""
    print(f"\n{result}")
    missed = "\n\n".join(f"seed {seed}, {name}: {why}\n{mutant}" for seed, name, why, mutant in result.missed)
    assert not result.missed, missed
    assert result.programs == PROGRAMS


@pytest.mark.parametrize("name", DAMAGES)
def test_each_kind_of_damage_is_done_often(result: Score, name: str) -> None:
    """A kind that hardly any program can take would look well guarded because it is never tried."""
    assert result.counts[name].total() >= PROGRAMS / 10


def test_most_damage_is_harmful(result: Score) -> None:
    """If most mutants were equivalent, the score would say little."""
    assert result.total["reported"] > 5 * result.total["equivalent"]


def small(seed: int) -> Lowered:
    """A program with several lanes and events."""
    while True:
        lowered = random_lowered(Random(seed))
        if sum(isinstance(item, Wait) for item in lowered.program.instructions) > 2:
            return lowered
        seed += 1000


@pytest.mark.parametrize("seed", range(10))
def test_the_oracle_objects_to_a_program_without_events(seed: int) -> None:
    """The oracle is a judge only if it can say no: without Waits the lanes of a program are strangers."""
    lowered = small(seed)
    items = [item for item in lowered.program.instructions if not isinstance(item, Record | Wait)]
    assert judge(lowered.program, lowered.tasks) is None
    assert judge(with_instructions(lowered.program, items), lowered.tasks) is not None


@pytest.mark.parametrize("seed", range(10))
def test_the_oracle_objects_to_a_missing_run(seed: int) -> None:
    lowered = small(seed)
    items = list(lowered.program.instructions)
    items.remove(next(item for item in items if isinstance(item, Run) and item.writes))
    assert judge(with_instructions(lowered.program, items), lowered.tasks) is not None


def test_mutants_are_told_apart() -> None:
    """The three outcomes, each on a mutant of one program; "missed" needs a verifier that does not look."""
    lowered = small(0)
    outcomes = {outcome_of(mutant, lowered)[0] for _, mutant in mutants(lowered, Random(0))}
    assert outcomes <= {"reported", "equivalent"}
    assert outcome_of(lowered.program, lowered) == ("equivalent", "")
