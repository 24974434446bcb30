"""What a program finds changed that is not the model's: options of the process, classes, examples, state of rare kinds.

Each test tells what went wrong.
"""

from __future__ import annotations

import decimal
import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hostile.program import Two, rand, two
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.distributions import Distribution, Normal

from partitioner import partition
from partitioner.frontend.capture import dynamo
from partitioner.model.keep import state_kept
from partitioner.model.process import process_undo

LANES = ["cpu:0", "cpu:1"]

pytestmark = pytest.mark.filterwarnings("ignore")


def test_distributions_go_on_to_look_at_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile's first use turns that off for the whole process, so no model of distributions raised what it does."""
    eval_frame.TorchPatcher.patch.cache_clear()  # as in a process that never compiled anything
    dynamo._patched.cache_clear()
    monkeypatch.setattr(Distribution, "_validate_args", True)
    model = two(lambda self, x: Normal(self.left(x), 1.0).mean)()
    parallel = partition(model, LANES, example_inputs=(rand(),), tune=False)
    assert Distribution._validate_args
    torch.testing.assert_close(parallel(rand()), model(rand()))
    with pytest.raises(ValueError, match="Expected parameter loc"):
        parallel(rand() * float("nan"))


def test_distributions_on_several_devices_are_refused_with_what_to_do() -> None:
    """They ask for a value of a tensor, and what torch says of that is about its own developers."""
    from partitioner.frontend.capture.here import _plainly

    text = "function `is_dependent` in file `/torch/distributions/constraints.py` should not be traced."
    assert "validate_args=False" in _plainly(text)


class Changes(Two):
    """Changes options of Python's, numpy's and torch's, as scripts do where they happen to be."""

    def forward(self, x: Tensor) -> Tensor:
        decimal.getcontext().prec += 1
        decimal.getcontext().traps[decimal.Inexact] = True
        sys.path.append("nowhere")
        sys.argv.append("more")
        sys.setswitchinterval(0.01)
        gc.set_threshold(600, 5, 5)
        os.chdir("/")
        os.environ["CHANGED"] = "1"
        np.seterr(all="ignore")
        np.set_printoptions(precision=2)
        warnings.filterwarnings("error", message="nothing has this text")
        logging.getLogger().setLevel(33)
        logging.getLogger("some.model").addHandler(logging.NullHandler())
        logging.disable(logging.INFO)
        torch.set_printoptions(precision=2)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("medium")
        torch.set_default_device("cpu")
        torch.autograd.set_detect_anomaly(True)
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.enable_flash_sdp(False)
        Distribution.set_default_validate_args(False)
        nn.modules.module.register_module_forward_hook(lambda *_: None)
        return self.left(x) + self.right(x)


def options() -> list[Any]:
    """What it changes."""
    context = decimal.getcontext()
    return [
        *(context.prec, dict(context.traps), list(sys.path), list(sys.argv), sys.getswitchinterval(), gc.get_threshold()),
        *(os.getcwd(), dict(os.environ), np.geterr(), np.get_printoptions(), list(map(str, warnings.filters))),
        *(logging.root.level, logging.root.manager.disable, list(logging.getLogger("some.model").handlers)),
        *(vars(torch._tensor_str.PRINT_OPTS).copy(), torch.are_deterministic_algorithms_enabled()),
        *(torch.get_float32_matmul_precision(), torch._C._len_torch_function_stack(), torch.is_anomaly_enabled()),
        *(torch.get_autocast_dtype("cpu"), torch.backends.cudnn.benchmark, torch.backends.cuda.flash_sdp_enabled()),
        *(Distribution._validate_args, dict(nn.modules.module._global_forward_hooks)),
    ]


def test_options_of_the_process_are_put_back() -> None:
    """Of all these, what `partition` runs put back three."""
    logging.getLogger("some.model")
    undo = process_undo()
    Distribution.set_default_validate_args(True)  # whoever called torch.compile in this process has turned it off
    before = options()
    with state_kept(model := Changes()):
        model(rand())
        assert sum(one != other for one, other in zip(before, options(), strict=True)) == len(before)
    after = options()
    undo()
    assert after == before


def test_generators_of_gpus_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the CPU's is: a model that draws on a GPU drew other numbers after `partition` than without it."""
    generators = (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    before = [each.get_state() for each in generators]
    with state_kept(nn.Linear(2, 2)):
        for each in generators:
            torch.rand(3, generator=each)
    assert all(torch.equal(each.get_state(), state) for each, state in zip(generators, before, strict=True))


def test_options_are_put_back_by_partition() -> None:
    """Such as the digits of decimal numbers, and how a tensor is printed."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        decimal.getcontext().prec += 1
        torch.set_printoptions(precision=2)
        return self.left(x)

    before, undo = options(), process_undo()
    partition(two(forward)(), LANES, example_inputs=(rand(),), tune=False)
    after = options()
    undo()
    assert after == before


def test_switches_of_autocast_stay_switched() -> None:
    """Dynamo takes them for ops of its graph, and what they switch was forgotten with the call."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_cache_enabled(False)
        return self.left(x)

    parallel, undo = partition(two(forward)(), LANES, example_inputs=(rand(),), tune=False), process_undo()
    try:
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        parallel(rand())
        assert torch.get_autocast_dtype("cpu") is torch.float16
        assert not torch.is_autocast_cache_enabled()
    finally:
        undo()


# -- state of rare kinds -----------------------------------------------------------------------------------------------


def jagged() -> Tensor:
    return torch.nested.nested_tensor([rand(2, 4), rand(3, 4)], layout=torch.jagged)


KINDS: dict[str, Callable[[], Tensor]] = {
    "jagged": jagged,
    "nested": lambda: torch.nested.nested_tensor([rand(2, 4), rand(3, 4)]),
    "of a library": lambda: rand(4).to_mkldnn(),
    "masked": lambda: torch.masked.masked_tensor(rand(4), rand(4) > 0),
    "complex half": lambda: rand(4).to(torch.complex32),
    "quantized by floats": lambda: torch.quantize_per_channel(
        rand(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0, torch.qint8
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_any_kind_is_kept(kind: str) -> None:
    """torch cannot copy or compare all of them, and `partition` raised what it says of that."""
    model = two(lambda self, x: self.left(x))()
    model.cache = KINDS[kind]()
    with state_kept(model):
        model(rand())


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_state_that_is_written_is_put_back(layout: str) -> None:
    """Old values were written to an alias, which then had parts of its own."""
    model = two(lambda self, x: self.left(x))()
    model.table, identity = getattr(torch.eye(4), layout)(), torch.eye(4)
    values = model.table.values()
    with state_kept(model):
        values.add_(1)
    assert torch.equal(model.table.to_dense(), identity) and values.sum() == 4
    for write in (lambda: model.table.mul_(2), lambda: model.table.zero_()):
        with state_kept(model):
            write()
        assert torch.equal(model.table.to_dense(), identity)


def test_jagged_state_that_is_written_is_put_back() -> None:
    model = two(lambda self, x: self.left(x))()
    model.cache = jagged()
    with state_kept(model):
        model.cache.values().zero_()
    assert torch.equal(model.cache.values(), jagged().values())


# -- plans that are measured -------------------------------------------------------------------------------------------


class Differentiates(Two):
    """As networks of physics do: the derivative by the input, which is asked for here."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_(True)
        value = self.left(x).tanh() * self.right(x)
        return torch.autograd.grad(value.sum(), x, create_graph=True)[0]


def test_examples_are_left_as_they_were_where_plans_are_measured() -> None:
    """The call that gave the graphs to measure was made with the examples themselves."""
    x = rand()
    partition(Differentiates(), LANES, example_inputs=(x,))
    assert not x.requires_grad and x.grad is None


def test_a_short_call_of_jagged_tensors_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are put back after that, and nested ones could not be compared."""
    monkeypatch.undo()  # here a call may be short
    model = two(lambda self, x: self.left(x) + self.right(x))()
    parallel = partition(model, LANES, example_inputs=(jagged(),))
    torch.testing.assert_close(parallel(jagged()).values(), model(jagged()).values())


# -- what is written to the class --------------------------------------------------------------------------------------


class Counted(Two):
    calls = 0
    label: str = "none"

    @classmethod
    def begin_again(cls) -> None:
        cls.calls = 0

    def rename(self, label: str) -> None:
        type(self).label = label

    def forward(self, x: Tensor) -> Tensor:
        Counted.calls += 1
        return self.left(x) * Counted.calls


def test_what_is_written_to_the_class_of_the_module() -> None:
    """It was written to the class that is made for the module, where neither the model nor others of its class see it."""
    Counted.calls = 0
    parallel = partition(Counted(), LANES, example_inputs=(rand(),), tune=False)
    first = parallel(rand())
    parallel.begin_again()
    torch.testing.assert_close(parallel(rand()), first)
    assert Counted.calls == 1
    parallel.rename("new")
    assert Counted.label == Counted().label == "new"
    type(parallel).extra = 3  # type: ignore[attr-defined]
    assert Counted.extra == 3  # type: ignore[attr-defined]
    del type(parallel).extra  # type: ignore[attr-defined]
    assert not hasattr(Counted, "extra")
