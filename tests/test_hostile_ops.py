"""Programs with ops of the user's own, and transforms inside of forward, that were different or failed.

Each is judged as those of `hostile` are: it does what the plain model does.
"""

from __future__ import annotations

import random

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, rand
from torch import Tensor, nn

from partitioner.frontend.analysis.own_ops import may_draw

OPS: dict[str, Program] = {}

own_op = kept_in(OPS)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", OPS)
def test_equal(name: str, example: bool) -> None:
    assert_equal(OPS[name], Variant(example, example))


LOG: list[int] = []


@torch.library.custom_op("partitioner_again::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x) * drawn()


@torch.library.custom_op("partitioner_again::logged", mutates_args=())
def logged(x: Tensor) -> Tensor:
    LOG.append(len(LOG))
    return x * len(LOG)


@torch.library.custom_op("partitioner_again::pure", mutates_args=())
def pure(x: Tensor) -> Tensor:
    return x * 2


for op in (noisy, logged, pure):
    op.register_fake(torch.empty_like)


def drawn() -> float:
    return random.random()


class Noisy(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        left, right = noisy(self.left(x).detach()), noisy(self.right(x).detach())
        return left, torch.rand(2), right, nn.functional.dropout(x, 0.5), logged(left)


def noises() -> nn.Module:
    LOG.clear()
    return Noisy()


@own_op(noises)
def own_ops_that_draw_and_count(run: Run) -> Steps:
    """Their schemas say nothing of it: they drew in any order, beside others, and counted the runs that `partition` makes."""
    for _ in range(4):
        yield run(rand()), list(LOG), torch.rand(1), random.random()


def test_an_own_op_that_draws_nothing_stays_free() -> None:
    ops = torch.ops.partitioner_again
    assert (may_draw(ops.noisy.default), may_draw(ops.logged.default), may_draw(ops.pure.default)) == (True, False, False)


class Pulls(Two):
    """A gradient by `torch.func` that is a part of forward."""

    def forward(self, x: Tensor) -> Tensor:
        out, pull = torch.func.vjp(lambda y: self.left(y).sigmoid(), x)
        return out + pull(torch.ones_like(out))[0] + self.right(x)


@own_op(Pulls)
def gradient_inside_under_inference_mode(run: Run) -> Steps:
    """Eager has one there; of the graph that Dynamo makes, torch said that an inference tensor has no version."""
    for inference in (False, True, False):
        with torch.inference_mode(inference):
            yield run(rand()), run(rand(5, 4))
