"""The streams backend on accelerators that are not there: what it issues where, what orders it, and what it leaves behind.

`pretend` tells what a GPU would be free to reorder. So these tests find a missing wait although every op runs at once.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import NormedTowers, Tower, Towers, assert_same, numbers
from pretend import MIXED, TWO, Stream, WatchedStreams, World, pretending, put, spread
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partitioner.backends import streams
from partitioner.backends.bodies import Compiler
from partitioner.backends.compiling.compilers import COMPILERS
from partitioner.backends.streams import StreamLaunch
from partitioner.ir.plan import Plan
from partitioner.ir.program import Copy, Run, Wait
from partitioner.lower.rules import Case, race
from partitioner.testing import GeneratedModule, modules

X = numbers(4, 6)

LANES: dict[str, dict[str, int]] = {
    "one GPU": {"lazy:0": 3},
    "two GPUs": {"lazy:0": 2, "lazy:1": 2},
    "GPU and CPU": {"lazy:0": 2, "cpu": 1},
    "GPU and CPU lanes": {"lazy:0": 1, "cpu": 3},
    "three GPUs and CPU lanes": {"lazy:1": 1, "lazy:0": 2, "lazy:2": 1, "cpu": 2},
}
EACH = pytest.mark.parametrize("lanes", LANES.values(), ids=LANES)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world for one test."""
    with pretending(monkeypatch) as made:
        yield made


class Bench:
    """A module over pretended devices, called as a caller would: with tensors that were just made there."""

    def __init__(
        self, world: World, model: nn.Module, inputs: tuple[Tensor, ...], lanes: Mapping[str, int], **options: Any
    ) -> None:
        self.world, self.hardware = world, world.hardware
        self.parallel = spread(model, inputs, lanes, copy=True, check=False, **options)

    def __call__(self, *inputs: Tensor) -> Any:
        """Call it, and read the results at once."""
        result = self.only_call(*inputs)
        self.world.call("the caller", reads=pytree.tree_leaves(result))
        return result

    def only_call(self, *inputs: Tensor) -> Any:
        """Call it with inputs where the plan wants them."""
        names = inspect.signature(self.parallel.forward).parameters
        known, first = self.plan.program.by_name, self.plan.machine.lanes[0].torch_device
        homes = (known[name].torch_device if name in known else first for name in names)
        return self.parallel(*[put(x, home) for x, home in zip(inputs, homes, strict=True)])

    @property
    def plan(self) -> Plan:
        """The plan of the program that ran last."""
        return self.parallel.plan  # type: ignore[no-any-return]

    @property
    def faults(self) -> list[str]:
        """What nothing orders, so far."""
        return self.world.faults()

    def stream_of(self, lane: int) -> str:
        """The name of a lane's stream."""
        device = self.plan.machine.lanes[lane].torch_device
        return f"{device}/caller" if lane == 0 else f"{device}/{lane}"


def values(tree: Any) -> Any:
    """Tensors without their history and their place."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), tree)


# -- what is issued --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [LANES["one GPU"], LANES["two GPUs"]], ids=["one GPU", "two GPUs"])
def test_every_op_is_issued_on_its_lanes_stream(world: World, lanes: dict[str, int]) -> None:
    """Op by op, in the order of the program."""
    bench = Bench(world, Towers(), (X,), lanes)
    bench(X)
    wanted = []
    for item in bench.plan.program.instructions:
        if isinstance(item, Run):
            ops = bench.plan.tasks.by_name[item.task].ops
            wanted += [(bench.stream_of(item.lane), bench.plan.graph.by_name[op].target) for op in ops]
    assert [pair for pair in world.issued if pair[1] in ("linear", "tanh", "cat")] == wanted
    assert len({stream for stream, _ in wanted}) == 3


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("grad", [True, False])
def test_everything_is_ordered_and_equal(world: World, lanes: dict[str, int], grad: bool) -> None:
    """Several calls; the caller writes inputs before and reads outputs after."""
    model = Towers()
    bench = Bench(world, model, (X,), lanes)
    assert len(set(bench.plan.placement.lane.values())) > 1
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            assert_same(values(model(X)), values(bench(X)))
    assert bench.faults == []


@EACH
def test_state_that_is_written(world: World, lanes: dict[str, int]) -> None:
    """Batch norm's statistics and random numbers, on whatever streams they are: equal to eager over several calls."""
    model = NormedTowers()
    bench = Bench(world, model, (X,), lanes)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = model(X).detach()
        torch.manual_seed(seed)
        assert_same(expected, values(bench(X)))
    assert_same(values(dict(model.state_dict())), values(dict(bench.parallel.state_dict())))
    assert bench.faults == []


@EACH
def test_the_caller_may_go_on_at_once(world: World, lanes: dict[str, int]) -> None:
    """Right after the call it overwrites inputs and parameters, as an optimizer does: after everyone who read them."""
    bench = Bench(world, Towers(), (X,), lanes)
    with torch.no_grad():
        for _ in range(2):
            x = put(X, "lazy:0")
            bench.parallel(x)
            world.call("the optimizer", writes=[x, *bench.parallel.parameters()])
    assert bench.faults == []


class Mixed(nn.Module):
    """Inputs on several devices, a value that many read, views, in-place ops, two outputs, one of them an input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.third = Tower(), Tower(), Tower()

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Maps two inputs to a dict."""
        left, right = self.left(x), self.right(y)
        total = left + right
        half = total[:, :3]
        before = self.third(total)
        half.mul_(2.0)
        return {"sum": total + before, "half": half.sigmoid(), "left": left, "given": x}


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("grad", [True, False])
def test_views_and_writes(world: World, lanes: dict[str, int], grad: bool) -> None:
    model, inputs = Mixed(), (X, numbers(4, 6, seed=2))
    bench = Bench(world, model, inputs, lanes)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            assert_same(values(model(*inputs)), values(bench(*inputs)))
    assert bench.faults == []


@EACH
def test_gradients(world: World, lanes: dict[str, int]) -> None:
    """Backward through copies and streams gives what eager gives."""
    model = Towers(branches=2)
    bench = Bench(world, model, (X,), lanes)
    bench(X).square().sum().backward()
    model(X).square().sum().backward()
    for (name, mine), theirs in zip(model.named_parameters(), bench.parallel.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-5, atol=1e-6, msg=name)


class Talkative(Towers):
    """Python decides on data in the middle, and prints."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 2)."""
        towers = [tower(x) for tower in self.towers]
        if towers[0].sum() > 100:
            return x
        print("half")
        return self.head(torch.cat([tower(h) for tower, h in zip(self.towers, towers, strict=True)], 1))


@pytest.mark.parametrize("grad", [True, False])
def test_in_pieces_on_one_gpu(world: World, capsys: pytest.CaptureFixture[str], grad: bool) -> None:
    """Each graph runs on the streams, Python between them on the caller's; the summary names the lines where a graph ends."""
    model = Talkative()
    bench = Bench(world, model, (X,), LANES["one GPU"])
    with torch.set_grad_enabled(grad):
        for batch in (4, 4, 3, 5):
            x = numbers(batch, 6)
            torch.testing.assert_close(values(bench(x)), values(model(x)), rtol=1e-6, atol=1e-6)
    assert capsys.readouterr().out == "half\n" * 8
    assert bench.faults == []
    assert {stream for stream, what in world.issued if what == "linear"} == {"lazy:0/caller", "lazy:0/1", "lazy:0/2"}
    first = inspect.getsourcelines(Talkative.forward)[1]
    assert f"decides on the value of a tensor (at {__file__}:{first + 3})" in str(bench.parallel)
    assert "runs as it is" not in str(bench.parallel)


# -- what is left behind ---------------------------------------------------------------------------------------------


FAILS: list[bool] = []


@torch._dynamo.allow_in_graph
def fragile(x: Tensor) -> Tensor:
    """An op of the graph that fails as long as `FAILS` holds something."""
    if FAILS:
        raise ZeroDivisionError
    return x * 1


class Fragile(Towers):
    """Towers of which the last one may fail."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 2)."""
        first, *others, last = self.towers
        h = self.stem(x)
        return self.head(torch.cat([first(h), *(tower(h) for tower in others), fragile(last(h))], 1))


@pytest.fixture
def failing() -> Iterator[Any]:
    """Calls something that fails."""

    def fail(call: Any) -> None:
        FAILS.append(True)
        with pytest.raises(ZeroDivisionError):
            call()
        FAILS.clear()

    yield fail
    FAILS.clear()


def callers(world: World, plan: Plan) -> dict[str, Any]:
    """The calling thread's current stream on each device, and its device."""
    devices = {lane.torch_device for lane in plan.machine.lanes if lane.kind != "cpu"}
    return {device: world.current(device).name for device in devices}


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_streams_and_device_are_restored(world: World, lanes: dict[str, int], fails: bool, failing: Any) -> None:
    """Also when an op raises, and where the caller's device is none of the plan's."""
    bench = Bench(world, Fragile(), (X,), lanes)
    bench(X)
    own = world.stream("lazy:0/own", "lazy:0")
    bench.hardware.set_stream(own)
    bench.hardware.set_device(5)
    before = callers(world, bench.plan)
    assert "lazy:0/own" in before.values()
    failing(lambda: bench(X)) if fails else bench(X)
    assert callers(world, bench.plan) == before
    assert bench.hardware.current_device() == 5


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("fails", [False, True])
def test_side_streams_are_joined(world: World, lanes: dict[str, int], fails: bool, failing: Any) -> None:
    """What the caller issues next, on any device, comes after all that was issued: otherwise a capture would fail, too."""
    bench = Bench(world, Fragile(), (X,), lanes)
    bench.only_call(X)
    failing(lambda: bench.only_call(X)) if fails else bench.only_call(X)
    lanes_used = {bench.stream_of(lane) for lane in range(len(bench.plan.machine.lanes))}
    for device in callers(world, bench.plan):
        clock = world.current(device).clock
        for name in lanes_used & world.streams.keys():
            assert clock.get(name, 0) >= world.streams[name].clock.get(name, 0), f"{device} does not wait for {name}"


@EACH
def test_events_are_used_again(world: World, lanes: dict[str, int], failing: Any) -> None:
    """A call takes as many as it records and gives all of them back, also when it fails."""
    bench = Bench(world, Fragile(), (X,), lanes)
    bench(X)
    made = bench.hardware.made
    failing(lambda: bench(X))
    for _ in range(3):
        bench(X)
    assert bench.hardware.made == made == len(bench.hardware.spare) > 0
    assert bench.faults == []


def test_streams_are_used_again(world: World) -> None:
    """Two modules on the same lanes share their side streams: a process has few."""
    for _ in range(3):
        Bench(world, Towers(), (X,), {"lazy:0": 3})(X)
    assert sorted(name for name in world.streams if name.startswith("lazy")) == ["lazy:0/1", "lazy:0/2", "lazy:0/caller"]


# -- memory ----------------------------------------------------------------------------------------------------------


def announced(world: World) -> set[tuple[int, str]]:
    """Storage and stream of every `record_stream`."""
    return {(storage.serial, name) for storage in world.storages for name in storage.announced}


def read_elsewhere(world: World) -> set[tuple[int, str]]:
    """Storage and stream of every read on another stream than the one that allocated, of memory of the call's own."""
    return {
        (storage.serial, access.actor)
        for storage in world.storages
        for access in storage.accesses
        if storage.device.startswith("lazy") and access.actor != storage.allocated and access.actor.startswith(storage.device)
    }


@pytest.mark.parametrize("lanes", [LANES["one GPU"], LANES["two GPUs"]], ids=["one GPU", "two GPUs"])
def test_values_read_on_another_lane_are_announced_with_gradients(world: World, lanes: dict[str, int]) -> None:
    """Autograd may save a value on the lane that reads it, and let go of it before that lane's backward has run.

    Parameters are the caller's to keep, and copies between devices are saved by nobody.
    """
    bench = Bench(world, Towers(), (X,), lanes)
    kept = bench(X)
    parameters = {world.storage(parameter).serial for parameter in bench.parallel.parameters()}
    transfers = {stream for stream in world.streams if stream.endswith("/-1")}
    wanted = {
        (serial, stream) for serial, stream in read_elsewhere(world) if serial not in parameters and stream not in transfers
    }
    assert wanted and wanted <= announced(world)
    assert kept.requires_grad


@pytest.mark.parametrize("lanes", [LANES["one GPU"], LANES["two GPUs"]], ids=["one GPU", "two GPUs"])
def test_without_gradients_only_outputs_are_announced(world: World, lanes: dict[str, int]) -> None:
    """`record_stream` makes the allocator's reuse depend on timing, and the program knows better when memory is free."""
    bench = Bench(world, Mixed(), (X, X), lanes)
    with torch.no_grad():
        kept = pytree.tree_leaves(bench(X, X))
        for leaf in kept:
            storage = world.storage(leaf)
            assert f"{leaf.device}/caller" in storage.announced | {storage.allocated}
    returned = {world.storage(leaf).serial for leaf in kept}
    assert {serial for serial, _ in announced(world)} <= returned


@pytest.mark.sampled(1)
@EACH
def test_callers_on_streams_of_their_own(world: World, lanes: dict[str, int]) -> None:
    """Side streams are everybody's. A value that the first caller's stream was the last to read goes back to a side stream,
    which the next caller, on another stream, uses without waiting for the first one's.
    """
    bench = Bench(world, Towers(), (X,), lanes)
    with torch.no_grad():
        for number in range(3):
            bench.hardware.set_stream(world.stream(f"lazy:0/user{number}", "lazy:0"))
            bench(X)
    assert bench.faults == []


def test_memory_is_not_reused_too_early(world: World) -> None:
    """Without gradients the program frees values on the lane that allocated them, after every reader. The world checks that.

    So a program whose frees come too early must be caught: here a stream does not wait before it frees.
    """
    model = Towers()
    bench = Bench(world, model, (X,), {"lazy:0": 3})
    with torch.no_grad():
        for _ in range(4):
            bench(X)
        assert bench.faults == []
        early = Bench(world, model, (X,), {"lazy:0": 3})
        for number in range(world.made[-1].parallel.events):
            with pytest.MonkeyPatch.context() as patch:
                skip_waits(patch, {number})
                early(X)
    assert any("may use memory again" in fault for fault in early.faults)


# -- copies ----------------------------------------------------------------------------------------------------------


def test_copies_towards_the_cpu_block(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that does not block gives memory that is not filled yet to a CPU that does not wait. The world sees that."""
    bench = Bench(world, Towers(), (X,), LANES["GPU and CPU"])
    assert any(isinstance(item, Copy) and item.target.endswith("@cpu") for item in bench.plan.program.instructions)
    bench(X)
    assert bench.faults == []
    original = streams.move
    monkeypatch.setattr(streams, "move", lambda value, device, **options: original(value, device, non_blocking=True))
    bench(X)
    assert any("host" in fault for fault in bench.faults)


class Ladder(nn.Module):
    """Two towers over two inputs, whose halves change places in between: every device hands something to every other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.ModuleList(Tower() for _ in range(4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 24)."""
        parts = [tower(x) for tower in self.first]
        return torch.cat([tower(parts[n] + parts[n - 1]) for n, tower in enumerate(self.second)], 1)


@pytest.mark.parametrize("grad", [True, False])
def test_copies_through_the_host(world: World, grad: bool) -> None:
    """Where copies between two GPUs do not arrive intact. The host waits for the lane that makes the value."""
    model = Ladder()
    bench = Bench(world, model, (X,), LANES["two GPUs"])
    bench.hardware.broken |= {("lazy:0", "lazy:1"), ("lazy:1", "lazy:0")}
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            assert_same(values(model(X)), values(bench(X)))
    assert {what for _, what in world.issued if what.startswith("copy")} == {"copy to cpu", "copy to lazy:0", "copy to lazy:1"}
    assert bench.faults == []


def test_copies_leave_no_lane_waiting(world: World) -> None:
    """A copy between GPUs runs on the source's current stream: on one of its own, and none of that device's lanes is held."""
    bench = Bench(world, Towers(), (X,), LANES["two GPUs"])
    bench(X)
    copies = {stream for stream, what in world.issued if what.startswith("copy to lazy")}
    assert copies and all(stream.endswith("/-1") for stream in copies)


def test_a_copy_to_the_cpu_waits_for_what_it_copies_and_no_more(world: World) -> None:
    """The GPU's branch has been issued when the CPU fetches what it reads. Its copy waited for all of the caller's stream,
    which is the GPU's lane, and so the two never ran at once.
    """
    pins = [{"match": match, "device": "lazy:0"} for match in ("stem*", "towers.0*", "head*")]
    bench = Bench(world, Towers(branches=2), (X,), MIXED, pins=[*pins, {"match": "towers.1*", "device": "cpu"}])
    with torch.no_grad():
        bench(X)
    issued = [what for stream, what in world.issued[: world.issued.index(("lazy:0/-1", "copy to cpu"))] if stream != "cpu"]
    assert issued == ["the caller", "linear", "linear", "tanh", "linear"]
    (clock,) = (one.clock for each in world.storages for one in each.accesses if one.what == "copy to cpu" and not one.write)
    assert clock["lazy:0/caller"] == len(["the caller", "linear"])
    assert bench.faults == []


def test_what_an_op_said_is_raised_where_nothing_can_be_joined_any_more(
    world: World, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that has failed, and a capture that is over, refuse every wait that follows: that was raised, without the op."""
    bench = Bench(world, Fragile(), (X,), LANES["two GPUs"])
    bench(X)
    before = callers(world, bench.plan)

    def refused(stream: Stream, other: Stream) -> None:
        if FAILS:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    monkeypatch.setattr(Stream, "wait_stream", refused)
    FAILS.append(True)
    monkeypatch.setattr(StreamLaunch, "enter", lambda launch: None)
    with pytest.raises(ZeroDivisionError) as caught:
        bench(X)
    assert "fragile" in "".join(caught.value.__notes__)
    assert callers(world, bench.plan) == before


def test_torch_is_told_that_gradients_come_from_several_streams(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What two lanes read has gradients of both streams. Since 2.11 torch warned that this was a mistake of the user's."""
    told: list[bool] = []
    monkeypatch.setattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", told.append)
    Bench(world, Towers(), (X,), MIXED)(X)
    assert told == []
    Bench(world, Towers(), (X,), LANES["one GPU"])(X)
    assert set(told) == {False}


# -- the tests themselves --------------------------------------------------------------------------------------------


def skip_waits(patch: pytest.MonkeyPatch, events: set[int]) -> None:
    """Let streams not wait for these events; hosts still do, or values would not be there."""
    original = StreamLaunch.wait

    def wait(self: StreamLaunch, event: int, lane: int) -> None:
        if event in events and lane in self.streams:
            self.recorded.get(event)
            return
        original(self, event, lane)

    patch.setattr(StreamLaunch, "wait", wait)


def test_a_missing_wait_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any wait, everything that crosses streams is unordered: both the reads and what the caller does next."""
    bench = Bench(world, Towers(), (X,), {"lazy:0": 3})
    skip_waits(monkeypatch, set(range(100)))
    bench(X)
    assert any("linear on lazy:0/1" in fault for fault in bench.faults)


@pytest.mark.parametrize("part", ["enter", "end"])
def test_a_missing_entry_or_exit_is_seen(world: World, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The other devices' lanes must start after their callers' streams, and these must go on after the lanes."""
    inputs = (X, numbers(4, 6, seed=2))
    bench = Bench(world, Mixed(), inputs, TWO)
    original = getattr(StreamLaunch, part)

    def waiting_for_nobody(call: StreamLaunch) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stream, "wait_stream", lambda stream, other: None)
            original(call)

    monkeypatch.setattr(StreamLaunch, part, waiting_for_nobody)
    with torch.no_grad():
        bench(*inputs)
        world.call("the optimizer", writes=list(bench.parallel.parameters()))
    found = bench.faults
    assert found and all("lazy:1" in fault for fault in found)


def test_each_wait_that_is_needed(world: World) -> None:
    """Each Wait that the verifier wants is taken out in turn: the world, which knows nothing of the plan, misses it too."""
    model = Mixed()
    inputs = (X, numbers(4, 6, seed=2))
    bench = Bench(world, model, inputs, {"lazy:0": 3})
    with torch.no_grad():
        bench(*inputs)
    piece, plan = bench.parallel._partitioner_programs.shown, bench.plan
    program = plan.program
    wanted = caught = 0
    for index, item in enumerate(program.instructions):
        if not isinstance(item, Wait):
            continue
        less = replace(program, instructions=program.instructions[:index] + program.instructions[index + 1 :])
        if not list(race(Case(less))):
            continue
        wanted += 1
        world.storages.clear(), world.alive.clear(), world.references.clear(), world.early.clear()
        piece.executable = WatchedStreams(replace(plan, program=less), world)
        with torch.no_grad():
            bench(*inputs)
        caught += bool(world.faults())
    assert wanted >= 3 and caught == wanted


# -- random modules --------------------------------------------------------------------------------------------------


@given(
    model=modules(max_steps=8),
    lanes=st.sampled_from(list(LANES.values())),
    train=st.booleans(),
    grad=st.booleans(),
    compiled=st.booleans(),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_random_modules(model: GeneratedModule, lanes: dict[str, int], train: bool, grad: bool, compiled: bool) -> None:
    """Whatever the module does: results as in eager over three calls, nothing unordered, no memory reused too early.

    Tasks may be functions, of a compiler that makes nothing else of them: what it is given and gives is what is looked at.
    """
    model.train(train)
    inputs = tuple(x.detach().requires_grad_(x.requires_grad and grad) for x in model.example_inputs())
    with pytest.MonkeyPatch.context() as patch, pretending(patch) as world:
        patch.setitem(COMPILERS, "torchscript", Compiler(lambda module, arguments: module.__call__))
        bench = Bench(world, model, inputs, lanes, **({"compile_tasks": "torchscript"} if compiled else {}))
        eager = copy.deepcopy(model)
        with torch.set_grad_enabled(grad):
            for seed in range(3):
                torch.manual_seed(seed)
                expected = eager(*[x.clone() for x in inputs])
                torch.manual_seed(seed)
                agree(values(expected), values(bench(*inputs)), bench.plan)
        assert bench.faults == []


def agree(expected: Any, found: Any, plan: Plan) -> None:
    """The same bits; rounding where a copy between devices made a strided value dense, for then kernels sum in other orders."""
    if not any(isinstance(item, Copy) for item in plan.program.instructions):
        assert_same(expected, found)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
