"""Calls that guards would take longer than: they are made as they are, where that was measured, and nobody can tell."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner import driver, partition
from partitioner.backends.race import go_back
from partitioner.runtime import alone
from partitioner.runtime.module import Parallel
from partitioner.runtime.programs import elements
from partitioner.runtime.summary import Alone
from partitioner.tuning import trials, tuned

LANES = ["cpu:0", "cpu:1"]
X = torch.ones(2, 4)


class Small(nn.Module):
    """A microsecond or two, beside which guards take ten."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.weight


@pytest.fixture(autouse=True)
def short_calls_are_measured(monkeypatch: pytest.MonkeyPatch, _through_programs: None) -> None:
    monkeypatch.setattr(driver, "faster_alone", alone.faster_alone)
    for each in (tuned, trials):
        monkeypatch.setattr(each, "SHORT", 1.0)


def pieces_run(parallel: Parallel, *args: Any) -> int:
    """How many programs a call runs."""
    programs = parallel._partitioner_programs
    programs.latest.pieces = []
    parallel(*args)
    return len(programs.latest.pieces)


@pytest.fixture
def small() -> Parallel:
    return partition(Small(), LANES, example_inputs=X)


def test_a_call_that_guards_outlast_runs_as_it_is_and_a_larger_one_does_not(small: Parallel) -> None:
    assert small.calls == 0, "measuring leaves no trace"
    assert "calls no larger than the example run as they are" in str(small)
    assert pieces_run(small, X) == pieces_run(small, X[:1]) == 0
    assert pieces_run(small, torch.ones(3, 4)) == 1
    assert small.calls == 3 and torch.equal(small(X), X)
    assert pieces_run(copy.deepcopy(small), X) == 0
    assert len(small._partitioner_programs.graphs_of((X,), {})) == 1, "who looks at its graphs finds them"


def test_hooks_run_once_and_gradients_arrive(small: Parallel) -> None:
    seen: list[Tensor] = []
    small.register_forward_hook(lambda module, inputs, output: seen.append(output))
    small(X).sum().backward()
    assert len(seen) == 1 and torch.equal(small.weight.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize(
    "options",
    [
        *({"tune": False}, {"check": False}, {"policy": "single"}, {"backward": "lanes"}),
        {"backward": "autograd"},  # the default, said aloud: refining took it for an answer, and short calls did not
    ],
    ids=str,
)
def test_not_where_somebody_says_how_it_is_to_run_or_that_nothing_is_to_be(options: dict[str, Any]) -> None:
    assert pieces_run(partition(Small(), LANES, example_inputs=X, **options), X) == 1


@pytest.mark.parametrize("how", ["torchscript", "batched", "frozen", "inductor"])
def test_where_a_compiler_is_asked_for_too(how: str) -> None:
    """ResNet-50, whose convolutions scale, was compiled by inductor into something that took 1.3 times as long as the model."""
    assert pieces_run(partition(Small(), LANES, example_inputs=X, compile_tasks=how), X) == 0


def test_on_one_lane_too() -> None:
    """Guards cost as much there, and nothing was measured: a model of plain functions took 1.09 times as long as in eager."""
    assert pieces_run(partition(Small(), ["cpu"], example_inputs=X), X) == 0


class Routed(nn.Module):
    """Python asks, in a loop, which layers have anything to do: each is a frame with guards of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Small() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if x.sum() > 0:
                x = layer(x)
        return x


def test_forward_in_many_pieces_runs_as_it_is_too() -> None:
    parallel = partition(Routed(), LANES, example_inputs=X)
    assert pieces_run(parallel, X) == 0
    assert torch.equal(parallel(X), X) and all(layer.calls == 2 for layer in parallel.layers)


class Leaves(nn.Module):
    """In a loop, of which no graph can be half: there is none at all."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x * 2
            if x.sum() > 5:
                break
        return x


def test_forward_without_a_graph_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "measured", None)
    parallel = partition(Leaves(), LANES, example_inputs=X)
    assert parallel._partitioner_programs.alone == (X.numel(), X.numel()) and torch.equal(parallel(X), X * 2)
    assert "runs as it is, for there is no graph in it\n  Python decides on the value of a tensor" in str(parallel)


class Detours(Small):
    """While it is traced it takes another way, as a scan of transformers does."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        for _ in range(500 if torch.compiler.is_compiling() else 0):
            y = y * 1
        return y


def test_a_longer_call_runs_as_it_is_where_that_takes_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "QUICK", 0.0)
    assert pieces_run(partition(Detours(), LANES, example_inputs=X), X) == 0


def test_not_where_its_programs_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "measured", lambda ways: {"as it is": 1.0, "programs": 0.9})
    assert pieces_run(partition(Small(), LANES, example_inputs=X), X) == 1


@pytest.mark.parametrize("training", [True, False])
def test_a_step_of_training_is_timed_with_its_backward(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward alone was timed, warm in the caches, and steps of small models took up to 1.16 times as long as in eager."""
    asked: list[int] = []
    monkeypatch.setattr(alone, "go_back", lambda results, wanted: asked.append(len(wanted)) or go_back(results, wanted))
    parallel = partition(Small().train(training), LANES, example_inputs=X)
    assert set(asked) == {int(training)} and parallel.weight.grad is None


def test_short_calls_in_training_of_which_nothing_was_measured_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "measured", lambda ways: dict.fromkeys(ways, 1e-4))
    parallel = partition(Small().eval(), LANES, example_inputs=X)
    assert pieces_run(parallel, X) == 1 and "in training, calls no larger than the example run as they are" in str(parallel)
    assert pieces_run(parallel.train(), X) == 0
    with torch.no_grad():
        assert pieces_run(parallel, X) == 1
    monkeypatch.setattr(alone, "measured", lambda ways: dict.fromkeys(ways, 1.0))
    assert pieces_run(partition(Small().eval(), LANES, example_inputs=X).train(), X) == 1, "a longer one does not"


def test_nothing_is_timed_that_calls_hooks_of_a_backward() -> None:
    model = nn.Sequential(Small())
    model[0].register_full_backward_hook(lambda *_: None)
    assert partition(model, LANES, example_inputs=X)._partitioner_programs.alone == Alone()
    model = Small()
    model.weight.register_hook(lambda gradient: gradient)
    assert partition(model, LANES, example_inputs=X)._partitioner_programs.alone == Alone()


def test_not_where_forward_is_several_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    """It would print again and again."""

    class Prints(Small):
        def forward(self, x: Tensor) -> Tensor:
            print("called")
            return super().forward(x)

    parallel = partition(Prints(), LANES, example_inputs=X)
    assert parallel._partitioner_programs.alone == Alone() and capsys.readouterr().out.count("called") < 10


@torch.library.custom_op("partitioner_tests::told", mutates_args=())
def told(x: Tensor) -> Tensor:
    TOLD.append(1)
    return x.clone()


told.register_fake(torch.empty_like)
TOLD: list[int] = []


def test_not_where_an_op_is_not_torch_s() -> None:
    """It may do what nobody can put back, as often as it is called."""

    class Tells(Small):
        def forward(self, x: Tensor) -> Tensor:
            return told(super().forward(x))

    TOLD.clear()
    assert partition(Tells(), LANES, example_inputs=X)._partitioner_programs.alone == Alone()
    assert len(TOLD) < 20


def test_where_a_tensor_is_to_have_a_gradient_too() -> None:
    """The way into wav2vec2 and its kin, whose steps of training took up to 1.3 times as long as in eager."""

    class Asks(Small):
        def forward(self, x: Tensor) -> Tensor:
            rows = x[:, None]
            rows.requires_grad = True
            return rows * self.weight

    parallel = partition(Asks(), LANES, example_inputs=X)
    assert pieces_run(parallel, X) == 0 and not X.requires_grad


def test_what_the_arguments_hold_is_counted() -> None:
    assert elements([X, [X, (X, 3)], {"x": X}, None, True, "sum"]) == 32
    assert elements([{X}]) == float("inf")
