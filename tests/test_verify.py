"""Each rule of the verifier, broken by the smallest program that breaks nothing else; and right programs, which break none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given

from partitioner.errors import VerifyError
from partitioner.ir.access import Access
from partitioner.ir.graph import Op
from partitioner.ir.machine import Device, Machine
from partitioner.ir.parse import parse
from partitioner.ir.program import Program, Run
from partitioner.ir.task import TaskGraph, group
from partitioner.lower.rules import RULES, Case, Fault
from partitioner.lower.verify import faults, verify
from partitioner.lower.verify import shown as shown_fault
from partitioner.model.call import Call
from partitioner.plans import make_plan
from partitioner.spec.spec import Spec
from programs import Lowered, lowered_programs, make_graph

LANES = {
    "one": "lane 0 cpu/0 cpu",
    "two": "lane 0 cpu/0 cpu\nlane 1 cpu/1 cpu",
    "gpu": "lane 0 cuda0/0 cuda:0\nlane 1 cuda0/1 cuda:0",
    "gpus": "lane 0 cuda0/0 cuda:0\nlane 1 cuda1/0 cuda:1",
    "hybrid": "lane 0 cpu/0 cpu\nlane 1 cuda0/0 cuda:0",
}


@dataclass(frozen=True)
class Broken:
    """A program that breaks one rule, and what the verifier should say."""

    story: str
    rule: str
    fault: str
    at: tuple[int, ...]
    message: str
    lanes: str
    text: str
    tasks: TaskGraph | None = None
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return program(self.lanes, self.text)


def program(lanes: str, text: str) -> Program:
    """Lines such as ``x: cpu x`` declare values of 8 bytes; the rest is as programs print."""
    lines = ["program P", LANES[lanes]]
    for line in text.strip().splitlines():
        name, colon, rest = line.strip().partition(": ")
        device, *storages = rest.split() if colon else [""]
        lines.append(f"value {name} {device} 8 {' '.join(storages)}" if colon else line)
    return parse("\n".join(lines))


def updates(*buffers: str) -> TaskGraph:
    """Tasks t0, t1, ... that each write one buffer and give nothing."""
    ops = [Op(f"u{n}", "add_", (), (Access(f"self.{name}", True),), (), (name,)) for n, name in enumerate(buffers)]
    return group(make_graph(ops, (), ()), [[op.name] for op in ops])


def chain() -> TaskGraph:
    """t0 makes a from x, t1 makes b from a."""
    ops = [
        Op("a", "f", ("x",), (Access("x"), Access("a", True)), ("a",)),
        Op("b", "f", ("a",), (Access("a"), Access("b", True)), ("b",)),
    ]
    return group(make_graph(ops, ("x",), ("a", "b")), [["a"], ["b"]])


BROKEN = [
    Broken(
        "a lane waits for an event that nobody records",
        "deadlock",
        "deadlock",
        (1,),
        "cpu/0 waits for e7, which nothing before it records",
        "one",
        """
        0 run t () -> ()
        0 wait e7
        """,
    ),
    Broken(
        "a lane waits for what is issued after it, which hangs a host that issues in order",
        "deadlock",
        "deadlock",
        (2,),
        "cpu/0 waits for e1, which nothing before it records",
        "two",
        """
        0 record e0
        1 wait e0
        0 wait e1
        1 record e1
        """,
    ),
    Broken(
        "an event is recorded twice, and a waiter cannot know which is meant",
        "deadlock",
        "deadlock",
        (0, 1),
        "event e0 is recorded twice",
        "one",
        """
        0 record e0
        0 record e0
        """,
    ),
    Broken(
        "a value is read before it is made",
        "definition",
        "definition",
        (0,),
        "a is read before it is made",
        "one",
        """
        a: cpu a
        output a
        0 run t (a) -> () r:a
        0 run s () -> (a) w:a
        """,
    ),
    Broken(
        "a value is made twice",
        "definition",
        "definition",
        (1,),
        "a is made twice",
        "one",
        """
        a: cpu a
        output a
        0 run s () -> (a) w:a
        0 run t () -> (a) w:a
        """,
    ),
    Broken(
        "a value is made that nobody declared, so that nobody knows where it lies",
        "definition",
        "definition",
        (0,),
        "a is not declared",
        "one",
        """
        output a
        0 run s () -> (a) w:a
        """,
    ),
    Broken(
        "an output is never made",
        "definition",
        "definition",
        (),
        "output a is never made",
        "one",
        """
        a: cpu a
        output a
        """,
    ),
    Broken(
        "a task that the graph does not have",
        "graph",
        "graph",
        (0,),
        "t9 is unknown",
        "one",
        "0 run t9 () -> ()",
        tasks=updates(),
    ),
    Broken(
        "a task runs twice",
        "graph",
        "graph",
        (1,),
        "t0 is run twice",
        "one",
        """
        0 run t0 () -> () w:self.b
        0 run t0 () -> () w:self.b
        """,
        tasks=updates("b"),
    ),
    Broken(
        "a task is left out",
        "graph",
        "graph",
        (),
        "never run: t1",
        "one",
        "0 run t0 () -> () w:self.b",
        tasks=updates("b", "c"),
    ),
    Broken(
        "a task is given another value than its own",
        "graph",
        "graph",
        (1,),
        "t1 takes (a) and gives (b)",
        "one",
        """
        x: cpu x
        a: cpu a
        b: cpu b
        input x
        output a
        output b
        0 run t0 (x) -> (a) r:x w:a
        0 run t1 (x) -> (b) r:x w:b
        """,
        tasks=chain(),
    ),
    Broken(
        "what is called a copy of one value is a copy of another",
        "graph",
        "graph",
        (2,),
        "b@cuda:0 is no copy of x",
        "hybrid",
        """
        x: cpu x
        b@cuda:0: cuda:0 b@cuda:0
        input x
        0 record e0
        1 wait e0
        1 copy x -> b@cuda:0
        1 free b@cuda:0
        1 record e1
        0 wait e1
        """,
        tasks=updates(),
    ),
    Broken(
        "two writes of one buffer change places, in the open: every event is there",
        "graph",
        "graph",
        (0, 1),
        "t1 is issued before t0, on which it depends",
        "one",
        """
        0 run t1 () -> () w:self.b
        0 run t0 () -> () w:self.b
        """,
        tasks=updates("b", "b"),
    ),
    Broken(
        "a lowering lost what a task touches, so that no rule on the program alone can see the race",
        "graph",
        "graph",
        (1, 3),
        "t1 depends on t0, and no event orders them",
        "two",
        """
        0 record e0
        0 run t0 () -> ()
        1 wait e0
        1 run t1 () -> ()
        1 record e1
        0 wait e1
        """,
        tasks=updates("b", "b"),
    ),
    Broken(
        "a task reads a tensor of another device",
        "device",
        "device",
        (0,),
        "x lies on cpu, and cuda0/0 is on cuda:0",
        "gpu",
        """
        x: cpu x
        input x
        0 run t (x) -> () r:x
        """,
    ),
    Broken(
        "a value is made on another device than declared",
        "device",
        "device",
        (0,),
        "a lies on cuda:1, and cuda0/0 is on cuda:0",
        "gpus",
        """
        a: cuda:1 a
        output a
        0 run t () -> (a) w:a
        """,
    ),
    Broken(
        "two devices use one parameter, which lies on one of them",
        "device",
        "device",
        (1, 3),
        "self.w is used on cuda:0 and on cuda:1",
        "gpus",
        """
        0 record e0
        0 run s () -> () r:self.w
        1 wait e0
        1 run t () -> () r:self.w
        1 record e1
        0 wait e1
        """,
    ),
    Broken(
        "a copy is taken before the last write to its source, and read after it",
        "stale",
        "stale",
        (2, 5, 8),
        "x@cuda:0 is used after x was written",
        "hybrid",
        """
        x: cpu x
        x@cuda:0: cuda:0 x@cuda:0
        input x
        0 record e0
        1 wait e0
        1 copy x -> x@cuda:0
        1 record e1
        0 wait e1
        0 run add_ (x) -> () w:x
        0 record e2
        1 wait e2
        1 run t (x@cuda:0) -> () r:x@cuda:0
        1 free x@cuda:0
        1 record e3
        0 wait e3
        """,
    ),
    Broken(
        "an in-place op and a reader of the same storage run at once",
        "race",
        "race",
        (2, 3),
        "instructions 2 and 3 both touch x, and no event orders cpu/1 before cpu/0",
        "two",
        """
        x: cpu x
        input x
        0 record e0
        1 wait e0
        1 run relu_ (x) -> () w:x
        0 run t (x) -> () r:x
        1 record e1
        0 wait e1
        """,
    ),
    Broken(
        "a value is passed on without an event",
        "race",
        "race",
        (1, 3),
        "instructions 1 and 3 both touch %a, and no event orders cpu/0 before cpu/1",
        "two",
        """
        a: ''
        output a
        0 record e0
        0 run size () -> (a)
        1 wait e0
        1 run t (a) -> ()
        1 record e1
        0 wait e1
        """,
    ),
    Broken(
        "two CPU lanes draw from one generator at once; on an accelerator the order of issue would do",
        "race",
        "race",
        (1, 3),
        "instructions 1 and 3 both touch rng, and no event orders cpu/0 before cpu/1",
        "two",
        """
        0 record e0
        0 run s () -> () w:rng
        1 wait e0
        1 run t () -> () w:rng
        1 record e1
        0 wait e1
        """,
    ),
    Broken(
        "a lane starts before the caller's own work is done",
        "boundary",
        "boundary",
        (0,),
        "cpu/1 starts without waiting for the caller",
        "two",
        """
        1 run t () -> ()
        1 record e0
        0 wait e0
        """,
    ),
    Broken(
        "the caller goes on while a lane still works",
        "boundary",
        "boundary",
        (2,),
        "the program ends before instruction 2 on cpu/1 is known to be done",
        "two",
        """
        0 record e0
        1 wait e0
        1 run t () -> ()
        """,
    ),
    Broken(
        "a value is freed while another lane reads it",
        "use_after_free",
        "use after free",
        (3, 4),
        "a is freed on cpu/0 while cpu/1 may still use it",
        "two",
        """
        a: cpu a
        0 run s () -> (a) w:a
        0 record e0
        1 wait e0
        1 run t (a) -> () r:a
        0 free a
        1 record e1
        0 wait e1
        """,
    ),
    Broken(
        "a value is freed before a view of it is read",
        "use_after_free",
        "use after free",
        (2, 3),
        "a is freed on cpu/0 while cpu/0 may still use it",
        "one",
        """
        a: cpu a
        v: cpu a
        output v
        0 run s () -> (a) w:a
        0 run view (a) -> (v) r:a
        0 free a
        0 run t (v) -> () r:a
        """,
    ),
    Broken(
        "a value is freed twice",
        "freeing",
        "double free",
        (1, 2),
        "a is freed twice",
        "one",
        """
        a: cpu a
        0 run s () -> (a) w:a
        0 free a
        0 free a
        """,
    ),
    Broken(
        "the caller's tensor is freed",
        "freeing",
        "double free",
        (0,),
        "x is not the program's to free",
        "one",
        """
        x: cpu x
        input x
        0 free x
        """,
    ),
    Broken(
        "a block goes back on another stream than it came from, where the allocator would hand it out again too early",
        "freeing",
        "free on the wrong lane",
        (4,),
        "a does not belong to cuda0/1",
        "gpu",
        """
        a: cuda:0 a
        0 run s () -> (a) w:a
        0 record e0
        1 wait e0
        1 run t (a) -> () r:a
        1 free a
        1 record e1
        0 wait e1
        """,
    ),
    Broken(
        "a value is never freed",
        "freeing",
        "leak",
        (),
        "a (8 B) is never freed",
        "one",
        """
        a: cpu a
        0 run s () -> (a) w:a
        """,
    ),
    Broken(
        "two live values do not fit",
        "capacity",
        "capacity",
        (1,),
        "cpu needs 0 B of state and 16 B of live values, and has 15 B",
        "one",
        """
        a: cpu a
        b: cpu b
        output a
        output b
        0 run s () -> (a) w:a
        0 run t () -> (b) w:b
        """,
        memory={"cpu": 15},
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.story)
def test_each_rule_catches_its_program_and_no_other_does(broken: Broken) -> None:
    """One fault: its rule, the instructions, and the numbers and names that disagree."""
    case = Case(broken.program, broken.tasks, broken.memory)
    (fault,) = faults(case)
    assert (fault.rule, tuple(sorted(fault.at)), fault.message) == (broken.fault, broken.at, broken.message)
    assert [rule.__name__ for rule in RULES if list(rule(case))] == [broken.rule]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.story)
def test_the_error_shows_the_program_around_the_fault(broken: Broken) -> None:
    """Both instructions are marked in the excerpt, so that nobody has to count lines in a program of thousands."""
    with pytest.raises(VerifyError) as error:
        verify(broken.program, tasks=broken.tasks, memory=broken.memory)
    lines = str(error.value).splitlines()
    assert lines[:3] == ["program P has 1 fault", "", f"{broken.fault}: {broken.message}"]
    marked = [line for line in lines if line.startswith("  >")]
    assert marked == [f"  > {index:4d} | {broken.program.instructions[index]}" for index in broken.at]


def test_every_rule_is_broken_here() -> None:
    """A new rule needs a program of its own above."""
    assert {broken.rule for broken in BROKEN} == {rule.__name__ for rule in RULES}


def test_the_whole_text_of_an_error() -> None:
    """Distant instructions are shown with their neighbours, and a gap between them."""
    text = """
    x: cpu x
    input x
    0 record e0
    1 wait e0
    1 run relu_ (x) -> () w:x
    1 record e1
    0 run first () -> ()
    0 run second () -> ()
    0 run t (x) -> () r:x
    0 wait e1
    """
    with pytest.raises(VerifyError) as error:
        verify(program("two", text))
    assert str(error.value) == (
        """\
program P has 1 fault

race: instructions 2 and 6 both touch x, and no event orders cpu/1 before cpu/0
       1 | 1 wait e0
  >    2 | 1 run relu_ (x) -> () w:x
       3 | 1 record e1
      ...
       5 | 0 run second () -> ()
  >    6 | 0 run t (x) -> () r:x
       7 | 0 wait e1"""
    )


def test_all_faults_are_collected() -> None:
    """One error for everything that is wrong: somebody who mends a lowering sees the whole of the damage."""
    text = """
    a: cpu a
    b: cpu b
    1 run s () -> (a) w:a
    0 run t (a) -> () r:a
    0 wait e9
    0 free a
    0 free a
    """
    with pytest.raises(VerifyError) as error:
        verify(program("two", text), memory={"cpu": 4})
    found = [line.partition(":")[0] for line in str(error.value).split("\n\n")]
    assert found[0] == "program P has 9 faults"
    assert set(found[1:]) == {"deadlock", "race", "boundary", "use after free", "double free", "leak", "capacity"}


def test_the_text_of_very_many_faults_is_cut_and_their_number_is_not() -> None:
    values = "".join(f"v{number}: cpu v{number}\n" for number in range(50))
    with pytest.raises(VerifyError, match="program P has 50 faults") as error:
        verify(program("one", values + "0 run t () -> ()"))
    assert str(error.value).count("leak: ") == 20


@given(lowered_programs())
def test_lowered_programs_have_no_faults(lowered: Lowered) -> None:
    """And `verify` gives back what it was given, so that it can stand in a pipeline."""
    assert verify(lowered.program, tasks=lowered.tasks) is lowered.program


@given(lowered_programs())
def test_without_tasks_the_rules_on_the_program_still_hold(lowered: Lowered) -> None:
    """A program read from a file comes without the tasks that it was made from."""
    assert faults(Case(parse(str(lowered.program)))) == []


def test_capacity_counts_state() -> None:
    """Parameters stay; live values come on top."""
    text = "a: cpu a\noutput a\n0 run s () -> (a) w:a"
    verify(program("one", text), memory={"cpu": 24}, resident={"cpu": 16})
    with pytest.raises(VerifyError, match="16 B of state and 8 B of live values, and has 23 B"):
        verify(program("one", text), memory={"cpu": 23}, resident={"cpu": 16})


def test_a_generator_on_accelerators_needs_no_event() -> None:
    """The pair that is a race on two CPU lanes: here the host gives the numbers out when it issues the kernels."""
    text = """
    0 record e0
    0 run s () -> () w:rng
    1 wait e0
    1 run t () -> () w:rng
    1 record e1
    0 wait e1
    """
    verify(program("gpu", text))


def test_frees_at_the_end_may_be_on_any_lane() -> None:
    """When everything is done there is nobody left whom a block could be handed to too early."""
    text = """
    a: cuda:0 a
    0 record e0
    1 wait e0
    1 run s () -> (a) w:a
    1 record e1
    0 wait e1
    0 free a
    """
    verify(program("gpu", text))


def test_a_fault_names_module_and_source_line() -> None:
    """Where the tasks are known, so is what the user wrote."""
    plan = make_plan(TwoBranches(), Call.of((torch.ones(2, 4),), {}), Machine((Device("cpu", "cpu", lanes=2),)), Spec())
    runs = [index for index, item in enumerate(plan.program.instructions) if isinstance(item, Run)]
    shown = shown_fault(Fault("race", "for show", (runs[0],)), plan.program, plan.tasks)
    assert f"instruction {runs[0]} runs t0, which begins with left_linear in left at {__file__}:" in shown


class TwoBranches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x)
