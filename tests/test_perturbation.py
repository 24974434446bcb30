"""The threads backend with its threads held up at random: a result that depends on who comes first shows itself.

    program                        lane 0   a ...... record e0 ...... b
    the same, perturbed            lane 0   a ......................... record e0 ... b

No delay may change a bit. And where a Wait that is needed is taken out of a program, and the lane that should have been waited
for is held up, the result does change: so these tests can see races at all.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lanes import assert_same, plans_of, spec, used_lanes

from models import make
from partitioner import partition
from partitioner.backends import BACKENDS, codegen
from partitioner.backends.codegen import Code, hosts_of
from partitioner.backends.threads import Launch, Threads
from partitioner.ir.plan import Plan
from partitioner.ir.program import Program, Run, Wait
from partitioner.lower.rules import Case, race
from partitioner.model.call import Call
from partitioner.planner import policies
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from partitioner.testing import assert_equal_runs

Delay = Callable[[str], float]
"""Seconds to hold a thread up, before an op of this name, or ``record 3`` or ``wait 3``."""

pytestmark = pytest.mark.usefixtures("one_thread")


class HeldUp(Launch):
    """A call whose threads are held up."""

    def __init__(self, code: Code, hosts: int, delay: Delay) -> None:
        super().__init__(code, hosts)
        self.delay = delay

    def pause(self, name: str) -> None:
        seconds = self.delay(name)
        if seconds > 0:
            time.sleep(seconds)

    def record(self, event: int, lane: int) -> None:
        self.pause(f"record {event}")
        super().record(event, lane)

    def wait(self, event: int, lane: int) -> None:
        super().wait(event, lane)
        self.pause(f"wait {event}")


class Perturbed(Threads):
    """The threads backend, with a pause in front of every op. Every program is held up alike."""

    delay: Delay = staticmethod(lambda name: 0.0)

    def __init__(self, plan: Plan) -> None:
        original = codegen.Lines.add

        def add(lines: codegen.Lines, line: str, op: Any = None) -> None:
            if op is not None:
                original(lines, f"S.pause({op.name!r})")
            original(lines, line, op)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codegen.Lines, "add", add)
            super().__init__(plan)

    def begin(self, code: Code, hosts: int) -> HeldUp:
        return HeldUp(code, hosts, self.delay)


def at_random(seed: int) -> Delay:
    """Every third time or so, up to a fifth of a millisecond; the same for the same seed."""

    def delay(name: str) -> float:
        draw = random.Random(f"{seed} {name}")
        return draw.uniform(0, 2e-4) if draw.random() < 0.35 else 0.0

    return delay


HAZARDS = """
Attention CalledTwice ChunksOfBase CopyInto DeclaredMutation DropoutBranches Ensemble GatedExperts GaussianLatent Inception
InplaceDraw InputWritten KeyValueCache LocalContainers LoopOverBatch MaybeView NewZeros NonPersistent ParityCounter
RandomBranches Recurrent RunningMean RunningStatistics SetItem SharedNorm TiedWeights ToDevice TwoViews
""".split()
"""Models of `tests/models` that use several lanes: views, in-place ops, buffers, random numbers, modules called twice."""


@pytest.fixture(autouse=True)
def perturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These models are far too small for lanes to pay; here they are to be spread all the same, over perturbed ones."""
    monkeypatch.setattr(policies, "MIN_SPEEDUP", 0.0)
    monkeypatch.setitem(BACKENDS, "perturbed", Perturbed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HAZARDS)
def test_delays_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, buffers, random numbers, and gradients, over two calls, for many seeds."""
    model = make(name)
    inputs = model.example_inputs()
    parallel = partition(model, example_inputs=tuple(inputs), spec=spec(), backend="perturbed", copy=True)
    assert len(used_lanes(parallel)) > 1
    for seed in range(8):
        monkeypatch.setattr(Perturbed, "delay", staticmethod(at_random(seed)))
        assert_equal_runs(model, parallel, inputs, train=True, gradients=seed % 4 == 0, seed=seed)


# -- races that are there --------------------------------------------------------------------------------------------


def without(program: Program, index: int) -> Program:
    """The program less one instruction."""
    return replace(program, instructions=program.instructions[:index] + program.instructions[index + 1 :])


def needed_waits(program: Program) -> Iterator[tuple[Program, set[str]]]:
    """Each program that lacks one needed Wait, with the tasks that should have been waited for."""
    hosts = hosts_of(program)
    for index, item in enumerate(program.instructions):
        if isinstance(item, Wait):
            less = without(program, index)
            pairs = [tuple(less.instructions[at] for at in fault.at) for fault in race(Case(less))]
            early = {one.task for one, other in pairs if isinstance(one, Run) and hosts[one.lane] != hosts[other.lane]}
            if early:
                yield less, early


def outcome(run: Threads, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Results of one call from one seed, and the arguments afterwards, which state is among."""
    given = copy.deepcopy(list(arguments))
    torch.manual_seed(1)
    with torch.no_grad():
        results = run(given)
    return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in results], given


def goes_wrong(plan: Plan, arguments: Sequence[Any], wanted: Any, slow: Mapping[str, float]) -> bool:
    """Whether the program, with some ops held up, gives other bits, or fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Perturbed, "delay", staticmethod(lambda name: slow.get(name, 0.0)))
        try:
            assert_same(wanted, outcome(Perturbed(plan), arguments))
        except Exception:
            return True
    return False


def test_races_are_seen() -> None:
    """One needed Wait less, and the task that it waited for held up: most such programs give wrong bits, or fail."""
    total = caught = 0
    document = load_spec(spec())
    machine = build_machine(document)
    for name in HAZARDS:
        model = make(name).train()
        inputs = [x.detach() for x in model.example_inputs()]
        for plan, arguments, _ in plans_of(model, Call.of(inputs, {}), machine, document):
            wanted = outcome(Perturbed(plan), arguments)
            for program, tasks in needed_waits(plan.program):
                slow = {plan.tasks.by_name[task].ops[0]: 4e-3 for task in tasks}
                total += 1
                caught += goes_wrong(replace(plan, program=program), arguments, wanted, slow)
    print(f"\n{caught} of {total} programs that lack a needed Wait went wrong ({caught / total:.0%})")
    assert total >= 40 and caught > total / 2
