"""The lower bound: drawn by hand, and never above what a plan takes (which test_simulate.py holds for any plan)."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from partitioner.ir.cost import Costs, OpCost
from partitioner.ir.machine import Device, Machine
from partitioner.model.call import Call
from partitioner.planner.bounds import Bound, lower_bound
from partitioner.plans import make_plan
from partitioner.report.inspect import inspect
from partitioner.report.text import render
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from programs import traced

GIGA = 10**9


class Diamond(nn.Module):
    """
    h -> left_linear  -> add
      -> right_linear ->
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(x)
        return self.left(h) + self.right(h)


def bound(machine: Machine, module: nn.Module | None = None, **seconds: int) -> Bound:
    graph = traced(module or Diamond(), torch.zeros(1, 2))
    costs = {op.name: OpCost(seconds.get(op.name, 0) * GIGA, 0, 0) for op in graph.ops}
    return lower_bound(graph, Costs(machine, costs, shapes_known=True))


def device(lanes: int, cores: int = 1, place: str = "cpu", speed: float = 1.0) -> Device:
    """A device on which an op takes as many seconds as it has GFLOPs on one thread."""
    return Device(place, place, lanes, flops=speed * GIGA, bandwidth=1e9, overhead=0.0, cores=cores)


def test_a_long_chain_is_the_bound() -> None:
    found = bound(Machine((device(2),)), h=1, left_linear=4, right_linear=2, add=1)
    assert found == Bound(work=8, critical_path=6, ops=("h", "left_linear", "add"), seconds=6)


def test_much_work_is_the_bound() -> None:
    found = bound(Machine((device(1),)), h=1, left_linear=4, right_linear=4, add=1)
    assert (found.critical_path, found.work, found.seconds) == (6, 10, 10)


def test_a_chain_may_use_every_core_and_work_has_no_more_than_they_hold() -> None:
    found = bound(Machine((device(lanes=2, cores=4),)), left_linear=8, right_linear=8)
    assert found.critical_path == pytest.approx(8 / 4, rel=1e-3), "an op that is alone has four threads"
    assert found.seconds == pytest.approx((8 + 8) / 4, rel=1e-3)


def test_a_host_that_issues_all_ops_is_the_bound_and_the_report_says_so() -> None:
    """Kernels of 2 us in all, and a bound of 330 us that was said to be set by the work."""
    spec = load_spec({"devices": [{"device": "cuda:0", "hardware": "H100", "lanes": 2}]})
    found = inspect(make_plan(Diamond(), Call.of((torch.zeros(1, 2),), {}), build_machine(spec), spec))
    expected = found.summary.prediction
    assert expected is not None and expected.bound == expected.issue > expected.work
    assert re.search(r"^issue +\d", shown := render(found), re.MULTILINE) and "set by the host, which issues every op" in shown


def test_each_op_is_where_it_is_fastest() -> None:
    machine = Machine((device(1), device(1, place="cuda:0", speed=10.0)))
    assert bound(machine, h=10, left_linear=10, right_linear=0, add=10).critical_path == pytest.approx(3)


def test_a_generator_orders_nothing_on_accelerators() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x) + torch.rand_like(x)

    times = {"rand_like": 3, "rand_like_1": 3}
    assert bound(Machine((device(2, place="cuda:0"),)), Noise(), **times).critical_path == 3
    assert bound(Machine((device(2),)), Noise(), **times).critical_path == 6


def test_a_call_that_takes_no_time_is_bound_by_no_host() -> None:
    """Of bounds that are all 0 the critical path is named: on a CPU no host issues anything."""
    spec = load_spec({"devices": [{"device": "cpu", "overhead": 0}]})
    shown = render(inspect(make_plan(nn.Flatten(0), Call.of((torch.zeros(1, 2),), {}), build_machine(spec), spec)))
    assert "set by the critical path" in shown
