"""What forward prints, warns of and logs over several devices: as often as in eager, in its order, of the same line.

Each was refused: the tracer ends the graph there, and state on several devices asks for one graph.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hostile.program import Two, rand
from pretend import TWO, World, spread
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partitioner import TraceError

LOGGER = logging.getLogger("told")

pytestmark = [pytest.mark.usefixtures("scattering", "one_thread"), pytest.mark.filterwarnings("ignore")]


class Says(nn.Linear):
    """A layer that says in every way that it is called."""

    def forward(self, x: Tensor) -> Tensor:
        print("layer of", self.in_features, x.shape, x.dtype, sep=", ")
        warnings.warn(f"{x.shape[0]} rows", stacklevel=1)
        LOGGER.info("rows: %d", x.shape[0])
        LOGGER.debug("values: %s", x)
        return super().forward(x)


class Layers(nn.Module):
    """Several of them, one called twice, with statements over several lines and between branches."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.calls = Says(4, 4), Says(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.left(x)
        warnings.warn(
            "between",
            category=RuntimeWarning,
            stacklevel=1,
        )
        with torch.no_grad():
            LOGGER.log(
                logging.ERROR,
                f"call {self.calls}",
            )
        return y * self.right(x) + self.left(x).mean()


class Heard(logging.Handler):
    """Notes records with where they come from."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(pathname)s:%(lineno)d %(funcName)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def told(module: nn.Module, x: Tensor, kind: Any) -> tuple[Any, ...]:
    """What a call gives, prints, warns of and logs, under a filter for warnings."""
    printed, handler = io.StringIO(), Heard()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    try:
        with warnings.catch_warnings(record=True) as found, contextlib.redirect_stdout(printed):
            warnings.simplefilter(kind)
            result = module(x).detach().tolist()
    finally:
        LOGGER.removeHandler(handler)
    return result, printed.getvalue(), [(w.category, str(w.message), w.filename, w.lineno) for w in found], handler.lines


@pytest.mark.parametrize("kind", ["always", "default", "module", "once", "ignore"])
def test_what_is_told(kind: str, world: World) -> None:
    """What a filter lets through once for a line, it lets through once."""
    model = Layers()
    parallel = spread(model, (rand(),), TWO, copy=True)
    calls = [rand(3, 4), rand(3, 4, seed=9), rand(5, 4), rand(4, 4), rand(3, 4)]
    found = []
    for module in (model, parallel):
        globals().pop("__warningregistry__", None)
        found.append([told(module, x, kind) for x in calls])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other[0], one[0])
        assert other[1:] == one[1:]
    assert len(found[0][0][1].splitlines()) == 3 and len(found[0][0][3]) == 4
    assert len(found[0][0][2]) == {"always": 4, "default": 2, "module": 2, "once": 2, "ignore": 0}[kind]


class Counts(Two):
    """Something is written before the warning, and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = super().forward(x)
        warnings.warn("no error yet", stacklevel=1)
        self.rows.add_(1)
        self.calls += 10
        return y + self.rows


def test_a_call_is_refused_whose_warning_would_be_an_error(world: World) -> None:
    """It was raised when all had run: a buffer had been written that in eager had not, and was wrong from then on."""
    model = Counts()
    parallel = spread(model, (rand(),), TWO, copy=True)
    for seed, action in enumerate(("always", "error", "always")):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            if action == "error":
                with pytest.raises(TraceError, match=r"it warns .*test_told\.py:"):
                    parallel(rand())
                continue
            with pytest.warns(UserWarning, match="no error yet"):
                torch.testing.assert_close(parallel(rand(seed=seed)), model(rand(seed=seed)), check_device=False)
        assert (parallel.calls, float(parallel.rows)) == (model.calls, float(model.rows))


def test_gradients_are_those_of_a_silent_model(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is told by a backward."""
    model = Layers()
    parallel, gradients = spread(model, (rand(),), TWO, copy=True), []
    for module in (model, parallel):
        for seed in (3, 9):
            with pytest.warns(Warning):
                module(rand(3, 4, seed=seed)).square().sum().backward()
        gradients.append([weight.grad for weight in module.parameters()])
    torch.testing.assert_close(*gradients, check_device=False)
    assert capsys.readouterr().out.count("layer of") >= 12


def _prints_in_a_checkpoint(model: Two, x: Tensor) -> None:
    checkpoint(lambda x: print("again in backward"), x, use_reentrant=False)


def _prints_elsewhere(model: Two, x: Tensor) -> None:
    print("to errors", file=sys.stderr)


def _prints_what_may_change(model: Two, x: Tensor) -> None:
    rows = [x.shape[0]]
    print(rows)
    rows.append(1)


def _handles(model: Two, x: Tensor) -> None:
    try:
        warnings.warn("an error under some filters", stacklevel=1)
    except UserWarning:
        print("handled")


SEEN: dict[str, Callable[[Two, Tensor], Any]] = {
    "a tensor": lambda model, x: print(x),
    "a tensor logged": lambda model, x: LOGGER.error("called %s", x),
    "an error logged": lambda model, x: LOGGER.error("called", exc_info=True),
    "a caller's line": lambda model, x: warnings.warn("old", DeprecationWarning, stacklevel=2),
    "in a checkpoint": _prints_in_a_checkpoint,
    "elsewhere": _prints_elsewhere,
    "what may change": _prints_what_may_change,
    "a handler": _handles,
}


@pytest.mark.parametrize("how", SEEN)
def test_what_cannot_be_told_later_is_refused(how: str, world: World) -> None:
    """Because it would be told otherwise, or in another place."""

    class Model(Two):
        def forward(self, x: Tensor) -> Tensor:
            SEEN[how](self, x)
            return super().forward(x)

    with pytest.raises(TraceError, match=r"cannot be one graph.*it (prints|warns|logs).*test_told\.py:"):
        spread(Model(), (rand(),), TWO)
