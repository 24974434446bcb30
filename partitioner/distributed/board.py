"""What ranks tell each other when their connections fail: a board, in the store at which they met.

    rank 3    fails: writes why, and ends
    rank 2    loses rank 3, and reads why

    rank 3    is killed
    rank 2    loses it, and nothing is written: rings        ranks 0 and 1 answer, rank 3 does not: it is gone

In each rank a thread answers, for the rank itself may be blocked in a receive or in the user's code.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from threading import Event, Thread
from types import TracebackType
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

PATIENCE = 5.0
"""Seconds for which a rank waits for what the others say."""

ANSWER = 3.0
"""Seconds in which a rank that is there answers."""

GLANCE = 0.5
"""Seconds from one look at the board to the next."""

LOST = "lost: "
"""What begins a text that tells of no failure, but of where a rank misses another one."""

_BESIDE: WeakKeyDictionary[dist.ProcessGroup, dict[str, dist.ProcessGroup]] = WeakKeyDictionary()

_BOARDS: WeakKeyDictionary[dist.ProcessGroup, Board] = WeakKeyDictionary()


def board() -> Board:
    """The board of the process group that there is.

    Raises:
        RuntimeError: its store is gone.
    """
    group = dist.group.WORLD
    assert group is not None
    if group not in _BOARDS:
        _BOARDS[group] = Board()
    return _BOARDS[group]


def beside(what: str, timeout: timedelta | None = None) -> dist.ProcessGroup:
    """A process group of all ranks for one thing, so that nothing else is taken for it; all call it at one point, at first.

    Args:
        what: it is for.
        timeout: for how long a rank waits for others there; ``None``: for as long as elsewhere.
    """
    world = dist.group.WORLD
    assert world is not None
    groups = _BESIDE.setdefault(world, {})
    if what not in groups:
        groups[what] = dist.new_group(backend="gloo", timeout=timeout or patience(world))
    return groups[what]


def patience(group: dist.ProcessGroup) -> timedelta:
    """How long a rank waits for others in a process group."""
    timeout: timedelta = group._get_backend(group._device_types[0]).options._timeout
    return timeout


class Board:
    """This rank's view of it; what a rank says lies under its number."""

    def __init__(self) -> None:
        self.store = PrefixStore("partitioner/faults", dist.distributed_c10d._get_default_store())
        self.rank = dist.get_rank()
        self.others = [rank for rank in range(dist.get_world_size()) if rank != self.rank]
        self.spoke = self.lost = False
        ended = Event()
        own = self.store.clone()  # type: ignore[attr-defined]  # a connection of the thread's own
        thread = Thread(target=_answer, args=(own, self.rank, ended), daemon=True, name="partitioner board")
        thread.start()
        atexit.register(_end, thread, ended)
        _tell_what_is_not_caught()

    def say(self, text: str) -> None:
        """Write what the others shall know: what failed, or behind `LOST` where another rank is lost to this one."""
        self.spoke = True
        self.store.set(str(self.rank), text)

    def take_back(self) -> None:
        """Say nothing any more: whoever asked for it has caught it, and goes on."""
        if self.spoke and not self.lost:
            self.spoke = False
            self.store.delete_key(str(self.rank))

    def read(self, ranks: Iterable[int]) -> dict[int, str]:
        """What those ranks say, of those that say something."""
        return {rank: self.store.get(str(rank)).decode() for rank in ranks if self.store.check([str(rank)])}

    def said_before(self, fault: str) -> bool:
        """Whether a rank before this one has the same fault; of them, the first is waited for."""
        before = range(self.rank)
        until = time.monotonic() + PATIENCE
        while before and not self.read([0]).get(0, "").endswith(fault) and time.monotonic() < until:
            time.sleep(0.05)
        return any(text.endswith(fault) for text in self.read(before).values())

    def gone(self) -> str:
        """Which ranks do not answer; nothing, if all do."""
        number, until = self._ring(), time.monotonic() + PATIENCE
        while (silent := self._silent(number, self.others)) and time.monotonic() < until:
            time.sleep(0.05)
        return f"{_ranks(silent)} gone: killed, stopped, or at its end" if silent else ""

    def _ring(self) -> int:
        return int(self.store.add("ring", 1))

    def _silent(self, number: int, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if not self.store.check([f"here/{number}/{rank}"])]

    def why_lost(self, where: str) -> str:
        """Why a connection is lost, as far as the others say; they are told what is found."""
        self.say(LOST + where)
        self.lost = True
        begin, number = time.monotonic(), self._ring()
        while (waited := time.monotonic() - begin) < PATIENCE:
            said = self.read(self.others)
            gone = self._silent(number, (rank for rank in self.others if rank not in said))
            if (faults := _faults(said)) or len(said) == len(self.others) or (gone and waited > ANSWER):
                break
            time.sleep(0.05)
        silent = [rank for rank in self.others if rank not in said]
        if faults:
            return f"The cause: {'; '.join(dict.fromkeys(faults))}"
        if not silent:
            places = "; ".join([where, *(text.removeprefix(LOST) for text in said.values())])
            return f"All ranks lost each other: {places}. Every rank has to make the same calls, in the same order"
        found = (
            f"{_ranks(gone)} gone: killed, stopped, or at its end"
            if gone
            else f"{_ranks(silent)} silent: in no step, or hanging"
        )
        self.say(f"{where}: {found}")
        return f"{found}."


def _faults(said: Mapping[int, str]) -> list[str]:
    return [text for text in said.values() if not text.startswith(LOST)]


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]} is" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))} are"


def _answer(store: Store, rank: int, ended: Event) -> None:
    answered = 0
    with suppress(RuntimeError):  # the store is gone, and with it the job
        while not ended.wait(GLANCE):
            for number in range(answered + 1, (rung := int(store.add("ring", 0))) + 1):
                store.set(f"here/{number}/{rank}", "")
            answered = rung


@cache
def _tell_what_is_not_caught() -> None:
    """An error that ends this process anywhere else, in a loader of data or an optimizer, is told as well."""
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with suppress(Exception):
            here = board()
            if not here.spoke:
                here.say(f"rank {here.rank}, outside of a step: {fault_of(error)}")
        before(kind, error, trace)

    sys.excepthook = tell


def fault_of(error: BaseException) -> str:
    """An error in one line.

    >>> fault_of(KeyError("rate"))
    "KeyError: 'rate'"
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _end(thread: Thread, ended: Event) -> None:
    """A thread that comes back from C++ while the interpreter is taken down would abort the process."""
    ended.set()
    thread.join(1.0)
