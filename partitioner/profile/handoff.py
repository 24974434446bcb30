"""What it costs to go on elsewhere: on another thread, through locks, as CPU lanes do; on another stream, through events."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass

import torch

from partitioner.model.modes import threads
from partitioner.profile.clock import ISSUING, hold

_TRIPS, _ROUNDS = 100, 9


@dataclass(frozen=True)
class Handoff:
    """Seconds of the ways in which lanes wait for each other.

    Args:
        seconds: from the end of an op on one lane to the start of an op on another lane that waited for it.
        record: for the host to record an event.
        wait: for the host to wait for an event that has happened, or to let a stream wait for it.
    """

    seconds: float
    record: float
    wait: float


def between_threads() -> Handoff:
    """Two threads of which one computes and the other one sleeps until a lock is released, as CPU lanes do.

    The one that releases goes on computing, so that the other one has to wake up on a core of its own. (Threads that do nothing
    but wake each other stay on one core, and seem to be ten times as fast.)

    Example:
        >>> 0 < between_threads().seconds < 0.1
        True
    """
    there, back = _taken(), _taken()
    tensor = torch.rand(192, 192)
    woken, sent = list[float](), list[float]()

    def worker() -> None:
        torch.set_num_threads(1)  # OpenMP's number, which is this thread's own
        for _ in range(_TRIPS):
            there.acquire()
            woken.append(time.perf_counter())
            for _ in range(3):
                tensor @ tensor
            sent.append(time.perf_counter())
            back.release()

    thread = threading.Thread(target=worker, name="partitioner-calibration", daemon=True)
    started, returned = list[float](), list[float]()
    with threads(1):
        thread.start()
        for _ in range(_TRIPS):
            tensor @ tensor
            started.append(time.perf_counter())
            there.release()
            tensor @ tensor
            back.acquire()
            returned.append(time.perf_counter())
        thread.join()
    ways = [(started, woken), (sent, returned)]
    forth, home = (statistics.median(b - a for a, b in zip(before, after, strict=True)) for before, after in ways)
    return Handoff((forth + home) / 2, *_lock_times())


def _lock_times() -> tuple[float, float]:
    """Seconds to release a lock that nobody waits for, and to take one that is free."""
    lock = _taken()
    record, wait = [], []
    for _ in range(_TRIPS * _ROUNDS):
        start = time.perf_counter()
        lock.release()
        middle = time.perf_counter()
        lock.acquire()
        wait.append(time.perf_counter() - middle)
        record.append(middle - start)
    return statistics.median(record), statistics.median(wait)


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def between_streams(device: torch.device) -> Handoff:
    """Small ops that take turns on two streams, each after an event of the other one's, beside as many on one stream."""
    tensor = torch.ones(1024, device=device)
    streams = torch.Stream(device), torch.Stream(device)
    record, wait = [], []

    def run(turns: int, alternating: bool) -> float:
        torch.accelerator.synchronize(device)
        begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        with streams[0]:
            hold(device, 2 * turns * ISSUING)
        begin.record(streams[0])
        for turn in range(turns):
            stream, other = streams[turn % 2 * alternating], streams[(turn + 1) % 2 * alternating]
            with stream:
                tensor.add_(1)
            event, start = torch.Event(device), time.perf_counter()
            event.record(stream)
            middle = time.perf_counter()
            other.wait_event(event)
            record.append(middle - start)
            wait.append(time.perf_counter() - middle)
        end.record(streams[0])
        torch.accelerator.synchronize(device)
        return float(begin.elapsed_time(end)) / 1e3 / turns

    run(_TRIPS, True)
    trips = [max(run(_TRIPS, True) - run(_TRIPS, False), 0.0) for _ in range(_ROUNDS)]
    return Handoff(statistics.median(trips), statistics.median(record), statistics.median(wait))
