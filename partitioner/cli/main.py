"""The command line: arguments in, report out. What is heavy is imported where a command needs it, so help comes at once."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from partitioner.cli.commands import calibrate_command, diff_command, plan_command
from partitioner.cli.console import USAGE, Debug, Output, complain, guarded, names_in, terminal, working, write

if TYPE_CHECKING:
    from partitioner.ir.plan import Plan
    from partitioner.spec.spec import Spec

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class _Group(TyperGroup):
    """Says of a wrong option what we say of any other mistake: one line, exit code 2."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except _UsageError as error:
            complain(f"{error.format_message()} (--help shows the usage)")  # type: ignore[attr-defined]
            code = USAGE
        except typer.Abort:
            code = 130
        sys.exit(code or 0)


app = typer.Typer(name="partitioner", cls=_Group, add_completion=False, pretty_exceptions_enable=False)

TargetText = Annotated[str, typer.Argument(metavar="TARGET", help="model.py, model.py:name, or package.module:name.")]
VerifyText = Annotated[str, typer.Argument(metavar="TARGET", help="A model as for inspect, or a file with a printed program.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="DTYPE[SHAPE]", help="An example input, float32[1,3,224,224] or mask=bool[2,16]; repeatable."
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Devices to plan for, such as cuda:0,cuda:1; they need not be present; repeatable."),
]
Policy = Annotated[str | None, typer.Option(metavar="NAME", help="Who places the model, such as by_level or single.")]
SpecFile = Annotated[str | None, typer.Option("--spec", metavar="FILE", help="A spec in YAML, JSON or TOML.")]
Depths = Annotated[str | None, typer.Option("--depth", metavar="RANGE", help="Show the depths 3 to 7 with 3:8, or one with 3.")]
FormatName = Annotated[str, typer.Option("--format", metavar="NAME", help="table, json, dot or mermaid.")]
NoCheck = Annotated[bool, typer.Option("--no-check", help="Do not run the model to compare its trace with it.")]
SavePlan = Annotated[
    str | None,
    typer.Option("--save-plan", metavar="FILE", help="Also write the plan as JSON, for partition(plan=FILE) and diff."),
]


@app.callback(invoke_without_command=True)
def _partitioner(context: typer.Context, version: Annotated[bool, typer.Option("--version")] = False) -> None:
    """Plan how a PyTorch model runs on several devices and lanes."""
    if version:
        from partitioner import __version__

        write(f"partitioner {__version__}\n")
    elif context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")


@app.command("inspect")
def inspect_command(
    target: TargetText,
    inputs: Inputs = None,
    devices: Devices = None,
    policy: Policy = None,
    spec: SpecFile = None,
    depth: Depths = None,
    format_name: FormatName = "table",
    output: Output = None,
    save_plan: SavePlan = None,
    no_check: NoCheck = False,
    debug: Debug = False,
) -> None:
    """Show the branches of a model by depth, where they would run, and what that is expected to give."""
    with guarded(debug):
        from partitioner.errors import SpecError
        from partitioner.ir.words import one_of
        from partitioner.report import FORMATS, Screen
        from partitioner.report.inspect import inspect
        from partitioner.report.inspection import parse_depths
        from partitioner.spec.spec import load_spec

        asked = None if spec is None else load_spec(spec)
        if asked is not None and asked.distributed is not None:
            one_of("format", format_name, ("table", "json"))
            alone = {"--devices": devices, "--policy": policy, "--depth": depth, "--save-plan": save_plan}
            for option in (option for option, value in alone.items() if value):
                raise SpecError(f"{option} is for one process, and the spec has a section distributed; leave one of them out")
            return write(_ranks(target, inputs, asked, format_name), output)
        draw = FORMATS[one_of("format", format_name, FORMATS)]
        wanted = None if depth is None else parse_depths(depth)
        plan = _plan(target, inputs, devices, policy, asked, check=not no_check)
        if save_plan is not None:
            from partitioner.lower.planfile import write_plan

            write_plan(plan, save_plan)
        found = inspect(plan)
        shown = found if wanted is None else found.only(wanted)
        write(draw(shown, Screen() if output is not None else Screen(*terminal())), output)


@app.command("verify")
def verify_command(
    target: VerifyText,
    inputs: Inputs = None,
    devices: Devices = None,
    policy: Policy = None,
    spec: SpecFile = None,
    no_check: NoCheck = False,
    debug: Debug = False,
) -> None:
    """Check a printed program, or the plan of a model, against every rule; exit with 1 if one is broken."""
    with guarded(debug):
        from partitioner.errors import VerifyError
        from partitioner.lower.planfile import is_program, read_program
        from partitioner.lower.verify import verify

        try:
            if is_program(target):
                program = verify(read_program(target))
            else:
                program = _plan(target, inputs, devices, policy, spec, check=not no_check).program
        except VerifyError as error:
            write(f"{error}\n")
            raise typer.Exit(1) from None
        write(f"no faults: {len(program.instructions)} instructions on {len(program.lanes)} lanes\n")


def _ranks(target: str, inputs: list[str] | None, spec: Spec, format_name: str) -> str:
    """What a spec for many ranks promises for a model."""
    with working("importing torch"):
        from partitioner.cli.target import load_target
        from partitioner.distributed.predicted.outlook import outlook
    with working(f"loading {target}"):
        found = load_target(target, inputs or ())
    with working(f"planning {found.name}"):
        expected = outlook(found.module, found.inputs, spec, found.kwargs)
    return f"{json.dumps(expected.data(), indent=2) if format_name == 'json' else expected}\n"


app.command("plan")(plan_command)
app.command("diff")(diff_command)
app.command("calibrate")(calibrate_command)


def _plan(
    target: str,
    inputs: list[str] | None,
    devices: list[str] | None,
    policy: str | None,
    spec: Spec | str | None,
    *,
    check: bool,
) -> Plan:
    """The model that was named, and the plan that `partition` would make for it."""
    with working("importing torch"):
        from partitioner.cli.target import load_target
        from partitioner.driver import planned
    names = names_in(devices)
    with working(f"loading {target}"):
        found = load_target(target, inputs or ())
    with working(f"planning {found.name}"):
        return planned(
            found.module, names, example_inputs=found.inputs, example_kwargs=found.kwargs, spec=spec, policy=policy, check=check
        )


def main() -> None:
    """Run the command line."""
    app()
