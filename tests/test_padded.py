"""`torch.nn.TransformerEncoder` under masks of padding, without gradients, where one graph must be all of a forward.

Torch goes by nested tensors there, whose padded rows are zeros behind it, and asks the mask in Python whether it can. Such a
model was refused on several devices, and with ``fullgraph=True``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pretend import TWO, World, put, spec
from torch import Tensor, nn

from partitioner import partition
from partitioner.distributed import plan
from partitioner.errors import TraceError
from partitioner.runtime.module import Parallel

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # eager's

LAST = [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]
EMPTY = [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
FIRST = [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]
INSIDE = [[0, 0, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 1]]
MASKS = (LAST, INSIDE, EMPTY, FIRST, LAST)


def encoder(count: int = 3, **options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, count, norm=nn.LayerNorm(8))


class Reader(nn.Module):
    """Two encoders, which know what is padded by its number."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.left, self.right = encoder(**options), encoder(2)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded, padding = self.embedding(tokens), tokens == 0
        return self.left(embedded, src_key_padding_mask=padding) * self.right(embedded.tanh(), src_key_padding_mask=padding)


def tokens(mask: list[list[int]]) -> Tensor:
    return torch.arange(1, 16).view(3, 5).remainder(8).add(1).masked_fill(torch.tensor(mask).bool(), 0)


def assert_close(parallel: Parallel, model: nn.Module, where: str) -> None:
    for mask in MASKS:
        torch.testing.assert_close(parallel(put(tokens(mask), where)), model(tokens(mask)), equal_nan=True, check_device=False)


@pytest.mark.parametrize(("context", "pinned"), [(torch.no_grad, "left.layers.1"), (torch.inference_mode, "right")])
def test_layers_on_several_devices(context: Any, pinned: str, world: World) -> None:
    """One program answers for rows that are padded last, first and in the middle, which torch asks its mask in Python."""
    model = Reader().eval()
    pins = {"pins": [{"match": pinned, "device": "lazy:1"}]}
    with context():
        parallel = partition(model, example_inputs=(put(tokens(LAST), "lazy:0"),), spec=spec(TWO) | pins, copy=True)
        assert len({str(each.device) for each in parallel.parameters()}) == 2
        assert_close(parallel, model, "lazy:0")
        assert len(parallel._partitioner_programs.pieces) == 1


def test_a_job_of_several_ranks() -> None:
    """There nothing is asked before a call, and inference was refused."""
    asked = {"distributed": {"mesh": {"pipeline": 2}, "schedule": "gpipe", "microbatches": 3}}
    with torch.no_grad():
        assert len(plan(Reader().eval(), tokens(LAST), asked, training=False).document.stages) == 2


def test_one_graph_on_one_device() -> None:
    model = Reader().eval().requires_grad_(False)
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=(tokens(LAST),), fullgraph=True, copy=True)
    for mask in MASKS:
        torch.testing.assert_close(parallel(tokens(mask)), model(tokens(mask)), equal_nan=True)


def test_the_encoder_is_all_of_the_model() -> None:
    model, x = encoder().eval(), torch.randn(3, 5, 8)
    given = {mask: torch.tensor(each).bool() for mask, each in zip("abcde", MASKS, strict=True)}
    with torch.no_grad():
        parallel = partition(
            model,
            ["cpu:0"],
            example_inputs=(x,),
            example_kwargs={"src_key_padding_mask": given["a"]},
            fullgraph=True,
            copy=True,
        )
        for mask in given.values():
            mine, theirs = (each(x, src_key_padding_mask=mask) for each in (parallel, model))
            torch.testing.assert_close(mine, theirs, equal_nan=True)
            mine, theirs = (each(x, mask=torch.eye(5).bool(), src_key_padding_mask=mask) for each in (parallel, model))
            torch.testing.assert_close(mine, theirs, equal_nan=True)


class Own(nn.TransformerEncoderLayer):
    """Reads what padded rows hold, which a nested tensor has not."""

    def forward(self, src: Tensor, *args: Any, **options: Any) -> Tensor:
        return super().forward(src.tanh(), *args, **options)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_layer_that_may_look_is_refused(hooked: bool) -> None:
    """It would see all rows where eager gives it a nested tensor."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) if hooked else Own(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    if hooked:
        model.layers[1].register_forward_pre_hook(lambda _layer, given: (given[0].tanh(), *given[1:]))
    call = {"src_key_padding_mask": torch.tensor(LAST).bool()}
    with torch.no_grad(), pytest.raises(TraceError, match="nested tensor"):
        partition(model, ["cpu:0"], example_inputs=(torch.randn(3, 5, 8),), example_kwargs=call, fullgraph=True)
