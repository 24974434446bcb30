"""Programs that combine what others do one by one, and change it between calls.

Each is judged as those of `hostile` are: it does what the plain model does. It tells what went wrong.
"""

from __future__ import annotations

import functools

import pytest
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, rand
from torch import Tensor, nn

TOGETHER: dict[str, Program] = {}

together = kept_in(TOGETHER)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", TOGETHER)
def test_equal(name: str, example: bool) -> None:
    assert_equal(TOGETHER[name], Variant(not example, example))


# -- functions with a cache ----------------------------------------------------------------------------------------------------

CONFIG = {"scale": 2.0}


@functools.lru_cache
def scaled(rows: int) -> float:
    return CONFIG["scale"] * rows


@functools.cache
def zeros(count: int) -> list[float]:
    return [0.0] * count


class Cached(Two):
    factor = 2.0

    @functools.lru_cache(maxsize=4)  # noqa: B019 - it is what is tested
    def factored(self, rows: int) -> float:
        return self.factor * rows

    def forward(self, x: Tensor) -> tuple[Tensor, list[float]]:
        kept = zeros(2)
        kept[0] += 1
        return self.left(x) * scaled(x.shape[0]) + self.right(x) * self.factored(2) + kept[0], kept


def cached() -> nn.Module:
    CONFIG["scale"] = 2.0
    for function in (scaled, zeros, Cached.factored):
        function.cache_clear()
    return Cached()


@together(cached)
def caches_that_hold_what_was(run: Run) -> Steps:
    """What the functions read had been read again, and the list that one gives was another one in each call."""
    first = run(rand())[1]
    yield run(rand()), run(rand())[1] is first
    CONFIG["scale"], run.module.factor = 3.0, 5.0
    yield run(rand())
    yield run(rand(2, 4)), scaled.cache_info().currsize
    scaled.cache_clear()
    yield run(rand())
