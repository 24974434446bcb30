"""The rule ``race`` against PyTorch's own race detector, the CUDA sanitizer, which replays events and kernels without a GPU.

A program for lanes of one GPU is told to `torch.cuda._sanitizer.EventHandler` as CUDA would report it: a lane is a stream, a
Run or Copy a kernel launch, and each resource that it touches a tensor with a data pointer of its own. The sanitizer must
object exactly if the verifier does.

Where the two differ by design, the translation makes up for it:

- An op of unknown effects: the sanitizer has no word for "everything", so it is told of every tensor of the program.
- The random generator is no tensor, and on one GPU only issue order counts: it is left out, as the rule leaves it out.
- Every GPU's default stream is 0 there, so it knows of no order between GPUs. Programs here use one GPU, and lane n is stream
  n + 1: a stream like any other.
- It may report other pairs: after reads, a write is compared with the reads only, and one launch is reported once for each
  tensor. So *whether* there is a race is compared, and the instruction at which the first one shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda._sanitizer import EventHandler

from partitioner.ir.access import ANY, RNG
from partitioner.ir.conflicts import conflicts
from partitioner.ir.parse import parse
from partitioner.ir.program import Copy, Instruction, Program, Record, Run, Wait
from partitioner.lower.rules import Case, race
from programs import Lowered, lowered_programs, random_lowered, with_instructions

ONE_GPU: tuple[tuple[str, ...], ...] = (("cuda:0",),)


class Replay:
    """Tells a sanitizer what a program does."""

    def __init__(self, program: Program) -> None:
        self.program, self.handler = program, EventHandler()
        names = {access.resource for item in program.instructions for access in program.accesses(item)} - {ANY, RNG}
        # The wildcard conflicts with what touches nothing else, too, so each instruction touches a tensor of its own.
        names |= {f"instruction {index}" for index in range(len(program.instructions))}
        self.pointer = {name: number for number, name in enumerate(sorted(names), 1)}

    def first_race(self) -> int | None:
        """The first instruction at which the sanitizer objects."""
        for index, item in enumerate(self.program.instructions):
            stream = item.lane + 1
            if isinstance(item, Record):
                self.handler._handle_event_record(item.event, stream)
            elif isinstance(item, Wait):
                self.handler._handle_event_wait(item.event, stream)
            elif isinstance(item, Run | Copy) and self._launch(index, item, stream):
                return index
        return None

    def _launch(self, index: int, item: Run | Copy, stream: int) -> Sequence[object]:
        modes = {access.resource: access.write for access in sorted(self.program.accesses(item))}
        written = {self.pointer[name] for name, write in modes.items() if write and name not in (ANY, RNG)}
        written |= set(self.pointer.values()) if ANY in modes else {self.pointer[f"instruction {index}"]}
        read = {self.pointer[name] for name in modes if name not in (ANY, RNG)} - written
        names: dict[int, list[str]] = {pointer: [] for pointer in self.pointer.values()}
        return self.handler._handle_kernel_launch(stream, read, written, set(), str(item), names)


def first_fault(program: Program) -> int | None:
    """The first instruction at which the rule ``race`` objects."""
    return min((fault.at[1] for fault in race(Case(program))), default=None)


def without(program: Program, rng: Random, share: float) -> Program:
    """The program with some of its Waits left out."""
    kept: Iterator[Instruction] = (
        item for item in program.instructions if not (isinstance(item, Wait) and rng.random() < share)
    )
    return with_instructions(program, tuple(kept))


@given(lowered_programs(layouts=ONE_GPU))
def test_the_sanitizer_finds_no_race_in_a_lowered_program(lowered: Lowered) -> None:
    assert Replay(lowered.program).first_race() is None


@given(lowered_programs(layouts=ONE_GPU), st.randoms(use_true_random=False), st.sampled_from((0.2, 0.5, 1.0)))
def test_the_sanitizer_and_the_verifier_agree_on_damaged_programs(lowered: Lowered, rng: Random, share: float) -> None:
    """Both objections name the same instruction, so each of the two finds all that the other finds."""
    damaged = without(lowered.program, rng, share)
    assert Replay(damaged).first_race() == first_fault(damaged)


def test_they_agree_on_many() -> None:
    """Plain seeds, for there is no need to shrink a number: how often the two agree, and that both say yes and no often."""
    verdicts = []
    for seed in range(400):
        rng = Random(seed)
        lowered = random_lowered(rng, layouts=ONE_GPU)
        if len({item.lane for item in lowered.program.instructions}) > 1:
            damaged = without(lowered.program, rng, 0.5)
            verdicts.append((Replay(damaged).first_race(), first_fault(damaged)))
    assert all(one == other for one, other in verdicts)
    races = sum(one is not None for one, _ in verdicts)
    assert min(races, len(verdicts) - races) > 30, f"{races} races in {len(verdicts)} programs"


HEADER = "program P\nlane 0 cuda0/0 cuda:0\nlane 1 cuda0/1 cuda:0\n"


@pytest.mark.parametrize(
    ("text", "raced"),
    [
        ("0 run s () -> () w:x\n1 run t () -> () r:x", 1),
        ("0 run s () -> () w:x\n0 record e0\n1 wait e0\n1 run t () -> () r:x", None),
        ("0 run s () -> () r:x\n1 run t () -> () r:x", None),
        ("0 run s () -> () r:x\n1 run t () -> () w:x", 1),
        ("0 run s () -> () w:rng\n1 run t () -> () w:rng", None),
        ("0 run s () -> ()\n1 run t () -> () w:*", 1),
        ("1 wait e0\n0 run s () -> () w:x\n0 record e0\n1 run t () -> () r:x", 3),
    ],
    ids=["raw", "event", "reads", "war", "random", "unknown", "waits-too-early"],
)
def test_small_programs(text: str, raced: int | None) -> None:
    program = parse(HEADER + text)
    assert Replay(program).first_race() == first_fault(program) == raced


def test_the_sanitizer_does_not_order_gpus() -> None:
    """Why the programs here use one GPU: with two default streams, both called 0, a race between GPUs is no race to it."""
    handler = EventHandler()
    default = 0
    for gpu in ("cuda:0", "cuda:1"):
        assert handler._handle_kernel_launch(default, set(), {1}, set(), gpu, {1: []}) == []


def test_conflicts_are_what_the_sanitizer_looks_at() -> None:
    """A generator is no tensor: the pair is a conflict of the program, and none that an event must order on one GPU."""
    program = parse(HEADER + "0 run s () -> () w:rng\n1 run t () -> () w:rng")
    assert list(conflicts(program)) == [(0, 1)]
    assert first_fault(program) is None
