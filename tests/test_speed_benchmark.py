"""The benchmark of speed: its ways compute what eager computes, its limit is that of the graph, and it tells what is wrong."""

from __future__ import annotations

import random
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import _branched
import _speed_limit
import _speed_ways
import speed
from _speed_models import MODELS
from _timed_tasks import TimedLayers
from _workloads import Profile
from user_models import USER_MODELS

from partitioner import partition

BRANCHED = {
    "towers": lambda: (_branched.Towers(lambda: _branched.perceptron(8, 16, 8), 3), (torch.randn(2, 8),)),
    "ensemble": lambda: (_branched.Ensemble(_branched.small_net, 4), (torch.randn(2, 3, 32, 32),)),
    "experts": lambda: (_branched.Experts(16), (torch.randn(3, 16),)),
    "recommender": lambda: (_branched.Recommender(3, 50, 8), (torch.randn(2, 13), torch.randint(50, (2, 3, 4)))),
    "cells": lambda: (_branched.Cells(4, 2), (torch.randn(2, 3, 16, 16),)),
}
FORKS = {"towers": 2, "ensemble": 3, "experts": 8, "recommender": 1, "cells": 10}

# The ways -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", BRANCHED)
def test_branches_forked_by_hand(name: str) -> None:
    model, inputs = BRANCHED[name]()
    model.eval()
    with torch.inference_mode():
        expected = model(*inputs)
        _speed_ways.agree(expected, _speed_ways.forked(model, inputs)())
        for module in model.modules():
            if isinstance(module, _branched.Branched):
                module.by_hand = True
        graph = torch.jit.trace(model, inputs, check_trace=False).inlined_graph
    assert len(list(graph.findAllNodes("prim::fork"))) == FORKS[name]


def test_what_is_no_branches_is_not_forked() -> None:
    with pytest.raises(_speed_ways.Unavailable, match="not written as branches"):
        _speed_ways.forked(nn.Linear(2, 2), (torch.zeros(2, 2),))


def test_an_option_that_partition_does_not_know_is_no_way() -> None:
    with pytest.raises(_speed_ways.Unavailable, match="speed_of_light"):
        _speed_ways.ours(nn.Linear(2, 2), (torch.zeros(2, 2),), 2, {"speed_of_light": True})


@pytest.mark.parametrize("off", [1.1, 1.01, float("nan")])
def test_another_result_is_told(off: float) -> None:
    expected = {"y": torch.linspace(-4, 1, 5)}
    _speed_ways.agree(expected, {"y": expected["y"] * (1 + 1e-5)})
    with pytest.raises(_speed_ways.Different, match="result 0 is off by"):
        _speed_ways.agree(expected, {"y": expected["y"] * off})
    with pytest.raises(_speed_ways.Different, match="shapes"):
        _speed_ways.agree(expected, {"y": expected["y"][:-1]})


def test_a_way_is_made_with_its_threads() -> None:
    seen: list[int] = []

    def call() -> list[Tensor]:
        seen.append(torch.get_num_threads())
        return []

    before = torch.get_num_threads()
    _speed_ways.ready(_speed_ways.Contender(lambda: call, before + 1), [])
    assert set(seen) == {before + 1} and torch.get_num_threads() == before


def test_threads_of_eager() -> None:
    assert [list(_speed_ways.eager_names(count).values()) for count in (1, 2, 6)] == [[1], [1, 2], [1, 2, 4, 6]]


# The limit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_limit_is_that_of_the_graph(seed: int) -> None:
    """Layers that sleep: each takes at least that long, and the longest chain is found by trying all of them."""
    draw = random.Random(seed)
    layers = range(6)
    edges = tuple((a, b) for b in layers for a in range(b) if draw.random() < 0.4)
    profile = Profile("sleeper", tuple(map(str, layers)), tuple(draw.choice((1.0, 2.0, 3.0)) for _ in layers), edges)
    found = _speed_limit.limit_of(TimedLayers(profile, 1.0), (torch.zeros(1),), passes=2)
    names = list(found.seconds)
    assert len(names) == len(layers)
    assert all(found.seconds[name] >= profile.milliseconds[layer] / 1e3 for layer, name in enumerate(names))
    assert found.work == pytest.approx(sum(found.seconds.values()))

    @cache
    def longest(layer: int) -> float:
        return found.seconds[names[layer]] + max((longest(source) for source, target in edges if target == layer), default=0.0)

    assert found.path == pytest.approx(max(map(longest, layers)))


def test_a_chain_gains_nothing_and_lanes_are_a_limit_too() -> None:
    chain = _speed_limit.limit_of(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (torch.zeros(2, 8),))
    assert chain.speedup(8) == pytest.approx(1)
    assert _speed_limit.Limit(8.0, 1.0, {}).speedup(2) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["unet", "in_place_editing", "mixed_precision_block", "ensemble"])
def test_the_stopwatch_computes_what_the_model_does(name: str) -> None:
    args, kwargs = USER_MODELS[name].inputs()
    again = USER_MODELS[name].inputs()
    with torch.inference_mode(), _speed_limit.stopwatches() as watches:
        expected = USER_MODELS[name].build()(*args, **kwargs)
        parallel = partition(USER_MODELS[name].build(), ["cpu"], backend=_speed_limit.STOPWATCH, policy="single")
        found = parallel(*again[0], **again[1])
    torch.testing.assert_close(found, expected)
    assert sum(len(watch.found) for watch in watches) >= len(parallel.graph.ops) > 0


def test_a_plan_is_simulated_with_measured_seconds() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.zeros(2, 8)
    torch.set_num_threads(1)
    plan = partition(model, ["cpu"], example_inputs=x, policy="single", check=False).plan
    assert _speed_limit.Limit(5.0, 5.0, dict.fromkeys(plan.costs.ops, 2.5)).simulated(plan) == pytest.approx(5.0)


# The script -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_quick_table(capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--quick", "--rounds", "1"])
    shown = capsys.readouterr().out
    assert shown.count("| towers-64, 1 ") == shown.count("| ensemble-2, 1 ") == 2
    assert all(head in shown for head in ("| jit.fork |", "| W ms ", "| limit |", "| share |", "| emitted us an op |"))
    assert "no jit.fork" not in shown and "no ours" not in shown


def test_a_way_that_computes_something_else(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_speed_ways, "forked", lambda model, inputs: lambda: model(*inputs) * 1.1)
    with pytest.raises(SystemExit, match="differs"):
        speed.main(["--quick", "--rounds", "1", "--models", "towers-64", "--ways", "jit.fork"])
    assert "no jit.fork: result 0 is off by" in capsys.readouterr().out


def test_a_name_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.arguments(["--ways", "ours,theirs"])
    assert "theirs: not among torch.compile, max-autotune" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--batches", "2"], ["--ablation"]])
def test_every_way(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--rounds", "1", "--models", "towers-64", *words])
    shown = capsys.readouterr().out
    assert "no ours" not in shown and "no torch.compile" not in shown and "no jit.fork" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs(name: str) -> None:
    pytest.importorskip(MODELS[name].library)
    case = MODELS[name].case(2)
    with torch.inference_mode():
        result = case.build().eval()(*case.inputs())
    assert len(result[0] if isinstance(result, tuple) else result) == 2
