"""Many calls at once, or one change: a module's parameters are fakes while it is traced, and no call may see that.

    calls    |---a---|                      |---c---|
                |---b---|                   |---d---|
    change                |--- trace ---|

A change waits for the calls that are under way, and calls wait for a change. A change that waits goes first, so that it is not
held off for ever where calls never pause; that is politeness, and gives up after a while. A thread that is inside already, or
in a lane of some call, is let in at once: others may be waiting for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 5.0
"""Seconds for which a call lets a waiting change go first."""


class Gate:
    """One module's gate."""

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.inside: dict[int, int] = {}
        self.owner: int | None = None
        self.waiting = 0

    def enter(self, hurried: bool) -> None:
        """Begin a call.

        Args:
            hurried: whether others may be waiting for this thread.
        """
        me = threading.get_ident()
        with self.condition:
            if self.waiting or self.owner is not None:
                self._wait(me, hurried)
            self.inside[me] = self.inside.get(me, 0) + 1

    def _wait(self, me: int, hurried: bool) -> None:
        until = time.monotonic() + (0 if hurried or me in self.inside else PATIENCE)
        while self.owner not in (None, me) or (self.waiting and time.monotonic() < until):
            self.condition.wait(0.1)

    def leave(self) -> None:
        """End a call."""
        me = threading.get_ident()
        with self.condition:
            self.inside[me] -= 1
            if not self.inside[me]:
                del self.inside[me]
                if self.waiting:
                    self.condition.notify_all()

    @contextmanager
    def alone(self, hurried: bool) -> Iterator[None]:
        """Change the module when no call on another thread is under way.

        Args:
            hurried: whether such a call may be waiting for this thread; then there is no waiting for it.
        """
        me = threading.get_ident()
        with self.condition:
            self.waiting += 1
            try:
                while self.owner not in (None, me) or (not hurried and self.inside.keys() - {me}):
                    self.condition.wait(0.1)
            finally:
                self.waiting -= 1
            before, self.owner = self.owner, me
        try:
            yield
        finally:
            with self.condition:
                self.owner = before
                self.condition.notify_all()
