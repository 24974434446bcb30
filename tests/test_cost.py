"""What an op moves: a lookup reads the rows that it is asked for, whatever the size of the table that they are in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner import partition
from partitioner.frontend.analysis.work import work_of
from partitioner.ir.cost import OpCost, roofline, thread_speedup
from partitioner.ir.graph import NOTHING, Work
from partitioner.ir.machine import Device
from programs import Calls

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
    many = replace(one, inside=Work(kernels=101, touched=10**8))
    assert roofline(many, cpu) - roofline(one, cpu) == pytest.approx(50 * 4e-6)
    assert roofline(many, gpu) == roofline(one, gpu), "an accelerator has a kernel of its own for it"
    assert thread_speedup(many, 2) < 1.1 < 1.9 < thread_speedup(one, 2)


@pytest.mark.parametrize(
    ("target", "model", "inputs"),
    [
        ("dropout", nn.Dropout(0.5), [torch.ones(64, 64)]),
        ("max_pool2d", nn.MaxPool2d(3), [torch.ones(2, 8, 32, 32)]),
        ("sort", Calls(lambda x: x.sort()[0]), [torch.ones(64, 64)]),
        ("linalg_svdvals", Calls(lambda x: torch.linalg.svdvals(x)), [torch.ones(64, 64)]),
    ],
)
def test_what_kernels_take_one_by_one_is_not_as_quick_as_its_bytes(target: str, model: nn.Module, inputs: list[Tensor]) -> None:
    """A pooling branch of Inception was taken for a twentieth of its work, and its lane was given as much again."""
    found = cost_of(model.train(), target, *inputs)
    cpu, gpu = Device("cpu", "cpu", cores=2), Device("cuda:0", "cuda")
    assert roofline(found, cpu) > 5 * roofline(replace(found, inside=NOTHING), cpu)
    assert roofline(found, gpu) == roofline(replace(found, inside=NOTHING), gpu)
    helped = roofline(found, cpu, threads=2) < 0.7 * roofline(found, cpu)
    assert helped == (target != "dropout"), "one thread draws random numbers"


def test_attention_and_layers_that_are_one_op_in_inference_have_flops() -> None:
    """The fast path of a transformer's layer was predicted to be nothing but its bytes; so was attention on a CPU."""
    tokens = torch.ones(2, 16, 32)
    with torch.no_grad():
        encoder = cost_of(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), "_transformer_encoder_layer_fwd", tokens
        )
    assert encoder.flops == 2 * 2 * 16 * (4 * 32 * 32 + 2 * 32 * 64) + 4 * 2 * 16 * 16 * 32
    heads = torch.ones(2, 4, 16, 8)
    attention = cost_of(Calls(F.scaled_dot_product_attention), "scaled_dot_product_attention", heads, heads, heads)
    assert attention.flops == 4 * 2 * 4 * 16 * 16 * 8


def test_a_formula_that_does_not_expect_a_call_says_nothing_of_it() -> None:
    """What an op touches is seen in the same look: an error would hide it."""
    vector = torch.ones(3)
    for func in (torch.ops.aten._cdist_forward.default, torch.ops.aten.max_pool2d_with_indices.default):
        assert work_of(func, (vector,), {}, vector, 24) == Work(kernels=1, touched=24)
