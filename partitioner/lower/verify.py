"""Is a program right? Every rule is asked, and all faults are shown, each with the program around it.

race: instructions 4 and 7 both touch %a, and no event orders cpu/0 before cpu/1
     3 | 0 wait e0
>    4 | 0 run t0 (x) -> (a) w:a r:x
      ...
>    7 | 1 run t1 (a) -> (b) r:a w:b
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from partitioner.errors import PlacementError, SpecError, VerifyError
from partitioner.ir.batch import resized
from partitioner.ir.footprint import footprints
from partitioner.ir.machine import caps
from partitioner.ir.plan import Plan, resident_bytes
from partitioner.ir.program import Program, Run
from partitioner.ir.task import TaskGraph
from partitioner.lower.memory import explained
from partitioner.lower.rules import RULES, Case, Fault, capacity, undeclared

ADVICE = "Raise the cap, add a device, pin parts of the model elsewhere, or take a smaller batch."


def faults(case: Case) -> list[Fault]:
    """Every fault that any rule finds."""
    return list(undeclared(case)) or [fault for rule in RULES for fault in rule(case)]


def verify(
    program: Program,
    *,
    tasks: TaskGraph | None = None,
    memory: Mapping[str, int] | None = None,
    resident: Mapping[str, int] | None = None,
) -> Program:
    """Check a program against every rule: races, deadlocks, wrong devices, use after free, leaks, memory.

    Args:
        program: what to check.
        tasks: the tasks that it was made from; without them the rule ``graph`` is skipped.
        memory: cap in bytes by torch device.
        resident: bytes of parameters and buffers by torch device.

    Returns:
        The program itself.

    Raises:
        VerifyError: with every fault, and the program around each.
        SpecError: it is no program.

    Example:
        >>> from partitioner import parse
        >>> lanes = "program Toy\\nlane 0 cpu/0 cpu\\nlane 1 cpu/1 cpu\\n"
        >>> verify(parse(lanes + "0 run a () -> ()\\n0 run b () -> ()")).name
        'Toy'
        >>> verify(parse(lanes + "0 run a () -> () w:x\\n1 run b () -> () r:x"))
        Traceback (most recent call last):
        ...
        partitioner.errors.VerifyError: program Toy has ...
    """
    if not isinstance(program, Program):
        raise SpecError(f"verify takes a Program, and this is a {type(program).__name__}; parse(text) reads a printed one")
    found = faults(Case(program, tasks, memory or {}, resident or {}))
    if found:
        raise _broken(program, tasks, found)
    return program


def verify_plan(plan: Plan) -> None:
    """Check a plan's program against every rule: its tasks, the machine's caps and the state that lies there included.

    Args:
        plan: what was decided. Where nobody knows what its ops take, only state and the values between tasks are counted.

    Raises:
        PlacementError: the caps do not hold parameters, buffers and live values. Policies count state; what the values between
            tasks add is known only now.
        VerifyError: any other rule is broken.
    """
    found = faults(_case(plan))
    _refuse_full(plan, [fault.message for fault in found if fault.rule == "capacity"])
    if found:
        raise _broken(plan.program, plan.tasks, found)


def verify_memory(plan: Plan, sizes: Mapping[str, int]) -> None:
    """Check a plan against the machine's caps once more, for a call whose sizes are others than those it was made for.

    Args:
        plan: its other rules hold for all sizes.
        sizes: bytes of each op's result.

    Raises:
        PlacementError: the caps do not hold parameters, buffers and live values.
    """
    plan = resized(plan, sizes)
    _refuse_full(plan, [fault.message for fault in capacity(_case(plan))])


def _case(plan: Plan) -> Case:
    """A plan with what its machine allows; footprints are reckoned only where there are caps."""
    limits = caps(plan.machine)
    return Case(plan.program, plan.tasks, limits, resident_bytes(plan), footprints(plan) if limits else {})


def _refuse_full(plan: Plan, full: list[str]) -> None:
    if full:
        raise PlacementError("\n".join([*full, ADVICE, *explained(plan)]))


def _broken(program: Program, tasks: TaskGraph | None, found: list[Fault]) -> VerifyError:
    count = f"{len(found)} fault{'s' if len(found) > 1 else ''}"
    return VerifyError(
        "\n\n".join([f"program {program.name} has {count}", *(shown(fault, program, tasks) for fault in found[:20])])
    )


def shown(fault: Fault, program: Program, tasks: TaskGraph | None = None) -> str:
    """A fault with the program around it, and with module and source line of the ops concerned where tasks are known."""
    lines = [f"{fault.rule}: {fault.message}", *_excerpt(program, fault.at)]
    return "\n".join([*lines, *(_sources(program, tasks, fault.at) if tasks is not None else ())])


def _excerpt(program: Program, at: tuple[int, ...]) -> Iterator[str]:
    shown = sorted({near for index in at for near in range(max(0, index - 1), min(len(program.instructions), index + 2))})
    previous = -1
    for index in shown:
        if previous >= 0 and index > previous + 1:
            yield "      ..."
        yield f"  {'>' if index in at else ' '} {index:4d} | {program.instructions[index]}"
        previous = index


def _sources(program: Program, tasks: TaskGraph, at: tuple[int, ...]) -> Iterator[str]:
    """Where the first op of each Run among the instructions comes from."""
    for index in at:
        item = program.instructions[index]
        task = tasks.by_name.get(item.task) if isinstance(item, Run) else None
        if task is not None:
            op = tasks.graph.by_name[task.ops[0]]
            yield f"  instruction {index} runs {task.name}, which begins with {op.name} {op.where}".rstrip()
