"""Real models, with random weights, on three CPU lanes and on eight GPUs that are not there.

On lanes: what eager gives, to the bit, for the batch that was planned and for another one; in training mode the gradients and
buffers as well. On fake devices: every op of a plan in which ops are spread as far as they can be finds all that it touches on
its own device; a model that cannot be one graph is refused there, with the reason.

The slow tests do the second for the whole zoo. The first, with much else, `benchmarks/corpus.py` does for it.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fake_devices import run_on_fake_devices, stand_in
from lanes import OLD_TORCH, assert_same, plans_of, spec, used_lanes
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils import _pytree as pytree

import zoo
from partitioner import partition
from partitioner.errors import TraceError
from partitioner.ir.machine import Link, Machine
from partitioner.ir.plan import Plan
from partitioner.model.call import Call
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from partitioner.testing import assert_equal_runs

QUICK = zoo.zoo("quick")
REST = [entry for entry in zoo.ZOO.values() if "quick" not in entry.tags]

LONG = {"torchvision/googlenet", "transformers/mamba"}
"""Of these: models that take ten times as long as others."""

PARALLEL = {
    "torchvision/googlenet",
    "transformers/bert",
    "transformers/clip",
    "transformers/lxmert",
}
"""Models whose branches must not end up on one lane."""


CLOSE = {"transformers/mamba"}
"""It scans in another order when it is traced: the last bits differ from eager, on a single lane, too."""

DECIDES = "Python decides on the value of a tensor"

NUMPY = "Attempted to trace numpy function"

REFUSED = {
    "transformers/longformer": DECIDES,  # is there any global attention?
    "transformers/nllb_moe": DECIDES,  # a loop over the experts that have tokens
    "transformers/switch_transformers": DECIDES,  # likewise
}
"""Models that cannot be one graph, which a plan for several devices needs, and why. On lanes they run as several graphs."""

REFUSED_IN_TRAINING = REFUSED | {
    "transformers/autoformer": DECIDES,  # layers are dropped by a random number
    "transformers/data2vec_audio": NUMPY,  # what is masked is drawn by numpy
    "transformers/detr": DECIDES,  # is all of it finite?
    "transformers/hubert": NUMPY,  # what is masked is drawn by numpy
    "transformers/ibert": DECIDES,  # are there NaNs in what ranges are taken of?
    "transformers/informer": DECIDES,  # layers are dropped by a random number
    "transformers/m2m_100": DECIDES,  # likewise
    "transformers/reformer": "torch's tracer does not look into manual_seed",
    "transformers/sew": NUMPY,  # what is masked is drawn by numpy
    "transformers/time_series_transformer": DECIDES,  # layers are dropped by a random number
    "transformers/unispeech": NUMPY,  # what is masked is drawn by numpy
    "transformers/unispeech_sat": NUMPY,  # likewise
    "transformers/wav2vec2": NUMPY,  # likewise
    "transformers/wavlm": NUMPY,  # likewise
}

DATA_DEPENDENT = (DynamicOutputShapeException, DataDependentOutputException)
"""Raised on fake tensors by an op whose shape or branch depends on values; there is nothing to be checked then."""


# Torch's tracer makes an instance of autograd's Function, and hides the warning from people, which does not help where warnings
# are errors: the tracer then takes the function for one that cannot be traced.
pytestmark = pytest.mark.filterwarnings("ignore:.*Function.* should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Bits depend on how many threads an op has."""
    torch.set_num_threads(1)


@functools.lru_cache(maxsize=1)
def built(name: str) -> nn.Module:
    """The model in eval mode; tests copy it, or leave it as it was."""
    return zoo.ZOO[name].build()


def model_of(entry: zoo.ZooModel) -> nn.Module:
    if not entry.installed:
        pytest.skip(f"{entry.family} is not installed")
    return built(entry.name)


def on_lanes(entry: zoo.ZooModel, model: nn.Module) -> Any:
    """A copy of the model on three CPU lanes."""
    args, kwargs = entry.inputs()
    return partition(model, example_inputs=args, example_kwargs=kwargs, spec=spec(3), copy=True)


def tensors(result: Any) -> list[Tensor]:
    """The tensors of a result."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def drawn() -> int:
    """What torch.seed() gives in a test: a number from torch's generator, not from the clock."""
    return int(torch.randint(1 << 31, ()))


def check_eval(entry: zoo.ZooModel) -> None:
    """Keys, structure and bits, for two batch sizes."""
    model = model_of(entry)
    with torch.no_grad():
        parallel = on_lanes(entry, model)
    assert list(parallel.state_dict()) == list(model.state_dict())
    assert entry.name not in PARALLEL or len(used_lanes(parallel)) > 1
    with torch.no_grad():
        for batch in (zoo.BATCH, 3):
            args, kwargs = entry.inputs(batch=batch, seed=batch)
            expected, found = model(*args, **kwargs), parallel(*args, **kwargs)
            assert type(found) is type(expected)
            if entry.name in CLOSE:
                torch.testing.assert_close(tensors(found), tensors(expected))
            else:
                assert_same(tensors(expected), tensors(found))


def check_train(entry: zoo.ZooModel) -> None:
    """Outputs, buffers, gradients and random numbers over two calls."""
    model = copy.deepcopy(model_of(entry)).train()
    args, kwargs = entry.inputs()
    exact = entry.name not in CLOSE
    options: dict[str, Any] = {"bitwise": exact, "gradient_bitwise": None if exact else False, "rtol": 1e-4, "atol": 1e-5}
    with patch("torch.seed", drawn):
        assert_equal_runs(model, on_lanes(entry, model), args, kwargs, train=True, **options)


def eight_gpus() -> Machine:
    """A machine on which nothing speaks against spreading: hand-offs and links cost nothing."""
    machine = build_machine(load_spec(), [f"cuda:{index}" for index in range(8)])
    devices = tuple(replace(device, handoff=0.0, overhead=0.0, bandwidth=1e5) for device in machine.devices)
    links = tuple(Link(link.source, link.target, bandwidth=1e15, latency=0.0) for link in machine.links)
    return Machine(devices, links)


def spread(entry: zoo.ZooModel, model: nn.Module) -> tuple[Plan, list[Any], list[Any]]:
    """The model's plan for eight GPUs, what it gives, and what running the plan on fake devices gives."""
    args, kwargs = entry.inputs()
    with torch.no_grad():
        ((plan, arguments, expected),) = plans_of(model, Call.of(args, kwargs), eight_gpus(), load_spec({"grain": 1e-9}))
        return plan, expected, run_on_fake_devices(plan, arguments)


def check_fake(entry: zoo.ZooModel, train: bool) -> Plan | None:
    """Torch itself looks for ops whose inputs lie on two devices, while shapes and dtypes come out as in eager.

    A model that cannot be one graph is refused instead, and has no plan. The refusal says why, and at which line of the model.
    """
    model = model_of(entry)
    model.train(train)
    state = copy.deepcopy(model.state_dict())
    refused = (REFUSED_IN_TRAINING if train else REFUSED).get(entry.name)
    try:
        if refused is not None:
            reason = "" if OLD_TORCH else re.escape(refused)  # some of them stop an older torch at an earlier line
            message = rf"cannot be one graph, .*: {reason}.* \(at .*\.py:\d+\)(\. \w+ itself raises nothing on this call)?\."
            with pytest.raises(TraceError, match=message):
                spread(entry, model)
            return None
        plan, expected, found = spread(entry, model)
    except DATA_DEPENDENT as error:
        assert refused is None, f"no longer refused, but: {error}"
        pytest.skip(f"fake tensors have no values: {error}")
    finally:
        model.load_state_dict(state)
        model.eval()
    for mine, theirs in zip(expected, found, strict=True):
        if isinstance(mine, Tensor):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    homes = {name: stand_in(value.torch_device) for name, value in plan.program.by_name.items() if name in plan.program.outputs}
    assert {str(leaf.device) for leaf in tensors(found)} <= set(homes.values())
    return plan


@pytest.fixture(scope="module", params=QUICK, ids=str)
def quick(request: pytest.FixtureRequest) -> Iterator[zoo.ZooModel]:
    """One model after the other, each through all of its tests, and gone before the next one is built."""
    yield request.param
    gc.collect()


def in_turns(first: int) -> pytest.MarkDecorator:
    """In which mode a model may be one of the quick tests' sample; the slow ones judge it in both."""
    marks = [[pytest.mark.slow] if (number + first) % 2 or entry.name in LONG else [] for number, entry in enumerate(QUICK)]
    models = [pytest.param(entry, id=str(entry), marks=mark) for entry, mark in zip(QUICK, marks, strict=True)]
    return pytest.mark.parametrize("quick", models, indirect=True, scope="module")


def skip_if_eval_only(entry: zoo.ZooModel) -> None:
    if "eval-only" in entry.tags:
        pytest.skip("takes these inputs in eval mode only")


@pytest.mark.sampled(1)
@in_turns(0)
def test_eval_on_lanes(quick: zoo.ZooModel) -> None:
    check_eval(quick)


@pytest.mark.sampled(1)
@in_turns(1)
def test_training_on_lanes(quick: zoo.ZooModel) -> None:
    skip_if_eval_only(quick)
    check_train(quick)


@pytest.mark.slow
def test_eval_on_eight_fake_gpus(quick: zoo.ZooModel) -> None:
    plan = check_fake(quick, train=False)
    assert plan is not None
    assert (
        quick.name not in PARALLEL or len({plan.machine.lanes[lane].device_name for lane in plan.placement.lane.values()}) > 2
    )


@pytest.mark.slow
def test_training_on_eight_fake_gpus(quick: zoo.ZooModel) -> None:
    skip_if_eval_only(quick)
    check_fake(quick, train=True)


FOR_LARGE = 64 << 30
"""Bytes. Models of more than a gibibyte are not tried with less, for two workers at once ran out of 24 GiB."""


@pytest.fixture(scope="module", params=REST, ids=str)
def other(request: pytest.FixtureRequest) -> zoo.ZooModel:
    """The rest of the zoo, likewise."""
    entry: zoo.ZooModel = request.param
    if "large" in entry.tags and os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < FOR_LARGE:
        pytest.skip("the model and a copy of its state need more memory than this machine has")
    return entry


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True], ids=["eval", "training"])
def test_eight_fake_gpus_for_the_rest(other: zoo.ZooModel, train: bool) -> None:
    if train:
        skip_if_eval_only(other)
    check_fake(other, train)
    gc.collect()  # large models leave nothing behind for the next test
