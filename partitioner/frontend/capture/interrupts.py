"""Signals that arrive while torch traces wait until it has ended.

A handler may raise between any two lines of Python, and torch's tracer is not made for that: what is raised in a guard or in
the callback of a weak reference is lost, what is raised as an ordinary exception (a timeout) passes for a failure to trace,
and what is raised where C++ expects no exception ends the process.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def held_back() -> Iterator[None]:
    """Python's handlers of signals are called at the end of the block; of a signal that comes again, at once.

    They run on the main thread alone. On others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {
        number: found for number in signal.valid_signals() if callable(found := signal.getsignal(number))
    }
    arrived: list[int] = []
    ended = False

    def hold(number: int, frame: Any) -> None:
        if ended or number in arrived:
            handlers[number](number, frame)
        else:
            arrived.append(number)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        ended = True
        with ExitStack() as stack:  # each of these is done, whichever raises
            for number in arrived:
                stack.callback(handlers[number], number, sys._getframe())
            for number, handler in handlers.items():
                stack.callback(signal.signal, number, handler)
