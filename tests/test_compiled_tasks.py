"""`compile_tasks=`: what a lane runs between two hand-offs is one function, and nobody can tell but by the clock.

TorchScript's functions have eager's bits, gradients included; inductor's are equal to rounding. What cannot be compiled is
called as ever, and said.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from lanes import Tower, Towers, assert_same, numbers, spec, spread, threads_of
from torch import Tensor, nn

from partitioner import PartitionerError, SpecError, partition
from partitioner.backends.bodies import LEAST_OPS, Body, Compiler, uncompiled
from partitioner.backends.compiling.compiled import Compiled
from partitioner.backends.compiling.compilers import COMPILERS
from partitioner.backends.compiling.inductor import Sizes
from partitioner.ir.segment import segments
from partitioner.lower.fuse import fused
from partitioner.lower.verify import verify_plan
from partitioner.runtime.module import Parallel
from partitioner.testing import GeneratedModule, assert_equal_runs, modules

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")]

X = numbers(4, 6)


def executable(parallel: Parallel) -> Compiled:
    """What runs the program that ran last."""
    found = parallel._partitioner_programs.shown.executable
    assert isinstance(found, Compiled)
    return found


def compiled_ops(parallel: Parallel) -> set[str]:
    """The ops that are called in functions."""
    each = executable(parallel)
    return {op for task, body in each.bodies.items() if not body.reason for op in each.fused.tasks.by_name[task].ops}


@given(model=modules())
@settings(max_examples=settings.default.max_examples // 2)
def test_random_modules_have_eager_s_bits(model: GeneratedModule) -> None:
    inputs = model.example_inputs(seed=0)
    for train in (False, True):
        model.train(train)
        parallel = partition(model, example_inputs=inputs, spec=spec(3), copy=True, check=False, compile_tasks="torchscript")
        assert_equal_runs(model, parallel, inputs, train=train, gradient_bitwise=False)


@given(model=modules())
@settings(max_examples=settings.default.max_examples // 2)
def test_fused_plans_keep_every_rule_and_each_lane_its_ops(model: GeneratedModule) -> None:
    plan = partition(model, example_inputs=model.example_inputs(seed=0), spec=spec(3), copy=True, check=False).plan
    for refused in (lambda tasks: set(), uncompiled(plan.graph, COMPILERS["torchscript"])):
        found = fused(plan, refused)
        verify_plan(found)
        ops = {op: plan.placement.lane[task] for op, task in plan.tasks.task_of.items()}
        assert {op: found.placement.lane[task] for op, task in found.tasks.task_of.items()} == ops
    assert len(fused(plan, lambda tasks: set()).tasks.tasks) == len(segments(plan.program))


def test_a_lane_calls_one_function_between_two_hand_offs() -> None:
    parallel = spread(Towers(), X, lanes=2, compile_tasks="torchscript")
    each = executable(parallel)
    assert all(len(segment.tasks) == 1 for segment in segments(each.fused.program))
    longer = [task for task in each.fused.tasks.tasks if len(task.ops) >= LEAST_OPS]
    assert compiled_ops(parallel) == {op for task in longer for op in task.ops} and len(longer) >= 2
    lines = [line for line in each.lanes.code.splitlines() if " ops" in line]
    assert len(lines) == len(each.bodies), "one call for each"
    assert f"compiled: {len(compiled_ops(parallel))} of {len(each.plan.graph.ops)} ops" in str(parallel)


@pytest.mark.parametrize("how", ["torchscript", pytest.param("inductor", marks=pytest.mark.slow)])
def test_training_is_eager_s(how: str) -> None:
    model = Towers()
    parallel = spread(model, X, lanes=2, copy=True, compile_tasks=how)
    bitwise = how == "torchscript"
    assert_equal_runs(model, parallel, (X,), train=True, bitwise=bitwise, gradient_bitwise=False)
    assert not executable(parallel).reasons


class Drawing(nn.Module):
    """Dropout and a norm in each of two branches: random numbers, and state that the forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 6))
        self.right = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


@pytest.mark.parametrize("how", ["torchscript", pytest.param("inductor", marks=pytest.mark.slow)])
def test_random_numbers_and_statistics_are_eager_s(how: str) -> None:
    """Recording calls the ops once more: nothing may be drawn or written by that."""
    model = Drawing().train()
    state = torch.random.get_rng_state()
    parallel = partition(model, example_inputs=X, spec=spec(2), copy=True, compile_tasks=how)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_equal_runs(model, parallel, (X,), train=True, bitwise=how == "torchscript", gradient_bitwise=False, calls=3)


class Recurrent(nn.Module):
    """Dropout inside of a layer that is one op: inductor would draw in another order there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(6, 6, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0].tanh()).relu()


@pytest.mark.slow
def test_inductor_leaves_out_what_would_draw_otherwise() -> None:
    model, x = Recurrent().train(), numbers(2, 3, 6)
    parallel = partition(model, ["cpu"], example_inputs=x, compile_tasks="inductor", copy=True)
    assert compiled_ops(parallel) and not any("lstm" in op for op in compiled_ops(parallel))
    assert_equal_runs(model, parallel, (x,), train=True, bitwise=False, gradient_bitwise=False)


class Lookup(nn.Module):
    """An op that fails for some inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(4, 6), nn.Linear(6, 6)

    def forward(self, index: Tensor) -> Tensor:
        return self.last(self.table(index)).relu()


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mask, first = x > 0, torch.zeros(len(x), 1, dtype=torch.long)
        kept = mask.scatter(1, first, True).masked_fill(x > 1, False) == True  # noqa: E712
        full = torch.full((4,), True), torch.full_like(kept, fill_value=False), x.new_full((2,), True)
        return self.last(x.masked_fill(kept, True)).fill_(False), kept, *full


def test_masks_are_filled_in_functions() -> None:
    """TorchScript's record of an op fails that is given a bool for a number, and then all of its task was called op by op."""
    model = Masks()
    parallel = partition(model, ["cpu"], example_inputs=X, compile_tasks="torchscript", copy=True)
    assert_same(parallel(X), model(X))
    assert executable(parallel).compiled_ops > 8 and not executable(parallel).reasons


def test_a_failing_function_fails_as_the_model_does() -> None:
    model = Lookup()
    parallel = partition(model, ["cpu"], example_inputs=torch.tensor([1, 2]), compile_tasks="torchscript")
    with pytest.raises(IndexError, match="index out of range in self") as raised:
        parallel(torch.tensor([1, 9]))
    with pytest.raises(IndexError) as wanted:
        model(torch.tensor([1, 9]))
    assert str(raised.value) == str(wanted.value)
    assert_same(parallel(torch.tensor([3, 0])), model(torch.tensor([3, 0])))


def test_a_function_that_draws_fails_as_the_model_does() -> None:
    """Its draws are taken back before it is called once more."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6), Raising()).train()
    parallel = partition(model, ["cpu"], example_inputs=X, compile_tasks="torchscript", copy=True)
    assert any(body.draws for body in executable(parallel).bodies.values())
    torch.manual_seed(0)
    with pytest.raises(IndexError) as wanted:
        model(X + 100)
    after = torch.random.get_rng_state()
    torch.manual_seed(0)
    with pytest.raises(IndexError) as raised:
        parallel(X + 100)
    assert str(raised.value) == str(wanted.value) and torch.equal(torch.random.get_rng_state(), after)


class Raising(nn.Module):
    """Looks up what large inputs do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.abs().long())


class Idle(nn.Module):
    """Ops that nobody needs: one draws, and one may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(4, 6), nn.Linear(6, 6)

    def forward(self, index: Tensor) -> Tensor:
        self.table(index).sum()
        noise = torch.rand(3)
        noise + 1
        return self.last(torch.rand(2, 6)).relu() * torch.rand(2, 6)


def test_what_nobody_needs_still_draws_and_raises() -> None:
    """TorchScript leaves out ops whose results nobody reads."""
    model, index = Idle(), torch.tensor([1, 2])
    parallel = partition(model, ["cpu"], example_inputs=index, compile_tasks="torchscript", copy=True)
    assert compiled_ops(parallel)
    assert_equal_runs(model, parallel, (index,), train=True)
    for module in (model, parallel):
        with pytest.raises(IndexError):
            module(torch.tensor([1, 9]))


def test_a_write_to_what_a_task_is_given_stays_outside() -> None:
    """It could not be called again after a fault, to fail as the model does."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.add_(1) * 2).relu()

    parallel = partition(Net(), ["cpu"], example_inputs=X.clone(), compile_tasks="torchscript", copy=True)
    assert compiled_ops(parallel) and "add_" not in compiled_ops(parallel)
    for module in (Net(), parallel):
        with pytest.raises(RuntimeError, match=r"^unsupported operation: more than one element"):
            module(torch.ones(1, 6).expand(4, 6))


class Mixed(nn.Module):
    """Ops that no compiler is given, among others: a custom op, a block of no_grad, a value that is a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = twofold(self.first(x).relu())
        with torch.no_grad():
            scale = x.abs().amax()
        left, right = (self.last(x) / scale).chunk(2, dim=1)
        return torch.cat([right.sigmoid(), left.tanh()], dim=1)


@torch.library.custom_op("partitioner_tests::twofold", mutates_args=())
def twofold(x: Tensor) -> Tensor:
    return x * 2


twofold.register_fake(torch.empty_like)
twofold.register_autograd(lambda context, gradient: gradient * 2)


def test_what_is_no_op_of_torch_stays_outside() -> None:
    model = Mixed()
    parallel = partition(model, ["cpu"], example_inputs=X, compile_tasks="torchscript", copy=True)
    each = executable(parallel)
    modes = {op.name for op in each.plan.graph.ops if op.mode is not None}
    assert modes and not modes & compiled_ops(parallel)
    assert not any("twofold" in op for op in compiled_ops(parallel)) and compiled_ops(parallel)
    assert_equal_runs(model, parallel, (X,), train=True)


class Renormed(nn.Module):
    """Looking up writes the table, under no_grad in Python: a record of ATen ops would not know that."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 6, max_norm=0.1)

    def forward(self, index: Tensor) -> Tensor:
        return self.table(index).relu().sum(dim=0)


def test_a_write_under_another_mode_stays_outside() -> None:
    model, index = Renormed(), torch.tensor([1, 5])
    parallel = partition(model, ["cpu"], example_inputs=index, compile_tasks="torchscript", copy=True)
    assert not any("embedding" in op for op in compiled_ops(parallel))
    assert_equal_runs(model, parallel, (index,), train=True)


def test_what_a_compiler_refuses_is_called_as_ever_and_said() -> None:
    parallel = partition(Towers(), ["cpu"], example_inputs=X, copy=True, check=False)
    plan = parallel.plan

    def unwilling(module: torch.fx.GraphModule, arguments: Any) -> Any:
        raise RuntimeError("not today\nnor tomorrow")

    plainly = parallel._partitioner_programs.shown.executable
    each = Compiled(plainly, Compiler(unwilling), fused)
    model = parallel.original
    arguments = [dict(model.named_parameters()).get(plan.graph.states.get(name, ""), X) for name in plan.graph.arguments]
    for _ in range(2):
        assert_same(each(arguments)[0], model(X))
    assert each.reasons == ["RuntimeError: not today"] and each.compiled_ops == 0


class Chosen(nn.Module):
    """Numbers of Python beside tensors of integers, and beside tensors without dimensions: the result's dtype is a question."""

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return count * 0.5, count / 2, x.sum() * 2.5, x.half() * 2.5, count + 1, x.sum() + count


def test_dtypes_are_eager_s() -> None:
    model, count = Chosen(), torch.arange(3)
    parallel = partition(model, ["cpu"], example_inputs=(X, count), compile_tasks="torchscript")
    assert_same(parallel(X, count), model(X, count))
    assert [one.dtype for one in parallel(X, count)] == [one.dtype for one in model(X, count)]


def test_other_sizes_and_modes_are_right() -> None:
    model = Tower()
    parallel = partition(model, ["cpu"], example_inputs=X, compile_tasks="torchscript")
    for batch in (4, 3, 7, 1, 4):
        x = numbers(batch, 6)
        assert_same(parallel(x), model(x))
        with torch.no_grad():
            assert_same(parallel(x), model(x))
        with torch.autocast("cpu", torch.bfloat16):
            found = parallel(x)
            assert found.dtype == model(x).dtype and torch.equal(found, model(x))


def test_under_a_mode_that_counts_ops_all_are_seen() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = Tower()
    parallel = partition(model, ["cpu"], example_inputs=X, compile_tasks="torchscript")
    counts = []
    for module in (model, parallel):
        with FlopCounterMode(display=False) as counter:
            module(X)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_many_threads_make_the_first_call_together() -> None:
    model = Towers()
    parallel = partition(model, example_inputs=X, spec=spec(2), check=False, compile_tasks="torchscript")
    found: list[Tensor] = []
    callers = [threading.Thread(target=lambda: found.append(parallel(X))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(found) == 4 and all(torch.equal(one, model(X)) for one in found)


def test_nobody_is_warned_and_torchscript_is_left_as_it_was() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        partition(Tower(), ["cpu"], example_inputs=X, compile_tasks="torchscript")(X)
    assert torch._C._get_graph_executor_optimize()


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(SpecError, match="leave one out"):
        partition(Towers(), ["cpu:0", "cpu:1"], example_inputs=X, compile_tasks="torchscript", backward="lanes")
    with pytest.raises(SpecError, match="compile_tasks= is for backend threads or streams"):
        partition(Towers(), ["cpu"], example_inputs=X, compile_tasks="torchscript", backend="reference")
    with pytest.raises(SpecError, match="compile_tasks"):
        partition(Towers(), ["cpu"], example_inputs=X, compile_tasks="nvfuser")


def test_interpolation_and_attention_are_recorded() -> None:
    """Functions of torch that are Python inside, and look at sizes."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear").flatten(2).transpose(1, 2)
            return self.attend(x, x, x)[0]

    model, x = Net(), numbers(2, 8, 3, 3)
    parallel = partition(model, ["cpu"], example_inputs=x, compile_tasks="torchscript", copy=True)
    assert not executable(parallel).reasons and compiled_ops(parallel)
    assert_equal_runs(model, parallel, (x,), train=True)


def test_a_body_that_is_called_with_what_it_writes_is_recorded_on_a_copy() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_method("add_", (graph.call_method("mul_", (x, 2)), 1)))
    seen: list[Tensor] = []

    def record(module: torch.fx.GraphModule, arguments: Any) -> Any:
        module(*arguments)
        seen.extend(arguments)
        return module.forward

    given_ = torch.ones(3)
    body = Body(torch.fx.GraphModule({}, graph), record, ("x",), ("add_",), frozenset({0}), False)
    assert torch.equal(body(given_), torch.full((3,), 3.0)) and seen[0] is not given_


@pytest.mark.parametrize("how", [None, "torchscript"])
def test_a_default_device_hides_nothing(how: str | None) -> None:
    """`torch.set_default_device` is a function mode to torch, and devices are burned in: calls were made on one lane, and
    tasks were not compiled, without a word; CUDA graphs were refused. It may be any, as that of a user of GPUs.
    """

    class Counted(Towers):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.arange(2.0, device=x.device)

    model = Counted().eval()
    wanted = model(X)
    torch.set_default_device("meta")
    try:
        with threads_of(*([] if how else model.towers)) as used, torch.no_grad():
            parallel = spread(model, X, check=False, compile_tasks=how)
            for _ in range(2):
                assert_same(wanted.detach(), parallel(X))
    finally:
        torch.set_default_device(None)
    bodies = parallel._partitioner_programs.shown.executable.bodies if how else {}
    assert all(body.run for body in bodies.values()) if how else len(used) > 1


@pytest.mark.slow
def test_a_backward_of_inductors_may_keep_its_graph() -> None:
    """Also after one that did not: torch had compiled that to write over what forward keeps, and refused the next. A CUDA graph
    always keeps it, so a second step of training failed.
    """
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6), nn.Tanh())
    parallel = partition(model, ["cpu"], example_inputs=X, copy=True, check=False, tune=False, compile_tasks="inductor")
    for keeps in (False, True):
        loss, wanted = parallel(X).square().sum(), model(X).square().sum()
        for _ in range(1 + keeps):
            parallel.zero_grad(), model.zero_grad()
            loss.backward(retain_graph=keeps), wanted.backward(retain_graph=keeps)
            for mine, theirs in zip(parallel.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad)


class Meeting(nn.Module):
    """Two branches, a normalisation and a sum over the batch, which inductor computes in another way from 4,097 rows on."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
        self.right, self.norm = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.left(x) * self.right(x)).softmax(-1).sum(0)


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["inference", "training"])
def test_inductor_at_other_sizes(trains: bool) -> None:
    """From the second batch size on, where a dimension is open, all ops were called one by one."""
    model = Meeting().train(trains)
    with torch.set_grad_enabled(trains):
        parallel = partition(model, ["cpu"], example_inputs=X, compile_tasks="inductor", tune=False, copy=True)
        for rows in (4, 6, 5, 33, 1, 0, 5_000, 7):
            x = numbers(rows, 6)
            found, wanted = parallel(x), model(x)
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
            if trains:
                mine = torch.autograd.grad(found.sum(), [*parallel.parameters()])
                theirs = torch.autograd.grad(wanted.sum(), [*model.parameters()])
                torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    fixed, open_sizes = (piece.executable for piece in parallel._partitioner_programs.pieces[:2])
    assert fixed.compiled_ops == open_sizes.compiled_ops > 8 and not open_sizes.reasons


def test_sizes_that_inductor_has_decided_upon_are_asked_for() -> None:
    sizes = Sizes([torch.ones(8, 3), torch.ones(3)], {0: [0]})
    first, second = sizes.stand_ins()
    assert isinstance(first.shape[0], torch.SymInt) and second.shape == (3,)
    assert first.shape[0] > 4
    sizes.close()
    for rows, is_right in ((8, True), (6, True), (5, True), (4, False), (1, False), (0, False)):
        assert sizes.allow([torch.ones(rows, 3), torch.ones(3)]) == is_right
    assert not sizes.allow([torch.ones(3, 6).t(), torch.ones(3)]), "of other strides"
    assert sizes.allow([torch.ones(9, 3)[3:], torch.ones(3)]), "a part of a tensor"


def test_functions_do_not_ask_for_what_guards_have_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of what they are given, 12 of 75 us of a small model; of results of torch's kernels they still do."""
    from torch._inductor import config, graph

    codes: list[str] = []
    monkeypatch.setattr(graph.GraphLowering, "save_output_code", codes.append)
    module = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)).eval()
    with config.patch(force_disable_caches=True), torch.no_grad():
        partition(module, ["cpu"], example_inputs=numbers(1, 2, 8, 8), compile_tasks="inductor", tune=False)
    asked = re.findall(r"assert_\w+\((\w+)", "\n".join(codes))
    assert asked and not any(name.startswith("arg") for name in asked)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_size_that_is_open_and_no_size_of_others(rows: int) -> None:
    """Of none and of one inductor makes constants."""
    sizes = Sizes([torch.ones(rows, 3)], {0: [0]})
    sizes.stand_ins()
    sizes.close()
    assert sizes.allow([torch.ones(rows, 3)]) and not sizes.allow([torch.ones(5, 3)])


class Waves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(12):
            x = x.sin() + x.cos()
        return x


def test_python_goes_on_while_a_kernel_of_inductors_runs() -> None:
    """Torch calls fused C++ with Python's lock held, so two lanes of it took as long as one: NASNet's cells 5.8 ms on both."""
    x = torch.rand(10_000_000)
    wait = partition(Waves(), ["cpu"], example_inputs=x, compile_tasks="inductor", tune=False, check=False)
    wait(x)
    shares = []
    for _ in range(3):
        thread = threading.Thread(target=wait, args=(x,))
        seen = [time.perf_counter()]
        thread.start()
        while thread.is_alive():
            seen.append(time.perf_counter())
        pauses = [after - before for before, after in itertools.pairwise(seen)]
        shares.append(max(pauses) / sum(pauses))
    assert min(shares) < 0.5, f"Python stood still for {min(shares):.0%} of the kernel"


def test_only_the_generator_of_a_tasks_gpu_is_kept_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no device is named torch takes all there are, and warns a user of several that this is slow."""
    asked: list[Any] = []
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices, enabled: (asked.append(devices), nullcontext())[1])
    module = torch.fx.symbolic_trace(nn.Dropout())
    for device in ("cpu", "cuda:1"):
        Body(module, lambda module, given: module.forward, ("x",), ("y",), frozenset(), True, device=device).prepare([X])
    assert asked == [[], ["cuda:1"]]


def test_a_job_and_torch_compile_say_what_they_cannot_have() -> None:
    from partitioner.distributed.predicted.outlook import distributed_in

    for option in ({"compile_tasks": "inductor"}, {"cuda_graphs": True}, {"fullgraph": False}):
        with pytest.raises(SpecError, match=f"{next(iter(option))}: .* is for one process"):
            distributed_in({"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4}, **option})
    model = Tower()
    compiled = torch.compile(model, backend="partitioner", options={"devices": ["cpu"], "compile_tasks": "torchscript"})
    assert_same(compiled(X), model(X))
    with pytest.raises(Exception, match="call partition"):
        torch.compile(Tower(), backend="partitioner", options={"devices": ["cpu"], "spec": {"cuda_graphs": True}})(X)


class Encoder(nn.Module):
    """Attention, normalisation over the batch and over features, dropout, a product that keeps its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)
        self.convolve = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.MaxPool1d(2), nn.Flatten())
        self.head = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x) * self.head(self.convolve(x)).softmax(-1)[:, None] / x.shape[0] ** 0.5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("compiler", ["torchscript", "batched"])
def test_open_sizes_are_compiled_too(compiler: str, train: bool) -> None:
    """From the second batch size on ops were called one by one."""
    model = Encoder().train(train)
    parallel = partition(model, example_inputs=numbers(4, 4, 6), spec=spec(2), copy=True, compile_tasks=compiler)
    for batch in (4, 7, 2):
        assert_equal_runs(model, parallel, (numbers(batch, 4, 6),), train=train, gradient_bitwise=False)
    assert executable(parallel).plan.graph.fx.find_nodes(op="placeholder")[0].meta["example_value"].node.expr.is_Symbol
    assert 2 * len(compiled_ops(parallel)) > len(parallel.graph.ops), "not what reckons with the size, or draws if batched"


def test_a_number_that_follows_from_an_open_size_is_not_kept() -> None:
    """A record of one call has it as a constant, and another call has another. None of torch's functions was seen to do it."""

    def scaled(x: Tensor) -> Tensor:
        return x.relu() * float(x.shape[0])

    graph = torch.fx.Graph()
    graph.output(graph.call_function(scaled, (graph.placeholder("x"),)))
    module, compile = torch.fx.GraphModule({}, graph), COMPILERS["torchscript"].compile
    assert torch.equal(compile(module, [X])(X), scaled(X))
    with pytest.raises(PartitionerError, match="at other sizes it calls its ops with other numbers"):
        compile(module, [X], [numbers(8, 6)])
