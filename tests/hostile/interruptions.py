"""Warnings, logging, interruptions and exits in the midst of forward."""

from __future__ import annotations

import logging
import warnings

from torch import Tensor, nn

from .program import Run, Steps, program, raised, rand, two


def _warns(self: nn.Module, x: Tensor) -> Tensor:
    warnings.warn(f"rows: {x.shape[0]}", UserWarning, stacklevel=2)
    return self.left(x) + self.right(x)


@program(two(_warns))
def warnings_in_forward(run: Run) -> Steps:
    for rows in (3, 3, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield run(rand(rows, 4))
        yield [str(warning.message) for warning in caught if "rows" in str(warning.message)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield raised(lambda: run(rand()))


class Listening(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


LOGGER = logging.getLogger("hostile")


def _logs(self: nn.Module, x: Tensor) -> Tensor:
    LOGGER.warning("rows: %d", x.shape[0])
    return self.left(x) + self.right(x)


@program(two(_logs))
def logging_in_forward(run: Run) -> Steps:
    handler = Listening()
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        for rows in (3, 3, 2):
            yield run(rand(rows, 4)), list(handler.texts)
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = True


def _interrupted(self: nn.Module, x: Tensor, stop: bool = False) -> Tensor:
    if stop:
        raise KeyboardInterrupt("stop")
    return self.left(x) + self.right(x)


@program(two(_interrupted))
def interrupted_forward(run: Run) -> Steps:
    yield run(rand())
    try:
        run(rand(), True)
        yield "not interrupted"
    except KeyboardInterrupt as error:
        yield error
    yield run.learn(rand())


def _exits(self: nn.Module, x: Tensor, code: int = 0) -> Tensor:
    if code:
        raise SystemExit(code)
    return self.left(x) + self.right(x)


@program(two(_exits))
def forward_that_exits(run: Run) -> Steps:
    yield run(rand())
    try:
        run(rand(), 3)
        yield "not ended"
    except SystemExit as error:
        yield error.code
    yield run(rand())
