"""Several threads: they call the module at once, one while another compiles, the plain model beside it, each in its mode."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, raised, rand, two


def together(*calls: Callable[[], object]) -> list[object]:
    """The results of calls that all start at the same time, each in a thread of its own; an exception is a result too."""
    start, results = threading.Barrier(len(calls)), [None] * len(calls)

    def work(number: int) -> None:
        start.wait(20)
        try:
            results[number] = calls[number]()
        except Exception as error:
            results[number] = error

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(calls))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive(), "a thread does not come back"
    for result in results:
        if any(base.__name__ == "PartitionerError" for base in type(result).__mro__):
            raise result
    return results


@program(Towers)
def four_threads_with_one_shape(run: Run) -> Steps:
    run.module.eval()
    yield run(rand())
    yield together(*(lambda seed=seed: [run.module(rand(seed=seed)) for _ in range(5)] for seed in range(4)))


@program(Towers)
def four_threads_with_other_shapes(run: Run) -> Steps:
    """Each needs another program, and all at once."""
    run.module.eval()
    yield together(*(lambda rows=rows: [run.module(rand(rows, 4)) for _ in range(3)] for rows in range(1, 5)))


@program(Towers)
def first_call_from_four_threads(run: Run) -> Steps:
    run.module.eval()
    yield together(*(lambda: run.module(rand()) for _ in range(4)))


def _under(mode: Callable[[], Any], run: Run) -> Callable[[], object]:
    def call() -> object:
        with mode():
            return [run.module(rand()).requires_grad for _ in range(4)], str(run.module(rand()).dtype)

    return call


@program(Two)
def modes_of_each_thread(run: Run) -> Steps:
    modes = (torch.no_grad, torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    yield together(*(_under(mode, run) for mode in modes))
    yield run.learn(rand())


@program(Two)
def backward_in_threads(run: Run) -> Steps:
    def learn(seed: int) -> Tensor:
        x = rand(seed=seed, grad=True)
        return torch.autograd.grad(run.module(x).sum(), x)[0]

    yield run(rand())
    yield together(*(lambda seed=seed: learn(seed) for seed in range(4)))


@program(Two)
def backward_in_another_thread(run: Run) -> Steps:
    x = rand(grad=True)
    result = run(x)
    yield together(lambda: result.sum().backward())
    yield x.grad


@program(Towers)
def plain_model_called_meanwhile(run: Run) -> Steps:
    run.module.eval()
    plain = run.model
    yield together(
        lambda: [run.module(rand(rows, 4)) for rows in (3, 2, 5, 3)],
        lambda: [plain(rand()) for _ in range(20)],
        lambda: [plain.left(rand()) for _ in range(20)],
    )


@program(Towers)
def state_read_meanwhile(run: Run) -> Steps:
    """While programs are made, another thread saves the model: it must see tensors, and those of the model."""
    run.module.eval()

    def save() -> list[Any]:
        seen = []
        for _ in range(30):
            state = run.module.state_dict()
            seen.append((sorted(state), {type(value).__name__ for value in state.values()}, float(state["left.bias"].sum())))
            time.sleep(0.002)
        return [seen[0], len({repr(entry) for entry in seen})]

    yield together(lambda: [run.module(rand(rows, 4)) for rows in (3, 2, 5)], save)


@program(Towers)
def random_numbers_drawn_meanwhile(run: Run) -> Steps:
    """Another thread has a generator of its own; nobody seeds it."""
    run.module.eval()
    generator = torch.Generator().manual_seed(3)
    yield together(
        lambda: [run.module(rand(rows, 4)) for rows in (3, 2, 5)],
        lambda: [float(torch.rand((), generator=generator)) for _ in range(200)],
    )


LOGGER = logging.getLogger("hostile.threads")


class Listening(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


@program(Towers)
def logging_and_warnings_meanwhile(run: Run) -> Steps:
    """What other threads log and warn of arrives, also while a program is made."""
    run.module.eval()
    handler, error, filters = Listening(), sys.stderr, list(warnings.filters)
    LOGGER.addHandler(handler)
    LOGGER.propagate = False

    def log() -> tuple[int, bool, bool]:
        same = True
        for number in range(100):
            LOGGER.error("message %d", number)
            same = same and sys.stderr is error and logging.root.manager.disable == 0
            time.sleep(0.0005)
        return handler.count, same, warnings.filters[:1] == filters[:1]

    try:
        yield together(lambda: [run.module(rand(rows, 4)) for rows in (3, 2, 5)], log)
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = True


@program(Two)
def modules_made_meanwhile(run: Run) -> Steps:
    """`nn.Module`'s own methods serve every thread."""

    def make() -> list[Any]:
        seen = []
        for _ in range(40):
            layer = nn.utils.skip_init(nn.Linear, 4, 4)  # draws no numbers: the others have the same generator
            layer.bias.data.zero_()
            layer.weight.data.fill_(1)
            seen.append((type(layer.weight).__name__, type(layer(torch.ones(4))).__name__, float(layer.weight.sum())))
        return sorted(set(seen))

    yield together(lambda: [run.module(rand(rows, 4)) for rows in (3, 2, 5)], make)


def _nested(self: nn.Module, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.submit(self.left, x), pool.submit(self.right, x)
        return left.result() + right.result()


@program(two(_nested))
def forward_with_threads_of_its_own(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(2, 4))


class PerThread(Two):
    """Numbers of each thread: lanes are threads, and yet the caller's numbers count."""

    def __init__(self) -> None:
        super().__init__()
        self.local = [threading.local()]

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * getattr(self.local[0], "scale", 2.0) + self.right(x)


@program(PerThread)
def numbers_of_each_thread(run: Run) -> Steps:
    yield run(rand())
    run.module.local[0].scale = 5.0
    yield run(rand())
    yield together(lambda: run.module(rand()))


SCALE: contextvars.ContextVar[float] = contextvars.ContextVar("SCALE", default=2.0)


@program(two(lambda self, x: self.left(x) * SCALE.get() + self.right(x)))
def context_variables(run: Run) -> Steps:
    yield run(rand())
    token = SCALE.set(5.0)
    yield run(rand())
    SCALE.reset(token)
    yield run(rand()), contextvars.copy_context().run(lambda: SCALE.set(3.0) and run.module(rand()))


@program(two(lambda self, x: (self.left(x) + self.right(x), threading.current_thread().name, threading.get_ident() > 0)))
def thread_that_forward_asks_for(run: Run) -> Steps:
    yield run(rand())
    yield together(lambda: run.module(rand())[1].startswith("Thread"))


@program(Two)
def called_from_coroutines(run: Run) -> Steps:
    async def call(seed: int) -> Tensor:
        await asyncio.sleep(0)
        return run.module(rand(seed=seed))

    async def main() -> list[Tensor]:
        inner = [call(seed) for seed in range(3)]
        return [*await asyncio.gather(*inner), await asyncio.to_thread(run.module, rand())]

    yield asyncio.run(main())


@program(Towers)
def trained_by_several_threads(run: Run) -> Steps:
    """As on a parameter server: all add to the same gradients."""
    run.module.eval()
    yield run(rand())
    if run.training:
        together(*(lambda: run.module(rand()).sum().backward() for _ in range(3)))


@program(Two)
def one_thread_fails(run: Run) -> Steps:
    yield run(rand())
    yield together(lambda: raised(lambda: run.module(rand(3, 5))), lambda: run.module(rand()), lambda: run.module(rand(2, 4)))
    yield run.learn(rand())


@program(Towers)
def many_threads_one_after_the_other(run: Run) -> Steps:
    run.module.eval()
    for seed in range(12):
        yield together(lambda seed=seed: run.module(rand(seed=seed)))


@program(Two)
def copied_and_changed_meanwhile(run: Run) -> Steps:
    import copy

    yield run(rand())
    yield together(
        lambda: [copy.deepcopy(run.module)(rand()) for _ in range(3)],
        lambda: [run.module(rand()) for _ in range(10)],
        lambda: [run.module.eval() and None for _ in range(10)],
    )
