"""Regions inside forward that run in a mode of their own, and ops that hold a whole function."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .program import Run, Steps, Two, program, rand, two


def _partly_without(self: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        frozen = self.left(x)
    return frozen * self.right(x)


@program(two(_partly_without))
def no_grad_inside(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    with torch.no_grad():
        yield run(rand())


def _partly_with(self: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return self.left(x) * self.right(x)


@program(two(_partly_with))
def enable_grad_inside_of_no_grad(run: Run) -> Steps:
    with torch.no_grad():
        result = run(rand(grad=True))
    yield result
    result.sum().backward()
    yield run.learn(rand())


class Decorated(Two):
    @torch.no_grad()
    def teach(self, x: Tensor) -> Tensor:
        return self.left(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.teach(x) * self.right(x)


@program(Decorated)
def method_decorated_with_no_grad(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


def _in_inference(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        scale = self.left(x.detach()).abs().sum()
    return scale, self.right(x) * float(x.shape[0])


@program(two(_in_inference))
def inference_mode_inside(run: Run) -> Steps:
    yield run(rand())
    yield run(rand())


def _autocast_inside(self: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = self.left(x)
        with torch.autocast("cpu", enabled=False):
            whole = self.right(half.float())
    return half, whole, self.left(x)


@program(two(_autocast_inside))
def autocast_regions_inside(run: Run) -> Steps:
    yield run.learn(rand())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield run.learn(rand())


class Checkpointed(nn.Module):
    """Dropout inside of a checkpoint: the recomputation has to draw the same numbers."""

    def __init__(self, reentrant: bool = False, preserve: bool = True) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
        self.right, self.reentrant, self.preserve = nn.Linear(4, 4), reentrant, preserve

    def forward(self, x: Tensor) -> Tensor:
        kept = checkpoint(self.left, x, use_reentrant=self.reentrant, preserve_rng_state=self.preserve)
        return kept + nn.functional.dropout(self.right(x), 0.5, self.training)


@program(Checkpointed)
def checkpoint_with_dropout(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    yield run.learn(rand(5, 4, grad=True))


@program(lambda: Checkpointed(reentrant=True), lambda: rand(grad=True))
def reentrant_checkpoint_with_dropout(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    yield run.learn(rand(5, 4, grad=True))
    yield run.learn(rand())


class CheckpointedNorm(Checkpointed):
    """Statistics inside of a checkpoint are updated twice."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())


@program(CheckpointedNorm)
def checkpoint_with_batch_norm(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    yield run.learn(rand(seed=8))


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25)) for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.layers, 2, x, use_reentrant=False) + x


@program(Segments)
def checkpointed_segments(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


def _checkpointed_closure(self: nn.Module, x: Tensor) -> Tensor:
    scale = self.left(x).tanh()

    def inner(y: Tensor, *, shift: float) -> tuple[Tensor, Tensor]:
        return self.right(y) * scale, y + shift

    first, second = checkpoint(inner, x, shift=2.0, use_reentrant=False)
    return first + second


@program(two(_checkpointed_closure))
def checkpointed_closure(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


def _profiled(self: nn.Module, x: Tensor) -> Tensor:
    with torch.profiler.record_function("branches"), torch.autograd.profiler.record_function("inner"):
        return self.left(x) + self.right(x)


@program(two(_profiled), limit="regions of the profiler's are left out")
def record_function_inside(run: Run) -> Steps:
    yield run.learn(rand())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield run(rand())
    yield "branches" in {event.key for event in profile.key_averages()}


def _packed(self: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float() * 2):
        return self.left(x).tanh() * self.right(x)


@program(two(_packed))
def saved_tensors_hooks_inside(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
