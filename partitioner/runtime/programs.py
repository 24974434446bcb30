"""The programs of one module: made when a call needs one, chosen by torch.compile's guards.

    call -> a guard holds -> `Piece` -> executable
         -> none does     -> trace -> `Programs.receive` -> plan, verify, emit -> `Piece`

A forward is one graph, or several with Python between them; each graph is a `Piece`. State is placed before the first program
runs; later programs take it where it is.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from types import MethodType
from typing import Any, Protocol

from torch import Tensor, is_grad_enabled, nn
from torch._C import _get_function_stack_at, _get_tracing_state, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_exporting
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves

from partitioner.errors import PartitionerError, TraceError
from partitioner.ir.machine import Machine
from partitioner.ir.plan import Plan, Tried, state_devices
from partitioner.model.call import CheckFailed, Planned, end_here
from partitioner.model.overriding import has_own_rules
from partitioner.model.state import is_of_several_devices
from partitioner.model.tracing import cannot_be_traced
from partitioner.runtime.cannot import as_it_lies, caught_by_the_model, under_a_transform
from partitioner.runtime.pieces import HERE, Latest, Make, Piece, Raised, Watch, warn_of
from partitioner.runtime.summary import Alone, summary


class Method(Protocol):
    """A traced method of the model.

    Args:
        whole: whether one graph must be all of it.
        failures: why some of its frames run as they are, by code object.
        reasons: why frames ran as they are, the last time that they were tried.
        fixed: why some have a program for each size.
    """

    whole: bool
    failures: dict[Any, str]
    reasons: dict[Any, str]
    fixed: dict[Any, str]

    @property
    def is_silent(self) -> bool:
        """Whether no code of its frames, so far, speaks of what tells somebody something: a print, a log, an op of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method through its programs."""

    def own_error(self, *args: Any, **kwargs: Any) -> Exception | None:
        """What the method itself raises on a call. All is left as it was."""


Trace = Callable[..., Method]
"""Gives a traced method: of a model, by name, with who receives its graphs."""


class Programs:
    """The programs of one module.

    Args:
        original: the model.
        machine: devices and lanes.
        make: makes a program of a graph.
        trace: traces a method.
        of_twin: gives the programs of another model, of which none is made.

    Attributes:
        place: puts the model's state where it belongs, given an example call; ``None`` once it is there.
        provisional: a plan to look at until the first call.
        given: methods that the module was given in the place of its class's, by name.
        tried: the plans that were run on the examples before one was chosen, which comes first.
        drawn: whether numbers that `random` draws are known to be given to a program.
        homes: torch device to which each tensor of the model was moved, by name.
        alone: where the model runs as it is, for it was measured to be faster.
    """

    def __init__(
        self, original: nn.Module, machine: Machine, make: Make, trace: Trace, of_twin: Callable[[nn.Module], Programs]
    ) -> None:
        self.original, self.machine, self.make, self.trace, self.of_twin = original, machine, make, trace, of_twin
        self.on_one = len(machine.places) == 1
        self.provisional: Plan | None = None
        self.tried: tuple[Tried, ...] = ()
        self.alone, self.drawn = Alone(), False
        self.homes: Mapping[str, str] = {}
        self.pieces: list[Piece] = []
        self.latest = Latest()
        self.place: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
        self.lock = threading.RLock()
        self.given: dict[str, Any] = {}
        self.methods: dict[tuple[str, bool], Method] = {}
        self.forward = self.method("forward")

    def method(self, name: str) -> Method:
        """A method of the model, traced."""
        key = name, self.is_given(name)
        if key not in self.methods:
            self.methods[key] = self.trace(self.original, self.receive, method=name, of_class=key[1])
        return self.methods[key]

    def is_given(self, name: str) -> bool:
        """Whether the module was given such a method. Who has its class's from before, to call it in there, means that one."""
        return name in self.given and vars(self.original).get(name, self) is self.given[name]

    def plain(self, name: str) -> Callable[..., Any]:
        """A method of the model as it lies."""
        owner = type(self.original)
        return MethodType(getattr(owner, name), self.original) if self.is_given(name) else getattr(self.original, name)

    def __call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the model through its programs."""
        if name == "forward":
            size = self.alone[self.original.training and is_grad_enabled()]
            if size >= 0 and HERE.watch is None and elements((*args, *kwargs.values())) <= size:
                return self.original.forward(*args, **kwargs)
        modes = _len_torch_function_stack()
        transformed = peek_interpreter_stack() is not None or (modes > 0 and _are_own(modes))
        traced = is_fx_symbolic_tracing() or _get_tracing_state() is not None or is_exporting()  # by others: they see the model
        if traced or (self.on_one and (transformed or any(map(has_own_rules, args)))):
            if not self.on_one and self.place is None and not is_fx_symbolic_tracing():
                raise TraceError(cannot_be_traced(type(self.original).__name__))
            return self.plain(name)(*args, **kwargs)
        if transformed:
            raise TraceError(under_a_transform(type(self.original).__name__))
        if self.place is not None:
            self.settle(args, kwargs)
        return self.run(name, args, kwargs)

    def called(self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of another method than forward, by who holds the partitioned ``module``.

        Until state lies where it belongs, it runs as it is; and on several devices where it cannot be traced and is given no
        tensor: it does not compute, but freezes parts, adds some, makes an optimizer. If it computes after all, it is refused.
        """
        plain = self.plain(name)
        as_it_is = partial(plain.__func__, module) if isinstance(plain, MethodType) else plain
        if self.place is not None:
            return as_it_is(*args, **kwargs)
        try:
            return self(name, args, kwargs)
        except TraceError as refused:
            if not self.forward.whole or any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
                raise
            refusal = refused
        try:
            return as_it_is(*args, **kwargs)
        except RuntimeError as error:
            if is_of_several_devices(error):
                raise refusal from None
            raise

    def run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a traced method; what runs until it returns are the pieces of one call.

        What an op raises may be caught by the model, or made by it, which a program knows nothing of: if all is as it was when
        the call began, it is made as it is. If not, and something was checked, the model is asked for its error.
        """
        self.latest.begin()
        method = self.forward if name == "forward" else self.method(name)
        numbers = random.getstate() if self.drawn or not self.pieces else None
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raised, HERE.raised = HERE.raised, None
            if not self.on_one and not method.whole and is_of_several_devices(error):
                raise TraceError(as_it_lies(type(self.original).__name__, error)) from error
            if raised is None or raised.error is not error:
                raised = Raised(error, other=isinstance(error, CheckFailed))
            again = raised.again and self.on_one
            caught = raised.caught and not self.on_one and not isinstance(error, CheckFailed)
            if not again and not raised.other and not caught:
                del raised  # it holds the error, and that this frame
                raise
        try:  # what is raised now has no cause but its own
            if not again:
                own = method.own_error(*args, **kwargs)
                if own is None and caught:
                    raise TraceError(caught_by_the_model(type(self.original).__name__, raised.error))
                raise own or raised.error
            if numbers is not None:
                random.setstate(numbers)
            result = self.plain(name)(*args, **kwargs)
            if not raised.caught:
                warn_of(repr(raised.error))
            return result
        finally:
            del raised

    def settle(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put state where it belongs, once. A call on which the model fails places nothing, and does what it does in eager."""
        with self.lock:
            if self.place is None:
                return
            try:
                self.place(args, kwargs)
                self.place = None
            except PartitionerError:
                raise
            except Exception:  # the model's own; planning has put back what it did
                with suppress(Exception):
                    self.plain("forward")(*args, **kwargs)
                raise

    def are_placed(self, plan: Plan) -> None:
        """State lies where a plan wants it."""
        self.provisional, self.homes, self.place = plan, state_devices(plan), None

    def twin(self, copied: nn.Module) -> Programs:
        """The programs of a copy of the model: none yet, for guards hold for one model. Until then this one's plan is shown."""
        programs = self.of_twin(copied)
        programs.provisional, programs.alone = self.plan, self.alone
        if self.place is None:
            programs.place = None  # the copy's state lies where it belongs
        return programs

    def trace_only(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the programs of a call up to its first graph, and run nothing."""
        self._watched(end_here, args, kwargs)

    def graphs_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Piece, Sequence[Any]]]:
        """The graphs of a call with their arguments. If there is Python between graphs, the call is run."""
        found: list[tuple[Piece, Sequence[Any]]] = []

        def note(piece: Piece, arguments: Sequence[Any]) -> None:
            found.append((piece, arguments))
            if len(found) == 1 and not piece.reason:
                raise Planned

        self._watched(note, args, kwargs)
        return found

    def _watched(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        HERE.watch = watch
        try:
            self("forward", args, kwargs)
        except Planned:
            pass
        finally:
            HERE.watch = None

    def plainly(self, *args: Any, **kwargs: Any) -> Any:
        """Call forward through its graphs in program order, on this thread alone."""
        HERE.plainly = True
        try:
            return self.run("forward", args, kwargs)
        finally:
            HERE.plainly = False

    def receive(self, found: Any) -> Callable[..., Sequence[Any]]:
        """Make a program of a graph. Called by the tracer, one graph at a time in the whole process."""
        self.drawn = self.drawn or found.drawn
        code = found.code if found.sets and (found.first or not found.drawn) else None
        made = self.make(found)
        self.pieces.append(Piece.of(made, found.inputs, self.latest, found.reason, found.first, found.caught, code))
        return self.pieces[-1]

    def summary(self) -> str:
        """What was made, in a few lines."""
        plan, reasons = self.plan, dict.fromkeys(self.forward.reasons.values())
        if plan is None:
            what = "runs as it is, for there is no graph in it" if reasons else "traced and planned at its first call"
            return "\n  ".join([f"Parallel({type(self.original).__name__}): {what}", *reasons])
        latest = self.latest.pieces
        whole = [(piece.executable, piece.reason) for piece in latest or self.pieces]
        asked = self.forward
        return summary(plan, whole, len(latest), self.tried, asked.failures.values(), self.alone, asked.fixed.values())

    @property
    def shown(self) -> Piece | None:
        """The piece that stands for the call that ran last: the one that is expected to take longest."""
        return max(self.latest.pieces or self.pieces, key=lambda piece: piece.plan.in_a_row, default=None)

    @property
    def plan(self) -> Plan | None:
        """The plan to show."""
        return self.provisional if self.shown is None else self.shown.plan


def elements(values: Iterable[Any]) -> float:
    """How many elements there are in the tensors among some values; infinitely many if a value may hold who knows what."""
    total: float = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.numel()
        elif isinstance(value, list | tuple):
            total += elements(value)
        elif isinstance(value, dict):
            total += elements(dict.values(value))
        elif value is not None and not isinstance(value, int | float | str):
            return inf
    return total


def _are_own(modes: int) -> bool:
    """Whether some function modes are the caller's own, which Dynamo does not guard; ``with torch.device(...)`` is none."""
    return any(type(_get_function_stack_at(index)) is not DeviceContext for index in range(modes))
