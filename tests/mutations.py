"""How much damage does the verifier notice? Right programs are damaged, one instruction at a time.

A mutant is *reported* if `verify` finds a fault in it. One that passes must be *equivalent*: `oracle.judge`, which shares no
code with the verifier, finds that it computes the same with every timing. Anything else is *missed*.

    python benchmarks/mutation_score.py        the table, by kind of damage
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from oracle import judge

from partitioner.ir.program import Copy, Free, Instruction, Program, Record, Run, Wait
from partitioner.lower.rules import Case
from partitioner.lower.verify import faults
from programs import Lowered, random_lowered, with_instructions

Damage = Callable[[Program, Random], Program | None]
DAMAGES: dict[str, Damage] = {}

OUTCOMES = ("reported", "equivalent", "missed")


def damage(name: str) -> Callable[[Damage], Damage]:
    """Registers a kind of damage. It gives ``None`` for a program that has nothing to damage."""

    def register(function: Damage) -> Damage:
        DAMAGES[name] = function
        return function

    return register


def pick(program: Program, rng: Random, *kinds: type) -> int | None:
    """A random instruction of given kinds, by index."""
    found = [index for index, item in enumerate(program.instructions) if isinstance(item, kinds)]
    return rng.choice(found) if found else None


def changed(program: Program, index: int, *items: Instruction) -> Program:
    """The program with one instruction replaced by others."""
    before, after = program.instructions[:index], program.instructions[index + 1 :]
    return with_instructions(program, (*before, *items, *after))


def moved(program: Program, index: int, to: int) -> Program:
    """The program with one instruction issued at another place; ``to`` counts without it."""
    items = list(program.instructions)
    items.insert(to, items.pop(index))
    return with_instructions(program, items)


def drop(*kinds: type) -> Damage:
    """Leaves an instruction out."""

    def function(program: Program, rng: Random) -> Program | None:
        index = pick(program, rng, *kinds)
        return None if index is None else changed(program, index)

    return function


def duplicate(*kinds: type) -> Damage:
    """Does something again, some time later."""

    def function(program: Program, rng: Random) -> Program | None:
        index = pick(program, rng, *kinds)
        if index is None:
            return None
        items = list(program.instructions)
        items.insert(rng.randint(index + 1, len(items)), items[index])
        return with_instructions(program, items)

    return function


def move(direction: int, *kinds: type) -> Damage:
    """Issues an instruction earlier or later; half of the time by one place only."""

    def function(program: Program, rng: Random) -> Program | None:
        index = pick(program, rng, *kinds)
        last = len(program.instructions) - 1
        if index is None or index == (0 if direction < 0 else last):
            return None
        if rng.random() < 0.5:
            return moved(program, index, index + direction)
        return moved(program, index, rng.randrange(index) if direction < 0 else rng.randint(index + 1, last))

    return function


def change_lane(*kinds: type) -> Damage:
    """Puts an instruction on another lane."""

    def function(program: Program, rng: Random) -> Program | None:
        index = pick(program, rng, *kinds)
        if index is None or len(program.lanes) == 1:
            return None
        item = program.instructions[index]
        lane = rng.choice([number for number in range(len(program.lanes)) if number != item.lane])
        return changed(program, index, replace(item, lane=lane))

    return function


def change_event(kind: type) -> Damage:
    """Names another event, or one that nobody else knows."""

    def function(program: Program, rng: Random) -> Program | None:
        index = pick(program, rng, kind)
        if index is None:
            return None
        item = program.instructions[index]
        assert isinstance(item, Record | Wait)
        events = {other.event for other in program.instructions if isinstance(other, Record)} - {item.event}
        return changed(program, index, replace(item, event=rng.choice([*events, 1000])))

    return function


for _kind in (Wait, Record, Free, Run, Copy):
    _word = _kind.__name__.lower()
    DAMAGES[f"drop a {_word}"] = drop(_kind)
    DAMAGES[f"move a {_word} earlier"] = move(-1, _kind)
    DAMAGES[f"move a {_word} later"] = move(+1, _kind)
    DAMAGES[f"change the lane of a {_word}"] = change_lane(_kind)
for _kind in (Wait, Record):
    DAMAGES[f"change the event of a {_kind.__name__.lower()}"] = change_event(_kind)
for _kind in (Free, Run, Copy):
    DAMAGES[f"duplicate a {_kind.__name__.lower()}"] = duplicate(_kind)


@damage("move a free to another lane and place")
def _relocate_free(program: Program, rng: Random) -> Program | None:
    index = pick(program, rng, Free)
    if index is None:
        return None
    item = replace(program.instructions[index], lane=rng.randrange(len(program.lanes)))
    return moved(changed(program, index, item), index, rng.randrange(len(program.instructions)))


@damage("change the source of a copy")
def _change_source(program: Program, rng: Random) -> Program | None:
    index = pick(program, rng, Copy)
    if index is None:
        return None
    item = program.instructions[index]
    assert isinstance(item, Copy)
    others = [value.name for value in program.values if value.name not in (item.source, item.target)]
    same = [name for name in others if name.partition("@")[0] == item.source.partition("@")[0]]
    return changed(program, index, replace(item, source=rng.choice(same or others))) if others else None


@damage("swap two runs")
def _swap_runs(program: Program, rng: Random) -> Program | None:
    found = [index for index, item in enumerate(program.instructions) if isinstance(item, Run)]
    if len(found) < 2:
        return None
    one, other = sorted(rng.sample(found, 2))
    items = list(program.instructions)
    items[one], items[other] = items[other], items[one]
    return with_instructions(program, items)


@damage("swap the tasks of two runs")
def _swap_tasks(program: Program, rng: Random) -> Program | None:
    """As above, but each goes on the lane of the other."""
    found = [index for index, item in enumerate(program.instructions) if isinstance(item, Run)]
    if len(found) < 2:
        return None
    one, other = sorted(rng.sample(found, 2))
    items = list(program.instructions)
    items[one], items[other] = (
        replace(items[other], lane=items[one].lane),
        replace(items[one], lane=items[other].lane),
    )
    return with_instructions(program, items)


@damage("change a read")
def _change_read(program: Program, rng: Random) -> Program | None:
    index = pick(program, rng, Run)
    item = None if index is None else program.instructions[index]
    if index is None or not isinstance(item, Run) or not item.reads:
        return None
    position = rng.randrange(len(item.reads))
    others = [value.name for value in program.values if value.name != item.reads[position]]
    if not others:
        return None
    reads = list(item.reads)
    reads[position] = rng.choice(others)
    return changed(program, index, replace(item, reads=tuple(reads)))


@dataclass
class Score:
    """Outcomes by kind of damage, and what was missed."""

    programs: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in DAMAGES})
    missed: list[tuple[int, str, str, Program]] = field(default_factory=list)

    @property
    def total(self) -> Counter[str]:
        """Outcomes of all kinds together."""
        return sum(self.counts.values(), Counter())

    def __str__(self) -> str:
        wide = max(map(len, DAMAGES))
        lines = [f"{self.programs} programs, {self.total.total()} mutants", ""]
        lines += [f"{'damage':{wide}}" + "".join(f"{outcome:>12}" for outcome in OUTCOMES)]
        for name, counts in [*self.counts.items(), ("all", self.total)]:
            lines.append(f"{name:{wide}}" + "".join(f"{counts[outcome]:12d}" for outcome in OUTCOMES))
        return "\n".join(lines)


def mutants(lowered: Lowered, rng: Random) -> Iterator[tuple[str, Program]]:
    """One mutant of each kind of damage that the program can take."""
    for name, function in DAMAGES.items():
        mutant = function(lowered.program, rng)
        if mutant is not None and mutant.instructions != lowered.program.instructions:
            yield name, mutant


def outcome_of(mutant: Program, lowered: Lowered) -> tuple[str, str]:
    """What became of a mutant, and what the oracle says if nobody else did."""
    if faults(Case(mutant, lowered.tasks)):
        return "reported", ""
    wrong = judge(mutant, lowered.tasks)
    return ("equivalent", "") if wrong is None else ("missed", wrong)


def score(seeds: Iterable[int]) -> Score:
    """Damage one random program for each seed, in every way."""
    result = Score()
    for seed in seeds:
        rng = Random(seed)
        lowered = random_lowered(rng)
        result.programs += 1
        for name, mutant in mutants(lowered, rng):
            outcome, why = outcome_of(mutant, lowered)
            result.counts[name][outcome] += 1
            if outcome == "missed":
                result.missed.append((seed, name, why, mutant))
    return result
