"""Many calls at once, or one change: a module's parameters are fakes while it is traced, and no call may see that.

    calls    |---a---|                      |---c---|
                |---b---|                   |---d---|
    change                |--- trace ---|

A change waits for the calls that are under way, and calls wait for a change. A change that waits goes first, so that it is not
held off for ever where calls never pause; that is politeness, and gives up after a while. A thread that is inside already, or
in a lane of some call, does not wait for others: they may be waiting for it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 5.0
"""Seconds for which a call lets a waiting change go first."""


class Visit:
    """One call or change. The gate refers to it weakly: one that Ctrl-C cut off anywhere is over when its frame is gone."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Gate:
    """One module's gate."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # taken by itself, for Ctrl-C may come between a Condition's lines
        self.moved = threading.Condition(self.lock)
        self.inside: weakref.WeakSet[Visit] = weakref.WeakSet()
        self.owner: weakref.ref[Visit] | None = None
        self.waiting = 0

    def enter(self, hurried: bool) -> Visit:
        """Begin a call; pass what it gives to `leave`.

        Args:
            hurried: whether others may be waiting for this thread.
        """
        visit = Visit()
        with self.lock:
            if self.waiting or self.owner is not None:
                self._let_pass(visit.thread, hurried)
            self.inside.add(visit)
        return visit

    def leave(self, visit: Visit) -> None:
        """End a call."""
        with self.lock:
            self.inside.discard(visit)
            if self.waiting:
                self.moved.notify_all()

    @contextmanager
    def alone(self, hurried: bool) -> Iterator[None]:
        """Change the module when no call on another thread is under way.

        Args:
            hurried: whether such a call may be waiting for this thread; then there is no waiting for it.
        """
        visit = Visit()
        with self.lock:
            self.waiting += 1
            try:
                while self._taken(visit.thread) or (not hurried and self._others(visit.thread)):
                    self.moved.wait(0.1)
            finally:
                self.waiting -= 1
            before, self.owner = self.owner, weakref.ref(visit)
        try:
            yield
        finally:
            with self.lock:
                self.owner = before
                self.moved.notify_all()

    def _let_pass(self, me: int, hurried: bool) -> None:
        inside = any(visit.thread == me for visit in self.inside)
        until = time.monotonic() + (0 if hurried or inside else PATIENCE)
        while self._taken(me) or (self.waiting and time.monotonic() < until):
            self.moved.wait(0.1)

    def _taken(self, me: int) -> bool:
        """Whether another thread is changing the module."""
        owner = self.owner() if self.owner is not None else None
        return owner is not None and owner.thread != me

    def _others(self, me: int) -> bool:
        """Whether a call of another thread is under way."""
        return any(visit.thread != me for visit in self.inside)
