"""Whether anything of a program overlaps, against asking every pair."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings

from partitioner.ir.order import happens_before, overlaps
from partitioner.ir.parse import parse
from partitioner.ir.program import Run
from partitioner.model.call import Call
from partitioner.plans import make_plan
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import Spec
from partitioner.testing import GeneratedModule, fake_device_lists, modules

LANES = "program P\nlane 0 cpu/0 cpu\nlane 1 cpu/1 cpu\n"


def test_two_lanes_without_events_overlap() -> None:
    assert overlaps(parse(LANES + "0 run a () -> ()\n1 run b () -> ()"))


def test_lanes_that_take_turns_do_not() -> None:
    turns = "0 run a () -> ()\n0 record e0\n1 wait e0\n1 run b () -> ()\n1 record e1\n0 wait e1\n0 run c () -> ()"
    assert not overlaps(parse(LANES + turns))
    assert overlaps(parse(LANES + turns.replace("0 wait e1\n", "")))


def test_one_lane_does_not_overlap_itself() -> None:
    assert not overlaps(parse(LANES + "0 run a () -> ()\n0 run b () -> ()"))
    assert not overlaps(parse(LANES))


@given(modules(), fake_device_lists())
@settings(max_examples=settings.default.max_examples // 2)
def test_any_program(model: GeneratedModule, devices: list[str]) -> None:
    program = make_plan(model, Call.of(model.example_inputs(0), {}), build_machine(Spec(), devices), Spec()).program
    order = happens_before(program)
    runs = [index for index, item in enumerate(program.instructions) if isinstance(item, Run)]
    pairs = [
        (one, other)
        for one, other in combinations(runs, 2)
        if program.instructions[one].lane != program.instructions[other].lane
        and not order.before(one, other)
        and not order.before(other, one)
    ]
    assert overlaps(program) == bool(pairs)
