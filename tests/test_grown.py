"""Examples of larger microbatches, made of two smaller ones: beside tracing, and where two do not tell what a third one is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from partitioner.distributed.pipeline.cut import cut_into, uncut
from partitioner.distributed.pipeline.order import order_of
from partitioner.distributed.pipeline.schedules import SCHEDULES
from partitioner.distributed.pipeline.segments import least_in_flight, most_in_flight
from partitioner.distributed.predicted.auto import parts, ways
from partitioner.distributed.predicted.bench import Bench
from partitioner.distributed.traced.example import Example, example_in
from partitioner.distributed.traced.grown import Microbatches, grown
from partitioner.distributed.traced.offmeta import off_meta
from partitioner.errors import PartitionerError
from partitioner.ir.machine import Device
from partitioner.spec.cluster import build_cluster
from partitioner.spec.discover import build_machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import load_spec


class Called(nn.Module):
    """A function as a module that has a weight."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x))


class Attention(nn.Module):
    """Sizes among arguments, views, a mask made in passing and heads."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.all, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, 2, 4).transpose(1, 2) for part in self.all(x).chunk(3, -1))
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()[None].expand(rows, 1, length, length)
        mixed = functional.scaled_dot_product_attention(q, k, v, mask)
        return self.out(mixed.transpose(1, 2).reshape(rows * length, width)).view(rows, length, width)


ROWS = 16
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linears": (lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8)), torch.ones(ROWS, 8)),
    "attention": (Attention, torch.zeros(ROWS, 6, dtype=torch.int64)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten()), torch.ones(ROWS, 1, 6, 6)),
    "recurrent": (lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.LayerNorm(4), nn.Flatten(0, 1)), torch.ones(ROWS, 8)),
    "joined": (lambda: Called(lambda x: torch.cat((x, x.new_zeros(x.shape[0], 2)), 1)), torch.ones(ROWS, 8)),
    "split by rows": (lambda: Called(lambda x: torch.stack(x.split(x.shape[0] // 2), 0).sum(0)), torch.ones(ROWS, 8)),
}


def traced(model: nn.Module, batch: Tensor, count: int) -> Example:
    return off_meta(example_in(model, batch, None, count))


def shapes(example: Example) -> list[object]:
    values = ((node.name, node.meta.get("example_value")) for node in example.traced.graph.fx.nodes)
    return [(name, tuple(each.shape), each.stride(), each.requires_grad) for name, each in values if isinstance(each, Tensor)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_made_of_two_traces_is_what_a_third_one_would_be(name: str, place: str) -> None:
    make, batch = MODELS[name]
    with torch.device(place):
        model = make()
    fewer, more, third = (traced(model, batch.to(place), count) for count in (8, 4, 1))
    found = grown(fewer, more, ROWS)
    assert found is not None and found.rows == ROWS
    assert found.traced.graph.ops == third.traced.graph.ops
    assert found.traced.graph.inputs == third.traced.graph.inputs
    assert shapes(found) == shapes(third) and found.differentiable == third.differentiable


UNLIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "other ops": lambda x: x.relu() if x.shape[0] > 2 else x.sin(),
    "one op more": lambda x: x.relu().sin() if x.shape[0] > 2 else x.relu(),
    "a number that is no size": lambda x: x * (1.0 / x.shape[0]),
    "sizes that do not go on": lambda x: x[: 7 // x.shape[0]],
}


@pytest.mark.parametrize("name", UNLIKE)
def test_two_traces_that_differ_in_more_than_sizes_tell_nothing(name: str) -> None:
    model = Called(UNLIKE[name])
    fewer, more = (traced(model, torch.ones(ROWS, 8), count) for count in (8, 4))
    assert grown(fewer, more, ROWS) is None


def test_only_two_sizes_are_traced_until_one_is_settled() -> None:
    asked = []

    def trace(count: int) -> Example:
        asked.append(count)
        return traced(Attention(), torch.zeros(ROWS, 6, dtype=torch.int64), count)

    made = Microbatches(trace)
    assert [made.of(count).rows for count in (16, 8, 4, 2, 1)] == [1, 2, 4, 8, 16] and asked == [16, 8]
    assert made.settle(2) and asked == [16, 8, 2]
    alone = Microbatches(trace, alike=False)
    assert [alone.of(count).rows for count in (8, 4, 2)] == [2, 4, 8] and asked[3:] == [8, 4, 2]


def test_a_model_that_does_something_else_with_many_rows_is_predicted_as_it_is() -> None:
    """Two small microbatches are alike and a large one is not: once a way with it is predicted, the trace is what counts."""
    model = Called(lambda x: x.relu() if x.shape[0] < 8 else x.relu().sin().cos())
    whole = load_spec({"devices": [{"device": "cuda:9", "hardware": "H100"}], "distributed": {"mesh": "auto", "ranks": 2}})
    section, device = whole.distributed, build_machine(whole).devices[0]
    assert section is not None
    bench = Bench(model, torch.ones(ROWS, 8), None, whole, device, build_cluster(whole, section, device))
    found = {parts(way): way for way in ways(section, bench.cluster, ROWS) if way.mesh.data == 2}
    for count in (16, 8, 4, 2):
        bench.closer(found[count])
    assert len(bench.microbatches.of(2).traced.graph.ops) == 2, "made of two that are alike"
    assert len(bench.of_job(found[2]).cut.graph.ops) == 4
    assert bench.of_job(found[2]).step == pytest.approx(bench.outlook(found[2], 2).step)


@pytest.mark.parametrize("name", SCHEDULES)
def test_at_least_so_many_microbatches_are_in_flight(name: str) -> None:
    """On each rank there is a moment at which each of its stages has as many as it is said to have at least."""
    each, kind = (2, SCHEDULES[name]) if SCHEDULES[name].several else (1, SCHEDULES[name])
    for ranks, count in ((2, 2), (2, 8), (4, 4), (4, 8), (4, 16), (4, 2)):
        if count < kind.least * ranks or (kind.split and count < ranks):
            continue
        asked = DistributedSpec(mesh={"pipeline": ranks}, schedule=name, stages_per_rank=each, microbatches=count)
        fullest: dict[int, int] = {}
        for least, actions in zip(least_in_flight(asked), order_of(name, ranks, each, count), strict=True):
            flying, most = dict.fromkeys({action.stage for action in actions}, 0), 0
            for stage, what, _ in actions:
                flying[stage] += {"F": 1, "B": -1, "W": -1}.get(what, 0)
                most = max(most, min(flying.values()))
                fullest[stage] = max(fullest.get(stage, 0), flying[stage])
            assert 1 <= least <= most, (ranks, count, least, most)
            assert kind.split or name == "looped_bfs" or least == most
        assert not kind.v or most_in_flight(asked) == [fullest[stage] for stage in range(ranks * each)], "of each by itself"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", ["100kB", "1GiB"])
def test_no_bound_on_memory_is_above_what_is_predicted(memory: str) -> None:
    spec = {"devices": [{"device": "cuda:9", "hardware": "H100", "memory": memory}], "optimizer": "adamw"}
    section = DistributedSpec(ranks=4, mesh="auto")
    whole = load_spec({**spec, "distributed": section})
    device = build_machine(whole).devices[0]
    deep = nn.Sequential(*(nn.Linear(32, 32) for _ in range(9)))
    bench = Bench(deep, torch.ones(8, 32), None, whole, device, build_cluster(whole, section, device))
    seen = 0
    for way in ways(section, bench.cluster, 8):
        with suppress(PartitionerError):
            found = max(bench.of_job(way).memory)
            assert max(bench.room(way), bench.closer_room(way)) <= found, (str(way.mesh), way.schedule)
            seen += 1
    assert seen > 100


def test_a_graph_that_is_made_ready_once_is_cut_as_if_it_had_not_been() -> None:
    example = traced(Attention(), torch.zeros(ROWS, 6, dtype=torch.int64), 4)
    device = Device("cpu", "cpu", memory=1 << 30)
    ready = uncut(example.traced, device)
    for count in (1, 2, 3, 5):
        for each in (device, replace(device, memory=None)):
            one, other = ready.into(count, each.memory), cut_into(example.traced, count, each)
            assert (one.stage, one.seconds, one.bound) == (other.stage, other.seconds, other.bound)


def test_borders_are_what_is_read_behind_them() -> None:
    cut = cut_into(traced(Attention(), torch.zeros(ROWS, 6, dtype=torch.int64), 4).traced, 4, Device("cpu", "cpu"))
    for border, names in enumerate(cut.borders):
        read = {name for op in cut.graph.ops if cut.stage[op.name] > border for name in op.inputs}
        read |= set(cut.graph.outputs) if border < cut.count - 1 else set()
        assert list(names) == [op.name for op in cut.graph.ops if cut.stage[op.name] <= border and op.name in read]
