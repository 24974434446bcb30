"""The judges of the planner's benchmark, its baselines and its graphs, on cases small enough to reckon by hand."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import _baselines
import _random_graphs
import _real_models
import _scorers
import _timed_tasks
import _workloads
import planner

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.policies import Exact, List, decided
from partitioner.planning import plan

# Throughput: the score of a placement ---------------------------------------------------------------------------------


def node(number: int, fpga: float = 1.0, cpu: float = 10.0, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "supportedOnFpga": 1,
        "cpuLatency": cpu,
        "fpgaLatency": fpga,
        "isBackwardNode": 0,
        "size": 1.0,
        **more,
    }


def document(nodes: Sequence[dict[str, Any]], edges: Sequence[tuple[int, int, float]], **more: Any) -> dict[str, Any]:
    written = [{"sourceId": one, "destId": two, "cost": cost} for one, two, cost in edges]
    return {"maxSizePerFPGA": 3.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": list(nodes), "edges": written, **more}


FORK = document([node(1), node(2, 2.0), node(3, 4.0), node(4, 8.0)], [(1, 2, 5.0), (1, 3, 5.0), (2, 4, 3.0), (3, 4, 6.0)])


@pytest.mark.parametrize(
    ("homes", "load"),
    [
        (["fpga0"] * 4, 15.0),
        (["cpu0"] * 4, 40.0),
        (["fpga0", "fpga1", "fpga1", "fpga1"], 14.0 + 5.0),  # sent once and received once, though two nodes read it
        (["cpu0", "fpga0", "fpga1", "cpu0"], 20.0),  # a CPU neither sends nor receives; fpga0: 2 + 5 + 3, fpga1: 4 + 5 + 6
        (["fpga0", "fpga1", "cpu0", "fpga0"], 1.0 + 8.0 + 5.0 + 3.0 + 6.0),
    ],
)
def test_the_score_is_that_of_the_definition(homes: list[str], load: float) -> None:
    assert _scorers.score(FORK, dict(enumerate(homes, 1))) == load


def test_the_score_is_the_load_that_the_planner_reports() -> None:
    for seed in range(8):
        draw = random.Random(seed)
        edges = {(one, two) for two in range(2, 11) for one in draw.sample(range(1, two), min(two - 1, 2))}
        cost = [float(draw.randint(0, 5)) for _ in range(11)]
        nodes = [node(number, draw.randint(1, 9), draw.randint(5, 40), colorClass=number // 3) for number in range(1, 11)]
        raw = document(nodes, [(one, two, cost[one]) for one, two in sorted(edges)], maxSizePerFPGA=6.0)
        graph, machine = _workloads.graph_of(raw), _workloads.machine_of(raw)
        answer = plan(graph, machine, objective="throughput", contiguous=bool(seed % 2), policy="list")
        placement = {int(task): device for task, device in answer.placement.items()}
        assert not _scorers.placement_faults(raw, placement, contiguous=bool(seed % 2))
        assert answer.load is not None
        assert _scorers.score(raw, placement) == pytest.approx(answer.load / _workloads.MILLI)


@pytest.mark.parametrize(
    ("raw", "homes", "words"),
    [
        (FORK, ["fpga0"] * 4, "fpga0 holds too much"),
        (FORK, ["fpga2", "cpu0", "cpu0", "cpu0"], "node 1 cannot run on fpga2"),
        (document([node(1, supportedOnFpga=0)], []), ["fpga0"], "node 1 cannot run on fpga0"),
        (document([node(1, colorClass=7), node(2, colorClass=7)], []), ["fpga0", "fpga1"], "class 7 is on 2 devices"),
        (FORK, ["fpga0", "fpga1", "fpga0", "cpu0"], ""),
        (FORK, ["fpga0", "fpga1", "fpga0", "fpga0"], "a path leaves fpga0 and comes back"),
        (FORK, ["cpu0", "fpga1", "fpga0", "cpu0"], "a path leaves cpu0 and comes back"),
    ],
)
def test_faults_of_placements_are_found(raw: dict[str, Any], homes: list[str], words: str) -> None:
    faults = _scorers.placement_faults(raw, dict(enumerate(homes, 1)), contiguous=True)
    assert any(words in fault for fault in faults) if words else not faults


def test_backward_nodes_may_come_back() -> None:
    raw = document([node(1), node(2), node(3, isBackwardNode=True)], [(1, 2, 1.0), (2, 3, 1.0)])
    assert not _scorers.placement_faults(raw, {1: "fpga0", 2: "fpga1", 3: "fpga0"}, contiguous=True)


# Latency: a schedule holds --------------------------------------------------------------------------------------------


def linked(seconds: Sequence[float], edges: Sequence[tuple[int, int, int]], **more: Any) -> Problem:
    """Two processors with a link each way, over which every value takes two seconds."""
    channels = (Channel("ab", 1.0, 2.0, (0, 1)), Channel("ba", 1.0, 2.0, (0, 1)))
    values = [(source, 0.0) for source, _ in sorted({(source, value) for source, _, value in edges}, key=lambda each: each[1])]
    return Problem(
        "linked",
        tuple(f"t{number}" for number in range(len(seconds))),
        (Kind("gpu", {1: seconds}),),
        (Processor("a", 0, memory=10.0), Processor("b", 0, memory=10.0)),
        edges,
        values,
        channels,
        {(0, 1): (0,), (1, 0): (1,)},
        **more,
    )


TWO_VALUES = linked([1.0, 1.0, 1.0, 1.0], [(0, 2, 0), (1, 3, 1)], memory=[4.0] * 4)
GOOD = Assignment("by hand", TWO_VALUES.tasks, [0, 0, 1, 1], range(4), start=[0, 1, 3, 5], end=[1, 2, 4, 6], cost=6.0)


def test_a_right_schedule_has_no_faults() -> None:
    pytest.importorskip("ortools")
    assert _scorers.schedule_faults(TWO_VALUES, GOOD) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": [0, 1, 3, 4], "end": [1, 2, 4, 5], "cost": 5.0}, "the channels cannot bring"),  # the link is taken until 5
        ({"start": [0, 1, 2, 5], "end": [1, 2, 3, 6]}, "the channels cannot bring"),
        ({"end": [1, 2, 4, 7], "cost": 7.0}, "task 3 takes 2"),
        ({"start": [0, 0.5, 3, 5], "end": [1, 1.5, 4, 6]}, "tasks 0 and 1 overlap"),
        ({"lanes": [0, 0, 0, 1], "start": [0, 2, 0.5, 6], "end": [1, 3, 1.5, 7], "cost": 7.0}, "task 2 starts before 0"),
        ({"cost": 5.0}, "the last task ends at 6"),
        ({"lanes": [1, 1, 1, 1], "start": [0, 1, 2, 5], "end": [1, 2, 3, 6]}, "b holds 16.0 of 10.0 bytes"),
    ],
)
def test_faults_of_schedules_are_found(change: dict[str, Any], words: str) -> None:
    pytest.importorskip("ortools")
    assert any(words in fault for fault in _scorers.schedule_faults(TWO_VALUES, replace(GOOD, **change)))


def test_a_group_on_two_processors_is_a_fault() -> None:
    pytest.importorskip("ortools")
    apart = replace(TWO_VALUES, group=[0, 1, 0, 1])
    assert any("group 0" in fault for fault in _scorers.schedule_faults(apart, GOOD))
    assert any("group 2" in fault for fault in _scorers.schedule_faults(replace(TWO_VALUES, pin={2: 0}), GOOD))


# Graphs and their optima ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", _random_graphs.FAMILIES)
def test_random_graphs_have_their_tasks_in_order(family: str) -> None:
    for seed in range(5):
        problem = _random_graphs.on_equal_processors(family, seed, 4)
        assert 50 <= len(problem.tasks) <= 100
        assert problem.edges and all(source < target < len(problem.tasks) for source, target, _ in problem.edges)


def test_the_optimum_of_a_bag_of_tasks() -> None:
    pytest.importorskip("ortools")
    bag = Problem("bag", tuple("abcde"), (Kind("cpu", {1: [3.0, 3.0, 2.0, 2.0, 2.0]}),), (Processor("x", 0),) * 2, [])
    assert _random_graphs.optimum(bag, 5.0) == (6.0, True)


def test_a_schedule_that_was_cut_can_be_put_together_again() -> None:
    pytest.importorskip("ortools")
    problem, known = _random_graphs.cut_from_a_schedule(0, 3)
    found, proven = _random_graphs.optimum(problem, 20.0)
    assert found == known == 100.0
    assert proven
    assert List()(problem).cost >= known


@pytest.mark.slow
@pytest.mark.parametrize("family", _random_graphs.FAMILIES)
def test_two_models_of_a_machine_with_links_agree(family: str) -> None:
    pytest.importorskip("ortools")
    problem = _random_graphs.with_links(family, 1, 2)
    found, proven = _random_graphs.optimum(problem, 20.0)
    answer = Exact(time_limit=20.0)(problem)
    assert proven
    assert answer.cost == pytest.approx(found)
    assert _scorers.schedule_faults(problem, answer) == []


# What others do -------------------------------------------------------------------------------------------------------

HEFT_SECONDS = (
    (14, 13, 11, 13, 12, 13, 7, 5, 18, 21),
    (16, 19, 13, 8, 13, 16, 15, 11, 12, 7),
    (9, 18, 19, 17, 10, 9, 11, 14, 20, 16),
)
HEFT_EDGES = {(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27}
HEFT_EDGES |= {(4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13}


def published_example() -> Problem:
    """The graph of ten tasks on three processors that the paper on HEFT schedules; each edge has a cost of its own."""
    ways = [(one, two) for one in range(3) for two in range(3) if one != two]
    values = [(source - 1, float(cost)) for (source, _), cost in HEFT_EDGES.items()]
    return Problem(
        "published",
        tuple(f"n{number}" for number in range(1, 11)),
        tuple(Kind(f"p{number}", {1: [float(each) for each in row]}) for number, row in enumerate(HEFT_SECONDS)),
        tuple(Processor(f"p{number}", number) for number in range(3)),
        [(source - 1, target - 1, value) for value, (source, target) in enumerate(HEFT_EDGES)],
        values,
        tuple(Channel(f"{one} -> {two}", 1.0, 0.0, (one, two)) for one, two in ways),
        {way: (number,) for number, way in enumerate(ways)},
    )


def test_heft_finds_the_schedule_of_its_paper() -> None:
    homes, ends = _baselines.heft_schedule(published_example())
    assert homes == [2, 0, 2, 1, 2, 1, 2, 0, 1, 1]
    assert max(ends) == 80.0


def bag(count: int, **more: Any) -> Problem:
    processors = more.pop("processors", (Processor("a", 0, memory=10.0), Processor("b", 0, memory=10.0)))
    edges = [(0, task, 0) for task in range(1, count)]
    return Problem(
        "bag", tuple(map(str, range(count))), (Kind("cpu", {1: [1.0] * count}),), processors, edges, [(0, 8.0)], **more
    )


def test_round_robin_deals_out_each_level() -> None:
    assert _baselines.round_robin(bag(5)) == [0, 0, 1, 0, 1]
    assert _baselines.round_robin(bag(4, memory=[8.0, 1.0, 9.0, 1.0])) == [0, 0, 1, 0]  # turns, as far as there is room


@pytest.mark.parametrize("baseline", [_baselines.round_robin, _baselines.heft])
def test_groups_stay_together(baseline: Callable[[Problem], list[int]]) -> None:
    homes = baseline(bag(6, group=[0, 1, 2, 1, 2, 1]))
    assert homes[1] == homes[3] == homes[5]
    assert homes[2] == homes[4]


def test_memory_that_does_not_suffice_is_told() -> None:
    problem = bag(3, memory=[4.0, 4.0, 4.0])
    assert _baselines.used(problem, [0, 0, 0]) == [12.0, 0.0]
    assert not _baselines.fits(problem, [0, 0, 0])
    assert _baselines.fits(problem, [0, 0, 1])


def test_of_several_cuts_the_quickest_that_fits_counts() -> None:
    problem = bag(4, memory=[1.0, 1.0, 1.0, 9.0])

    def by_weight(problem: Problem, weights: Sequence[int]) -> list[int]:
        """Everything on one processor until bytes count for something."""
        return [int(weight > 2 * min(weights)) for weight in weights]

    homes = _baselines.cut(problem, by_weight)
    assert homes == [0, 0, 0, 1]
    assert _baselines.fits(problem, homes)


@pytest.mark.parametrize(("library", "by"), [("pymetis", _baselines.metis), ("mtkahypar", _baselines.kahypar)])
def test_min_cuts_keep_together_what_belongs_together(library: str, by: _baselines.Cut) -> None:
    pytest.importorskip(library)
    edges = [(0, 1, 0), (1, 2, 1), (2, 3, 2), (4, 5, 4), (5, 6, 5), (6, 7, 6), (3, 4, 3)]
    values = [(task, 1.0 if task == 3 else 1e6) for task in range(7)]
    processors = (Processor("a", 0), Processor("b", 0))
    problem = Problem("chain", tuple("abcdefgh"), (Kind("gpu", {1: [1.0] * 8}),), processors, edges, values)
    homes = _baselines.cut(problem, by)
    assert len(set(homes[:4])) == len(set(homes[4:])) == 1
    assert homes[0] != homes[4]


def test_a_device_map_goes_by_the_longest_name() -> None:
    problem = bag(4, processors=(Processor("a", 0), Processor("b", 0)))
    states = [("encoder.0.weight",), ("encoder.10.weight", "encoder.10.bias"), (), ("head.weight",)]
    homes = _baselines.by_map(problem, {"encoder.0": 1, "encoder": 0, "head": "disk"}, states)
    assert homes == [1, 0, 1, 1]  # the one without state is where its input is; what goes to disk is on the last


# Profiles, executed and posed -----------------------------------------------------------------------------------------

TEXT = """node4 -- Join -- forward_compute_time=10.0, activation_size=1
node1 -- Stem -- forward_compute_time=10.0, activation_size=1
node2 -- Left -- forward_compute_time=100.0, activation_size=1
node3 -- Right -- forward_compute_time=100.0, activation_size=1
\tnode1 -- node2
\tnode1 -- node3
\tnode2 -- node4
\tnode3 -- node4
"""


def test_a_profile_and_its_limit() -> None:
    profile = _workloads.profile_of("fork", TEXT)
    assert profile.layers == ("node1 Stem", "node2 Left", "node3 Right", "node4 Join")
    assert (profile.work, profile.critical_path) == (220.0, 120.0)
    assert List()(profile.problem(2)).cost == pytest.approx(0.120)


def test_layers_that_sleep_run_side_by_side() -> None:
    """One takes no time at all: it was promised none either, less than any op takes, and the answer was refused."""
    idle = "node5 -- Idle -- forward_compute_time=0.0, activation_size=1\n\tnode1 -- node5\n\tnode5 -- node4\n"
    found = _timed_tasks.executed(_workloads.profile_of("fork", TEXT + idle), 2, List(), scale=1.0, rounds=1)
    assert found.predicted == pytest.approx(220 / 120, rel=0.01)
    assert found.serial[0] >= 0.220
    assert found.lanes[0] >= 0.120
    assert found.speedup.median > 1.3


def test_a_policy_is_told_seconds() -> None:
    told: list[Problem] = []

    def policy(problem: Problem) -> Assignment:
        told.append(problem)
        return List()(problem)

    problem = replace(bag(2), labels=["one two", "other"])
    _timed_tasks.Profiled(policy, {"one": 1.0, "two": 2.0})(problem)
    assert told[0].kinds[0].seconds == {1: [3.0, 1.0]}


class Towers(nn.Module):
    """Two towers that are added."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        left: Tensor = self.left(x)
        return left + self.right(x)


def test_a_real_model_is_posed_lowered_and_simulated() -> None:
    found = _real_models.traced_model(_real_models.Model(Towers, lambda: {"x": torch.empty(4096, 512)}))
    memory = _real_models.cap(found, 2)
    case = _real_models.posed(found, _real_models.gpus(2, "NVLink", memory))
    assert sum(case.problem.demand.values()) == 4 * (512 * 512 + 512) * 4
    assert all(each.memory == memory < sum(case.problem.demand.values()) for each in case.problem.processors)
    assert {name for names in case.states for name in names} == set(found.model.state_dict())
    homes = _baselines.round_robin(case.problem)
    assert _baselines.fits(case.problem, homes)
    answer = _baselines.answer_of(case.problem, "round robin", homes)
    assert answer.cost <= case.simulated(answer) < inf
    alone = _real_models.posed(found, _real_models.gpus(1, "PCIe"))
    single = decided(alone.problem, List())
    assert alone.simulated(single) == pytest.approx(single.cost) == pytest.approx(alone.serial)


# The script -----------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_skipped_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planner.main(["--quick", "--only", "throughput,pipedream", "--workloads", str(tmp_path)])
    assert capsys.readouterr().out.count(f"skipped: {tmp_path}") == 2


def test_a_row_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Sequence[object]:
        raise ValueError("no such file\nand more")

    planner.show(["name", "value", "more"], [planner.tried("good", lambda: ["good", 1, 2]), planner.tried("bad", fails)])
    assert "| bad  | FAILED: ValueError: no such file | " in capsys.readouterr().out


def test_a_section_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        planner.arguments(["--only", "sides"])
    assert "no section is called sides" in capsys.readouterr().err


def test_workloads_in_their_folder(tmp_path: Path) -> None:
    import json

    folder = tmp_path / "dnn-partitioning" / "throughput"
    folder.mkdir(parents=True)
    (folder / "op_bert_l-3_inference.json").write_text(json.dumps(FORK | {"maxSizePerFPGA": 9.0}))
    options = argparse.Namespace(workloads=tmp_path)
    row = planner._workload(options, "op_bert_l-3_inference", contiguous=True, limit=2.0)
    assert row[3] == "15.0000"
    assert row[4] == "BETTER"  # than what is published for the graph that has this name
    assert row[6] == "0.00%"


@pytest.mark.slow
def test_growth_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    planner.scale(argparse.Namespace(max_tasks=1000))
    assert "| 1000  |" in capsys.readouterr().out
