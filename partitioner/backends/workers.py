"""Worker threads, one for each further CPU lane of the process, shared by all partitioned modules.

Threads are started when first needed and idle on a queue. A worker takes over what PyTorch keeps per thread (grad mode,
inference mode, autocast, tiny numbers as zero) from the caller for each job. After a fork the child starts its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch
from torch.autograd import forward_ad

from partitioner.model.modes import Autocast, has_hooks, take_over
from partitioner.model.process import default_device

Modes = tuple[bool, bool, Autocast, bool, bool]
"""As `model.modes` has them, and whether tiny numbers are taken for zero."""


def run_under(modes: Modes, job: Callable[[], None]) -> None:
    """Call ``job`` under a caller's modes. The thread is a worker's own, so nothing is put back but inference mode.

    Nothing that autocast has cast is dropped in the meantime: other lanes use it, too.
    """
    grad, inference, autocast, cache, flush = modes
    torch.autocast_increment_nesting()
    try:
        if inference:
            HERE.modes = None  # a block of inference mode puts back what it finds at its end
            with torch.inference_mode():
                take_over(grad, autocast, cache)
                torch.set_flush_denormal(flush)
                job()
            return
        if HERE.modes != modes:
            take_over(grad, autocast, cache)
            torch.set_flush_denormal(flush)
        HERE.modes = None  # unless the job ends as it should
        job()
        HERE.modes = modes  # setting those of the last job once more would cost as much as a small op
    finally:
        torch.autocast_decrement_nesting()


def has_hidden_modes() -> bool:
    """Whether this thread is under something that a worker could not take over.

    That is: a dispatch or function mode (fake tensors, `torch.device` as a context), a functorch transform, forward-mode
    differentiation (a function of autograd or a compiled one would drop tangents), hooks on saved tensors (checkpointing),
    tracing, or being in a lane of another call already: its workers may be waiting for this thread. `torch.set_default_device`
    is none, although it sets a function mode: the tracer burns its device in, under a guard.
    """
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack() > (default_device() is not None)
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or has_hooks()
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or getattr(HERE, "occupied", False)
    )


HERE = threading.local()
"""``occupied``: whether this thread runs a lane of a call that has workers. ``modes``: what a worker is under, if known."""


class Worker:
    """One thread and its queue.

    Attributes:
        away: the mask of cores that it was given last (`affinity`); empty where it has the caller's.
    """

    def __init__(self, number: int) -> None:
        self.queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.away = b""
        self.thread = threading.Thread(target=self._loop, name=f"partitioner lane {number}", daemon=True)
        self.thread.start()

    @property
    def native_id(self) -> int:
        """What the kernel calls its thread."""
        return self.thread.native_id or 0

    def _loop(self) -> None:
        HERE.occupied, HERE.modes = True, None
        while True:
            job = self.queue.get()
            job()
            del job  # it holds a call's tensors


class Pool:
    """Workers by number. Jobs of one call are queued together, so that two calls never wait for each other crosswise."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the workers: in the child of a fork their threads do not exist."""
        self.lock = threading.RLock()
        self.workers: list[Worker] = []

    def first(self, count: int) -> Sequence[Worker]:
        """The workers that the jobs of a call will run on, started if they were not."""
        with self.lock:
            while len(self.workers) < count:
                self.workers.append(Worker(len(self.workers) + 1))
            return self.workers[:count]

    def submit(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Queue one job on each of the first ``len(jobs)`` workers. A job must not raise."""
        with self.lock:
            for worker, job in zip(self.first(len(jobs)), jobs, strict=True):
                worker.queue.put(job)

    def drain(self, count: int) -> None:
        """Return when the first ``count`` workers have ended every job that was queued before."""
        locks = [threading.Lock() for _ in range(count)]
        for lock in locks:
            lock.acquire()
        self.submit([lock.release for lock in locks])
        for lock in locks:
            lock.acquire()


POOL = Pool()
os.register_at_fork(after_in_child=POOL.reset)
