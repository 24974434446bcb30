"""The command ``plan``: a task graph and a machine in, an answer out. No model and no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from partitioner.cli.console import Debug, Output, guarded, working, write

GraphFile = Annotated[str, typer.Argument(metavar="GRAPH", help="A task graph in JSON: tasks with seconds, and edges.")]
MachineFile = Annotated[str, typer.Option("--machine", metavar="FILE", help="Devices and links in JSON or YAML.")]
ObjectiveName = Annotated[str, typer.Option("--objective", metavar="NAME", help="latency or throughput.")]
Contiguous = Annotated[bool, typer.Option("--contiguous", help="No path of tasks leaves a device and comes back.")]
PolicyName = Annotated[str, typer.Option("--policy", metavar="NAME", help="Who plans: auto, or one of the policies.")]
TimeLimit = Annotated[str, typer.Option("--time-limit", metavar="TIME", help="How long it may take, such as 10s or 500ms.")]
FormatName = Annotated[str, typer.Option("--format", metavar="NAME", help="table or json.")]


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
