"""What an op moves: a lookup reads the rows that it is asked for, whatever the size of the table that they are in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from partitioner import partition
from partitioner.ir.cost import OpCost, roofline, thread_speedup
from partitioner.ir.machine import Device

ROWS, WIDTH, ASKED = 50_000, 16, 12


class Lookup(nn.Module):
    """One way to read rows of a table."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.table = nn.Embedding(ROWS, WIDTH)
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, mode="sum") if how == "embedding_bag" else None

    def forward(self, index: Tensor) -> Tensor:
        if self.how == "embedding":
            return self.table(index)
        if self.bag is not None:
            return self.bag(index.view(2, ASKED // 2))
        return self.table.weight.index_select(0, index)


def cost_of(model: nn.Module, target: str, *inputs: Tensor) -> OpCost:
    plan = partition(model, ["cpu"], example_inputs=inputs, check=False).plan
    (op,) = (op for op in plan.graph.ops if op.target == target)
    return plan.costs.ops[op.name]


@pytest.mark.parametrize("how", ["embedding", "embedding_bag", "index_select"])
def test_a_lookup_reads_the_rows_that_it_is_asked_for(how: str) -> None:
    """Two features of a recommender were planned as two milliseconds of work: lanes for a call of a tenth of one."""
    found = cost_of(Lookup(how), how, torch.arange(ASKED))
    rows = 4 * WIDTH * ASKED
    assert rows <= found.moved <= 4 * rows
    assert found.moved < 4 * WIDTH * ROWS / 100


def test_a_product_reads_all_of_its_weights() -> None:
    found = cost_of(nn.Linear(512, 512), "linear", torch.ones(1, 512))
    assert found.moved >= 4 * 512 * 512


def test_an_op_of_many_kernels_costs_the_host_more_and_gains_less_from_threads() -> None:
    cpu, gpu = Device("cpu", "cpu", overhead=4e-6, cores=2), Device("cuda:0", "cuda", overhead=4e-6)
    one = OpCost(flops=10**8, moved=10**6, state=0)
    many = replace(one, kernels=101, touched=10**8)
    assert roofline(many, cpu) - roofline(one, cpu) == pytest.approx(50 * 4e-6)
    assert roofline(many, gpu) == roofline(one, gpu), "an accelerator has a kernel of its own for it"
    assert thread_speedup(many, 2) < 1.1 < 1.9 < thread_speedup(one, 2)
