"""The command ``diff``: two saved plans in, what differs out. No model and no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from partitioner.cli.console import Debug, guarded, write

First = Annotated[str, typer.Argument(metavar="A", help="A plan that save_plan or inspect --save-plan wrote.")]
Second = Annotated[str, typer.Argument(metavar="B", help="Another one.")]


def diff_command(one: First, other: Second, debug: Debug = False) -> None:
    """Compare two saved plans: machine, model, which tasks moved, order, predictions; exit with 1 if they differ."""
    with guarded(debug):
        from partitioner.lower.planfile import read_plan
        from partitioner.report.differences import differences

        found = differences(read_plan(one), read_plan(other))
        write("\n".join(found or ["no difference"]) + "\n")
        if found:
            raise typer.Exit(1)
