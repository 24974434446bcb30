"""Forked processes, signals, garbage collection: what happens around a call and not in it."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .portrait import Picture, portrait
from .program import Run, Steps, Towers, Two, program, rand, two


def in_some_child(call: Callable[[], object]) -> Picture:
    """What ``call`` gives in a forked process, while other threads call torch.

    The fork may fall into an op that holds a lock of C++'s; then the child of eager hangs, too, and another one is tried.
    """
    for _ in range(3):
        try:
            return in_child(call, 5.0)
        except ChildHangs:
            continue
    return in_child(call)


class ChildHangs(RuntimeError):
    """Nothing came of a forked process."""


def in_child(call: Callable[[], object], timeout: float = 20.0) -> Picture:
    """What ``call`` gives in a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # the parent's OpenMP threads are not there
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(portrait(_tried(call)), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], timeout)
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise ChildHangs("the forked process hangs")
        text = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(text)


def _tried(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:
        return error


@program(Towers)
def called_in_a_forked_process(run: Run) -> Steps:
    run.module.eval()
    yield run(rand())
    yield in_child(lambda: run.module(rand()).detach())
    yield run(rand())


@program(Towers)
def first_called_in_a_forked_process(run: Run) -> Steps:
    run.module.eval()
    yield in_child(lambda: run.module(rand()).detach())
    yield run(rand())


@program(Two)
def other_shape_in_a_forked_process(run: Run) -> Steps:
    yield run(rand())
    yield in_child(lambda: [run.module(rand(rows, 4)).detach() for rows in (2, 5, 1)])
    yield run(rand(2, 4))


@program(Two)
def learning_in_a_forked_process(run: Run) -> Steps:
    with torch.no_grad():
        yield run(rand())
    if run.training:
        yield in_child(lambda: torch.autograd.grad(run.module(rand()).sum(), run.module.left.weight))


@program(Two)
def forked_while_calls_are_under_way(run: Run) -> Steps:
    yield run(rand())
    ended = threading.Event()

    def keep_calling() -> None:
        while not ended.is_set():
            run.module(rand())

    worker = threading.Thread(target=keep_calling, daemon=True)
    worker.start()
    try:
        for _ in range(3):
            yield in_some_child(lambda: run.module(rand()).detach())
            time.sleep(0.01)
    finally:
        ended.set()
        worker.join(20)
    yield run(rand())


@program(Two)
def forked_while_another_size_is_compiled(run: Run) -> Steps:
    yield run(rand())
    worker = threading.Thread(target=lambda: [run.module(rand(rows, 4)) for rows in (2, 5, 7)], daemon=True)
    worker.start()
    time.sleep(0.005)
    yield in_some_child(lambda: run.module(rand()).detach())
    worker.join(20)
    yield worker.is_alive(), run(rand())


@program(Two)
def weights_shared_with_a_forked_process(run: Run) -> Steps:
    run.module.share_memory()
    yield run(rand())

    def write() -> None:
        with torch.no_grad():
            run.module.left.weight.fill_(2)

    in_child(write)
    yield run(rand())


@program(Two)
def interrupted_while_running(run: Run) -> Steps:
    """A signal whose handler raises arrives in the midst of a call, and the next call is as any other."""
    yield run(rand())

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt("by a signal")

    before = signal.signal(signal.SIGUSR1, stop)
    interrupted = 0
    try:
        for wait in (0.0005, 0.001, 0.003):
            try:
                threading.Timer(wait, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    run.module(rand())
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    yield interrupted, run(rand())
    yield run.learn(rand())


@program(Two)
def interrupted_while_compiling(run: Run) -> Steps:
    yield run(rand())

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt("by a signal")

    before = signal.signal(signal.SIGUSR1, stop)
    interrupted = 0
    try:
        for number, wait in enumerate((0.002, 0.01)):
            try:
                threading.Timer(wait, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                run.module(rand(5, 4)[None].expand(2 + number, 5, 4))
                time.sleep(5)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    yield interrupted, run(rand(5, 4)[None].expand(2, 5, 4))
    yield run.learn(rand())


@program(Towers)
def garbage_collected_between_calls(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed))
        gc.collect(1)
    gc.disable()
    try:
        yield run(rand())
    finally:
        gc.enable()


@program(Two)
def results_are_let_go(run: Run) -> Steps:
    """Nothing holds on to inputs and results once the caller lets go of them."""
    x = rand()
    result = run(x)
    seen = weakref.ref(x), weakref.ref(result)
    del x, result
    gc.collect(1)
    yield [reference() is None for reference in seen]
    x = rand(grad=True)
    seen = (weakref.ref(x),)
    run.module(x).sum().backward()
    del x
    gc.collect(1)
    yield [reference() is None for reference in seen]


@program(Two)
def replaced_weights_are_let_go(run: Run) -> Steps:
    yield run(rand())
    seen = weakref.ref(run.module.left.weight)
    run.module.left.weight = nn.Parameter(torch.ones(4, 4))
    yield run(rand())
    gc.collect(1)
    yield seen() is None


@program(Two)
def module_is_let_go(run: Run) -> Steps:
    yield run(rand())
    weight = weakref.ref(run.module.left.weight)
    alone = threading.active_count() >= 1
    run.module = None
    gc.collect(1)
    yield alone, weight() is None or "held by the program's runner"


def _traces_itself(self: nn.Module, x: Tensor) -> Tensor:
    seen: list[str] = []

    def watch(frame: Any, event: str, argument: object) -> None:
        seen.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        result = self.left(x)
    finally:
        sys.setprofile(None)
    return result * (1 if "forward" in seen else 2) + self.right(x)


@program(two(_traces_itself), timeout=20.0, unchecked="a forward that profiles itself sees no calls of its parts")
def forward_that_profiles_itself(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(2, 4))


@program(Two)
def profiled_by_the_caller(run: Run) -> Steps:
    count = [0]

    def watch(frame: Any, event: str, argument: object) -> None:
        count[0] += 1

    yield run(rand())
    sys.setprofile(watch)
    try:
        result = run.module(rand())
        other = run.module(rand(2, 4))
    finally:
        sys.setprofile(None)
    yield result, other, count[0] > 0
