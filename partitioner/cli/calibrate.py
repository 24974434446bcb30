"""The command that measures this machine and writes the spec of it."""

from __future__ import annotations

from typing import Annotated

import typer

from partitioner.cli.console import Debug, Output, guarded, working, write

Devices = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Devices to measure, such as cpu:0,cpu:1 or cuda:0; those that are found if left out."),
]


def calibrate_command(devices: Devices = None, output: Output = None, debug: Debug = False) -> None:
    """Measure what it costs here to compute, move, issue, record, wait and hand over; write it as a spec."""
    with guarded(debug):
        with working("importing torch"):
            from partitioner.profile.calibrate import calibrate
            from partitioner.spec.discover import build_machine, refuse_missing
            from partitioner.spec.spec import Spec
        names = [name.strip() for names in devices or () for name in names.split(",")] or None
        machine = build_machine(Spec(), names)
        refuse_missing(machine)
        with working("measuring"):
            found = calibrate(machine)
        write(str(found), output)
