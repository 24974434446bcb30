"""Programs as CUDA graphs: what is captured, when again, whose results are, and what is refused.

Most of it is told without a GPU: `graph_recorder` keeps the rules of a capture, and replays on the CPU what was issued in it,
on the same memory. So these tests compare with eager. The rest, marked ``gpu``, is the real thing.
"""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from graph_recorder import Recorder, recording
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import NormedTowers, Tower, Towers, assert_same, assert_same_state, numbers
from pretend import put
from pretend import spec as slow_spec
from test_gpu import WIDTH, Counting, Pair
from test_gpu import spec as gpu_spec
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partitioner import SpecError, load_spec, partition
from partitioner.backends.bodies import Compiler
from partitioner.backends.compiling.compilers import COMPILERS
from partitioner.backends.cudagraphs import graphs
from partitioner.backends.cudagraphs.capturing import CaptureError, Cuda, generated_line
from partitioner.compile import as_captured
from partitioner.ir.access import ANY, LATER, SENT, Access
from partitioner.ir.mode import Mode
from partitioner.ir.program import Run
from partitioner.runtime.module import Parallel
from partitioner.spec.discover import build_machine
from partitioner.testing import GeneratedModule, modules

GPU = "lazy:0"
X = numbers(4, 6)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[Recorder]:
    """CUDA graphs on tape."""
    with recording(monkeypatch) as made:
        yield made
        assert made.world.faults() == []


def graphed(model: nn.Module, *inputs: Tensor, lanes: int = 3, **options: Any) -> Parallel:
    """A copy of the model on several lanes of one GPU, as CUDA graphs."""
    return partition(model, example_inputs=inputs, spec=slow_spec({GPU: lanes}), copy=True, cuda_graphs=True, **options)


def call(module: nn.Module, *inputs: Tensor, seed: int = 0) -> Any:
    """Call a module from a seed, with inputs where it wants them; its results."""
    torch.manual_seed(seed)
    return module(*[put(x, GPU) if isinstance(module, Parallel) else x.clone() for x in inputs])


def values(tree: Any) -> Any:
    """What a result holds now."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), tree)


def captures(recorder: Recorder) -> int:
    return len(recorder.tapes)


def replays(recorder: Recorder) -> int:
    return sum(line.startswith("replay") for line in recorder.log)


def step(module: nn.Module, *inputs: Tensor, seed: int = 0) -> list[Tensor | None]:
    """Forward and backward; gradients of parameters."""
    module.zero_grad()
    sum(leaf.square().sum() for leaf in pytree.tree_leaves(call(module, *inputs, seed=seed))).backward()  # type: ignore[union-attr]
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


# -- what a graph gives ------------------------------------------------------------------------------------------------


def test_the_second_call_is_captured_and_then_replayed(recorder: Recorder) -> None:
    """Results, statistics of batch norm and random numbers are eager's, in each call: nothing runs for warmth."""
    model = NormedTowers()
    parallel = graphed(model, X, check=False)
    with torch.no_grad():
        for seed in range(4):
            x = numbers(4, 6, seed=seed)
            assert_same(call(model, x, seed=seed), values(call(parallel, x, seed=seed)))
            assert_same_state(model, parallel)
    assert recorder.log == ["capture 0 in pool 1", *["replay 0 on lazy:0/caller"] * 3]


def test_a_thread_that_has_not_issued_a_call_captures_none(recorder: Recorder) -> None:
    """Its libraries have made nothing yet, which they cannot do in a capture. What another thread has captured, it replays."""
    model = Towers()
    parallel = graphed(model, X, check=False)

    def elsewhere() -> None:
        with ThreadPoolExecutor(1) as pool, torch.no_grad():
            assert_same(model(X), values(pool.submit(torch.no_grad()(call), parallel, X).result()))

    with torch.no_grad():
        call(parallel, X)
        elsewhere()
        assert captures(recorder) == 0
        call(parallel, X)
        assert (captures(recorder), replays(recorder)) == (1, 1)
        elsewhere()
        assert (captures(recorder), replays(recorder)) == (1, 2)


def test_calls_are_watched_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two first calls on two threads put back each other's debugging of waits: from then on torch warned of every wait."""
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def other() -> None:
        with Cuda().watched():
            pass

    thread = threading.Thread(target=other)
    with Cuda().watched():
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    thread.join()
    assert modes == [0, "warn", 0, "warn", 0]


def test_a_compiler_may_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called from a line of generated code, once; inductor reads constants. The program was said to wait, and refused."""
    said: list[str] = []

    def compile(module: torch.fx.GraphModule, arguments: Any) -> Any:
        said.append(generated_line())
        return lambda *arguments: (said.append(generated_line()), module(*arguments))[1]

    monkeypatch.setitem(COMPILERS, "torchscript", Compiler(compile))
    partition(Tower(), ["cpu"], example_inputs=X, check=False, tune=False, compile_tasks="torchscript")(X)
    assert said[0] == "" and said[1].endswith("# 3 ops")


def test_the_generator_moves_as_in_eager(recorder: Recorder) -> None:
    model = NormedTowers()
    parallel = graphed(model, X)
    after = []
    for module in (model, parallel):
        with torch.no_grad():
            for _ in range(3):
                call(module, X)
        after.append(torch.get_rng_state())
    assert_same(*after)
    assert replays(recorder) == 2


def test_training(recorder: Recorder) -> None:
    """Gradients, updates and statistics, to the bit; forward and backward are one replay each."""
    model = NormedTowers()
    parallel = graphed(model, X)
    recorder.log.clear()
    optimizers = [torch.optim.Adam(module.parameters(), lr=1e-2) for module in (model, parallel)]
    for seed in range(6):
        x = numbers(4, 6, seed=seed)
        assert_same(*(step(module, x, seed=seed) for module in (model, parallel)))
        for optimizer in optimizers:
            optimizer.step()
        assert_same_state(model, parallel)
    forward, backward = ("replay 0 on lazy:0/caller", "replay 1 on lazy:0/caller")
    assert [line for line in recorder.log if line.startswith("replay")] == [forward, *[forward, backward] * 4]


def test_gradients_of_inputs(recorder: Recorder) -> None:
    model = Towers()
    parallel = graphed(model, X.clone().requires_grad_())
    for seed in range(4):
        found = []
        for module in (model, parallel):
            x = numbers(4, 6, seed=seed)
            x = (put(x, GPU) if module is parallel else x).requires_grad_()
            module(x).sum().backward()
            found.append(x.grad.clone())  # type: ignore[union-attr]
        assert_same(*found)
    assert captures(recorder) == 2


def test_gradients_add_up_over_calls(recorder: Recorder) -> None:
    """What a parameter has got is its own: the next backward adds to it, and does not write over it."""
    model = Towers()
    parallel = graphed(model, X)
    for module in (model, parallel):
        for seed in range(5):
            call(module, numbers(4, 6, seed=seed)).square().sum().backward()
    assert_same(*([p.grad for p in module.parameters()] for module in (model, parallel)))


def test_results_are_the_callers(recorder: Recorder) -> None:
    """Later calls write over nothing, and a caller who writes to a result disturbs no later call."""
    model = Towers()
    parallel = graphed(model, X)
    batches = [numbers(4, 6, seed=seed) for seed in range(5)]
    with torch.no_grad():
        kept = [call(parallel, x) for x in batches]
        assert_same([model(x) for x in batches], values(kept))
        kept[-1].zero_()
        assert_same(model(X), values(call(parallel, X)))


class Related(nn.Module):
    """Results that share memory: with each other, with an argument, with a buffer; an argument; a number."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Tower(), Tower()
        self.register_buffer("table", torch.arange(12.0).reshape(2, 6))

    def forward(self, x: Tensor) -> dict[str, Any]:
        """Maps (batch, 6) to many things."""
        h = self.left(x) + self.right(x)
        a, b = h.chunk(2, dim=1)
        return {
            "h": h,
            "a": a,
            "b": b,
            "x": x,
            "row": x[1:],
            "table": self.table[1],
            "turned": self.left(h).t(),
            "rows": len(x),
        }


def test_results_that_share_memory(recorder: Recorder) -> None:
    """They share it with each other as in eager, and with nothing that the graph writes."""
    model = Related()
    parallel = graphed(model, X)
    with torch.no_grad():
        for seed in range(4):
            x = numbers(4, 6, seed=seed)
            given = put(x, GPU)
            found = parallel(given)
            assert_same(model(x), values(found))
            assert found["x"] is given
            assert found["turned"].stride() == model(x)["turned"].stride()
            found["h"].fill_(seed)
            assert bool((found["a"] == seed).all() and (found["b"] == seed).all())
            given[1] = 7.0
            assert bool((found["row"][0] == 7.0).all())
        parallel.table.fill_(5.0)
        assert bool((found["table"] == 5.0).all())
    assert replays(recorder) == 3
    with pytest.raises(CaptureError, match="results share memory with each other or with an argument, and gradients"):
        for _ in range(2):
            call(parallel, X)


class Writing(nn.Module):
    """Writes to its argument, and to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        x.mul_(2.0)
        self.calls.add_(1)
        return self.tower(x) * self.calls


def test_arguments_that_are_written(recorder: Recorder) -> None:
    """The caller's tensor has what was written, and autograd knows of it."""
    model = Writing()
    parallel = graphed(model, X)
    with torch.no_grad():
        for seed in range(4):
            x = numbers(4, 6, seed=seed)
            given = put(x, GPU)
            version = given._version
            assert_same(model(x), values(parallel(given)))
            assert_same(x, values(given))
            assert given._version > version
    with pytest.raises(CaptureError, match="with its backward: it writes to its argument"):
        call(parallel, X)


def test_an_input_of_many_forms(recorder: Recorder) -> None:
    """Transposed, expanded, with gaps: each has a graph, in which it lies as it did."""
    model = Towers()
    parallel = graphed(model, X)
    wide = numbers(4, 12)
    forms = [X, numbers(6, 4).t(), numbers(1, 6).expand(4, 6), wide[:, ::2]]
    with torch.no_grad():
        for _ in range(3):
            for x in forms:
                given = put(torch.empty(0), GPU)
                alike = x.clone() if x.is_contiguous() else x
                alike.place = GPU  # type: ignore[attr-defined]
                assert_same(model(x), values(parallel(alike)))
                del given
    assert captures(recorder) == len(forms)


def test_two_sizes_and_open_ones(recorder: Recorder) -> None:
    """One capture for each batch size, in one pool of memory; going back captures nothing."""
    model = NormedTowers().eval()
    parallel = graphed(model, X)
    with torch.no_grad():
        for _ in range(3):
            for batch in (4, 8, 9):
                x = numbers(batch, 6, seed=batch)
                assert_same(model(x), values(call(parallel, x)))
    assert captures(recorder) == 3
    assert recorder.pools <= 2  # one for each program: of the first size, and of all others


def test_too_many_sizes_are_refused(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit says so; what is captured goes on."""
    monkeypatch.setattr(graphs, "MOST", 3)
    model = Towers()
    parallel = graphed(model, X, check=False)
    with torch.no_grad():
        with pytest.raises(CaptureError, match=r"came in 3 kinds.*this is another one. Pad to a few sizes"):
            for batch in range(4, 12):
                call(parallel, numbers(batch, 6))
        x = numbers(7, 6)
        assert_same(model(x), values(call(parallel, x)))
    assert replays(recorder) == 1


@pytest.mark.parametrize("grad", [True, False])
def test_a_parameter_that_has_moved(recorder: Recorder, grad: bool) -> None:
    """It is captured again; one that is written in place is not."""
    model = Towers()
    parallel = graphed(model, X)

    def compared() -> None:
        if grad:
            assert_same(step(model, X), step(parallel, X))
        assert_same(values(call(model, X)), values(call(parallel, X)))

    with torch.set_grad_enabled(grad):
        for _ in range(3):
            compared()
        before = captures(recorder)
        for module in (model, parallel):
            module.head.weight.data.mul_(2.0)
        compared()
        assert captures(recorder) == before
        for module in (model, parallel):
            moved = module.head.weight.data * 0.5
            moved.place = GPU
            module.head.weight.data = moved
        for _ in range(2):
            compared()
        assert captures(recorder) > before
        before = captures(recorder)
        compared()
        assert captures(recorder) == before


def test_state_that_never_stays_is_refused(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """To capture in each call would be slower than no graphs, and nobody would know why."""
    monkeypatch.setattr(graphs, "MOST", 3)
    parallel = graphed(Towers(), X)
    with torch.no_grad(), pytest.raises(CaptureError, match=r"head.weight of Towers .*moved 3 times"):
        for _ in range(8):
            call(parallel, X)
            moved = parallel.head.weight.data.clone()
            moved.place = GPU
            parallel.head.weight.data = moved
    assert captures(recorder) == 4


def test_a_caller_on_another_stream(recorder: Recorder) -> None:
    """A replay comes after the one before, wherever that was: both use the same memory. (The fixture asks for faults.)"""
    model = Towers()
    parallel = graphed(model, X)
    own = recorder.world.stream(f"{GPU}/own", GPU)
    with torch.no_grad():
        for number in range(6):
            recorder.hardware.set_stream(own if number % 2 else recorder.world.stream(f"{GPU}/caller", GPU))
            x = numbers(4, 6, seed=number)
            assert_same(model(x), values(call(parallel, x)))
    assert recorder.log[-1] == "replay 0 on lazy:0/own"


def test_lanes_that_are_not_used(recorder: Recorder) -> None:
    """A capture waits for nothing outside of it: a stream on which nothing is issued is none of its own."""
    parallel = graphed(Towers(branches=1), X, lanes=5, policy="single")
    with torch.no_grad():
        for _ in range(3):
            call(parallel, X)
    assert replays(recorder) == 2 and len(recorder.tapes[0].streams) == 1


def test_lanes_fork_from_the_captured_stream(recorder: Recorder) -> None:
    """With side streams of the capture's own, for other threads may issue on the usual ones meanwhile."""
    parallel = graphed(Towers(), X)
    with torch.no_grad():
        call(parallel, X)
        usual = {name for name, what in recorder.world.issued if what == "linear"}
        call(parallel, X)
    captured = {stream.name for stream in recorder.tapes[0].streams}
    assert len(captured) == len(usual) == 3 and not captured & usual


def test_what_is_captured_is_the_program(recorder: Recorder) -> None:
    """Op by op, in its order, on its lanes; planned for a machine whose host issues nothing."""
    parallel = graphed(Towers(), X)
    with torch.no_grad():
        call(parallel, X)
        before = len(recorder.world.issued)
        call(parallel, X)
    plan = parallel.plan
    names = {0: f"{GPU}/capture", 1: f"{GPU}/{(1 << 20) + 1}", 2: f"{GPU}/{(1 << 20) + 2}"}
    wanted = [
        (names[item.lane], plan.graph.by_name[op].target)
        for item in plan.program.instructions
        if isinstance(item, Run)
        for op in plan.tasks.by_name[item.task].ops
    ]
    assert [pair for pair in recorder.world.issued[before:] if pair[1] in ("linear", "tanh", "cat")] == wanted
    assert {device.overhead for device in plan.machine.devices} == {0.0}


def test_the_machine_as_captured() -> None:
    """Nobody's figure for a hand-off is replaced, only the assumed one."""
    spec = load_spec({"devices": [{"device": "cuda", "lanes": 2, "overhead": "9us"}], "cuda_graphs": True})
    (device,) = as_captured(build_machine(spec), spec).devices
    assert (device.overhead, device.handoff) == (0.0, 2e-6)
    spec = load_spec({"devices": [{"device": "cuda", "lanes": 2, "handoff": "7us"}], "cuda_graphs": True})
    assert as_captured(build_machine(spec), spec).devices[0].handoff == pytest.approx(7e-6)
    plain = load_spec({"devices": [{"device": "cuda", "lanes": 2}]})
    assert as_captured(build_machine(plain), plain) == build_machine(plain)


# -- backward ----------------------------------------------------------------------------------------------------------


def test_two_calls_before_their_backward(recorder: Recorder) -> None:
    """The second one is captured for itself, so that it does not write over what the first one has kept."""
    model = Towers()
    parallel = graphed(model, X)
    found = []
    for module in (model, parallel):
        for _ in range(4):
            module.zero_grad()
            one, two = (call(module, numbers(4, 6, seed=seed)) for seed in (1, 2))
            one.square().sum().backward()
            two.square().sum().backward()
        found.append([p.grad.clone() for p in module.parameters()])
    assert_same(*found)
    assert len({line.split()[-1] for line in recorder.log if line.startswith("capture")}) == 2


def test_too_many_calls_before_their_backward(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 3)
    parallel = graphed(Towers(), X, check=False)
    with pytest.raises(CaptureError, match="has 3 captures, 3 of which wait for their backward"):
        kept = [call(parallel, X) for _ in range(8)]
    kept = []  # noqa: F841
    gc.collect()
    call(parallel, X).sum().backward()


class TwoHeads(nn.Module):
    """Two results, each with a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.main, self.side = Tower(), Tower(), Tower()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Maps (batch, 6) to two of (batch, 6)."""
        h = self.stem(x)
        return self.main(h), self.side(h)


def test_what_a_backward_does_not_reach_has_no_gradient(recorder: Recorder) -> None:
    """``None`` as in eager, not zeros, which an optimizer would act on; each pattern is captured once it has been seen."""
    model = TwoHeads()
    parallel = graphed(model, X)
    for picked in (0, 0, 1, 1, None, None, 0, 1):
        found = []
        for module in (model, parallel):
            module.zero_grad()
            results = call(module, X)
            (results[0].sum() * results[1].sum() if picked is None else results[picked].sum()).backward()
            found.append([None if p.grad is None else p.grad.clone() for p in module.parameters()])
        assert_same(*found)
        assert picked is None or None in found[0]
    assert captures(recorder) == 4


def test_backward_twice(recorder: Recorder) -> None:
    """With retain_graph as in eager; without it, it is refused as in eager."""
    model = Towers()
    parallel = graphed(model, X)
    for _ in range(3):
        found = []
        for module in (model, parallel):
            module.zero_grad()
            loss = call(module, X).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            found.append([p.grad.clone() for p in module.parameters()])
        assert_same(*found)
    result = call(parallel, X)
    result.sum().backward()
    with pytest.raises(CaptureError, match="pass retain_graph=True to the first one"):
        result.sum().backward()


def test_gradients_of_gradients_are_refused(recorder: Recorder) -> None:
    parallel = graphed(Towers(), X)
    for _ in range(2):
        result = call(parallel, X)
    with pytest.raises(CaptureError, match="create_graph=True"):
        torch.autograd.grad(result.sum(), list(parallel.parameters()), create_graph=True, allow_unused=True)


def test_a_parameter_written_before_backward_is_refused(recorder: Recorder) -> None:
    """As in eager, which would say so, too: backward needs what it was."""
    model = Towers()
    parallel = graphed(model, X)
    for _ in range(2):
        result = call(parallel, X)
    with torch.no_grad():
        parallel.head.weight.add_(1.0)
    with pytest.raises(CaptureError, match="a parameter was written after forward"):
        result.sum().backward()


def test_hooks_of_parameters_are_called_once(recorder: Recorder) -> None:
    parallel = graphed(Towers(), X)
    called = []
    parallel.head.weight.register_hook(lambda gradient: called.append(gradient.shape))
    for number in range(1, 5):
        step(parallel, X)
        assert len(called) == number


# -- refusals ----------------------------------------------------------------------------------------------------------


class Reading(nn.Module):
    """Something that a capture may not do, between two towers."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.left, self.right, self.between = Tower(), Tower(), between

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        return self.right(self.between(self.left(x)))


def positives(x: Tensor) -> Tensor:
    """Takes as many as data says."""
    return x * x[x > 0].sum()


def test_what_waits_for_the_device_is_told_with_its_op(recorder: Recorder) -> None:
    """Seen in the first call, so that no capture is begun."""
    parallel = graphed(Reading(positives), X, check=False)
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(CaptureError, match=r"waits for the device.*getitem = .*test_cuda_graphs.py:\d+.*Leave cuda"):
                call(parallel, X)
    assert recorder.log == []


def test_a_capture_that_fails(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own refusal, each time, with op and line; the stream is the caller's again, and other modules go on."""
    monkeypatch.setattr(recorder, "watched", lambda: nullcontext([]))
    parallel, other = graphed(Reading(positives), X, check=False), graphed(Towers(), X)
    before = recorder.current()
    with torch.no_grad():
        call(parallel, X)
        for _ in range(2):
            with pytest.raises(CaptureError, match=r"in op getitem.*test_cuda_graphs.py:\d+: CUDA error.*not permitted"):
                call(parallel, X)
            assert recorder.current() is before and not before.is_capturing()
            assert_same(other.original(X), values(call(other, X)))


AUTOCAST = Mode(autocast=(("cuda", True, "bfloat16"),))

CHANGES: list[tuple[str, dict[str, Any]]] = [
    (r"what stem_linear = .*lanes.py:\d+ does besides is not known", {"accesses": (Access(ANY, True),)}),
    ("sends to other ranks", {"accesses": (Access(SENT, True),)}),
    ("is under an autocast that keeps weights; write cache_enabled=False there", {"mode": AUTOCAST}),
    ("looks at the memory around an argument", {"target": "as_strided", "storages": ("x",)}),
]


def streams_of(model: nn.Module) -> Any:
    """The program of a model as it is issued on streams."""
    parallel = graphed(model, X)
    call(parallel, X)
    return parallel._partitioner_programs.pieces[-1].executable.plainly


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("reason", "change"), CHANGES, ids=[reason for reason, _ in CHANGES])
def test_programs_that_can_never_be_captured(recorder: Recorder, reason: str, change: dict[str, Any]) -> None:
    """Told by their ops, before anything runs."""
    streams = streams_of(Towers())
    graph = streams.plan.graph
    first = replace(graph.ops[0], **change)
    assert "x" in graph.arguments
    twin = copy.copy(streams)
    twin.plan = replace(streams.plan, graph=replace(graph, ops=(first, *graph.ops[1:])))
    with pytest.raises(CaptureError, match=rf"Towers cannot be captured as a CUDA graph: .*{reason}.*Leave cuda_graphs out"):
        graphs.Graphed(twin)


def test_random_numbers_in_backward_are_refused(recorder: Recorder) -> None:
    """While gradients are recorded, and only then: a recomputed dropout would draw inside of the graph."""
    streams = streams_of(Towers())
    graph = streams.plan.graph
    twin = copy.copy(streams)
    drawing = replace(graph.ops[0], accesses=(*graph.ops[0].accesses, Access(LATER, True)))
    twin.plan = replace(streams.plan, graph=replace(graph, ops=(drawing, *graph.ops[1:])))
    made = graphs.Graphed(twin)
    arguments = [put(p, GPU).requires_grad_() for p in Towers().parameters()]
    with pytest.raises(CaptureError, match=r"captured with its backward: .* draws random numbers in its backward"):
        made._refuse_arguments(arguments if len(arguments) == len(graph.arguments) else [*arguments, put(X, GPU)])


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only lanes of one CUDA device; what to do is said, before anything is traced."""
    with pytest.raises(SpecError, match=r"one CUDA device, and the devices are cpu. Leave cuda_graphs out; CPU lanes"):
        partition(Towers(), ["cpu:0", "cpu:1"], cuda_graphs=True)
    with pytest.raises(SpecError, match=r'the devices are cuda:0, cuda:1. Name one, with its lanes: devices=\["cuda:0"'):
        partition(Towers(), ["cuda:0", "cuda:1"], cuda_graphs=True)
    with pytest.raises(SpecError, match=r"the devices are cuda:0, cpu. Name one"):
        partition(Towers(), ["cuda:0", "cpu"], spec={"cuda_graphs": True})
    with pytest.raises(SpecError, match='cuda_graphs= is for backend streams, and not "reference"'):
        partition(Towers(), ["cuda:0", "cuda:0"], backend="reference", cuda_graphs=True)


def test_the_spec(tmp_path: Any) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text("devices: [{device: cuda, lanes: 4}]\ncuda_graphs: true\n")
    assert load_spec(path).cuda_graphs and not load_spec().cuda_graphs
    with pytest.raises(SpecError, match="cuda_graphs"):
        load_spec({"cuda_graphs": "yes"})


def test_surroundings_are_refused(recorder: Recorder) -> None:
    """Somebody else's capture, modes of Python's, an autocast that keeps what it casts."""
    parallel = graphed(Towers(), X)
    with torch.no_grad():
        for _ in range(2):
            call(parallel, X)
        x = put(X, GPU)
        with pytest.raises(CaptureError, match="is being captured already"), recorder.capture(GPU, 7):
            parallel(x)
        with (
            pytest.raises(CaptureError, match="hooks on saved tensors"),
            torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        ):
            parallel(x)
        with pytest.raises(CaptureError, match="cache_enabled=False"), torch.autocast("cpu", torch.bfloat16):
            parallel(x)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                assert_same(parallel.original(X), values(parallel(x)))


def test_a_default_device_is_no_mode_that_a_replay_would_not_see(recorder: Recorder) -> None:
    """What it decides is burned in, and a guard asks for it. Those who write it once, for all of a script, were refused."""
    model = Towers()
    torch.set_default_device("cpu")
    try:
        parallel = graphed(model, X, check=False)
        with torch.no_grad():
            for _ in range(3):
                assert_same(model(X), values(call(parallel, X)))
    finally:
        torch.set_default_device(None)
    assert (captures(recorder), replays(recorder)) == (1, 2)


def test_state_elsewhere_and_overlapping_arguments(recorder: Recorder) -> None:
    parallel = graphed(Towers(), X, check=False)
    windows = numbers(9).unfold(0, 6, 1)
    windows.place = GPU  # type: ignore[attr-defined]
    with torch.no_grad(), pytest.raises(CaptureError, match=r"argument .*x.* has elements that lie at one address"):
        parallel(windows)


# -- random modules ----------------------------------------------------------------------------------------------------


@given(model=modules(max_steps=8), lanes=st.integers(1, 3), train=st.booleans(), grad=st.booleans())
@settings(max_examples=settings.default.max_examples // 2)
def test_random_modules(model: GeneratedModule, lanes: int, train: bool, grad: bool) -> None:
    """Whatever the module does: four calls as in eager, or a refusal that says why."""
    torch.set_num_threads(1)
    model.train(train)
    inputs = [x.detach() for x in model.example_inputs()]
    eager = copy.deepcopy(model)
    with pytest.MonkeyPatch.context() as patch, recording(patch) as recorder, torch.set_grad_enabled(grad):
        try:
            parallel = graphed(model, *inputs, lanes=lanes, check=False)
            for seed in range(4):
                wanted, found = (call(module, *inputs, seed=seed) for module in (eager, parallel))
                assert_same(values(wanted), values(found))
                assert_same(*(_gradients(module, tree) for module, tree in ((eager, wanted), (parallel, found))))
        except CaptureError as error:
            assert "cuda_graphs" in str(error)
        assert recorder.world.faults() == []


def _gradients(module: nn.Module, tree: Any) -> list[Tensor | None]:
    """Gradients of parameters, and none left behind."""
    module.zero_grad()
    attached = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if attached:
        torch.autograd.backward([leaf.sum() for leaf in attached])
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


# -- on a GPU ----------------------------------------------------------------------------------------------------------

REAL = "cuda:0"


@pytest.fixture
def exact() -> Iterator[None]:
    """Kernels that give the same bits whenever they are called; a device that is idle afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = (
        False,
        False,
        True,
    )
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before
    torch.cuda.synchronize()


def twins(model: nn.Module, *inputs: Tensor, lanes: int = 3) -> tuple[nn.Module, Parallel]:
    """The model on a GPU, and a copy of it on several lanes there, as CUDA graphs."""
    model = model.to(REAL)
    given = tuple(x.to(REAL) for x in inputs)
    parallel = partition(model, example_inputs=given, spec=gpu_spec(cuda0=lanes), copy=True, cuda_graphs=True)
    assert len(set(parallel.placement.lane.values())) > 1, "the test wants several lanes"
    return model, parallel


def captured(parallel: Parallel) -> int:
    """How many captures there are."""
    pieces = parallel._partitioner_programs.pieces
    return sum(len(some) for piece in pieces for some in piece.executable.kinds.values())


def both(modules: tuple[nn.Module, ...], run: Callable[[nn.Module], Any], seed: int) -> None:
    """Run on each module from one seed; the results are the same bits."""
    found = []
    for module in modules:
        torch.manual_seed(seed)
        found.append(values(run(module)))
    assert_same(*found)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_eval() -> None:
    """Two sizes in turns, results kept over calls."""
    pair = twins(Towers(width=WIDTH).eval(), numbers(32, WIDTH))
    with torch.no_grad():
        kept = []
        for seed in range(20):
            x = numbers(32 if seed % 3 else 8, WIDTH, seed=seed).to(REAL)
            kept.append((pair[0](x), pair[1](x)))
        for wanted, found in kept:
            assert_same(wanted, found)
    assert captured(pair[1]) == 2


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_training() -> None:
    """Dropout from one seed, batch norm, Adam, fifty steps: losses, gradients, state and random state, to the bit."""
    pair = twins(Pair(), numbers(32, WIDTH))
    optimizers = {id(module): torch.optim.Adam(module.parameters(), lr=1e-2) for module in pair}

    def one_step(module: nn.Module, x: Tensor) -> Any:
        optimizers[id(module)].zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
        optimizers[id(module)].step()
        return loss, gradients, torch.cuda.get_rng_state()

    for seed in range(50):
        x = numbers(32, WIDTH, seed=seed).to(REAL)
        both(pair, lambda module: one_step(module, x), seed)  # noqa: B023 - it is called at once
    assert_same_state(*pair)
    assert captured(pair[1]) == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_gpu_training_with_inductor() -> None:
    """Its kernels are captured, forward and backward; a captured forward keeps its graph, which torch's backward may refuse."""
    model, x = Pair().eval().to(REAL), numbers(32, WIDTH).to(REAL)
    spec = gpu_spec(cuda0=2)
    parallel = partition(model, example_inputs=x, spec=spec, copy=True, check=False, cuda_graphs=True, compile_tasks="inductor")
    for _ in range(5):
        for module in (model, parallel):
            module.zero_grad()
            module(x).square().sum().backward()
        for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
            torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-3)
    (piece,) = parallel._partitioner_programs.pieces
    assert captured(parallel) == 1 and piece.executable.plainly.compiled_ops and not piece.executable.plainly.reasons


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_statistics_and_dropout() -> None:
    pair = twins(nn.Sequential(nn.Linear(WIDTH, 6), NormedTowers()), numbers(32, WIDTH))
    for seed in range(8):
        x = numbers(32, WIDTH, seed=seed).to(REAL)
        with torch.set_grad_enabled(seed % 2 == 0):
            both(pair, lambda module: module(x), seed)  # noqa: B023
        assert_same_state(*pair)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_two_calls_before_their_backward() -> None:
    pair = twins(Pair().eval(), numbers(32, WIDTH))

    def steps(module: nn.Module) -> Any:
        module.zero_grad()
        one, two = (module(numbers(32, WIDTH, seed=seed).to(REAL)) for seed in (1, 2))
        one.square().sum().backward()
        two.square().sum().backward()
        return [p.grad for p in module.parameters()]

    for seed in range(5):
        both(pair, steps, seed)
    assert captured(pair[1]) == 2


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_what_backward_does_not_reach() -> None:
    pair = twins(TwoHeads(), X)
    for picked in (0, 0, 1, 1, 0, 1):

        def one_step(module: nn.Module, picked: int = picked) -> Any:
            module.zero_grad()
            module(X.to(REAL))[picked].sum().backward()
            return [None if p.grad is None else p.grad.clone() for p in module.parameters()]

        both(pair, one_step, 0)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_a_parameter_that_has_moved() -> None:
    pair = twins(Towers(width=WIDTH).eval(), numbers(32, WIDTH))
    x = numbers(32, WIDTH).to(REAL)
    with torch.no_grad():
        for _ in range(3):
            both(pair, lambda module: module(x), 0)
        for module in pair:
            module.head.weight.data = module.head.weight.data * 0.5
        for _ in range(3):
            both(pair, lambda module: module(x), 0)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_a_buffer_that_is_replaced() -> None:
    """Its new value is a result, and lies elsewhere each time: captured again, and right."""
    pair = twins(Counting().eval(), numbers(32, WIDTH))
    with torch.no_grad():
        for seed in range(6):
            both(pair, lambda module: module(numbers(32, WIDTH, seed=seed).to(REAL)), seed)  # noqa: B023
    assert_same_state(*pair)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_callers_on_several_streams() -> None:
    pair = twins(Towers(width=WIDTH).eval(), numbers(32, WIDTH))
    streams = [torch.cuda.Stream() for _ in range(3)]
    batches = [numbers(32, WIDTH, seed=seed).to(REAL) for seed in range(60)]
    with torch.no_grad():
        wanted = [pair[0](x) for x in batches]
        torch.cuda.synchronize()
        found = []
        for number, x in enumerate(batches):
            with torch.cuda.stream(streams[number % 3]):
                found.append(pair[1](x))
        torch.cuda.synchronize()
    assert_same(wanted, found)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_a_thread_that_comes_second() -> None:
    """cuBLAS and cuDNN have made nothing for it yet, which they cannot do in a capture: it issues its first call."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 8)).eval().to(REAL)
    x = numbers(4, 3, 8, 8).to(REAL)
    parallel = partition(model, [REAL], example_inputs=x, copy=True, check=False, cuda_graphs=True)

    def run() -> Tensor:
        with torch.no_grad():
            return parallel(x)  # type: ignore[no-any-return]

    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        found = [run(), *(pool.submit(run).result() for _ in range(3)), run()]
        assert_same([model(x)] * 5, found)
    assert captured(parallel) == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_what_waits_is_refused_and_the_device_goes_on() -> None:
    """In the first call, in torch's own words for it; debugging of waits is as it was."""
    model = Reading(positives).to(REAL)
    parallel = partition(model, example_inputs=X.to(REAL), spec=gpu_spec(cuda0=2), copy=True, check=False, cuda_graphs=True)
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(CaptureError, match=r"waits for the device, which a CUDA graph cannot: \w+ = "):
                parallel(X.to(REAL))
        assert torch.cuda.get_sync_debug_mode() == 0
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert_same(model(X.to(REAL)), model(X.to(REAL)))
        pair = twins(Towers(), X)
        for _ in range(3):
            both(pair, lambda module: module(X.to(REAL)), 0)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("used", [1, 2])
def test_gpu_lanes_that_are_not_used(used: int) -> None:
    """A capture waits for no stream outside of it."""
    model = Towers(branches=used, width=WIDTH).eval().to(REAL)
    x = numbers(32, WIDTH).to(REAL)
    parallel = partition(model, example_inputs=x, spec=gpu_spec(cuda0=6), copy=True, cuda_graphs=True)
    with torch.no_grad():
        for _ in range(3):
            assert_same(model(x), parallel(x))


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gpu_memory_is_given_back() -> None:
    """A module that is gone leaves none of its graphs' memory behind."""
    x, left = numbers(32, WIDTH).to(REAL), []
    for _ in range(3):
        pair = twins(Pair().eval(), x)
        for _ in range(4):
            pair[1](x).sum().backward()
        assert captured(pair[1]) == 1
        del pair
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        left.append(torch.cuda.memory_reserved())
    assert left[2] <= left[0]
