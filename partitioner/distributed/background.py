"""A checkpoint that is written while training goes on: on a thread of its own, out of copies, in a process group of its own.

    saving = save("run", model, optimizer, step, asynchronous=True)      returns once all is copied
    ...                                                                  steps
    saving.result()                                                      waits until it is whole, or says why it is not

One is written at a time: a save waits for the one before, and raises what that one could not do.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from weakref import WeakKeyDictionary

import torch.distributed as dist

_GROUPS: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()

_THREAD = ThreadPoolExecutor(1, "partitioner checkpoint")

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
        """
        if self in _UNDER_WAY:
            _UNDER_WAY.remove(self)
        self.future.result()
        return self.path


def begun(path: Path, write: Callable[[], None]) -> Saving:
    """Write a checkpoint on the thread for that.

    Args:
        path: what it will be called.
        write: writes it, and uses no process group but `own_group`.
    """
    saving = Saving(path, _THREAD.submit(write))
    _UNDER_WAY.append(saving)
    return saving


def wait() -> None:
    """Wait for the checkpoint that is being written, if there is one.

    Raises:
        CheckpointError: it could not be written, and nobody has been told.
    """
    while _UNDER_WAY:
        _UNDER_WAY[0].result()


def own_group() -> dist.ProcessGroup | None:
    """A process group for the thread, for what other threads send must not come between; all ranks call it at one point."""
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        return None
    if world not in _GROUPS:
        _GROUPS[world] = dist.new_group(backend="gloo", timeout=PATIENCE)
    return _GROUPS[world]
