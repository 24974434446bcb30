"""The GPU benchmark without a GPU: it says so, builds every model small, and holds ours against eager."""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from lanes import Towers, numbers
from test_gpu import WIDTH, Counting, Pair, spec

from partitioner.driver import planned
from partitioner.ir.access import Access
from partitioner.ir.graph import Graph, Op
from partitioner.ir.plan import state_devices

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    yield gpu


LINE = re.compile(r"^(.+): off by (\S+); were all kernels equal and small, lanes could gain (\S+)x$", re.MULTILINE)


def test_the_gpu_tests_use_all_devices_that_they_name() -> None:
    """A machine without a GPU can tell: under their figures the GPU's ops took 40 ms, and all went to the CPU."""
    few, many, two = {"cuda0": 1, "cpu": 1}, {"cuda0": 2, "cpu": 2}, {"cuda0": 1, "cuda1": 1}
    cases = [(Towers(width=WIDTH), many), (Pair(), few), (Counting(), few), (Pair(), two)]
    for model, lanes in cases:
        plan = planned(model.eval(), example_inputs=numbers(32, WIDTH), spec=spec(**lanes), check=False)
        homes = {home.replace(":", "") for home in state_devices(plan).values()}
        assert homes == lanes.keys(), type(model).__name__


def test_one_model(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--dry-run", "--models", "mmoe"])
    found = LINE.findall(capsys.readouterr().out)
    assert [name for name, _, _ in found] == ["mmoe", "host and GPU"]
    assert all(float(gap) < 1e-4 for _, gap, _ in found) and float(found[0][2]) > 2


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what it does where there is no GPU")
def test_every_model(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main([])
    text = capsys.readouterr().out
    assert text.startswith("no CUDA device on this machine: nothing is measured")
    assert len(LINE.findall(text)) == 10


def test_an_unknown_model_is_told(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--models", "nope"])
    assert "nope: known are googlenet" in capsys.readouterr().err


def test_kernels_belong_to_the_ops_that_launch_them(benchmark: Any) -> None:
    limits = sys.modules["_gpu_limit"]
    result = doctest.testmod(limits)
    assert result.attempted >= 2 and result.failed == 0


def test_the_limit_of_a_fork(benchmark: Any) -> None:
    """Two equal branches: halved if each leaves half of the device, not at all if each fills it, never below the chain."""
    limits = sys.modules["_gpu_limit"]
    read = (Access("s"),)
    ops = (Op("s", "f", accesses=(Access("s", True),)), Op("a", "f", ("s",), read), Op("b", "f", ("s",), read))
    graph = Graph("Fork", ops, (), ("a", "b"), torch.fx.Graph())
    assert nx.is_directed_acyclic_graph(graph.dag)
    for share, wanted in ((0.5, 2.0), (1.0, 3.0), (0.1, 2.0)):
        kernels = {op.name: limits.Kernels(1.0, share) for op in ops}
        assert limits.Limit.of(graph, kernels).seconds == pytest.approx(wanted)
        assert limits.Limit.of(graph, kernels).work == 3.0
