"""What is predicted of a branch axis: between two exchanges ranks work at once, at an exchange they wait for each other."""

from __future__ import annotations

import random
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.nets import TRAININGS
from torch import Tensor, nn

from partitioner.distributed import outlook
from partitioner.distributed.pipeline.branches import branch_of, owners_of, sharing_a_rank
from partitioner.distributed.predicted.branchtimes import branches_of
from partitioner.distributed.predicted.communication import all_reduce, broadcast
from partitioner.distributed.traced.example import example_in
from partitioner.errors import TraceError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.machine import Device, Link
from partitioner.testing import build, recipes

LINK = Link("rank", "rank", bandwidth=1e9, latency=1e-5)
CPU = Device("cpu", "cpu")


def seconds_of(traced: Traced, draw: random.Random) -> dict[str, float]:
    return {op.name: draw.random() * 1e-4 for op in traced.graph.ops}


def longest_way(traced: Traced, owner: dict[str, int], ranks: int, seconds: dict[str, float]) -> float:
    """The same by other means: the longest way through a graph of what each rank does, whose exchanges are one node each."""
    order: nx.DiGraph[Any] = nx.DiGraph()
    order.add_node("start", seconds=0.0)
    for rank in range(ranks):
        before: Any = "start"
        for op in branch_of(traced, owner, rank, "", torch.device("cpu")).graph.ops:
            own = op.name in owner
            node = (rank, op.name) if own else op.name
            cost = seconds.get(op.name, 0.0)
            if not own and op.target in ("share", "deliver"):
                cost = broadcast(op.outputs[0].bytes, ranks, LINK)
            elif not own and op.target != "fan":
                continue  # the token, and what is taken out of a pair
            order.add_node(node, seconds=cost)
            order.add_edge(before, node)
            before = node
    found = dict.fromkeys(order, 0.0)
    for node in nx.topological_sort(order):
        found[node] = order.nodes[node]["seconds"] + max((found[each] for each in order.predecessors(node)), default=0.0)
    return max(found.values())


@settings(max_examples=settings.default.max_examples // 2)
@given(recipe=recipes(), ranks=st.integers(2, 4), draw=st.randoms(use_true_random=False))
def test_a_stage_takes_the_longest_way_through_all_ranks(recipe: Any, ranks: int, draw: random.Random) -> None:
    """Random programs, owners drawn at random: beside the longest way, beside the least and the most that it can be."""
    model = build(recipe)
    try:
        traced = example_in(model, tuple(each.detach() for each in model.example_inputs(0)), None, 1).traced
    except TraceError:  # a result is made by no op
        return
    groups = sharing_a_rank(traced).group
    homes = {group: draw.randrange(ranks) for group in groups.values()}
    owner, seconds = {name: homes[group] for name, group in groups.items()}, seconds_of(traced, draw)
    found = branches_of(traced, owner, ranks, LINK, lambda op: seconds[op.name], lambda op: 2 * seconds[op.name])
    assert found.forward == pytest.approx(longest_way(traced, owner, ranks, seconds))
    busy = [sum(seconds[name] for name, rank in owner.items() if rank == each) for each in range(ranks)]
    assert found.forward >= max(busy) and found.backward >= 2 * max(busy)


class Two(nn.Module):
    """Two towers and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


def test_two_towers_take_as_long_as_one() -> None:
    """left | right, one of them passes to the other, which adds; the sum is delivered: 3 + 1 seconds, and two broadcasts."""
    traced = example_in(Two(), torch.ones(4, 8), None, 1).traced
    left, right, add = (op.name for op in traced.graph.ops)
    owner = {left: 0, right: 1, add: 0}
    seconds = {left: 3.0, right: 2.0, add: 1.0}
    found = branches_of(traced, owner, 2, LINK, lambda op: seconds[op.name], lambda op: 2 * seconds[op.name])
    sent = broadcast(4 * 8 * 4, 2, LINK)
    assert found.forward == pytest.approx(3.0 + 1.0 + 2 * sent)
    assert found.backward == pytest.approx(6.0 + 2.0 + all_reduce(4 * 8 * 4, 2, LINK))


def wide(width: int = 512) -> nn.Module:
    """Equal towers, each large enough to be worth a rank."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = nn.ModuleList(nn.Sequential(*(nn.Linear(width, width) for _ in range(4))) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([tower(x) for tower in self.towers]).sum(0)

    return Towers()


def test_ranks_share_time_and_memory() -> None:
    model, x = wide(), torch.ones(512, 512)
    fast = {"within": {"bandwidth": "1TB/s", "latency": "1us"}}
    one, two, four = (
        outlook(model, x, {"distributed": {"mesh": {"branch": ranks}, "microbatches": 2, "links": fast}}) for ranks in (1, 2, 4)
    )
    assert one.step > 1.5 * two.step > 1.5 * 1.3 * four.step
    assert one.memory[0] > 1.6 * two.memory[0] > 1.6 * 1.5 * four.memory[0]
    for found in (one, two, four):
        assert found.bound <= found.step
    slow = {"within": {"bandwidth": "10MB/s"}}
    assert outlook(model, x, {"distributed": {"mesh": {"branch": 2}, "links": slow}}).step > one.step


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "stage"])
@pytest.mark.parametrize("mesh", [{"branch": 2}, {"pipeline": 2, "branch": 2}, {"data": 2, "branch": 3}])
def test_no_branches_beat_the_bound(mesh: dict[str, int], recompute: str) -> None:
    training = TRAININGS["towers"]
    found = outlook(
        training.model(), training.batches()[0][0], {"distributed": {"mesh": mesh, "microbatches": 4, "recompute": recompute}}
    )
    assert found.bound <= found.step and len(found.memory) == mesh.get("pipeline", 1)


def test_what_is_predicted_is_what_is_shared_out() -> None:
    """Each rank's weights are those of the ops that it runs."""
    training = TRAININGS["towers"]
    model, x = training.model(), training.batches()[0][0]
    traced = example_in(model, x, None, 1).traced
    owner = owners_of(traced, 2, CPU)
    keys: list[set[str]] = [{key for op in traced.graph.ops if owner[op.name] == rank for key in op.state} for rank in range(2)]
    assert all(keys) and not keys[0] & keys[1]
    most = max(sum(traced.state[key].numel() * 8 for key in each if traced.state[key].requires_grad) for each in keys)
    found = outlook(model, x, {"distributed": {"mesh": {"branch": 2}}})
    assert most < found.memory[0] < most + 2**18
