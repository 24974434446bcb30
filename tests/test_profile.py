"""Measured costs: real ops on real tensors, once each; nobody's model, generator or cache is touched by that."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import networkx as nx
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from typer.testing import CliRunner

from partitioner.cli.main import app
from partitioner.ir.cost import Costs, OpCost, roofline, thread_speedup
from partitioner.ir.graph import Graph, Op
from partitioner.ir.machine import Device, Machine
from partitioner.model.modes import threads
from partitioner.planner.cost import estimate
from partitioner.profile import cache as cache_file
from partitioner.profile import clock
from partitioner.profile import measure as measuring
from partitioner.profile.cache import Cache
from partitioner.profile.choose import COVER, longest_paths, matters
from partitioner.profile.clock import STEADY, Timing, time_of
from partitioner.profile.handoff import between_streams
from partitioner.profile.hardware import environment
from partitioner.profile.measure import measure, told, widths
from partitioner.profile.profiled import profiled
from partitioner.profile.signature import Unmeasurable, signature
from partitioner.profile.tensors import arguments
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from programs import Calls, random_costs, random_graph, random_machine, traced

CPU = Device("cpu", "cpu", lanes=2, cores=2)
NOTHING = Cache(None)
BUDGET = 0.002


def _busy(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Net(nn.Module):
    """Every kind of thing that an op may do: indices, state that is written, random numbers, writes in place, views."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(self.table(x)))
        h = self.second(self.drop(h).relu_()).mul_(1.5)
        return h.view(-1, 4).transpose(0, 1) + 1


X = torch.tensor([0, 6, 3, 3, 1, 2])


def costs_of(graph: Graph, *devices: Device) -> Costs:
    return estimate(graph, Machine(devices or (CPU,)), {})


def node_of(graph: Graph, target: str) -> torch.fx.Node:
    (node,) = [node for node in graph.fx.nodes if node.name in graph.by_name and graph.by_name[node.name].target == target]
    return node


def text_of(module: nn.Module, target: str, *inputs: Any) -> str:
    graph = traced(module, *inputs)
    node = node_of(graph, target)
    return signature(node, graph.by_name[node.name], graph)


# Measuring ------------------------------------------------------------------------------------------------------------


def test_every_op_is_measured_with_every_number_of_threads() -> None:
    """With two threads only where both have a core for themselves; what others did not allow is told, and not guessed."""
    graph = traced(Net(), X)
    costs = profiled(graph, costs_of(graph), "all", NOTHING, BUDGET)
    names = {op.name for op in graph.ops}
    assert widths(CPU) == (1, 2)
    assert {op for op, _, threads in costs.measured if threads == 1} == names and costs.share_measured(CPU) == 1
    assert all(0 < seconds < 1 for seconds in costs.measured.values())
    both = {op for op, _, threads in costs.measured if threads == 2}
    assert both == names or any("others used the cores" in line for line in costs.notes)
    for op in both:
        assert costs.op_time(op, CPU, 2) == costs.measured[op, "cpu", 2]
    for op in names - both:
        assert costs.op_time(op, CPU, 2) <= costs.measured[op, "cpu", 1]


def test_an_op_that_others_keep_from_running_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that always wait: with two, nothing is timed, it is soon given up, and told. With one it does not matter."""
    clock_ticks = itertools.count()
    monkeypatch.setattr(clock, "waited", lambda whole: float(next(clock_ticks)) if whole else 0.0)
    tried: list[int] = []
    plain = measuring.time_op
    monkeypatch.setattr(measuring, "time_op", lambda *given: (tried.append(given[3]), plain(*given))[1])
    layers = (nn.Linear(8, 8), nn.ReLU(), nn.Softmax(-1), nn.Tanh(), nn.Sigmoid(), nn.GELU())
    graph = traced(nn.Sequential(*layers), torch.ones(2, 8))
    found = measure(graph, [op.name for op in graph.ops], CPU, NOTHING, BUDGET)
    assert {threads for _, threads in found.seconds} == {1} and tried == [1] * 6 + [2] * measuring.MOST_DISTURBED
    assert told(found) == ("not measured: 6 ops with 2 threads, for others used the cores",)


def test_time_spent_waiting_for_a_core_is_none_of_the_calls() -> None:
    """Another process on the same core takes half of it; the seconds of a call stay what they are."""
    if not hasattr(os, "sched_setaffinity") or not Path("/proc/self/schedstat").exists():
        pytest.skip("the system does not tell for how long threads waited")
    allowed = os.sched_getaffinity(0)
    with threads(1):
        tensor = torch.rand(512, 512)
        try:
            os.sched_setaffinity(0, {min(allowed)})
            rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                together = sum(_busy(lambda: tensor @ tensor) for _ in range(20))
                timing = time_of(lambda: tensor @ tensor, budget=0.3)
            finally:
                rival.kill()
                rival.wait()
            apart = time_of(lambda: tensor @ tensor, budget=0.3)
        finally:
            os.sched_setaffinity(0, allowed)
    assert together / 20 > 1.3 * apart.seconds, "the rival was there"
    assert timing.seconds < 1.25 * apart.seconds


class Gpu:
    """A device and its host by a clock of their own: an op takes 2 us there, and 6 us to issue; an event waits for the stream.

    Without a device in hand torch records an event on the current one, which is another.
    """

    def __init__(self, sleeps: bool) -> None:
        self.host = self.done = 0.0
        if sleeps:
            self._sleep = lambda cycles: self.issue(cycles / clock.CYCLES)

    def issue(self, seconds: float = 2e-6) -> None:
        self.host += 6e-6
        self.done = max(self.host, self.done) + seconds

    def synchronize(self) -> None:
        self.host = self.done = max(self.host, self.done)

    def event(self, device: torch.device, enable_timing: bool) -> Any:
        made: Any = SimpleNamespace()
        made.record = lambda stream=None: setattr(made, "at", max(self.host, self.done) if stream else 0.0)
        made.elapsed_time = lambda other: 1e3 * (other.at - made.at)
        return made


@pytest.mark.parametrize(("sleeps", "wanted"), [(True, 2e-6), (False, 6e-6)])
def test_a_short_op_on_an_accelerator_takes_what_it_takes_there(
    monkeypatch: pytest.MonkeyPatch, sleeps: bool, wanted: float
) -> None:
    """An idle device waits for each op to be issued, and what was timed was the host; a busy host's waits were taken off that.

    A backend that cannot be kept busy is timed as before.
    """
    gpu = Gpu(sleeps)
    monkeypatch.setattr(torch, "Event", gpu.event)
    monkeypatch.setattr(torch, "get_device_module", lambda device: gpu)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: gpu.synchronize())
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: "the stream of cuda:1")
    monkeypatch.setattr(torch.accelerator, "device_index", lambda index: nullcontext())
    waits = itertools.count()
    monkeypatch.setattr(clock, "waited", lambda whole: float(next(waits)))
    assert time_of(gpu.issue, "cuda:1").seconds == pytest.approx(wanted, rel=0.4)
    assert time_of(gpu.issue, "cuda:1", before=lambda: None).seconds == pytest.approx(wanted, rel=0.4)


class Streams:
    """Two streams of a device whose kernels take 2 us, and where an event of the other one takes 3; the host takes longer."""

    def __init__(self) -> None:
        self.host, self.now = 0.0, SimpleNamespace(done=0.0)
        self._sleep = lambda cycles: self.issue(cycles / clock.CYCLES)

    def issue(self, seconds: float = 2e-6) -> None:
        self.host += 8e-6
        self.now.done = max(self.host, self.now.done) + seconds

    def stream(self, device: torch.device) -> Any:
        streams, made = self, SimpleNamespace(done=0.0)

        class Stream:
            def __enter__(self) -> None:
                streams.now = made

            def __exit__(self, *_: object) -> None:
                pass

            def wait_event(self, event: Any) -> None:
                made.done = max(made.done, event.at + (3e-6 if event.stream is not made else 0.0))

            own = made

        return Stream()

    def event(self, device: torch.device, enable_timing: bool = False) -> Any:
        made: Any = SimpleNamespace()

        def record(stream: Any) -> None:
            made.stream, made.at = stream.own, max(self.host, stream.own.done)

        made.record, made.elapsed_time = record, lambda other: 1e3 * (other.at - made.at)
        return made


def test_a_handoff_between_streams_is_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host takes longer to issue a turn than the device for it, so both ways took the same, and a hand-off nothing."""
    streams = Streams()
    monkeypatch.setattr(torch, "ones", lambda size, device: SimpleNamespace(add_=lambda one: streams.issue()))
    monkeypatch.setattr(torch, "Stream", streams.stream)
    monkeypatch.setattr(torch, "Event", streams.event)
    monkeypatch.setattr(torch, "get_device_module", lambda device: streams)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.accelerator, "device_index", lambda index: nullcontext())
    assert between_streams(torch.device("cuda:0")).seconds == pytest.approx(3e-6, rel=0.1)


def test_equal_ops_are_timed_once_and_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty equal layers are few timings, and the next process needs none. It makes no difference whose weights they are."""
    monkeypatch.setattr(measuring, "time_op", lambda *_: Timing(1e-3))  # the machine may be too busy for a steady one
    graph = traced(nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(30))), torch.ones(3, 8))
    names, cache = [op.name for op in graph.ops], Cache(tmp_path)
    first = measure(graph, names, CPU, cache)
    again = measure(graph, names, CPU, cache)
    assert (len(names), first.timed, again.timed) == (60, 6, 0), "the first layer's input has no gradient"
    assert first.seconds == again.seconds == {(name, threads): 1e-3 for name in names for threads in (1, 2)}


def test_what_is_not_steady_is_used_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's work must not be remembered as an op's time for as long as this processor is in use."""
    graph = traced(nn.Linear(8, 8), torch.ones(3, 8))
    for spread, timed_again in ((STEADY + 0.1, 2), (STEADY - 0.1, 2), (STEADY - 0.1, 0)):
        monkeypatch.setattr(measuring, "time_op", lambda *_, spread=spread: Timing(1e-3, spread))
        found = measure(graph, [op.name for op in graph.ops], CPU, Cache(tmp_path))
        assert found.timed == timed_again and set(found.seconds.values()) == {1e-3}


def test_measured_times_tell_large_ops_from_small_ones() -> None:
    """512 times the arithmetic; whatever else runs here, it takes longer. And the sum of times is that of the ops alone."""
    found = {}
    for size in (64, 512):
        graph = traced(nn.Linear(size, size, bias=False), torch.ones(size, size))
        found[size] = next(iter(measure(graph, [graph.ops[0].name], Device("cpu", "cpu"), NOTHING).seconds.values()))
    assert found[512] > 5 * found[64]


def test_a_timing_is_that_of_the_call_alone() -> None:
    timing = time_of(lambda: time.sleep(0.002), before=lambda: time.sleep(0.004), budget=0.1)
    assert 0.002 <= timing.seconds < 0.004


def test_a_model_is_left_as_it_was() -> None:
    """In train mode: batch norm would count, dropout draw, `mul_` write, and autograd keep what it needs."""
    model = Net().train()
    graph = traced(model, X)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    profiled(graph, costs_of(graph), "all", NOTHING, BUDGET)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == modes


def test_whoever_traces_on_fakes_gets_real_times() -> None:
    """Models whose state lies on several devices are traced under a mode in which every new tensor is a fake."""
    graph = traced(Net(), X)
    with FakeTensorMode(allow_non_fake_inputs=True):
        costs = profiled(graph, costs_of(graph, Device("cpu", "cpu")), "all", NOTHING, BUDGET)
        assert isinstance(torch.ones(1), FakeTensor)
    assert {op for op, _, _ in costs.measured} == {op.name for op in graph.ops} and not costs.notes


@torch.library.custom_op("partitioner_test::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    COUNT.append(1)
    return x + 1


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


COUNT: list[int] = []


def test_what_a_user_wrote_is_never_called() -> None:
    graph = traced(Calls(lambda x: counted(x) * 2), torch.ones(3))
    COUNT.clear()
    costs = profiled(graph, costs_of(graph), "all", NOTHING, BUDGET)
    assert COUNT == []
    (missing,) = {op.name for op in graph.ops} - {op for op, _, _ in costs.measured}
    assert "counted" in missing and any(missing in line and line.startswith("not measured") for line in costs.notes)
    factor = costs.factors["cpu"]
    assert costs.op_time(missing, CPU) == pytest.approx(roofline(costs.ops[missing], CPU) * factor)


def test_an_op_that_fails_on_made_up_values_keeps_the_roofline() -> None:
    graph = traced(Calls(lambda x: torch.linalg.cholesky(x) + 1), torch.eye(4))
    costs = profiled(graph, costs_of(graph), "all", NOTHING, BUDGET)
    assert {op for op, _, _ in costs.measured} == {graph.ops[1].name}
    assert "LinAlgError when called alone" in "".join(costs.notes)
    assert any("1 of 2 ops" in line for line in costs.basis)


def test_without_examples_or_with_no_mode_nothing_is_measured() -> None:
    graph = traced(nn.Linear(8, 8), torch.ones(3, 8))
    costs = costs_of(graph)
    assert profiled(graph, costs, None) is costs
    blind = Graph("g", graph.ops, graph.inputs, graph.outputs, graph.fx)
    assert profiled(blind, costs, "all") is costs


def test_a_device_that_is_not_here_is_told() -> None:
    graph = traced(nn.Linear(8, 8), torch.ones(3, 8))
    costs = profiled(graph, costs_of(graph, CPU, Device("far", "cuda:99")), "all", NOTHING, BUDGET)
    assert {device for _, device, _ in costs.measured} == {"cpu"}
    assert "not measured: far, which is not on this machine" in costs.notes


def test_open_sizes_are_those_of_the_example() -> None:
    x = torch.ones(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    graph = traced(nn.Linear(8, 8), x)
    assert "s" in str(node_of(graph, "linear").meta["example_value"].shape[0])
    costs = profiled(graph, costs_of(graph), "all", NOTHING, BUDGET)
    assert ("linear" in "".join(op for op, _, _ in costs.measured)) and not costs.notes


# What an op is called with --------------------------------------------------------------------------------------------


def test_indices_lie_in_the_table() -> None:
    graph = traced(nn.Embedding(5, 3), torch.tensor([[0, 4]] * 50))
    given = arguments(node_of(graph, "embedding"), graph.states, torch.device("cpu"))
    (indices,) = given.fresh
    assert indices.dtype is torch.int64 and set(indices.flatten().tolist()) == {0, 1, 2, 3, 4}
    assert [tuple(tensor.shape) for tensor in given.state] == [(5, 3)]


def test_strides_are_those_of_the_model() -> None:
    """A convolution over channels that lie last is another kernel; an expanded tensor has less memory than elements."""
    image = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    graph = traced(nn.Conv2d(3, 4, 3), image)
    given = arguments(node_of(graph, "conv2d"), graph.states, torch.device("cpu"))
    assert given.fresh[0].stride() == image.stride() and given.fresh[0].shape == image.shape
    graph = traced(Calls(lambda x: x.expand(4, 1000) * 2), torch.ones(4, 1))
    given = arguments(node_of(graph, "mul"), graph.states, torch.device("cpu"))
    assert given.fresh[0].stride() == (1, 0) and given.fresh[0].untyped_storage().nbytes() == 16


def test_what_takes_another_time_has_another_signature() -> None:
    x, image = torch.ones(3, 8), torch.rand(2, 3, 8, 8)
    base = text_of(nn.Linear(8, 8), "linear", x)
    assert base == text_of(nn.Linear(8, 8), "linear", torch.zeros(3, 8)), "values do not matter"
    others = [
        text_of(nn.Linear(8, 8), "linear", torch.ones(4, 8)),
        text_of(nn.Linear(8, 8, bias=False), "linear", x),
        text_of(nn.Linear(8, 8).double(), "linear", x.double()),
        text_of(nn.Linear(8, 8).requires_grad_(False), "linear", x),
        text_of(nn.Linear(8, 8), "linear", torch.ones(8, 3).T),
    ]
    with torch.no_grad():
        others.append(text_of(nn.Linear(8, 8), "linear", x))
    with torch.autocast("cpu", torch.bfloat16):
        others.append(text_of(nn.Linear(8, 8), "linear", x))
    others += [text_of(nn.Conv2d(3, 4, 3, padding=padding), "conv2d", image) for padding in (0, 1)]
    assert len({base, *others}) == 1 + len(others)
    assert all("0x" not in text for text in others), "addresses differ from process to process"


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), "it is not one of torch's own"),
        (counted, "it is an op that somebody has registered"),
    ],
)
def test_what_cannot_be_called_alone_says_why(function: Callable[[Tensor], Tensor], reason: str) -> None:
    graph = traced(Calls(lambda x: function(x) * 2), torch.ones(3, 3))
    found = measure(graph, [op.name for op in graph.ops], CPU, NOTHING, BUDGET).failed
    assert reason in found.values()


def test_tensors_that_are_not_dense_are_not_made() -> None:
    fx = torch.fx.Graph()
    x = fx.placeholder("x")
    x.meta["example_value"] = torch.eye(3).to_sparse()
    node = fx.call_function(torch.mul, (x, 2))
    with pytest.raises(Unmeasurable, match="not dense"):
        signature(node, Op("mul", "mul"), Graph("g", (), (), (), fx))


# Which ops ------------------------------------------------------------------------------------------------------------


@given(rng=st.randoms(use_true_random=False))
def test_what_matters_covers_the_time_and_the_critical_path(rng: Random) -> None:
    graph = random_graph(rng)
    costs = random_costs(rng, graph, random_machine(rng))
    first = costs.machine.devices[0]
    time = {
        op.name: costs.op_time(op.name, first, first.threads_per_lane)
        if costs.ops[op.name].flops or costs.ops[op.name].moved
        else 0
        for op in graph.ops
    }
    chosen = set(matters(graph, costs))
    assert sum(time[name] for name in chosen) >= COVER * sum(time.values()) - 1e-12
    longest = max((sum(time[name] for name in path) for path in _paths(graph)), default=0.0)
    through = longest_paths(graph, time.__getitem__)
    assert max(through.values(), default=0.0) == pytest.approx(longest)
    critical = [name for name in time if time[name] and through[name] >= longest * (1 - 1e-9)]
    assert sum(time[name] for name in critical if name in chosen) >= 0.9 * sum(time[name] for name in critical) - 1e-12


def _paths(graph: Graph) -> list[list[str]]:
    """The longest path that networkx finds among all that end at each op: brute force over simple paths of small graphs."""
    dag = graph.dag
    starts = [name for name in dag if dag.in_degree(name) == 0]
    ends = [name for name in dag if dag.out_degree(name) == 0]
    paths = [[name] for name in dag]
    for start in starts:
        for end in ends:
            paths += nx.all_simple_paths(dag, start, end) if start != end else []
    return paths


def test_auto_measures_less_than_all() -> None:
    """Ten thousandth parts of the time beside the chain that takes it are not worth a measurement."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heavy = nn.Linear(256, 256)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.heavy(x), y.exp() + 1

    graph = traced(Wide(), torch.ones(512, 256), torch.ones(2))
    costs = costs_of(graph)
    assert matters(graph, costs) == [node_of(graph, "linear").name]
    measured = profiled(graph, costs, "auto", NOTHING, BUDGET).measured
    assert {op for op, _, _ in measured} == {node_of(graph, "linear").name}


# Costs ----------------------------------------------------------------------------------------------------------------


def test_measured_threads_tell_a_small_op_from_a_wide_one() -> None:
    """The roofline lets every convolution of one intensity gain alike. What was measured knows better."""
    ops = {"small": OpCost(10**6, 10**4, 0), "wide": OpCost(10**9, 10**7, 0)}
    measured = {("small", "cpu", 1): 1e-4, ("small", "cpu", 2): 1.5e-4, ("wide", "cpu", 1): 1e-2, ("wide", "cpu", 2): 5e-3}
    costs = Costs(Machine((Device("cpu", "cpu", lanes=2, cores=4),)), ops, True, measured)
    device = costs.machine.devices[0]
    assert thread_speedup(ops["small"], 2) == thread_speedup(ops["wide"], 2)
    assert [costs.op_time(op, device, threads) for op in ops for threads in (1, 2)] == [1e-4, 1.5e-4, 1e-2, 5e-3]
    more = thread_speedup(ops["wide"], 4) / thread_speedup(ops["wide"], 2)
    assert costs.op_time("wide", device, 4) == pytest.approx(5e-3 / more) and more > 1


def test_rates_by_dtype() -> None:
    device = Device("gpu", "cuda:0", flops=1e12, overhead=0.0, rates=(("bfloat16", 4e12), ("float32", 1e12)))
    times = [roofline(OpCost(10**12, 0, 0, dtype), device) for dtype in ("float32", "bfloat16", "int32", "")]
    assert times == [1.0, 0.25, 1.0, 1.0]


def test_estimates_know_the_dtype_that_is_computed_in() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        graph = traced(nn.Linear(8, 8), torch.ones(3, 8))
    assert {op.dtype for op in costs_of(graph).ops.values()} == {"bfloat16"}


# The cache ------------------------------------------------------------------------------------------------------------


def test_processes_that_measure_at_once_keep_each_others_figures(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from partitioner.profile.cache import Cache
for index in range(20):
    Cache(Path(sys.argv[1])).store("here", {f"{sys.argv[2]}.{index}": 1.0 + int(sys.argv[2])})
"""
    workers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(number)]) for number in range(4)]
    assert [worker.wait() for worker in workers] == [0] * 4
    assert Cache(tmp_path).load("here") == {f"{n}.{index}": 1.0 + n for n in range(4) for index in range(20)}
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ""}, "half-written files are left"


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"environment": "here"}', b'{"environment": "here", "seconds": 3}']
)
def test_a_damaged_file_is_no_fault_and_is_written_anew(damage: bytes, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.store("here", {"op": 1.0})
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(damage)
    assert cache.load("here") == {}
    cache.store("here", {"other": 2.0})
    assert cache.load("here") == {"other": 2.0}


def test_values_that_are_no_seconds_are_left_out(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.store("here", {"op": 1.0})
    (path,) = tmp_path.glob("*.json")
    values = {"a": 1.5, "b": -1, "c": "x", "d": None, "e": True, "f": float("inf"), "g": [1]}
    path.write_text(json.dumps({"environment": "here", "seconds": values}))
    assert cache.load("here") == {"a": 1.5}
    path.write_text(json.dumps({"environment": "elsewhere", "seconds": values}))
    assert cache.load("here") == {}


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_file, "MOST_ENTRIES", 3)
    monkeypatch.setattr(cache_file, "MOST_FILES", 2)
    cache = Cache(tmp_path)
    for number in range(5):
        cache.store("here", {str(number): 1.0})
    assert list(cache.load("here")) == ["2", "3", "4"]
    cache.store("here", {"2": 2.0})
    cache.store("here", {"5": 1.0})
    assert cache.load("here") == {"4": 1.0, "2": 2.0, "5": 1.0}, "what was measured last stays"
    for number in range(4):
        cache.store(f"machine {number}", {"op": 1.0})
        os.utime(cache._path(f"machine {number}") or "", (number, number))
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_where_nothing_can_be_written_nothing_is_remembered(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    cache = Cache(blocked / "folder")
    cache.store("here", {"op": 1.0})
    assert cache.load("here") == {} and Cache(None).load("here") == {}


def test_the_environment_says_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for name in ("PARTITIONER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert Cache.default() == Cache(Path("/home/someone/.cache/partitioner"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert Cache.default() == Cache(Path("/var/cache/partitioner"))
    monkeypatch.setenv("PARTITIONER_CACHE", str(tmp_path))
    assert Cache.default() == Cache(tmp_path)
    monkeypatch.setenv("PARTITIONER_CACHE", "")
    assert Cache.default() == Cache(None)


def test_settings_that_change_times_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment("cpu")
    assert torch.__version__ in before
    torch.use_deterministic_algorithms(True)
    try:
        assert environment("cpu") != before
    finally:
        torch.use_deterministic_algorithms(False)
    assert environment("cpu") == before


# Calibration ----------------------------------------------------------------------------------------------------------


def test_a_calibrated_machine_is_a_spec_that_assumes_nothing(tmp_path: Path) -> None:
    path, threads = tmp_path / "machine.yaml", torch.get_num_threads()
    done = CliRunner().invoke(app, ["calibrate", "--devices", "cpu:0,cpu:1", "--output", str(path)])
    assert done.exit_code == 0, done.output
    assert torch.get_num_threads() == threads
    machine = build_machine(load_spec(path))
    (device,) = machine.devices
    assert (device.lanes, device.assumed, machine.assumed) == (2, (), ())
    assert 1e8 < device.flops < 1e14 and 1e8 < device.bandwidth < 1e13
    assert 1e-8 < device.overhead < 1e-3 and 1e-7 < device.handoff < 1e-1
    assert set(yaml.safe_load(path.read_text())) == {"devices"}
    assert torch.__version__ in path.read_text()


@pytest.mark.gpu
def test_an_accelerator_is_calibrated_with_the_ways_to_and_from_it(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    done = CliRunner().invoke(app, ["calibrate", "--devices", "cuda:0,cpu", "--output", str(path)])
    assert done.exit_code == 0, done.output
    machine = build_machine(load_spec(path))
    assert machine.assumed == () and len(machine.links) == 2
    assert machine.devices[0].flops > machine.devices[1].flops


@pytest.mark.gpu
def test_ops_are_measured_on_an_accelerator() -> None:
    graph = traced(Net(), X)
    gpu = Device("gpu", "cuda:0")
    costs = profiled(graph, costs_of(graph, gpu), "all", NOTHING, BUDGET)
    assert {op for op, _, _ in costs.measured} == {op.name for op in graph.ops}
