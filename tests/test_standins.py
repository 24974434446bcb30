"""Plans are compared by running graphs on stand-ins: whatever the model writes, draws, counts or hooks is as it was."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from partitioner import partition
from partitioner.planner.policies.spread import Spread
from partitioner.runtime.standins import can_be_repeated, repeatable
from partitioner.testing import GeneratedModule, assert_equal_runs, modules
from partitioner.tuning import trials

LANES = ["cpu:0", "cpu:1"]
ONE_AT_A_TIME = threading.Lock()
MANY = torch.ones(500_000)


@torch.library.custom_op("partitioner_tests::queue_up", mutates_args=())
def queue_up(x: Tensor) -> Tensor:
    alone = ONE_AT_A_TIME.acquire(blocking=False)
    if not alone:
        ONE_AT_A_TIME.acquire()
    time.sleep(0.002 if alone else 0.006)
    ONE_AT_A_TIME.release()
    return x * 2


@queue_up.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class InQueue(nn.Module):
    """Two branches of which a roofline expects that they run at once, and which get in each other's way."""

    def forward(self, x: Tensor) -> Tensor:
        return queue_up(x) + queue_up(x + 1)


class Busy(nn.Module):
    """Writes a buffer and a counter, draws random numbers, and is hooked wherever that can be done."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.position: Tensor
        self.cache: Tensor
        self.register_buffer("position", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", torch.zeros(3, 8))
        self.calls = 0
        self.heard: list[str] = []
        self.one.weight.register_hook(lambda grad: self.heard.append("tensor"))
        self.other.register_forward_hook(lambda *_: self.heard.append("module"))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.cache[self.position] = x.detach()[0]  # three calls, and there is no such row
        self.position += 1
        one, other = torch.dropout(self.one(x), 0.5, self.training), self.other(x) + torch.rand(())
        return self.norm(one + other)


def taken_down(model: nn.Module) -> tuple[object, ...]:
    state = [(name, value.clone(), value._version) for name, value in model.state_dict(keep_vars=True).items()]
    numbers = np.random.get_state()[1].tolist()  # type: ignore[union-attr, index]
    return [parameter.grad for parameter in model.parameters()], state, torch.get_rng_state(), random.getstate(), numbers


def same(one: object, other: object) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other


@contextmanager
def everything_raced() -> Iterator[None]:
    """Nothing is insisted on, so that what a test asks for is held against serial plans, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("partitioner.tuning.tuned._is_insisted_on", lambda spec: False)
        yield


def test_lanes_that_do_not_pay_are_not_kept() -> None:
    """As eight small experts were planned on two lanes and took 1.4 times as long as on one."""
    predicted = partition(InQueue().eval(), LANES, example_inputs=MANY, tune=False)
    assert len(set(predicted.placement.lane.values())) == 2, "which is what a roofline says of so many bytes"
    found = partition(InQueue().eval(), LANES, example_inputs=MANY, tune=True)
    assert len(set(found.placement.lane.values())) == 1
    assert "kept, as measured on the examples: serial" in str(found) and "list " in str(found)
    assert torch.equal(found(MANY), MANY * 6)


@pytest.mark.parametrize("fastest", ["serial", "by_level"])
def test_nobody_asks_and_the_clock_decides(fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin().cos().tan() + x.cos().sin().tan()

    monkeypatch.setattr(trials, "measured", lambda ways, _: {name: 1.0 if name == fastest else 2.0 for name in ways})
    found = partition(Wide().eval(), LANES, example_inputs=MANY)
    assert len(set(found.placement.lane.values())) == (1 if fastest == "serial" else 2)
    assert f"kept, as measured on the examples: {fastest} 1 s " in str(found)
    monkeypatch.setattr(trials, "measured", lambda *_: pytest.fail("predictions decide"))
    assert len(set(partition(Wide().eval(), LANES, example_inputs=MANY, tune=False).placement.lane.values())) == 2
    torch.use_deterministic_algorithms(True)
    try:
        partition(Wide().eval(), LANES, example_inputs=MANY)
    finally:
        torch.use_deterministic_algorithms(False)


def test_kernels_that_are_not_torch_s_run_for_the_check_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may print, or count; so many calls of it have to be asked for."""
    monkeypatch.setattr(trials, "measured", lambda *_: pytest.fail("it would run"))
    assert not partition(InQueue().eval(), LANES, example_inputs=MANY)._partitioner_programs.tried


def test_a_policy_that_was_named_decides() -> None:
    found = partition(InQueue().eval(), LANES, example_inputs=MANY, policy="list")
    assert len(set(found.placement.lane.values())) == 2 and not found._partitioner_programs.tried


def test_threads_inside_ops_that_do_not_pay_are_left_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small convolutions take 1.7 times as long with two threads as with one."""
    monkeypatch.setattr(trials, "measured", lambda ways, _: {name: 1.0 if "a lane's" in name else 2.0 for name in ways})
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = partition(nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval(), LANES, example_inputs=torch.ones(64, 64))
        assert found.placement.policy == "single" and set(found.placement.threads) == {0}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("train", [False, True])
def test_a_race_leaves_no_trace(train: bool) -> None:
    model = Busy().train(train)
    before = taken_down(model)
    found = partition(model, LANES, example_inputs=torch.ones(4, 8), policy=Spread(), grain=1e-9, tune=False, check=False)
    programs = found._partitioner_programs
    assert not programs.latest.pieces and same(before, taken_down(model))
    with everything_raced():
        raced = partition(model, LANES, example_inputs=torch.ones(4, 8), policy=Spread(), grain=1e-9, check=False)
    assert len(raced._partitioner_programs.tried) > 1
    assert same(before, taken_down(model)) and model.calls == 0 and not model.heard


@given(model=modules(), train=st.booleans(), grad=st.booleans())
@settings(max_examples=settings.default.max_examples // 4)
def test_random_modules_are_left_as_they_were_and_equal_eager(model: GeneratedModule, train: bool, grad: bool) -> None:
    model.train(train)
    eager, before = copy.deepcopy(model), taken_down(model)
    with everything_raced(), torch.set_grad_enabled(grad):
        found = partition(model, LANES, example_inputs=model.example_inputs(0), policy=Spread(), grain=1e-9, check=False)
    assert same(before, taken_down(model))
    assert_equal_runs(eager, found, eager.example_inputs(1), train=train)


def test_graphs_with_python_between_them_are_one_run() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            if x.sum() > 0:  # Python decides on data
                x = -x
            return self.other(x) + 1

    model = Broken().eval()
    with everything_raced():
        found = partition(model, LANES, example_inputs=torch.ones(2, 8), policy=Spread(), grain=1e-9)
    programs = found._partitioner_programs
    assert len(programs.graphs_of((torch.ones(2, 8),), {})) > 1
    assert torch.equal(found(torch.ones(2, 8)), model(torch.ones(2, 8)))


def test_what_cannot_be_repeated_is_told() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, same_memory: Tensor) -> Tensor:
            x += 1
            return x + same_memory

    model, x = Writes().eval(), torch.zeros(4)
    programs = partition(model, LANES, example_inputs=(x, x[:2].repeat(2)), check=False)._partitioner_programs
    ((piece, arguments),) = programs.graphs_of((torch.zeros(4), torch.zeros(4)), {})
    assert can_be_repeated(piece, arguments)
    run = repeatable(piece, piece.executable, arguments, backward=False)
    run()
    assert torch.equal(arguments[piece.written[0]], torch.zeros(4)), "the copy was written"
    meta = [value.to("meta") if isinstance(value, Tensor) else value for value in arguments]
    assert not can_be_repeated(piece, meta)
    five = torch.zeros(5)
    views = (five[:4], five[1:])
    aliased = partition(model, LANES, example_inputs=views, check=False)._partitioner_programs
    assert not can_be_repeated(*aliased.graphs_of(views, {})[0])


class Ordinary(nn.Module):
    """What stands in most models and is no op of ATen by name."""

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.tensor([[2.0] * x.shape[1]])
        torch._assert(x.float().sum() > -1e9, "too small")
        return x.double().type(torch.float32) @ weight.T + torch.ops.aten.relu(x).half().float()[:, :1]


class Foreign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return queue_up(x)


def test_what_everybody_writes_can_be_repeated() -> None:
    """One `.float()`, as in every norm of a Llama, and no plan was held against the serial one: lanes lost 12% unnoticed."""
    x = torch.ones(4, 8)
    for model, known in ((Ordinary(), True), (Foreign(), False)):
        programs = partition(model, LANES, example_inputs=x, tune=False, check=False)._partitioner_programs
        graphs = programs.graphs_of((x,), {})
        assert len(graphs) == 1 and can_be_repeated(*graphs[0]) is known
        assert can_be_repeated(*graphs[0], strangers=True)


def test_gradients_are_asked_of_leaves_of_their_own() -> None:
    model = Busy().train()
    programs = partition(model, LANES, example_inputs=torch.ones(4, 8), tune=False, check=False)._partitioner_programs
    ((piece, arguments),) = programs.graphs_of((torch.ones(4, 8),), {})
    seen: list[bool] = []

    def watched(given: list[object]) -> list[object]:
        found = piece.executable(given)
        seen.extend(each.requires_grad for each in found if isinstance(each, Tensor))
        return found

    repeatable(piece, watched, arguments, backward=True)()  # type: ignore[arg-type]
    assert any(seen) and all(parameter.grad is None for parameter in model.parameters()) and not model.heard
