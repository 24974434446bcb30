"""Python asks for sizes what the tracer cannot say of one that varies: each size has a program of its own, and none is refused.

Where all must be one graph, a second batch size was refused: the first one is a constant, with which everything can be asked.
"""

from __future__ import annotations

import fractions
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from lanes import programs
from pretend import put, spec
from test_state_on_devices import TWO
from torch import Tensor, nn

from partitioner import Parallel, TraceError, partition
from partitioner.frontend.capture import frames

ASKED: dict[str, Callable[[int], int]] = {
    "divmod": lambda size: sum(divmod(size, 4)),
    "a common divisor": lambda size: math.gcd(size, 8),
    "a root": math.isqrt,
    "a text": lambda size: len(f"{size:04d}"),
    "a power modulo": lambda size: pow(size, 2, 5),
    "a sorted list": lambda size: sorted([size, 3, 5])[1],
    "a number of numpy's": lambda size: int(np.sqrt(size)),
    "a fraction": lambda size: fractions.Fraction(size, 3).numerator,
    "a complex number": lambda size: int(abs(complex(size, 1))),
}


class Scaled(nn.Module):
    """Two layers side by side, one of them times a number that Python makes of the number of rows."""

    def __init__(self, ask: Callable[[int], int]) -> None:
        super().__init__()
        self.left, self.right, self.ask = nn.Linear(6, 6), nn.Linear(6, 6), ask

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, 6) to (rows, 6)."""
        return self.left(x) * self.ask(x.shape[0]) + self.right(x)


def rows(count: int) -> Tensor:
    return torch.linspace(-1, 1, count * 6).reshape(count, 6)


def whole(model: nn.Module) -> Parallel:
    """A model on two CPU lanes that must be one graph, planned for four rows."""
    return partition(model, ["cpu:0", "cpu:1"], example_inputs=rows(4), fullgraph=True)


def assert_equal_at(parallel: Parallel, model: nn.Module, sizes: Sequence[int]) -> None:
    for size in sizes:
        torch.testing.assert_close(parallel(rows(size)), model(rows(size)), rtol=0, atol=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("asked", ASKED)
def test_a_second_size_is_not_refused(asked: str) -> None:
    model = Scaled(ASKED[asked])
    parallel = whole(model)
    assert_equal_at(parallel, model, [4, 6, 3, 6, 4])
    assert programs(parallel) == 3
    assert "a program for each size, for with sizes that vary" in str(parallel)


@pytest.mark.usefixtures("one_thread", "world")
@pytest.mark.parametrize("asked", ["divmod", "a common divisor", "a text"])
def test_nor_with_state_on_several_devices(asked: str) -> None:
    model = Scaled(ASKED[asked])
    parallel = partition(model, spec=spec(TWO), example_inputs=rows(4), copy=True)
    for size in (4, 6, 3):
        torch.testing.assert_close(parallel(put(rows(size), "lazy:0")), model(rows(size)), check_device=False)


def test_what_the_tracer_can_say_has_one_program_for_all_sizes() -> None:
    model = Scaled(lambda size: size // 2 + 1)
    parallel = whole(model)
    assert_equal_at(parallel, model, [4, 6, 3, 5])
    assert programs(parallel) == 2
    assert "for each size" not in str(parallel)


def test_too_many_sizes_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST", 3)
    model = Scaled(ASKED["a root"])
    parallel = whole(model)
    assert_equal_at(parallel, model, [4, 6, 3])
    with pytest.raises(TraceError, match=r"3 programs, one for each size because, with sizes that vary, .*test_sizes\.py"):
        parallel(rows(7))
    assert_equal_at(parallel, model, [4, 6, 3])


def test_what_cannot_be_one_graph_at_any_size_is_refused_for_its_own_reason() -> None:
    class Decides(Scaled):
        decides = False

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.relu() if self.decides and self.left(x).sum() > 0 else x)

    model = Decides(lambda size: size // 2 + 1)
    parallel = whole(model)
    assert_equal_at(parallel, model, [4, 6])
    parallel.decides = True
    with pytest.raises(TraceError, match="Python decides on the value of a tensor"):
        parallel(rows(6))
    parallel.decides = False
    assert_equal_at(parallel, model, [4, 6, 3])
    assert "for each size" not in str(parallel)
