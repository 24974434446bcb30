"""Random modules to test a policy, a backend or a whole partitioned model with, and the comparison that judges the result.

    from hypothesis import given
    from partitioner import partition
    from partitioner.testing import assert_equal_runs, device_lists, modules

    @given(model=modules(), devices=device_lists())
    def test_my_policy(model, devices):
        inputs = model.example_inputs(seed=0)
        ours = partition(model, devices=devices, example_inputs=inputs, policy="mine", copy=True)
        assert_equal_runs(model, ours, inputs, train=True)

A failing example shrinks to a few lines and prints as the source of a module. Needs hypothesis: `pip install hypothesis`.
"""

from __future__ import annotations

from partitioner.testing.compare import assert_equal_runs, difference
from partitioner.testing.generate import KINDS, GeneratedModule, build
from partitioner.testing.recipe import Recipe, Step
from partitioner.testing.strategies import device_lists, fake_device_lists, modules, policies, recipes

__all__ = [
    "KINDS",
    "GeneratedModule",
    "Recipe",
    "Step",
    "assert_equal_runs",
    "build",
    "device_lists",
    "difference",
    "fake_device_lists",
    "modules",
    "policies",
    "recipes",
]
