"""Small models spread over several CPU lanes whatever that costs, and the comparisons that tests make of them.

A model that is small enough for a test is too small for lanes: a plan would rightly put it on one. So these tests plan for a
machine on which every op takes a millisecond and handing a value over takes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from partitioner import Spec, partition
from partitioner.compile import plan_of
from partitioner.frontend.capture.dynamo import Found, compiled
from partitioner.frontend.check.interpret import interpret
from partitioner.frontend.trace import graph_of
from partitioner.ir.machine import Machine
from partitioner.ir.plan import Plan
from partitioner.model.call import Call
from partitioner.planner.policies.by_level import ByLevel
from partitioner.runtime.module import Parallel
from partitioner.testing import difference

OLD_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""Whether this is a torch with faults that were mended since; what follows from them is told in the README."""


def spec(lanes: int = 3) -> dict[str, Any]:
    """A spec under which each op is worth a lane of its own."""
    return {"devices": [{"device": "cpu", "lanes": lanes, "handoff": 0, "overhead": 1e-3}], "grain": 1e-9}


def spread(model: nn.Module, *inputs: Any, lanes: int = 3, **options: Any) -> Parallel:
    """``model`` on several CPU lanes, all of them used, whatever they are predicted to gain; planned on ``inputs``."""
    parallel = partition(model, example_inputs=inputs, spec={**spec(lanes), "policy": ByLevel()}, **options)
    assert len(used_lanes(parallel)) == lanes, f"the test wants {lanes} lanes, the plan uses {used_lanes(parallel)}"
    return parallel


def used_lanes(parallel: Parallel) -> set[int]:
    """The lanes that run tasks in the program that ran last."""
    return set(parallel.placement.lane.values())


def programs(parallel: Parallel) -> int:
    """How many programs were made for the module so far: one for each graph of its calls."""
    return len(parallel._partitioner_programs.pieces)


class Planned(NamedTuple):
    """A graph of a call that was planned for some machine and run where the model lies."""

    plan: Plan
    arguments: tuple[Any, ...]
    results: list[Any]


def plans_of(model: nn.Module, call: Call, machine: Machine, spec: Spec) -> list[Planned]:
    """The plan of each graph of a call: of the one graph, if the machine has several devices."""
    found: list[Planned] = []

    def receive(graph: Found) -> Callable[..., Any]:
        traced = graph_of(model, graph)
        planned = Planned(plan_of(traced, machine, spec), graph.inputs, [])
        found.append(planned)

        def run(*arguments: Any) -> list[Any]:
            planned.results[:] = interpret(traced.graph, arguments)
            return list(planned.results)

        return run

    args, kwargs = call.fill(call.tensors)
    compiled(model, receive, whole=len({lane.torch_device for lane in machine.lanes}) > 1)(*args, **kwargs)
    return found


def assert_same(expected: Any, actual: Any) -> None:
    """Two results have one structure and the same bits."""
    left, form = pytree.tree_flatten(expected)
    right, other = pytree.tree_flatten(actual)
    assert form == other, f"{other} in the parallel module, {form} in eager"
    faults = [fault for pair in zip(left, right, strict=True) if (fault := difference(*pair)) is not None]
    assert not faults, "; ".join(faults)


def assert_same_state(expected: nn.Module, actual: nn.Module) -> None:
    """Two modules have the same parameters and buffers, to the bit, under the same names."""
    assert_same(dict(expected.state_dict()), dict(actual.state_dict()))


ACTIONS: dict[int, Callable[[], object]] = {}
"""What `act` does, by number."""


@torch._dynamo.allow_in_graph
def act(x: Tensor, number: int) -> Tensor:
    """An op that does something in Python, on the lane that it is placed on, and nothing when it is only looked at."""
    if not isinstance(x, FakeTensor):
        ACTIONS[number]()
    return x.clone()


@contextmanager
def acting(number: int, action: Callable[[], object]) -> Iterator[None]:
    """Meanwhile `act` of this number calls ``action``."""
    ACTIONS[number] = action
    try:
        yield
    finally:
        ACTIONS[number] = lambda: None


@contextmanager
def spying(layer: nn.Module, action: Callable[[], object]) -> Iterator[None]:
    """Meanwhile ``action`` is called, on the layer's lane, whenever the layer is.

    Python in a forward is run by the tracer, or between graphs on the caller's thread. What an op does is done on its lane.
    """
    plain, number = layer.forward, max(ACTIONS, default=0) + 1
    layer.forward = lambda x: plain(act(x, number))
    try:
        with acting(number, action):
            yield
    finally:
        del layer.forward


@contextmanager
def threads_of(*layers: nn.Module) -> Iterator[set[int]]:
    """The threads that call the layers meanwhile."""
    found: set[int] = set()
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(spying(layer, lambda: found.add(threading.get_ident())))
        yield found


def train_mixed(
    module: nn.Module, x: Tensor, dtype: torch.dtype, *, steps: int, scale: float, clip: float
) -> tuple[list[Tensor], list[Tensor]]:
    """The loop of mixed precision: scaled loss, unscaled gradients, clipped, stepped. Losses, and norms before clipping."""
    kind = x.device.type
    optimizer, scaler = torch.optim.SGD(module.parameters(), lr=0.1), torch.amp.GradScaler(kind, init_scale=scale)
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype):
            loss = module(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(module.parameters(), clip))
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return losses, norms


class Tower(nn.Sequential):
    """A branch: two layers."""

    def __init__(self, width: int = 6) -> None:
        super().__init__(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


class Towers(nn.Module):
    """A stem, branches of equal depth, a head."""

    def __init__(self, branches: int = 3, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.towers = nn.ModuleList(Tower(width) for _ in range(branches))
        self.head = nn.Linear(branches * width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, width) to (batch, 2)."""
        h = self.stem(x)
        return self.head(torch.cat([tower(h) for tower in self.towers], 1))


class NormedTowers(nn.Module):
    """Branches with batch norm and dropout: what differs between training and eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(inplace=True)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 18)."""
        return torch.cat([tower(x) for tower in self.towers], 1)


def numbers(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers, the same every time, that leave torch's own generator alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
