"""What the command line shares with its surroundings: errors as one line, progress, and the ends of pipes."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from partitioner.errors import PartitionerError

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Output = Annotated[str | None, typer.Option("--output", metavar="FILE", help="Write to a file instead of standard output.")]

USAGE, FAULT = 2, 3
"""Exit codes: the user can mend it; we have to. 1 is for programs with faults."""


class OutputError(PartitionerError):
    """A report cannot be written where it was asked for."""


@contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Turn every error into a line on stderr and an exit code; with ``debug``, after its traceback."""
    try:
        yield
    except (typer.Exit, typer.Abort, KeyboardInterrupt):
        raise
    except BaseException as error:
        if debug:
            traceback.print_exc()
        raise typer.Exit(_explain(error)) from None


def _explain(error: BaseException) -> int:
    if isinstance(error, PartitionerError):
        complain(str(error))
        return USAGE
    if isinstance(error, SystemExit):
        complain(f"the model called sys.exit({error.code!r}) while it was traced")
        return USAGE
    text = " ".join(f"{type(error).__name__}: {error}".split())
    complain(f"a fault of partitioner, not of yours: {text} (--debug shows the traceback)")
    return FAULT


def complain(text: str) -> None:
    """Write an error to stderr."""
    if sys.stderr is not None:
        print(_encodable(f"error: {text}", sys.stderr.encoding), file=sys.stderr)


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Show on stderr what is going on, where somebody watches; what a model prints meanwhile goes to stderr too."""
    if sys.stderr is None:
        yield
        return
    with redirect_stdout(sys.stderr):
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(f"{doing} ..."):
            yield


def names_in(options: list[str] | None) -> list[str] | None:
    """The names in an option that may be given several times, with commas in it; ``None`` if it was not given."""
    return [name.strip() for names in options or () for name in names.split(",")] or None


def write(text: str, output: str | None = None) -> None:
    """Write a report to stdout or to a file.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        if output is not None:
            Path(output).write_text(_encodable(text, "utf-8"), encoding="utf-8")
        elif sys.stdout is not None:
            sys.stdout.write(_encodable(text, sys.stdout.encoding))
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the pipe has seen enough. Python flushes stdout once more at exit, and must find somebody there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (OSError, ValueError) as error:
        raise OutputError(
            f"cannot write to {'standard output' if output is None else output or repr(output)}: {error}"
        ) from error


def terminal() -> tuple[int | None, bool]:
    """Width of the terminal on stdout and whether it shows colours; no width if stdout is no terminal, or not in Unicode."""
    if sys.stdout is None or not sys.stdout.isatty() or not (sys.stdout.encoding or "").lower().startswith("utf"):
        return None, False
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns, colour


def _encodable(text: str, encoding: str | None) -> str:
    """``text`` with what ``encoding`` lacks as escapes."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
