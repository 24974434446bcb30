"""`tune=True`: several plans are run on the examples, and the fastest is kept, whatever was predicted."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from partitioner import SpecError, partition
from partitioner import compile as flow
from partitioner.backends import race
from partitioner.backends.race import MATTERS, is_faster, measured
from partitioner.tuning import candidates, trials, tuned
from partitioner.tuning.candidates import op_by_op

pytestmark = pytest.mark.usefixtures("one_thread")

LANES = ["cpu:0", "cpu:1"]
X = torch.ones(2, 2)


@torch.library.custom_op("partitioner_tests::doze", mutates_args=())
def doze(x: Tensor, seconds: float) -> Tensor:
    time.sleep(seconds)
    return x * 2


@doze.register_fake
def _(x: Tensor, seconds: float) -> Tensor:
    return torch.empty_like(x)


class Sleepers(nn.Module):
    """Two branches that take far longer than any roofline says of so few bytes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return doze(x, self.seconds) + doze(x + 1, self.seconds)


def lanes_of(module: nn.Module) -> set[int]:
    return set(module.placement.lane.values())


def test_lanes_that_pay_are_found_where_the_prediction_keeps_one() -> None:
    """As two convolution towers that gain 1.6x were kept serial: nothing is known of an op before it has been run."""
    model = Sleepers(0.02).eval()
    assert len(lanes_of(partition(model, LANES, example_inputs=X, copy=True))) == 1
    found = partition(model, LANES, example_inputs=X, tune=True)
    assert len(lanes_of(found)) == 2
    tried = {each.name: each for each in found._partitioner_programs.tried}
    assert tried["serial"].measured > 1.25 * min(each.measured for each in tried.values())  # 2 where nothing else runs
    kept = next(line for line in str(found).splitlines() if "kept, as measured on the examples: " in line)
    assert "(predicted " in kept and not kept.startswith("  kept, as measured on the examples: serial ")
    assert torch.equal(found(X), torch.full((2, 2), 6.0))


class Between(Sleepers):
    """With Python between two graphs."""

    def forward(self, x: Tensor) -> Tensor:
        first = super().forward(x)
        torch._dynamo.graph_break()
        return super().forward(first)


@pytest.mark.slow
def test_the_plan_that_wins_takes_the_place_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """GoogLeNet was traced and held against eager from the start again: 9 s in the place of 4."""
    traced = []
    tracing = flow.graph_of
    monkeypatch.setattr(flow, "graph_of", lambda *args, **kwargs: traced.append(1) or tracing(*args, **kwargs))
    for model, graphs in ((Sleepers(0.02), 1), (Between(0.02), 2)):
        traced.clear()
        eager, found = copy.deepcopy(model.eval()), partition(model.eval(), LANES, example_inputs=X, tune=True)
        assert len(traced) == graphs
        for x in (X, torch.ones(3, 2)):  # programs of later calls, and of a copy, are planned as the fastest was
            assert torch.equal(found(x), eager(x))
            assert len(lanes_of(found)) == 2
        again = copy.deepcopy(found)
        assert torch.equal(again(X), eager(X))
        assert len(lanes_of(again)) == 2


class Inverses(nn.Module):
    """Nobody has a formula for the FLOPs of a pseudo-inverse."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.pinv(x) + torch.linalg.pinv(x + 1)


def test_ops_are_measured_where_lanes_may_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inverses were taken for one small task. Cells of NASNet, balanced by a roofline, took 7.4 ms and take 5.6."""
    monkeypatch.setattr(trials, "LONG_ENOUGH", 0.0)
    model, x = Inverses().eval(), torch.rand(192, 192)
    assert len(lanes_of(partition(model, LANES, example_inputs=x, tune=False, copy=True))) == 1
    monkeypatch.setattr(trials, "measured", lambda ways, _: {name: 1e-3 if "measured ops" in name else 2e-3 for name in ways})
    found = partition(model, LANES, example_inputs=x)
    assert len(lanes_of(found)) == 2 and torch.equal(found(x), model(x))
    assert found.plan.costs.measured and "from measured ops" in str(found)
    assert torch.equal(found(x[:64]), model(x[:64])), "programs of later calls are planned likewise"


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.pinv(torch.linalg.pinv(x) + 1)


@pytest.mark.parametrize(("model", "most"), [(Chain(), 1.0), (Inverses(), 0.0)])
def test_nothing_is_measured_where_nobody_waits_for_it(model: nn.Module, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that all follow each other gain by no lanes, and calls of half a second take too long to look at again and again."""
    monkeypatch.setattr(trials, "LONG", most)
    monkeypatch.setattr(trials, "LONG_ENOUGH", 0.0)
    monkeypatch.setattr(trials, "profiled", lambda *_, **__: pytest.fail("ops are measured"))
    partition(model.eval(), LANES, example_inputs=torch.rand(16, 16))


def test_lanes_that_are_predicted_to_lose_a_little_are_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three recurrent layers were predicted to be 0.85x as fast on two lanes, and were 1.25x as fast."""

    class Squares(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x) @ (x @ (x + 1))

    monkeypatch.setattr(trials, "measured", lambda ways, _: {name: 1e-3 if name == "by_level" else 2e-3 for name in ways})
    spec = {"devices": [{"device": "cpu", "lanes": 2, "flops": "1GFLOP/s", "handoff": "200us", "overhead": "1us"}]}
    model, x = Squares().eval(), torch.ones(64, 64)
    assert "lanes were predicted to give" in str(partition(model, spec=spec, example_inputs=x, tune=False, copy=True))
    found = partition(model, spec=spec, example_inputs=x)
    assert len(lanes_of(found)) == 2 and torch.equal(found(x), model(x))


def test_serial_unless_another_is_clearly_faster_and_state_is_as_it_was() -> None:
    model = Sleepers(0.0).eval()
    found = partition(model, LANES, example_inputs=X, tune=True)
    seconds = {each.name: each.measured for each in found._partitioner_programs.tried}
    faster = {name for name, each in seconds.items() if each * MATTERS < seconds["serial"]}
    assert faster or len(lanes_of(found)) == 1
    assert model.calls == 0, "tuning calls the model, and leaves no trace of it"
    found(X)
    assert model.calls == 1


def test_auto_with_examples_tunes_where_it_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin().cos() + x.cos().sin()

    monkeypatch.setattr(trials, "measured", lambda ways, _: {name: 1.0 if name == "spread finely" else 2.0 for name in ways})
    auto = {"name": "auto", "time_limit": "1s"}
    found = partition(Small().eval(), LANES, example_inputs=X, policy=auto)
    assert len(lanes_of(found)) == 2
    plain = partition(Small().eval(), LANES, example_inputs=X, policy=auto, tune=False)
    assert len(lanes_of(plain)) == 1 and not plain._partitioner_programs.tried


def test_on_one_lane_there_are_compiled_tasks_to_try() -> None:
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.ReLU()))).eval()
    found = partition(model, ["cpu"], example_inputs=torch.ones(2, 4), tune=True)
    assert {each.name for each in found._partitioner_programs.tried} == {"serial", "serial, scripted", "serial, batched"}
    assert torch.allclose(found(torch.ones(2, 4)), model(torch.ones(2, 4)))


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x).relu() * self.right(x)


def winning(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The last way whose name ends so is measured to be the fastest."""
    monkeypatch.setattr(trials, "measured", lambda ways, _: {name: 1e-6 if name.endswith(end) else 1e-3 for name in ways})


def test_short_calls_are_tried_without_python_between_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``tune=True`` did, so by default towers of small layers took a fifth longer than they had to."""
    model, x = Towers().eval(), torch.randn(2, 4)
    winning(monkeypatch, "scripted")
    assert not any("scripted" in each.name for each in partition(model, LANES, example_inputs=x)._partitioner_programs.tried)
    for each in (tuned, trials):
        monkeypatch.setattr(each, "SHORT", 1.0)  # whatever else runs on the machine
    found = partition(model, LANES, example_inputs=x)
    assert "compiled: 10 of 10 ops" in str(found)
    assert torch.equal(found(x), model(x))
    single = partition(model, ["cpu"], example_inputs=x)
    assert {each.name for each in single._partitioner_programs.tried} == {"serial", "serial, scripted"}
    assert torch.equal(single(x), model(x))
    asked = partition(model, LANES, example_inputs=x, backward="autograd")
    assert not any("scripted" in each.name for each in asked._partitioner_programs.tried), "how it runs has been said"


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("devices", [LANES, ["cpu"]], ids=["two lanes", "one lane"])
def test_a_compiler_must_win_too(devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked for inductor got two lanes of it unmeasured: DLRM took twice as long as in eager, where one lane did not."""
    model, x = Towers().eval(), torch.randn(2, 4)
    winning(monkeypatch, ", op by op")
    monkeypatch.setattr(candidates, "op_by_op", op_by_op)
    found = partition(model, devices, example_inputs=x, compile_tasks="inductor")
    assert {each.name for each in found._partitioner_programs.tried} == {"serial", "serial, op by op"}
    assert "kept, as measured on the examples: serial, op by op" in str(found)
    assert torch.equal(found(x), model(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning", "ignore:TypedStorage is deprecated")
def test_kernels_that_are_chosen_by_timing_are_tried_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of NASNet's cells torch.compile's max-autotune made something that took three quarters of the time."""
    model, x = Towers().eval(), torch.randn(2, 4)
    winning(monkeypatch, ", max-autotune")
    found = partition(model, ["cpu"], example_inputs=x, compile_tasks="inductor", tune=True)
    assert {each.name for each in found._partitioner_programs.tried} == {"serial", "serial, scripted", "serial, max-autotune"}
    assert "compiled: 10 of 10 ops" in str(found)
    assert torch.allclose(found(x), model(x), atol=1e-6)


def test_training_is_tried_with_backward_on_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Towers(), torch.randn(2, 4)
    winning(monkeypatch, "spread, backward on lanes")
    monkeypatch.setattr(trials.Trials, "best", lambda race, on_lanes=False: list(race.choices)[-1])
    found = partition(model, LANES, example_inputs=x, tune=True, copy=True)
    assert any("backward on lanes" in each.name for each in found._partitioner_programs.tried)
    for module in (found, model):
        module(x).sum().backward()
    assert "backward: on the lanes of the forward" in str(found)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(found.parameters(), model.parameters(), strict=True))
    still = partition(model.eval(), LANES, example_inputs=x, tune=True)
    assert not any("backward" in each.name for each in still._partitioner_programs.tried)


class Overwriting(nn.Module):
    """Writes to its argument after a layer has kept it for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        other = self.second(x + 1).relu()
        result = self.first(x)
        x.add_(1)
        return result, other


def test_a_backward_that_cannot_be_is_no_error() -> None:
    """Nobody has asked for it but tuning; partition raised what autograd says of it."""
    model = Overwriting()
    found = partition(model, LANES, example_inputs=X, tune=True, copy=True)
    assert torch.equal(found(X.clone())[0], model(X.clone())[0])


def test_what_cannot_be_tuned_is_refused() -> None:
    with pytest.raises(SpecError, match="give example_inputs"):
        partition(Sleepers(0.0), LANES, tune=True)
    with pytest.raises(SpecError, match="weights= reads those once a plan is made"):
        partition(Sleepers(0.0), LANES, example_inputs=X, weights="nowhere", tune=True)


def test_the_median_of_turns_counts() -> None:
    order: list[str] = []
    found = measured({"slow": lambda: (order.append("slow"), time.sleep(0.03)), "quick": lambda: order.append("quick")})
    assert list(found) == ["slow", "quick"] and found["slow"] >= 0.03 and found["quick"] < 0.03
    turns = [name for name, before in zip(order, ["", *order], strict=False) if name != before]
    assert turns[:6] == ["slow", "quick", "slow", "quick", "slow", "quick"], "in turns, not one after the other"


def test_what_another_way_has_sent_home_is_started_before_the_clock() -> None:
    """Llama was kept on one thread, at 0.62x of eager: two took 4 ms a call, and 20 ms more after a call on lanes."""
    cold = [False]

    def lanes() -> None:
        time.sleep(0.004)
        cold[0] = True

    def serial() -> None:
        time.sleep(0.022 if cold[0] else 0.002)
        cold[0] = False

    found = measured({"lanes": lanes, "serial": serial})
    assert found["serial"] < found["lanes"]


def test_what_is_slow_to_wake_up_is_not_taken_for_faster() -> None:
    """All lanes as one function were 7% faster call upon call, and half as fast for milliseconds after each pause."""
    latest = [0.0, 0.0]

    def woken(x: Tensor) -> Tensor:
        if time.perf_counter() - latest[1] > 0.005:
            latest[0] = time.perf_counter()
        time.sleep(0.004 if time.perf_counter() - latest[0] < 0.006 else 0.0005)
        latest[1] = time.perf_counter()
        return x

    def lanes(x: Tensor) -> Tensor:
        time.sleep(0.002)
        return x

    assert not is_faster(woken, lanes, [X])
    assert is_faster(lanes, lambda x: lanes(lanes(x)), [X])


class Clock:
    """Seconds of ways as a shared machine takes them: all are slow for a while now and then, and each has noise of its own."""

    def __init__(self, noise: float) -> None:
        self.draw, self.noise, self.rounds, self.spell = random.Random(0), noise, 0, 1.0

    def __call__(self, call: Callable[[], float], repeats: int, devices: Sequence[str], pause: float = 0.0) -> float:
        seconds = call()
        if seconds == 1.0:
            self.rounds, self.spell = self.rounds + 1, self.draw.choice((1.0, 1.0, 4.0, 9.0))
        return seconds * self.spell * self.draw.lognormvariate(0.0, self.noise)


def test_noise_asks_for_more_rounds_and_a_slow_spell_slows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of medians of seven samples the luckiest was the least: two lanes were kept that took 1.5 times as long as one."""
    ways = {"serial": lambda: 1.0, "lanes": lambda: 1.2, "finer": lambda: 1.25}
    monkeypatch.setattr(race, "PATIENCE", 60.0)
    monkeypatch.setattr(race, "_sample", noisy := Clock(0.2))
    found = [measured(ways) for _ in range(20)]
    assert sum(min(each, key=each.__getitem__) == "serial" for each in found) >= 19 and noisy.rounds > 20 * race.ROUNDS
    monkeypatch.setattr(race, "_sample", quiet := Clock(0.0))
    usual = measured(ways)
    assert usual["lanes"] / usual["serial"] == pytest.approx(1.2) and quiet.rounds == 1 + race.FEWEST
