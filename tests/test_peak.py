"""Predicted peaks beside those of PyTorch's allocator, for real models, in inference and in training."""

from __future__ import annotations

import pytest
import torch
from peaks import CASES, allocated, beyond, plan_in, step_of
from torch import nn

from partitioner import partition
from partitioner.ir.footprint import footprints
from partitioner.ir.optimizer import OPTIMIZERS, Optimizer
from partitioner.runtime.module import Parallel

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 0.1

NAMES = ["towers", "resnet18", "unet", "lstm", "bert", "gpt2"]


def made(name: str, training: bool, device: str = "cpu", times: int = 1) -> tuple[Parallel, torch.Tensor]:
    """A model over one lane, and what it is called with."""
    torch.manual_seed(0)
    model, x = CASES[name].build().train(training).to(device), CASES[name].inputs(times * CASES[name].batch).to(device)
    with torch.set_grad_enabled(training):
        return partition(model, [device], example_inputs=x, policy="single", check=False), x


def predicted(parallel: Parallel, training: bool, optimizer: str = "none") -> int:
    """Bytes of a step on top of state and inputs, and beside margins."""
    (footprint,) = footprints(plan_in(parallel, training, optimizer)).values()
    return beyond(footprint)


QUICK = ("towers", "lstm")
SOME = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", SOME)
def test_the_peak_of_inference_is_the_allocators(name: str) -> None:
    parallel, x = made(name, False)
    call = step_of(parallel, False, None, (x,), {})
    call()  # makes what is made once
    measured = allocated(call)
    assert abs(predicted(parallel, False) / measured - 1) < TOLERANCE, f"{measured} B measured"


@pytest.mark.parametrize("name", SOME)
def test_the_peak_of_training_is_the_allocators(name: str) -> None:
    """With the backward alone, and with a step of AdamW behind it."""
    parallel, x = made(name, True)
    for optimizer, steps in (("none", None), ("adamw", torch.optim.AdamW(parallel.parameters()))):
        call = step_of(parallel, True, steps, (x,), {})
        call()  # makes what the optimizer keeps
        measured = allocated(call)
        assert abs(predicted(parallel, True, optimizer) / measured - 1) < TOLERANCE, f"{measured} B measured with {optimizer}"


def test_the_allocators_peak_is_told() -> None:
    """What measures is measured: two tensors of 4 MB live at once, of three that are made."""

    def call() -> None:
        x = torch.empty(10**6)
        y = torch.add(x, x)
        del x
        torch.add(y, y)

    assert allocated(call) == 8 * 10**6


MADE = {
    "sgd": lambda p, **o: torch.optim.SGD(p, **o),
    "sgd_momentum": lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adam_amsgrad": lambda p, **o: torch.optim.Adam(p, amsgrad=True, **o),
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD,
    "rmsprop": torch.optim.RMSprop,
    "rmsprop_momentum": lambda p, **o: torch.optim.RMSprop(p, momentum=0.9, **o),
    "rprop": torch.optim.Rprop,
    "adafactor": torch.optim.Adafactor,
    "muon": getattr(torch.optim, "Muon", None),
}


def stepped(name: str, shapes: list[tuple[int, ...]], **options: object) -> tuple[torch.optim.Optimizer, int]:
    """PyTorch's optimizer of a name after a step, and the bytes that another step takes."""
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    build = MADE[name]
    if build is None:
        pytest.skip("this PyTorch has no such optimizer")
    optimizer = build(parameters, **options)
    optimizer.step()
    return optimizer, allocated(optimizer.step)


def test_every_optimizer_of_pytorch_is_measured() -> None:
    assert MADE.keys() == OPTIMIZERS.keys() - {"none", "lion"}


KNOWN = [
    pytest.param(each, id=each.name, marks=[] if each.name == "adamw" else [pytest.mark.slow])
    for each in OPTIMIZERS.values()
    if each.name in MADE
]


@pytest.mark.parametrize("known", KNOWN)
def test_optimizers_keep_what_the_table_says(known: Optimizer) -> None:
    shapes = [(60, 40), (100, 50)] if known.name == "muon" else [(60, 40), (40,), (8, 16, 3, 3)]
    optimizer, taken = stepped(known.name, shapes)
    tensors = [each for kept in optimizer.state.values() for each in kept.values() if isinstance(each, torch.Tensor)]
    assert sum(each.untyped_storage().nbytes() for each in tensors) == sum(known.bytes(shape, 4) for shape in shapes)
    sizes = [4 * torch.Size(shape).numel() for shape in shapes]
    assert taken <= known.stepping(sizes, together=False) + 0.1 * max(sizes)
    if known.name != "muon":
        _, taken = stepped(known.name, shapes, foreach=True)
        assert taken <= known.stepping(sizes, together=True) + 0.1 * max(sizes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["towers", "bert", "gpt2"])
def test_the_peak_is_that_of_cuda(name: str, training: bool) -> None:
    """Of what a step takes beyond what is there when it begins, in which libraries have their workspaces already."""
    parallel, x = made(name, training, "cuda:0", times=32)
    call = step_of(parallel, training, None, (x,), {})
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    measured = torch.cuda.max_memory_allocated() - before
    assert abs(predicted(parallel, training) / measured - 1) < TOLERANCE, f"{measured} B measured"
