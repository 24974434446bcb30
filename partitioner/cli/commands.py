"""The commands that need no model: plan a task graph, compare two saved plans, measure this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from partitioner.cli.console import Debug, Output, guarded, names_in, working, write

GraphFile = Annotated[str, typer.Argument(metavar="GRAPH", help="A task graph in JSON: tasks with seconds, and edges.")]
MachineFile = Annotated[str, typer.Option("--machine", metavar="FILE", help="Devices and links in JSON or YAML.")]
ObjectiveName = Annotated[str, typer.Option("--objective", metavar="NAME", help="latency or throughput.")]
Contiguous = Annotated[bool, typer.Option("--contiguous", help="No path of tasks leaves a device and comes back.")]
PolicyName = Annotated[str, typer.Option("--policy", metavar="NAME", help="Who plans: auto, or one of the policies.")]
TimeLimit = Annotated[str, typer.Option("--time-limit", metavar="TIME", help="How long it may take, such as 10s or 500ms.")]
FormatName = Annotated[str, typer.Option("--format", metavar="NAME", help="table or json.")]
First = Annotated[str, typer.Argument(metavar="A", help="A plan that save_plan or inspect --save-plan wrote.")]
Second = Annotated[str, typer.Argument(metavar="B", help="Another one.")]
Devices = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Devices to measure, such as cpu:0,cpu:1 or cuda:0; those that are found if left out."),
]


def plan_command(
    graph: GraphFile,
    machine: MachineFile,
    objective: ObjectiveName = "latency",
    contiguous: Contiguous = False,
    policy: PolicyName = "auto",
    time_limit: TimeLimit = "10s",
    format_name: FormatName = "table",
    output: Output = None,
    debug: Debug = False,
) -> None:
    """Plan a task graph that stands in a file: where each task runs, when, and how far from the best that can be."""
    with guarded(debug):
        from partitioner.ir.words import one_of
        from partitioner.planning import plan
        from partitioner.report.schedule import SCHEDULES

        draw = SCHEDULES[one_of("format", format_name, SCHEDULES)]
        with working(f"planning {graph}"):
            answer = plan(graph, machine, objective=objective, contiguous=contiguous, policy=policy, time_limit=time_limit)
        write(draw(answer), output)


def diff_command(one: First, other: Second, debug: Debug = False) -> None:
    """Compare two saved plans: machine, model, which tasks moved, order, predictions; exit with 1 if they differ."""
    with guarded(debug):
        from partitioner.lower.planfile import read_plan
        from partitioner.report.differences import differences

        found = differences(read_plan(one), read_plan(other))
        write("\n".join(found or ["no difference"]) + "\n")
        if found:
            raise typer.Exit(1)


def calibrate_command(devices: Devices = None, output: Output = None, debug: Debug = False) -> None:
    """Measure what it costs here to compute, move, issue, record, wait and hand over; write it as a spec."""
    with guarded(debug):
        with working("importing torch"):
            from partitioner.profile.calibrate import calibrate
            from partitioner.spec.discover import build_machine, refuse_missing
            from partitioner.spec.spec import Spec
        machine = build_machine(Spec(), names_in(devices))
        refuse_missing(machine)
        with working("measuring"):
            found = calibrate(machine)
        write(str(found), output)
