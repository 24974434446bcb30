"""CPU lanes on worker threads: the caller's thread runs one lane itself, and waits for real.

    caller    post jobs . run t0 ......... record e0 . wait e1 . run t3
    worker 1              run t1 . wait e0 . run t2 . record e1

A lane that raises wakes every other one up, which then gives up; the caller gets the original exception, with a note that
says which op it came from, after every lane has stopped. Under a mode that a worker could not take over (see
`workers.has_hidden_modes`) the same program is issued by the caller alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch.autograd import profiler

from partitioner.backends.affinity import keep_apart, let_go, own_mask, scatter
from partitioner.backends.bodies import Body
from partitioner.backends.codegen import Code, generate
from partitioner.backends.nodes import move
from partitioner.backends.openmp import rest
from partitioner.backends.watched import Watched, submit
from partitioner.backends.workers import HERE, POOL, has_hidden_modes, run_under
from partitioner.ir.plan import Plan
from partitioner.model.modes import casts_kept, flushes, modes_here, under


class Abandoned(BaseException):
    """Raised in a lane when another lane has failed; never seen by the user."""


class Launch:
    """One call's events and slots. An event is a lock that is held until it is recorded.

    Args:
        code: what is called.
        hosts: threads that issue it. While several are busy, each gets its share of the threads that an op may use.
    """

    def __init__(self, code: Code, hosts: int) -> None:
        self.slots: list[Any] = [None] * code.slots
        self.events = [threading.Lock() for _ in range(code.events)]
        for event in self.events:
            event.acquire()
        self.full = torch.get_num_threads()
        self.share = max(1, self.full // (hosts if hosts > 1 else code.narrow))
        self.crowded = hosts > 1
        self.error: BaseException | None = None
        self.mask: bytes | None = None
        self.watched: Sequence[Watched] = ()
        self.modes = code.modes
        if code.modes:
            self.here = threading.local()

    def enter(self) -> None:
        """Called on the caller's thread before anything is issued."""

    def leave(self, result: list[Any]) -> None:
        """Called on the caller's thread with the results, when everything has been issued."""

    def end(self) -> None:
        """Called on the caller's thread when every lane has stopped, however the call ended; again if Ctrl-C cut it short."""
        if self.modes:
            self.mode(-1)
        if self.mask is not None:
            let_go(self.mask)
        torch.set_num_threads(self.full)

    def record(self, event: int, lane: int) -> None:
        """Let whoever waits for ``event`` go on."""
        _open(self.events[event])

    def wait(self, event: int, lane: int) -> None:
        """Wait until ``event`` is recorded."""
        lock = self.events[event]
        lock.acquire()
        _open(lock)
        if self.error is not None:
            raise Abandoned

    def copy(self, value: Any, lane: int) -> Any:
        """Every CPU lane is on one device; there is nothing to copy."""
        return move(value, "cpu")

    def threads(self, alone: bool) -> None:
        """Say how many threads the following ops of this lane may use."""
        torch.set_num_threads(self.full if alone else self.share)
        if not alone:
            self.make_room()

    def mode(self, number: int) -> None:
        """Put this thread under other modes for the ops that follow; -1 for those of the call."""
        stack = self.here.__dict__.pop("stack", None)
        if stack is not None:
            stack.close()
        if number >= 0:
            self.here.stack = ExitStack()
            self.here.stack.enter_context(under(*self.modes[number].flags))

    def make_room(self) -> None:
        """Send home OpenMP's idle threads, which this lane will not ask for and others need the cores of."""
        if self.share == 1 and self.crowded:
            rest()

    def fail(self, error: BaseException) -> None:
        """Note the first error and wake up everybody."""
        if self.error is None or isinstance(self.error, Abandoned):
            self.error = error
        for event in self.events:
            _open(event)


def _open(event: threading.Lock) -> None:
    """Release an event's lock. Another lane that fails, or that waits, may be doing the same: an open one stays open."""
    try:  # noqa: SIM105  (this is on every call's way, and `suppress` takes longer than the rest)
        event.release()
    except RuntimeError:  # it is not held
        pass


class Threads:
    """Runs a plan's program on the caller's thread and one worker for each further CPU lane.

    Args:
        plan: what to run; every lane is a CPU's.
        compiled: a function for each task that is called as one, by the task's name.
    """

    accelerated = False

    def __init__(self, plan: Plan, compiled: Mapping[str, Body] | None = None) -> None:
        self.plan, self.compiled = plan, compiled or {}
        self.parallel = generate(plan, compiled=self.compiled)
        self.hosts = len(self.parallel.hosts)
        self.alone = self.hosts == 1 and not self.accelerated and not self.parallel.modes and self.parallel.narrow == 1
        self.casts = any(enabled for mode in self.parallel.modes for _, enabled, _ in mode.autocast)

    @property
    def code(self) -> str:
        """The generated source."""
        return self.parallel.source

    @cached_property
    def serial(self) -> Code:
        """The same program, issued by one thread."""
        return generate(self.plan, hosts=[0] * len(self.plan.program.lanes), compiled=self.compiled)

    @cached_property
    def profiled(self) -> Code:
        """The same program, with each task as a named range of torch.profiler."""
        return generate(self.plan, compiled=self.compiled, ranges=True)

    def __call__(self, arguments: Sequence[Any], *, in_order: bool = False) -> list[Any]:
        """Run the program; the graph's results.

        Args:
            arguments: the values of the graph's placeholders.
            in_order: whether the caller's thread issues all of it.
        """
        profiled = profiler._is_profiler_enabled
        if self.alone:
            code = self.profiled if profiled else self.parallel
            try:
                result: list[Any] = code.hosts[0](arguments, None)
            except Exception as error:
                name_op(code, error)
                raise
            return result
        hosts = 1 if in_order or (self.hosts > 1 and has_hidden_modes()) else self.hosts
        code = self.serial if hosts < self.hosts else self.profiled if profiled else self.parallel
        return self.run(code, self.begin(code, hosts), arguments)

    def with_tasks(self, plan: Plan, compiled: Mapping[str, Body]) -> Threads:
        """The same of another plan, with functions for its tasks."""
        return type(self)(plan, compiled)

    def begin(self, code: Code, hosts: int) -> Launch:
        """What one call needs."""
        return Launch(code, hosts)

    def run(self, code: Code, call: Launch, arguments: Sequence[Any]) -> list[Any]:
        """Issue code of this plan on its hosts; what the first one returns."""
        with casts_kept() if self.casts else nullcontext():
            return issue(code, call, arguments)


def issue(code: Code, call: Launch, arguments: Sequence[Any]) -> list[Any]:
    """Issue code on its hosts, and return when every lane has stopped: what the first host returns."""
    done = [threading.Lock() for _ in code.hosts[1:]]
    held = gradient_edges(code, arguments) if done else []
    result: list[Any] = []
    try:
        call.enter()
        _start_workers(done, code, call, arguments)
        result = code.hosts[0](arguments, call)
        call.leave(result)
    except BaseException as error:  # KeyboardInterrupt as well: no lane may be left behind
        call.fail(error)
    _finish(call, done)
    del held
    if call.error is not None:
        failure, call.error = call.error, None  # or it would hold itself, and the call's tensors, by its own traceback
        try:
            name_op(code, failure)
            raise failure
        finally:
            del failure
    return result


def _start_workers(done: list[threading.Lock], code: Code, call: Launch, arguments: Sequence[Any]) -> None:
    """Post the other hosts' jobs. Each holds its lock in ``done`` until it has ended."""
    if done:
        HERE.occupied = True
        modes = (*modes_here(), flushes())
        if code.shares_first:
            call.make_room()
        workers = POOL.first(len(done))
        if code.short and call.share == 1:
            call.mask = own_mask()
            if call.mask is not None:
                keep_apart(call.mask, workers)
        else:
            scatter(workers)
        call.watched = submit([_job(code, host, call, arguments, modes, lock) for host, lock in enumerate(done, 1)])


def _job(code: Code, host: int, call: Launch, arguments: Sequence[Any], modes: Any, done: threading.Lock) -> Callable[[], None]:
    done.acquire()

    def run() -> None:
        try:
            code.hosts[host](arguments, call)
        finally:
            if code.modes:
                call.mode(-1)

    def job() -> None:
        try:
            run_under(modes, run)
        except BaseException as error:
            call.fail(error)
        finally:
            done.release()

    return job


def gradient_edges(code: Code, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Views of everything that several hosts read, to be held while they run; each holds a gradient accumulator.

    The first op that reads a leaf makes its gradient accumulator under a lock of the leaf, and needs the interpreter lock for
    that. An indexing op on another thread holds the interpreter lock while it waits for the leaf's: both wait for good. An
    accumulator that exists already, and that Python has never seen, is only looked up. (`tests/test_bugs.py` has the story.)
    """
    if not torch.is_grad_enabled():
        return []
    shared = (arguments[position] for position in code.shared)
    return [tensor.view_as(tensor) for tensor in shared if isinstance(tensor, torch.Tensor) and tensor.requires_grad]


def _finish(call: Launch, done: list[threading.Lock]) -> None:
    """Return when every lane has stopped and the caller's thread is as it was. Ctrl-C does not cut that short.

    After an error it is not known which jobs were posted, for Ctrl-C may come between any two lines: then the workers'
    queues are drained instead.
    """
    while True:
        try:
            if done:
                HERE.occupied = False
            if call.error is None:
                for lock in done:
                    lock.acquire()
            if call.error is not None and done:
                POOL.drain(len(done))
            for job in call.watched:
                job.leave()
            call.end()
            return
        except KeyboardInterrupt as error:
            call.fail(error)


def name_op(code: Code, error: BaseException) -> None:
    """Add a note that names the op's module and source line to an error that was raised in generated code."""
    traceback, line = error.__traceback__, None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == code.file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    op = code.ops.get(line) if line is not None else None
    if op is not None:
        error.add_note(f"in op {op.shown}")
