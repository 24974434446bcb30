"""Lanes that a profiler sees.

torch.profiler records the thread that started it, and those that torch hands that thread's state to. Our workers are none of
these; threads that run a fork of TorchScript are. So while this thread is recorded, jobs of lanes are forks, and the workers
watch: what no fork has begun after a while, because the pool is busy or small, they do themselves, and they end when it has.
"""

import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import Any

import torch

from partitioner.backends.workers import HERE, POOL
from partitioner.model.modes import flushes, modes_here, take_over

_PATIENCE = 0.5
"""Seconds until a worker does what no fork has begun."""

_HOME = os.getpid()
"""Where torch's pool has its threads: the child of a fork has none."""

_NUMBERS, _JOBS = count(), dict[int, "Watched"]()


class Watched:
    """What a fork or a worker does, whoever comes first."""

    def __init__(self, job: Callable[[], None]) -> None:
        self.job, self.claim, self.begun, self.ended = job, threading.Lock(), threading.Event(), threading.Event()
        self.forked, self.future = False, None

    def begin(self, forked: bool = False) -> None:
        """Do it here, unless another thread does."""
        if not self.claim.acquire(blocking=False):
            return
        self.forked = forked
        self.begun.set()
        try:
            self.job()
        finally:
            self.ended.set()

    def watch(self) -> None:
        """Return when it has been done, here if need be."""
        if is_recorded() or not self.begun.wait(_PATIENCE):
            self.begin()
        self.ended.wait()

    def leave(self) -> None:
        """Return when torch's thread has left Python, too: it could not be left in there when the process ends."""
        if self.forked and self.future is not None:
            self.future.wait()


def is_recorded() -> bool:
    """Whether a profiler records this very thread."""
    return bool(torch._C._autograd._profiler_enabled())


def submit(jobs: Sequence[Callable[[], None]]) -> list[Watched]:
    """Queue one job on each of the first workers, or on threads that are recorded as this one is. A job must not raise.

    Returns:
        those that are to be left when they have ended.
    """
    if not is_recorded() or os.getpid() != _HOME or torch.get_num_interop_threads() < len(jobs):
        POOL.submit(jobs)
        return []
    fork, watched = _fork(), [Watched(job) for job in jobs]
    POOL.submit([job.watch for job in watched])
    for job in watched:
        number = next(_NUMBERS)
        _JOBS[number] = job
        job.future = fork(number)
    return watched


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _run(number: int) -> int:
    """Do a job on a thread of torch's, and leave that as it was."""
    occupied, modes = getattr(HERE, "occupied", False), (*modes_here(), flushes())
    HERE.occupied, HERE.modes = True, None
    try:
        _JOBS.pop(number).begin(forked=True)
    finally:
        grad, _, autocast, cached, flush = modes
        take_over(grad, autocast, cached)
        torch.set_flush_denormal(flush)
        HERE.occupied = occupied
    return number


@cache
def _fork() -> Callable[[int], Any]:
    """What begins a job on a thread of torch's, and gives its future."""
    unit: Any = torch._C.CompilationUnit()
    unit.define("def begin(number: int):\n    return torch.jit.fork(run, number)\n", {"torch": torch, "run": _run}.get)
    function: Callable[[int], Any] = unit.find_function("begin")
    return function
