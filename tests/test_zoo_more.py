"""What models of other libraries do that no model here did: each test is a small model that does the same."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partitioner import InputError, partition
from partitioner.testing.runs import leaves

LANES = {"devices": [{"device": "cpu", "lanes": 2, "handoff": 0, "overhead": 1e-3}], "grain": 1e-9, "policy": "by_level"}
Example = tuple[Any, ...]


class Scaled(nn.Module):
    """Two branches, of a number and its scale, which a caller may have to be given."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return self.left(x) * scale + self.right(x)


class OfBatch(Scaled):
    """Takes a batch apart before its forward, as aggregations of graph networks do with an index."""

    def __call__(self, batch: dict[str, Any]) -> Tensor:
        return super().__call__(batch.pop("x"), scale=batch["scale"])


class Counted(Scaled):
    """Also counts its calls in what is no forward, and holds a forward of its own, as a wrapped module does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.forward = super().forward

    def __call__(self, *args: Any) -> Tensor:
        self.calls += 1
        return super().__call__(*args, 2.0)


def hooked(hook: Callable[..., Any], **options: bool) -> nn.Module:
    model = Scaled()
    model.register_forward_pre_hook(hook, **options)
    return model


def test_example_inputs_are_those_of_the_model_and_not_of_its_forward() -> None:
    """They were given to forward, and a model whose ``__call__`` or hook makes its arguments was refused."""
    x = torch.randn(3, 4)
    cases: list[tuple[nn.Module, Callable[[], Example]]] = [
        (OfBatch(), lambda: ({"x": x, "scale": 2.0},)),
        (Counted(), lambda: (x,)),
        (hooked(lambda model, args, kwargs: (args, {"scale": 0.5}), with_kwargs=True), lambda: (x,)),
        (hooked(lambda model, args: (args[0].float(), 3.0)), lambda: (torch.arange(12).reshape(3, 4),)),
    ]
    for model, example in cases:
        held = dict(vars(model))
        given = example()
        parallel = partition(model, example_inputs=given, spec=LANES)
        assert dict(vars(model)) == held
        assert pytree.tree_structure(given) == pytree.tree_structure(example())
        assert len(parallel.graph.ops) > 1
        assert torch.equal(parallel(*example()), model(*example()))


def test_what_a_model_does_before_its_forward_may_fail() -> None:
    with pytest.raises(InputError, match=r"OfBatch fails on the example inputs. KeyError: 'scale'"):
        partition(OfBatch(), example_inputs=({"x": torch.randn(3, 4)},), spec=LANES)
    with pytest.raises(InputError, match=r"do not fit Scaled.forward"):
        partition(hooked(lambda model, args: None), example_inputs=torch.randn(3, 4), spec=LANES)


class Sample:
    """A result that torch knows the items of, but no names for them."""

    def __init__(self, sample: Tensor) -> None:
        self.sample = sample


pytree.register_pytree_node(Sample, lambda value: ([value.sample], None), lambda items, _: Sample(*items))


def test_leaves_of_a_container_without_names_are_numbered() -> None:
    one, two = torch.ones(1), torch.ones(2)
    assert leaves({"input": Sample(one), "keyword": {"a": two}}) == {"input leaf 0": one, "keyword leaf 0": two}


class Block(nn.Module):
    """A function of its own to the tracer, where its caller cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


class InPieces(nn.Module):
    """A loop that cannot be traced, around blocks that can, as where `random.random()` decides which layers are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x


def test_a_call_is_all_of_its_graphs_also_those_of_functions_traced_on_their_own() -> None:
    """Only the last function's graph was told of, as if it were the model; and only the first was measured by tune=True."""
    x, model, graphs = torch.randn(2, 4), InPieces(), 3
    parallel = partition(model, example_inputs=x, spec=LANES)
    for batch in (x, x, torch.randn(3, 4)):
        assert torch.equal(parallel(batch), model(batch))
        assert len(parallel._partitioner_programs.latest.pieces) == graphs
        assert f"one of {graphs} graphs, with Python between them" in str(parallel)
    assert len(parallel._partitioner_programs.graphs_of((x,), {})) == graphs


@pytest.mark.parametrize("blocks", [InPieces, lambda: InPieces().blocks[0]], ids=["in pieces", "whole"])
def test_cprofile_may_look_on(blocks: Callable[[], nn.Module]) -> None:
    """Trainers profile steps with cProfile; its profiler is no function, so putting it back made each frame fail."""
    x, model = torch.randn(2, 4), blocks()
    with cProfile.Profile() as profile:
        parallel = partition(model, example_inputs=x, spec=LANES)
        found = parallel(x)
        assert torch.equal(parallel(torch.ones(3, 4)), model(torch.ones(3, 4)))
    assert torch.equal(found, model(x))
    assert any(entry.code == Block.forward.__code__ for entry in profile.getstats())
