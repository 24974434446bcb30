"""Where a graph is cut into stages: stages run one after the other are the model, and what passes a border is what must."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.nets import TRAININGS, Clamped
from torch import nn

from partitioner.distributed.pipeline.cut import Cut, cut_into
from partitioner.distributed.pipeline.evenly import evenly
from partitioner.distributed.pipeline.part import Stage, part_of
from partitioner.distributed.pipeline.rerun import Rerun
from partitioner.distributed.pipeline.staying import sharing_a_stage
from partitioner.distributed.traced.example import Example, example_of
from partitioner.errors import PlacementError, TraceError, VerifyError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.check.interpret import interpret
from partitioner.ir.access import Access
from partitioner.ir.graph import Graph, Op, TensorMeta, Work
from partitioner.ir.machine import Device
from partitioner.model.call import Call
from partitioner.planner.constraints import Constraints
from partitioner.planner.throughput import staging
from partitioner.testing import GeneratedModule, assert_equal_runs, modules
from programs import STATE, graphs, make_graph, random_graph

CPU = Device("cpu", "cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


class Staged(nn.Module):
    """A model whose stages run one after the other in this process, on the model's own parameters."""

    def __init__(self, model: nn.Module, example: Example, cut: Cut) -> None:
        super().__init__()
        self.__dict__["example"] = example
        self._modules.update(model._modules)
        self._parameters.update(model._parameters)
        self._buffers.update(model._buffers)
        parts = [part_of(example.traced, cut, number) for number in range(cut.count)]
        self.__dict__["stages"] = [
            Stage(part, partial(interpret, part.graph), part.traced.state, self._batch) for part in parts
        ]

    def _batch(self, number: int) -> dict[str, torch.Tensor]:
        return self.__dict__["batch"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["batch"] = self.example.arguments(Call.of(args, kwargs).tensors)
        number = torch.zeros(1, dtype=torch.int64)
        values: tuple[torch.Tensor, ...] = (number,)
        for stage in self.stages:
            values = stage(*values, number=number)
        return self.example.output(values, self.__dict__["batch"])


def places(graph: Graph, rules: Constraints) -> list[int]:
    """Before which ops, by number, the program can be cut: no group has ops on both sides."""
    groups = [rules.group[op.name] for op in graph.ops]
    return [at for at in range(1, len(groups)) if not {*groups[:at]} & {*groups[at:]}]


def traced(graph: Graph) -> Traced:
    return Traced(graph, {key: torch.zeros(4) for key in STATE})


class Closed(torch.autograd.Function):
    """Gives no gradient, where another function would give zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class Behind(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[1](Closed.apply(self[0](x)))


def test_what_a_stage_received_may_get_no_gradient() -> None:
    """The hook that made it contiguous, for it to be sent, failed: T5 on data x pipeline x tensor ranks did not train.

    There is none: a stage receives into the same tensors in every step, and each call put one more on them.
    """
    model, x = Behind(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4)
    example = example_of(model, Call.of((x,), {}))
    last = part_of(example.traced, cut_into(example.traced, 2, CPU), 1)
    stage = Stage(last, partial(interpret, last.graph), last.traced.state, lambda number: {})
    value = torch.ones(2, 4, requires_grad=True)
    stage(value, number=torch.zeros(1, dtype=torch.int64))[0].sum().backward()
    assert value.grad is None and model[1].weight.grad is not None and not value._backward_hooks


def test_a_tied_weight_that_autocast_casts_is_in_several_stages() -> None:
    """What autocast kept of it counted as a write, so that all between an embedding and its head was one stage."""
    model = TRAININGS["tied"].model()
    ids = torch.randint(0, 50, (4, 5), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        example = example_of(model, Call.of((ids,), {}))
        cut = cut_into(example.traced, 4, CPU)
        both = [module(ids)["logits"] for module in (model, Staged(model, example, cut))]
    assert cut.ties == {"embed.weight": (0, 3)} and max(cut.seconds) < 0.6 * sum(cut.seconds)
    assert torch.equal(*both)


@given(model=modules(), count=st.integers(2, 5), train=st.booleans())
@settings(max_examples=settings.default.max_examples // 2)
def test_stages_one_after_the_other_are_the_model(model: GeneratedModule, count: int, train: bool) -> None:
    model.train(train)
    inputs = model.example_inputs(seed=0)
    try:
        example = example_of(model, Call.of(deepcopy(inputs), {}))  # which may be written
    except TraceError as refused:
        assert "returns a tensor as it is" in str(refused)
        return
    most = len(places(example.traced.graph, sharing_a_stage(example.traced.graph, {}))) + 1
    cut = cut_into(example.traced, min(count, most), CPU)
    assert_equal_runs(model, Staged(model, example, cut), inputs, train=train)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("net", ["skipping", "tied", "unet"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_nets_of_any_number_of_stages(net: str, count: int) -> None:
    model = TRAININGS[net].model()
    inputs = TRAININGS[net].batches()[0][0]
    example = example_of(model, Call.of((inputs,), {}))
    cut = cut_into(example.traced, count, CPU)
    assert cut.count == count == len(set(cut.stage.values()))
    assert_equal_runs(model, Staged(model, example, cut), (inputs,), train=False)


@given(graph=graphs(), count=st.integers(1, 5))
def test_no_edge_leads_back_and_every_stage_has_ops(graph: Graph, count: int) -> None:
    try:
        cut = cut_into(traced(graph), count, CPU)
    except PlacementError:
        assert len(places(graph, sharing_a_stage(graph, {}))) < count - 1
        return
    assert set(cut.stage.values()) == set(range(count))
    assert all(cut.stage[source] <= cut.stage[target] for source, target in graph.edges)
    assert sum(cut.seconds) >= max(cut.seconds) >= cut.bound * (1 - 1e-9)


class Unsent(nn.Module):
    """Values that cannot go from rank to rank: tuples of one tensor, and tensors of as many rows as data says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            (rows,) = torch.where(x[:, 0] > 0)
            (x,) = Clamped.apply(x.index_add(0, rows, layer(x[rows]))).chunk(1)
        return x


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # what Dynamo does with functions
def test_what_may_pass_a_border_is_one_tensor_of_a_size_that_is_known() -> None:
    """An autograd.Function and `chunk(1)` give tuples of one tensor, and `where` as many rows as there are: cut there, a job
    would fail in its first step, or receive rows that were never sent."""
    model, x = Unsent(), torch.randn(16, 8)
    example = example_of(model, Call.of((x,), {}))
    graph = example.traced.graph
    values = {node.name: node.meta["example_value"] for node in graph.fx.nodes if "example_value" in node.meta}
    free = places(graph, sharing_a_stage(graph, {}))
    assert len(free) >= 4
    for place in free:
        before = {op.name for op in graph.ops[:place]}
        for name in {name for op in graph.ops[place:] for name in op.inputs if name in before}:
            assert isinstance(values[name], torch.Tensor)
            assert all(type(size) is int for size in values[name].shape), f"{name} has as many rows as data says"
    cut = cut_into(example.traced, 4, CPU)
    assert_equal_runs(model, Staged(model, example, cut), (torch.randn(16, 8),), train=False)


class Picking(nn.Module):
    """Results of as many rows as there are: found before all layers, behind them, and in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        wanted = x[mask]
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"given": x[mask], "wanted": wanted, "times": torch.bincount(x.argmax(-1), minlength=8)}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_results_of_sizes_that_depend_on_data_are_made_in_the_last_stage(count: int) -> None:
    """They were taken to have two rows, the tracer's guess: each step was refused, and other stages would have sent them."""
    model, x = Picking(), torch.randn(16, 8)
    example = example_of(model, Call.of((x, x[:, 0] > 0), {}))
    cut = cut_into(example.traced, count, CPU)
    assert all(cut.stage[name] == count - 1 for name in example.traced.graph.outputs)
    x = torch.randn(16, 8)
    assert_equal_runs(model, Staged(model, example, cut), (x, x[:, 0] > 0), train=False)


class Counting(nn.Module):
    """A buffer that is written in one stage and read in the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / self.calls.add_(1)


def test_the_next_microbatch_does_not_write_what_is_being_sent() -> None:
    """A stage that passed the memory of its buffer raced with itself: the next microbatch counted before the last was sent."""
    model = Counting()
    traced = example_of(model, Call.of((torch.ones(4),), {})).traced
    cut = Cut(traced.graph, {op.name: number for number, op in enumerate(traced.graph.ops)}, (1.0, 1.0), 0.0)
    part = part_of(traced, cut, 0)
    stage = Stage(part, partial(interpret, part.graph), part.traced.state, lambda number: {})
    first, second = (stage(torch.tensor([number])) for number in range(2))
    assert (first[0].item(), second[0].item()) == (1.0, 2.0)


def test_what_the_next_stage_has_no_room_for_is_not_sent() -> None:
    """Gloo fills a larger buffer without a word: a stage read 4 bytes of each number where 2 had come."""
    model, x = Behind(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4)
    example = example_of(model, Call.of((x,), {}))
    first = part_of(example.traced, cut_into(example.traced, 2, CPU), 0)
    run = partial(interpret, first.graph)
    stage = Stage(first, lambda values: [each.bfloat16() for each in run(values)], first.traced.state, lambda _: {"x": x})
    with pytest.raises(VerifyError, match=r"a stage passes \w+ as bfloat16\[2, 4\], and float32\[2, 4\] was foreseen"):
        stage(torch.zeros(1, dtype=torch.int64))


def test_what_runs_again_reads_the_buffer_as_it_was() -> None:
    """A segment behind one that counts was run again with the count of the next microbatch, or refused to be by autograd."""
    traced = example_of(Counting(), Call.of((torch.ones(4, requires_grad=True),), {})).traced
    cut = Cut(traced.graph, {op.name: number for number, op in enumerate(traced.graph.ops)}, (1.0, 1.0), 0.0)
    parts = [part_of(traced, cut, number) for number in range(2)]
    rerun = Rerun(traced.graph, parts, [partial(interpret, part.graph) for part in parts])
    given = {"x": torch.ones(4, requires_grad=True), "calls": torch.zeros(())}
    arguments = [given[traced.graph.states.get(name, name)] for name in traced.graph.arguments]
    first, _ = rerun(arguments), rerun(arguments)
    first[0].sum().backward()
    assert torch.equal(given["x"].grad, torch.ones(4))
    assert given["calls"].item() == 2.0


def test_ops_that_write_a_storage_share_its_stage() -> None:
    """A received tensor must not be written in place: the engine sends it on, and keeps it for backwards."""
    seen = Counter[str]()
    for graph in (random_graph(Random(seed), 20) for seed in range(60)):
        homes = {op.name: op.storages for op in graph.ops}
        most = len(places(graph, sharing_a_stage(graph, {}))) + 1
        cut = cut_into(traced(graph), min(most, 4), CPU)
        for op in graph.ops:
            for name in (name for name in op.inputs if name in homes and cut.stage[name] != cut.stage[op.name]):
                written = {access.resource for access in op.accesses if access.write}
                assert not written & set(homes[name]), f"{op} writes {name} of an earlier stage\n{graph}\n{cut}"
                assert graph.by_name[name].tensor, f"{name} is no tensor and cannot be sent"
                seen["passed"] += 1
            seen["written"] += any(access.write and access.resource in graph.by_name for access in op.accesses)
    assert min(seen["passed"], seen["written"]) > 100


def reached(cut: Cut, borders: Sequence[Sequence[str]]) -> bool:
    """Whether each stage has all that it reads, and the last one the results, if just these values pass the borders."""
    here: set[str] = set()
    for number in range(cut.count):
        ops = [op for op in cut.graph.ops if cut.stage[op.name] == number]
        here |= {op.name for op in ops}
        if any(name in cut.stage and name not in here for op in ops for name in op.inputs):
            return False
        here = here & set(borders[number]) if number < cut.count - 1 else here
    return all(name in here for name in cut.graph.outputs if name in cut.stage)


@given(graph=graphs(20), places=st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_what_passes_a_border_is_enough_and_none_of_it_too_much(graph: Graph, places: list[int]) -> None:
    ends = sorted(places)
    stage = {op.name: sum(number >= end for end in ends) for number, op in enumerate(graph.ops)}
    cut = Cut(graph, stage, (1.0,) * (len(ends) + 1), 0.0)
    assert reached(cut, cut.borders)
    for number, border in enumerate(cut.borders):
        assert len(set(border)) == len(border)
        for name in border:
            less = [[each for each in passed if (at, each) != (number, name)] for at, passed in enumerate(cut.borders)]
            assert not reached(cut, less), f"{name} need not pass border {number}"


def divisions(graph: Graph, rules: Constraints, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut the program into so many stages that have ops."""
    yield from itertools.combinations(places(graph, rules), count - 1)


@given(graph=graphs(10), count=st.integers(1, 4), rng=st.randoms(use_true_random=False))
def test_even_stages_are_the_best_of_all(graph: Graph, count: int, rng: Random) -> None:
    rules = sharing_a_stage(graph, {})
    seconds = {op.name: float(rng.choice((0, 1, 1, 3, 10))) for op in graph.ops}
    times = list(seconds.values())

    def longest(cuts: Sequence[int]) -> float:
        return max(sum(times[start:end]) for start, end in itertools.pairwise((0, *cuts, len(times))))

    best = min(map(longest, divisions(graph, rules, count)), default=None)
    if best is None:
        with pytest.raises(PlacementError, match=f"cannot be cut into {count} stages"):
            evenly(graph, rules, seconds, count)
        return
    ends = evenly(graph, rules, seconds, count)
    stage = [bisect_right(ends, place) for place in range(len(graph.ops))]
    assert stage == sorted(stage) and set(stage) == set(range(count))
    assert longest([stage.index(number) for number in range(1, count)]) == best


def test_ranks_that_are_busy_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank plans for itself. Under load two of them tried a different number of orders in their five seconds."""
    net, looked = TRAININGS["unet"], list[int]()
    example = example_of(net.model(), Call.of((net.batches()[0][0],), {}))
    along = staging.along
    monkeypatch.setattr(staging, "along", lambda *given: (looked.append(1), along(*given))[1])
    found = cut_into(example.traced, 3, CPU)
    first = len(looked)
    clock = itertools.count(step=60)
    monkeypatch.setattr(staging, "monotonic", lambda: next(clock))
    again = cut_into(example.traced, 3, CPU)
    assert len(looked) == 2 * first and again.stage == found.stage


def test_too_many_stages_name_how_many_places_there_are() -> None:
    """The last op writes what the second made, once the third has read it: those three stay together."""
    meta = (TensorMeta((16,), torch.float32, 64),)
    ops = [
        Op(name, "compute", (source,), (Access(source, False), Access(name, True)), (name,), outputs=meta, work=Work())
        for name, source in (("a", "x"), ("b", "a"), ("c", "b"))
    ]
    last = Op("last", "in_place", ("b",), (Access("b", True),), ("b",), outputs=meta, work=Work())
    graph = make_graph([*ops, last], outputs=["c", "last"])
    assert cut_into(traced(graph), 2, CPU).stage == {"a": 0, "b": 1, "c": 1, "last": 1}
    with pytest.raises(PlacementError, match="Toy cannot be cut into 3 stages: there are 1 places for cuts"):
        cut_into(traced(graph), 3, CPU)
