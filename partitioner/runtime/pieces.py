"""One graph's program, as the tracer's bytecode calls it, and those of the call that ran last."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import CodeType
from typing import Any, NamedTuple

from partitioner.backends.executable import Executable
from partitioner.errors import PartitionerError
from partitioner.ir.access import CHECKED, TOKENS
from partitioner.ir.mode import Mode
from partitioner.ir.plan import Plan
from partitioner.model.call import CheckFailed, sharing
from partitioner.model.modes import has_hooks, take_over
from partitioner.runtime.again import run_again
from partitioner.runtime.rollback import Before, Rollback, runs_ahead


@dataclass(frozen=True, eq=False)
class Made:
    """A program of a graph.

    Args:
        executable: runs it.
        plainly: runs the graph in program order on the caller's thread, which is right whatever its arguments share.
        admit: raises if a call is too large for the machine; ``None`` where none can be.
    """

    executable: Executable
    plainly: Callable[[Sequence[Any]], Sequence[Any]]
    admit: Callable[[Sequence[Any]], None] | None = None


Make = Callable[[Any], Made]
"""Makes a program of a graph that was found."""

Watch = Callable[["Piece", Sequence[Any]], None]
"""Is shown a graph and its arguments."""


class Raised(NamedTuple):
    """What a program raised.

    Args:
        error: the error.
        again: whether all is as it was when the call began: it may be made again as it is.
        other: whether the model may raise another one, for the program checks something.
        caught: whether the model may go on after it.
    """

    error: Exception
    again: bool = False
    other: bool = False
    caught: bool = False


class _Here(threading.local):
    """Who looks at the graphs that this thread calls, before they run, whether they run without lanes, and what was raised."""

    watch: Watch | None = None
    plainly = False
    raised: Raised | None = None


HERE = _Here()


@dataclass(eq=False)
class Latest:
    """The pieces of the call that ran last, in order; where nobody tells when a call begins, the last piece alone."""

    pieces: list[Piece] = field(default_factory=list)
    told: bool = False

    def begin(self) -> None:
        """A call begins."""
        self.pieces, self.told = [], True

    def note(self, piece: Piece) -> None:
        """A piece runs."""
        if self.told:
            self.pieces.append(piece)
        else:
            self.pieces = [piece]


@dataclass(eq=False)
class Piece:
    """One graph's program, as the tracer's bytecode calls it.

    Args:
        executable: runs it.
        made: what else was made of the graph.
        written: positions of the arguments that it writes.
        shared: which arguments shared a storage with those when it was traced.
        reason: what Python goes on after, with the line; ``""`` if forward returns.
        first: whether the call begins with it.
        caught: whether the model may catch what it raises, or say it in its own words.
        code: of the function that it is a graph of, if that is to run again where an op fails: it changes Python's objects.
        rollback: keeps what it changes while lanes run ahead of each other; ``None`` where it cannot.
        latest: told when it runs. It does not know its module: torch holds a piece until the module's code is gone.
    """

    executable: Executable
    made: Made
    written: tuple[int, ...]
    shared: tuple[tuple[int, ...], ...]
    reason: str
    first: bool
    caught: bool
    code: CodeType | None
    rollback: Rollback | None
    latest: Latest
    keeps: bool = field(init=False)

    def __post_init__(self) -> None:
        self.keeps = self.code is not None or runs_ahead(self.plan)

    @staticmethod
    def of(
        made: Made,
        inputs: Sequence[Any],
        latest: Latest,
        reason: str = "",
        first: bool = False,
        caught: bool = False,
        code: CodeType | None = None,
    ) -> Piece:
        """The piece of a graph that was found, for the values of its placeholders."""
        graph = made.executable.plan.graph
        shared = sharing(inputs, graph.written_arguments)
        rollback = Rollback.of(graph, shared, inputs)
        return Piece(made.executable, made, graph.written_arguments, shared, reason, first, caught, code, rollback, latest)

    @cached_property
    def leaves(self) -> Mode | None:
        """The modes in which a forward that switches them leaves the caller's thread."""
        return self.plan.graph.leaves

    @property
    def checks(self) -> bool:
        """Whether an op raises what the model would: it may stand behind another one that fails, as in eager it does not."""
        return CHECKED in self.plan.graph.written

    @cached_property
    def changes(self) -> bool:
        """Whether it changes what is seen after a call that fails."""
        return bool(self.plan.graph.written & self._seen)

    @cached_property
    def checks_first(self) -> bool:
        """Whether nothing of that is changed before the last check."""
        writes = [{access.resource for access in op.accesses if access.write} for op in self.plan.graph.ops]
        checks = [CHECKED in each for each in writes if each & self._seen or CHECKED in each]
        return checks == sorted(checks, reverse=True)

    @property
    def _seen(self) -> set[str]:
        return {*self.plan.graph.given, *TOKENS} - {CHECKED}

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self.executable.plan

    def becomes(self, made: Made) -> None:
        """Run another program of the same graph from now on."""
        self.executable, self.made = made.executable, made
        self.__post_init__()

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Run the program."""
        if HERE.watch is not None:
            HERE.watch(self, arguments)
        self.latest.note(self)
        if self.made.admit is not None:
            self.made.admit(arguments)
        plainly = HERE.plainly or (self.written and (sharing(arguments, self.written) != self.shared or self._may_stop()))
        rollback = self.rollback if self.keeps and not plainly else None
        before = rollback.begin(arguments) if rollback is not None else None
        failed, again = "", None
        try:
            results = self.made.plainly(arguments) if plainly else self.executable(arguments)
        except Exception as error:
            again = self._made_again(error, before)
            if again is None:
                raise
            failed = repr(error)  # the error itself would hold this frame, and the frame the error
        if again is not None:
            results = again(arguments)
            warn_of(failed)
        if rollback is not None and before is not None:
            rollback.end(before)
        if self.leaves is not None:
            take_over(self.leaves.grad, self.leaves.autocast, self.leaves.cache)
        return results

    def _made_again(self, error: Exception, before: Before | None) -> Callable[..., Sequence[Any]] | None:
        """Put back what a call has changed that failed, and tell who made it; what makes it again, if that is done here."""
        if (isinstance(error, PartitionerError) and not isinstance(error, CheckFailed)) or has_hooks():
            return None
        if before is not None:
            before.restore()
        unchanged = before is not None or not self.changes or (isinstance(error, CheckFailed) and self.checks_first)
        again = self.first and unchanged and self.latest.pieces == [self]
        if self.latest.told and (again or (before is None and (self.checks or self.caught))):
            HERE.raised = Raised(error, again, self.checks, self.caught)
            return None
        if unchanged and self.code is not None:
            return partial(self._with_its_function, before)
        return self.made.plainly if before is not None else None

    def _with_its_function(self, before: Before | None, arguments: Sequence[Any]) -> Sequence[Any]:
        """Run it in order and, if that fails, too, the function that it is a graph of, for what that changes of Python's."""
        try:
            return self.made.plainly(arguments)
        except Exception as error:
            failed = error.with_traceback(None)
        if before is not None:
            before.restore()
        assert self.code is not None
        run_again(self.code)  # which raises the same
        raise failed

    def _may_stop(self) -> bool:
        """Whether hooks on saved tensors may end the call, as those of a checkpoint do that has what it wants.

        What has been written by then is eager's in eager's order alone. On several devices there is no such order.
        """
        return has_hooks() and len({lane.torch_device for lane in self.plan.program.lanes}) == 1


def warn_of(failed: str) -> None:
    """Tell that lanes failed where eager does not: memory may have run short, or a program is wrong."""
    warnings.warn(f"lanes failed, and the same call made in order did not; its results are right. {failed}", stacklevel=2)
