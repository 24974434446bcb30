"""The models that the other tests stand on: they build, and they compute the same thing every time."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import zoo


def outputs(model: torch.nn.Module, entry: zoo.ZooModel, **options: int) -> list[torch.Tensor]:
    args, kwargs = entry.inputs(**options)
    with torch.no_grad():
        leaves = pytree.tree_leaves(model(*args, **kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def check(entry: zoo.ZooModel) -> None:
    if not entry.installed:
        pytest.skip(f"{entry.family} is not installed")
    model = entry.build()
    assert not any(module.training for module in model.modules())
    first = outputs(model, entry)
    assert equal(first, outputs(model, entry)), "two calls differ"
    assert all(bool(tensor.isfinite().all()) for tensor in first), "an output is not finite"
    assert not equal(first, outputs(model, entry, seed=5)), "the outputs do not depend on the inputs"
    assert equal(first, outputs(entry.build(), entry)), "two builds differ"


@pytest.mark.parametrize("entry", zoo.zoo("quick"), ids=str)
def test_quick_models_repeat_themselves(entry: zoo.ZooModel) -> None:
    check(entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", [entry for entry in zoo.ZOO.values() if "quick" not in entry.tags], ids=str)
def test_all_models_repeat_themselves(entry: zoo.ZooModel) -> None:
    check(entry)


@pytest.mark.parametrize("entry", zoo.zoo("quick"), ids=str)
def test_dimension_0_is_the_batch(entry: zoo.ZooModel) -> None:
    args, kwargs = entry.inputs(batch=3)
    assert {leaf.shape[0] for leaf in pytree.tree_leaves((args, kwargs))} == {3}


def test_every_torchvision_classification_model_is_here() -> None:
    if not zoo.ZOO["torchvision/resnet18"].installed:
        pytest.skip("torchvision is not installed")
    models = zoo.import_torchvision().models
    assert sorted(models.list_models(module=models)) == sorted(zoo.TORCHVISION.split())


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    zoo.ZOO["transformers/bert"].build()
    assert torch.equal(before, torch.get_rng_state())
