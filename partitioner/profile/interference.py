"""How long others have kept this process from running: threads that were ready and had no core.

Linux adds it up for each thread in ``/proc/self/task/<thread>/schedstat``. On a machine with other work it tells the seconds
of an op from those of its neighbours, which no clock does: with two busy neighbours on two cores, an op on two threads that
meet at a barrier was measured at 150 times its time.

Source: the Linux kernel's documentation, scheduler/sched-stats.
"""

from __future__ import annotations

import os
import threading


def waited(whole: bool) -> float:
    """Seconds for which threads have waited for a core since they started; 0 where the system does not tell.

    Args:
        whole: of all threads of this process; otherwise of the calling one.

    Example:
        >>> 0 <= waited(whole=False) <= waited(whole=True)
        True
    """
    if not whole:
        return _of(str(threading.get_native_id()))
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:  # not Linux
        return 0.0
    return sum(map(_of, threads))


def _of(thread: str) -> float:
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # it has ended, or the kernel keeps no statistics
        return 0.0
