"""What comes of a transform of functorch needs a gradient in a graph where it does in eager: ranks pass gradients by that.

The tracer's own fakes know it; they were taken for real tensors, and other fakes made of them, which had no history.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, rand
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner.distributed.traced.example import example_in

pytestmark = [pytest.mark.usefixtures("scattering"), pytest.mark.filterwarnings("ignore:.*torch.jit.script")]


class Mapped(nn.Module):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4).requires_grad_(not frozen)

    def forward(self, x: Tensor) -> dict[str, Any]:
        mapped = torch.vmap(lambda row: row.sin() * row)(self.layer(x))
        written = torch.zeros(3, *mapped.shape)
        written[0] = mapped
        with torch.no_grad():
            apart = mapped.cos()
        return {
            "mapped": mapped,
            "of it": mapped.sin(),
            "views": (mapped * 2).split(2, -1),
            "written": written,
            "detached": mapped.detach(),
            "apart": apart,
            "numbers": mapped.argmax(-1),
            "like it": torch.zeros_like(mapped) + 1,
            "detached within": torch.vmap(lambda row: row.detach() * row.argmax())(mapped),
            "of the rows": torch.vmap(torch.func.grad(lambda row: (row**3).sum()))(mapped),
            "of x": torch.func.grad(lambda y: (y * mapped.detach()).sum())(x),
            "pushed": torch.func.jvp(torch.tanh, (x,), (mapped,))[1],
            "pushed apart": torch.func.jvp(torch.tanh, (x,), (x,)),
        }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("frozen", [False, True])
def test_values_behind_a_level_are_told_as_in_eager(frozen: bool) -> None:
    model, x = Mapped(frozen), torch.randn(8, 4)
    example = example_in(model, x, None, 2)
    wanted = [leaf.requires_grad for leaf in tree_leaves(model(x))]
    assert [name in example.differentiable for name, _ in example.leaves] == wanted


class Asks(Mapped):
    """Goes on with what it is told of that."""

    def forward(self, x: Tensor) -> Any:
        found = super().forward(x)
        found["asked"] = [(leaf.requires_grad, leaf.is_leaf) for leaf in tree_leaves(found)]
        return found, found["mapped"] * (2.0 if found["mapped"].requires_grad else 3.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("frozen", [False, True])
def test_forward_is_told_as_in_eager(frozen: bool) -> None:
    """It was told that none of them needs a gradient."""
    program = Program("asks", lambda: Asks(frozen), lambda run: iter([run.learn(rand(grad=frozen))]), lambda: ((rand(),), {}))
    for example in (True, False):
        assert_equal(program, Variant(True, example))
