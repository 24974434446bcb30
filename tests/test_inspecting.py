"""Inspections: what a plan is said to be must be what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from partitioner.ir.plan import Plan, resident_bytes
from partitioner.ir.program import Copy
from partitioner.model.call import Call
from partitioner.plans import make_plan
from partitioner.report.inspect import inspect
from partitioner.report.inspection import Branch, DepthError, Inspection, parse_depths
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from partitioner.testing import GeneratedModule, fake_device_lists, modules

GPUS = ("cuda:0", "cuda:1")
FAST = {
    "devices": [{"device": name} for name in GPUS],
    "links": [{"source": a, "target": b, "bandwidth": "400GB/s", "latency": "1us"} for a, b in (GPUS, GPUS[::-1])],
}
"""Links over which the towers below are worth sending away."""


def look(
    model: nn.Module, devices: Sequence[str] | None, *args: Any, spec: Mapping[str, Any] | None = None
) -> tuple[Plan, Inspection]:
    document = load_spec(spec)
    plan = make_plan(model, Call.of(args, {}) if args else None, build_machine(document, devices), document)
    return plan, inspect(plan)


def inspected(model: nn.Module, devices: Sequence[str] | None, *args: Any, **options: Any) -> Inspection:
    return look(model, devices, *args, **options)[1]


class Towers(nn.Module):
    """
    stem -> left  -> head
         -> right ->
    """

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.left = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.right = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(2 * width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(torch.cat([self.left(x), self.right(x)], dim=1))


ROWS = 2048
X = torch.zeros(ROWS, 1024)


def by_path(found: Inspection) -> dict[str, Branch]:
    return {branch.path: branch for branch in found.branches}


def test_branches_by_depth() -> None:
    found = inspected(Towers(), GPUS, X)
    assert [[branch.path for branch in depth.branches] for depth in found.depths] == [["stem"], ["left", "right"], [""]]
    assert [depth.width for depth in found.depths] == [1, 2, 1]
    assert [branch.name for branch in found.branches] == ["b0", "b1", "b2", "b3"]
    assert {(edge.source, edge.target, edge.kind) for edge in found.edges} == {
        ("b0", "b1", "data"),
        ("b0", "b2", "data"),
        ("b1", "b3", "data"),
        ("b2", "b3", "data"),
    }


def test_one_branch() -> None:
    left = by_path(inspected(Towers(), GPUS, X))["left"]
    assert left.ops == ("left_0_linear", "left_1_relu", "left_2_linear")
    assert left.short_ops == ("0_linear", "1_relu", "2_linear")
    assert left.parameters == 2 * (1024 * 1024 + 1024)
    assert left.parameter_bytes == 4 * left.parameters
    assert left.flops == 2 * 2 * ROWS * 1024 * 1024
    assert left.output_bytes == ROWS * 1024 * 4
    assert left.seconds is not None and left.seconds > 0
    assert len(left.tasks) == len(left.reasons) == len(left.lanes) == len(left.devices) == 1


def test_the_summary() -> None:
    summary = inspected(Towers(), GPUS, X).summary
    assert (summary.model, summary.ops, summary.branches, summary.depth, summary.width) == ("Towers", 9, 4, 3, 2)
    assert (summary.frontend, summary.effects, summary.policy) == ("torch.compile", "observed", "by_level")
    assert summary.parameters == sum(parameter.numel() for parameter in Towers().parameters())
    assert summary.flops == 2 * ROWS * 1024 * (5 * 1024 + 2 * 4)


def test_a_plan_that_overlaps() -> None:
    found = inspected(Towers(), GPUS, X, spec=FAST)
    prediction = found.summary.prediction
    assert prediction is not None
    assert prediction.plan_speedup > 1
    assert prediction.bound <= prediction.makespan < prediction.serial
    assert prediction.plan_speedup <= prediction.graph_speedup <= 2
    assert "at the same time on 2 lanes" in found.summary.verdict
    assert f"{prediction.plan_speedup:.2f}x as fast" in found.summary.verdict


def test_the_critical_path_is_marked() -> None:
    found = inspected(Towers(), GPUS, X)
    critical = [branch.path for branch in found.branches if branch.critical]
    assert critical in (["stem", "left", ""], ["stem", "right", ""])


def test_transfers_count_copies() -> None:
    plan, found = look(Towers(), GPUS, X, spec=FAST)
    copies = [item for item in plan.program.instructions if isinstance(item, Copy)]
    assert sum(moved.count for moved in found.summary.transfers) == len(copies) == 2
    assert sum(moved.bytes or 0 for moved in found.summary.transfers) == 2 * ROWS * 1024 * 4


def test_inputs_that_are_read_elsewhere_are_transfers_too() -> None:
    found = inspected(Towers(), GPUS, X, spec={"pins": [{"match": "*", "device": "cuda:1"}]})
    (moved,) = found.summary.transfers
    assert (moved.source, moved.target, moved.count, moved.bytes) == ("cuda:0", "cuda:1", 1, X.nbytes)


def test_devices_and_headroom() -> None:
    memory = 64 * 2**20
    devices = [{"device": "cuda:0", "name": "big", "memory": memory, "lanes": 2}, {"device": "cpu"}]
    big, host = inspected(Towers(), None, X, spec={"devices": devices}).summary.devices
    assert (big.name, big.torch_device, big.cap, host.cap, host.headroom) == ("big", "cuda:0", memory, None, None)
    assert big.peak_bytes is not None and big.peak_bytes > 0
    assert big.headroom == memory - big.parameter_bytes - big.peak_bytes
    assert [lane.name for lane in big.lanes] == ["big/0", "big/1"]


def test_a_model_that_one_device_could_not_hold_says_so() -> None:
    devices = [{"device": f"cuda:{number}", "memory": "16MiB"} for number in range(3)]
    notes = inspected(Towers(), None, X[:4], spec={"devices": devices, "training": False}).summary.notes
    assert any("cuda:0 alone could not hold the parameters" in note for note in notes)


def test_tied_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)) + self.first(x)

    assert inspected(Tied(), GPUS, torch.zeros(1, 8)).summary.parameters == 64


def test_without_example_inputs_times_are_unknown() -> None:
    summary = (found := inspected(Towers(), GPUS)).summary
    assert summary.prediction is None and summary.flops is None and summary.effects == "static"
    assert all(branch.seconds is branch.flops is branch.output_bytes is branch.critical is None for branch in found.branches)
    assert all(lane.busy is None for device in summary.devices for lane in device.lanes)
    assert any("sizes of parameters were the only weights" in note for note in summary.notes)


CHAIN = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def test_a_chain_over_two_devices_says_that_they_take_turns() -> None:
    pins = [{"match": "0", "device": "cuda:0"}, {"match": "2", "device": "cuda:1"}]
    found = inspected(CHAIN, GPUS, torch.zeros(4, 64), spec={"pins": pins})
    assert found.summary.verdict.startswith("One device works at a time, because the model is a chain.")
    (branch,) = found.branches
    assert branch.devices == GPUS and len(branch.tasks) == 3


def test_branches_that_wait_for_each_other_say_so() -> None:
    """Three branches in a row are not one chain if the first one's result is used twice."""

    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left = self.first(x)
            return self.second(left) + left

    pins = [{"match": "first", "device": "cuda:0"}, {"match": "second", "device": "cuda:1"}]
    verdict = inspected(Turns(), GPUS, torch.zeros(4, 64), spec={"pins": pins}).summary.verdict
    assert verdict.startswith("One device works at a time")


@pytest.mark.parametrize(
    ("model", "devices", "policy", "why"),
    [
        (CHAIN, ["cuda:0", "cuda:1"], "by_level", "the model is a chain"),
        (Towers(8), ["cuda:0"], "by_level", "the machine has one lane"),
        (Towers(8), ["cpu:0", "cpu:1"], "by_level", "shorter than a hand-off"),
        (Towers(1024), ["cpu:0", "cpu:1"], "single", "everything on one lane"),
        (nn.Identity(), ["cpu:0", "cpu:1"], "by_level", ""),
    ],
)
def test_a_serial_plan_says_why(model: nn.Module, devices: list[str], policy: str, why: str) -> None:
    width = next((parameter.shape[1] for parameter in model.parameters()), 4)
    verdict = inspected(model, devices, torch.zeros(4, width), spec={"policy": policy}).summary.verdict
    assert verdict.startswith("Everything runs on ") and why in verdict


def test_a_model_without_ops() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    found = inspected(Nothing(), GPUS, torch.zeros(2))
    assert found.depths == () and found.summary.verdict.endswith("the model has no ops.")
    assert found.summary.prediction is not None and found.summary.prediction.plan_speedup == 1
    with pytest.raises(DepthError, match="none"):
        found.only(range(0, 1))


def test_some_depths_only() -> None:
    found = inspected(Towers(), GPUS, X)
    middle = found.only(parse_depths("1:3"))
    assert [depth.depth for depth in middle.depths] == [1, 2]
    assert {(edge.source, edge.target) for edge in middle.edges} == {("b1", "b3"), ("b2", "b3")}
    assert middle.summary == found.summary
    with pytest.raises(DepthError, match="0 to 2"):
        found.only(parse_depths("7:"))


@pytest.mark.parametrize("text", ["", "a", "8:3", "3:3", "-1", "1:2:3", "1.5", "::", "9" * 30, "\u0663"])
def test_bad_depths(text: str) -> None:
    with pytest.raises(DepthError):
        parse_depths(text)


def test_any_depths() -> None:
    assert parse_depths(":") == range(0, 10**9)
    assert parse_depths(" 4: ") == range(4, 10**9)


@given(modules(), fake_device_lists())
@settings(max_examples=settings.default.max_examples // 2)
def test_any_plan(model: GeneratedModule, devices: list[str]) -> None:
    plan, found = look(model, devices, *model.example_inputs(0))
    shown = list(found.branches)
    assert sorted(op for branch in shown for op in branch.ops) == sorted(plan.graph.by_name)
    dag = nx.DiGraph((edge.source, edge.target) for edge in found.edges)
    dag.add_nodes_from(branch.name for branch in shown)
    depth = {branch.name: level.depth for level in found.depths for branch in level.branches}
    assert [set(generation) for generation in nx.topological_generations(dag)] == [
        {name for name, number in depth.items() if number == level.depth} for level in found.depths
    ]
    resident = resident_bytes(plan)
    for device in found.summary.devices:
        assert device.parameter_bytes == resident.get(device.torch_device, 0)
        assert all(lane.busy is not None and 0 <= lane.busy <= 1 for lane in device.lanes)
    tasks = [lane.tasks for device in found.summary.devices for lane in device.lanes]
    assert sum(tasks) == found.summary.tasks
    prediction = found.summary.prediction
    if prediction is not None:
        assert prediction.plan_speedup <= prediction.graph_speedup * (1 + 1e-9)
