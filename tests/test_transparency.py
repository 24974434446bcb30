"""The emitted module is the model: outputs, buffers, random state and gradients, for any model, devices and policy.

Random traced modules, lanes and policies. On the CPU everything is equal bit for bit, gradients too where at most two of them
meet in one tensor; where more meet, autograd sums them in the order of its sequence numbers, which are counted per thread.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from fake_devices import run_on_fake_devices
from hypothesis import given
from hypothesis import strategies as st
from lanes import plans_of

from partitioner import partition
from partitioner.model.call import Call
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from partitioner.testing import GeneratedModule, assert_equal_runs, device_lists, fake_device_lists, modules, policies

TINY_GRAIN = 1e-9
"""Seconds. The generated modules take microseconds; this keeps their ops from being gathered into one task."""

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Bits of a reduction depend on how many threads share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@given(
    model=modules(),
    devices=device_lists(),
    policy=policies(["by_level", "list", "single", "scatter"]),
    train=st.booleans(),
    spread=st.booleans(),
)
def test_emitted_module_equals_eager(
    model: GeneratedModule, devices: list[str], policy: str, train: bool, spread: bool
) -> None:
    model.train(train)
    inputs = model.example_inputs(0)
    fields = {"grain": TINY_GRAIN} if spread else {}
    parallel = partition(copy.deepcopy(model), devices, example_inputs=inputs, policy=policy, check=False, **fields)
    assert_equal_runs(model, parallel, inputs, train=train)
    assert_equal_runs(model, parallel, model.example_inputs(1), train=train)


@given(model=modules(), devices=device_lists(), train=st.booleans())
def test_without_example_inputs(model: GeneratedModule, devices: list[str], train: bool) -> None:
    """The first call traces, plans and runs, with nothing compared before."""
    model.train(train)
    parallel = partition(copy.deepcopy(model), devices, grain=TINY_GRAIN, policy="scatter")
    assert_equal_runs(model, parallel, model.example_inputs(0), train=train)


@given(model=modules(), devices=fake_device_lists(), train=st.booleans())
def test_no_op_mixes_devices(model: GeneratedModule, devices: list[str], train: bool) -> None:
    """PyTorch itself looks for ops whose inputs lie on two devices."""
    model.train(train)
    spec = load_spec(None, grain=TINY_GRAIN, policy="scatter")
    for plan, arguments, _ in plans_of(model, Call.of(model.example_inputs(0), {}), build_machine(spec, devices), spec):
        run_on_fake_devices(plan, arguments)
