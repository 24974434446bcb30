"""What comes of a transform of functorch needs a gradient in a graph where it does in eager: ranks pass gradients by that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner.distributed.traced.example import example_in


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
        }


@pytest.mark.parametrize("frozen", [False, True])
def test_values_behind_a_level_are_told_as_in_eager(frozen: bool) -> None:
    model, x = Mapped(frozen), torch.randn(8, 4)
    example = example_in(model, x, None, 2)
    wanted = [leaf.requires_grad for leaf in tree_leaves(model(x))]
    assert [name in example.differentiable for name, _ in example.leaves] == wanted
