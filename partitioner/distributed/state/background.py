"""A checkpoint that is written while training goes on: on a thread of its own, out of copies, in a process group of its own.

    saving = save("run", model, optimizer, step, asynchronous=True)      returns once all is copied
    ...                                                                  steps
    saving.result()                                                      waits until it is whole, or says why it is not

One is written at a time: a save waits for the one before, and raises what that one could not do.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from threading import Thread

import torch.distributed as dist

from partitioner.distributed.board import beside, board, patience
from partitioner.errors import RanksError

_UNDER_WAY: list[Saving] = []
"""The one that nobody has waited for yet, if there is one."""

PATIENCE = timedelta(hours=1)
"""For how long a rank waits for others that still write."""


@dataclass(frozen=True, eq=False)
class Saving:
    """A checkpoint that is being written.

    Args:
        path: what it will be called.
        future: of the thread that writes it.
    """

    path: Path
    future: Future[None]

    def done(self) -> bool:
        """Whether it has come to an end, good or bad; ranks may differ for a moment."""
        return self.future.done()

    def result(self) -> Path:
        """Wait until it is whole. Every rank calls it, before the process group is destroyed.

        Returns:
            The checkpoint.

        Raises:
            CheckpointError: it could not be written; on the first rank, the others end.
            RanksError: a rank is gone, which the others would wait for.
        """
        if self in _UNDER_WAY:
            _UNDER_WAY.remove(self)
        while not wait_for([self.future], _patience()).done:
            if gone := board().gone():
                raise RanksError(f"{self.path} is not finished, for {gone}. End the job, and go on from the one before")
        self.future.result()
        return self.path


def begun(path: Path, write: Callable[[], None]) -> Saving:
    """Write a checkpoint on a thread for that.

    Args:
        path: what it will be called.
        write: writes it, and uses no process group but `own_group`.
    """
    saving = Saving(path, Future())
    _UNDER_WAY.append(saving)
    _wait_at_the_end()
    # a thread that waits for a rank which is stopped must not keep this process from its end
    Thread(target=_run, args=(saving.future, write), daemon=True, name="partitioner checkpoint").start()
    return saving


def _run(future: Future[None], write: Callable[[], None]) -> None:
    try:
        write()
    except BaseException as error:  # torch's checkpoints raise what is no Exception, and ranks end with SystemExit
        future.set_exception(error)
    else:
        future.set_result(None)


def wait() -> None:
    """Wait for the checkpoint that is being written, if there is one.

    Raises:
        CheckpointError: it could not be written, and nobody has been told.
        RanksError: a rank is gone.
    """
    while _UNDER_WAY:
        _UNDER_WAY[0].result()


@cache
def _wait_at_the_end() -> None:
    atexit.register(wait)


def _patience() -> float | None:
    """Seconds until ranks are asked whether they are there: the time-out of the job, or none, if one is known to be lost."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        return None
    return 0.0 if board().lost else patience(group).total_seconds()


def own_group() -> dist.ProcessGroup | None:
    """A process group for the thread, for what other threads send must not come between; all ranks call it at one point."""
    return beside("writing", PATIENCE) if dist.is_initialized() else None
