"""Keeps lanes apart: while short tasks run on several lanes, the caller stays on its core and workers keep off it.

    core 0   caller ............         a kernel that wakes a thread likes to put it beside the one that woke it,
    core 1   worker ............         and leaves it there: two lanes on one core, for milliseconds

Measured on two cores, each turn after a pause: eight experts of 20 us take 176 us without it and 145 us with it, two towers of
LSTMs 434 us and 402 us, four small nets 570 us and 494 us; and the turns in which nothing was gained are gone (the upper
quartiles were 177, 717 and 852 us, and are 148, 407 and 573 us). Both masks are the caller's own, less cores; its mask is put
back at the end of the call. Threads inherit the mask of the one that starts them, so this is for calls that start none: those
whose ops have one thread each. Workers keep theirs until a call may start some: on one core an op's two threads wait for each
other by turns (a Llama of four layers took 105 ms in the place of 30 ms, after a small model had been called).

Source: Linux' sched_setaffinity(2); on other systems nothing is done.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from partitioner.backends.workers import Worker

BYTES = 128
"""Of a mask: room for 1,024 cores, as in glibc's `cpu_set_t`."""


def _system() -> Any:
    """The C library, called with the interpreter lock held: letting go of it would take longer than the calls."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.PyDLL(None)
    return library if hasattr(library, "sched_setaffinity") and hasattr(library, "sched_getcpu") else None


_SYSTEM = _system()


def own_mask() -> bytes | None:
    """The cores that the calling thread may use, for `let_go`; ``None`` where the system does not say."""
    if _SYSTEM is None:
        return None
    buffer = ctypes.create_string_buffer(BYTES)
    return buffer.raw if _SYSTEM.sched_getaffinity(0, BYTES, buffer) == 0 else None


def keep_apart(mask: bytes, workers: Iterable[Worker]) -> None:
    """Hold the calling thread where it is, and workers off that core; nothing, where there are no two cores.

    Args:
        mask: the calling thread's own. It is taken before, so that whoever is interrupted here can still let go.
        workers: idle, or running another call's lanes.
    """
    here, away = _divided(mask, _SYSTEM.sched_getcpu())
    if not away or _SYSTEM.sched_setaffinity(0, BYTES, here) != 0:
        return
    for worker in workers:
        if worker.away != away and _SYSTEM.sched_setaffinity(worker.native_id, BYTES, away) == 0:
            worker.away = away


def scatter(workers: Iterable[Worker]) -> None:
    """Let workers go where the calling thread can: threads that their ops start go there, too."""
    held = [worker for worker in workers if worker.away]
    mask = own_mask() if held else None
    for worker in held:
        if mask is not None and _SYSTEM.sched_setaffinity(worker.native_id, BYTES, mask) == 0:
            worker.away = b""


def let_go(mask: bytes) -> None:
    """Let the calling thread go where it could go before."""
    _SYSTEM.sched_setaffinity(0, BYTES, mask)


@lru_cache(maxsize=256)
def _divided(mask: bytes, core: int) -> tuple[bytes, bytes]:
    """A mask of one core, and that of the others; both empty if it is none of several.

    >>> here, away = _divided(bytes([0b1101]) + bytes(BYTES - 1), 2)
    >>> here[0], away[0]
    (4, 9)
    >>> _divided(bytes([0b0100]) + bytes(BYTES - 1), 2)
    (b'', b'')
    """
    cores = int.from_bytes(mask, sys.byteorder)
    if core < 0 or not cores >> core & 1 or cores.bit_count() < 2:
        return b"", b""
    return (1 << core).to_bytes(BYTES, sys.byteorder), (cores & ~(1 << core)).to_bytes(BYTES, sys.byteorder)
