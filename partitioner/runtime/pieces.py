"""One graph's program, as the tracer's bytecode calls it, and those of the call that ran last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch._C._autograd import _top_saved_tensors_default_hooks

from partitioner.backends import Executable
from partitioner.errors import PartitionerError
from partitioner.ir.access import CHECKED, TOKENS
from partitioner.ir.mode import Mode
from partitioner.ir.plan import Plan
from partitioner.model.call import CheckFailed, sharing
from partitioner.model.modes import take_over


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


class _Here(threading.local):
    """Who looks at the graphs that this thread calls, before they run, whether they run without lanes, and what was raised.

    Attributes:
        raised: by a program of which the model may catch it, or would have raised another error before; and that program.
    """

    watch: Watch | None = None
    plainly = False
    raised: tuple[Exception | None, Piece | None] = None, None


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
        again: whether a call in which it fails may be made again as it is: it changes nothing, and the model may catch it.
        early: whether it may be made again where a check fails: the call begins with it, and nothing changes before its checks.
        latest: told when it runs. It does not know its module: torch holds a piece until the module's code is gone.
    """

    executable: Executable
    made: Made
    written: tuple[int, ...]
    shared: tuple[tuple[int, ...], ...]
    reason: str
    again: bool
    early: bool
    latest: Latest

    @staticmethod
    def of(made: Made, inputs: Sequence[Any], latest: Latest, reason: str = "", caught: bool = False) -> Piece:
        """The piece of a graph that was found, for the values of its placeholders.

        Whether it is ``caught`` is whether the call begins with it, and the model may catch what it raises.
        """
        graph = made.executable.plan.graph
        written = graph.written_arguments
        seen = {*graph.given, *TOKENS} - {CHECKED}
        again = caught and not written and not graph.written & seen
        writes = [{access.resource for access in op.accesses if access.write} for op in graph.ops]
        checks_first = [CHECKED in each for each in writes if each & seen or CHECKED in each]
        early = caught and checks_first == sorted(checks_first, reverse=True)
        return Piece(made.executable, made, written, sharing(inputs, written), reason, again, early, latest)

    @cached_property
    def leaves(self) -> Mode | None:
        """The modes in which a forward that switches them leaves the caller's thread."""
        return self.plan.graph.leaves

    @property
    def checks(self) -> bool:
        """Whether an op raises what the model would: it may stand behind another one that fails, as in eager it does not."""
        return CHECKED in self.plan.graph.written

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self.executable.plan

    def becomes(self, made: Made) -> None:
        """Run another program of the same graph from now on."""
        self.executable, self.made = made.executable, made

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Run the program."""
        if HERE.watch is not None:
            HERE.watch(self, arguments)
        self.latest.note(self)
        if self.made.admit is not None:
            self.made.admit(arguments)
        plainly = HERE.plainly or (self.written and (sharing(arguments, self.written) != self.shared or self._may_stop()))
        try:
            results = self.made.plainly(arguments) if plainly else self.executable(arguments)
        except Exception as error:
            ours = isinstance(error, PartitionerError) and not isinstance(error, CheckFailed)
            if (self.again or self.checks) and self.latest.told and not ours:
                HERE.raised = error, self
            raise
        if self.leaves is not None:
            take_over(self.leaves.grad, self.leaves.autocast, self.leaves.cache)
        return results

    def _may_stop(self) -> bool:
        """Whether hooks on saved tensors may end the call, as those of a checkpoint do that has what it wants.

        What has been written by then is eager's in eager's order alone. On several devices there is no such order.
        """
        hooked = _top_saved_tensors_default_hooks(False) is not None
        return hooked and len({lane.torch_device for lane in self.plan.program.lanes}) == 1
