"""The real thing: streams, events and the caching allocator of a CUDA device. Skipped where there is none.

What can be told without a device is in test_streams. Here kernels really overlap, and memory is really reused.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import textwrap
import threading
import timeit
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from lanes import NormedTowers, Tower, Towers, assert_same, assert_same_state, numbers, spying, train_mixed
from torch import Tensor, nn

import zoo
from partitioner import PlacementError, TraceError, partition
from partitioner.profile.clock import time_of
from partitioner.profile.handoff import between_streams
from partitioner.runtime.module import Parallel

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
WIDTH = 64
X = numbers(32, WIDTH)

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Kernels that give the same bits whenever they are called; a device that is idle afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    deterministic, benchmark = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = deterministic, benchmark
    torch.cuda.synchronize()


def slow(device: str) -> dict[str, float]:
    """Figures under which a layer takes about a millisecond: of a CPU's lane to issue it, of an accelerator's to run it."""
    return {"overhead": 1e-3} if device.startswith("cpu") else {"overhead": 0, "bandwidth": 3e7}


def spec(**lanes: int) -> dict[str, Any]:
    """A spec for so many lanes on each device, under which each op is worth one: ``spec(cuda0=3, cpu=1)``."""
    names = {name: name.replace("cuda", "cuda:") for name in lanes}
    devices = [{"device": names[name], "lanes": count, "handoff": 0, **slow(name)} for name, count in lanes.items()]
    links = [
        {"source": names[one], "target": names[other], "latency": 0, "bandwidth": 1e15}
        for one in lanes
        for other in lanes
        if one != other
    ]
    return {"devices": devices, "links": links, "grain": 1e-9}


def twins(model: nn.Module, *inputs: Tensor, **lanes: int) -> tuple[nn.Module, Parallel]:
    """The model on the first GPU, and a copy of it on several lanes."""
    model = model.to(GPU)
    given = tuple(x.to(GPU) for x in inputs)
    parallel = partition(model, example_inputs=given, spec=spec(**(lanes or {"cuda0": 3})), copy=True)
    assert len(set(parallel.placement.lane.values())) > 1, "the test wants several lanes"
    return model, parallel


class Pair(nn.Module):
    """Two branches, so that no gradient is a sum of three."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.left, self.right = Tower(width), Tower(width)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, width) to (batch, 8)."""
        return self.head(self.drop(self.left(x)) * self.drop(self.right(x)))


class Casting(Pair):
    """One branch is always in full precision."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, width) to (batch, 8)."""
        with torch.autocast("cuda", enabled=False):
            left = self.left(x.float())
        with torch.no_grad():
            mean = self.right(x).mean()
        return self.head(left * self.right(x) - mean)


class Talkative(Pair):
    """Python decides on data in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, width) to (batch, 8)."""
        left, right = self.left(x), self.right(x)
        if left.sum() > 1e6:
            return left
        return self.head(self.left(right) * self.right(left))


class Counting(Pair):
    """Replaces a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, width) to (batch, 8)."""
        left = self.left(x)
        self.total = self.total + left.detach().sum(0)
        return self.head(left * self.right(x))


def programs(parallel: Parallel) -> int:
    """How many programs there are."""
    return len(parallel._partitioner_programs.pieces)


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    """Gradients by name."""
    return {name: parameter.grad for name, parameter in module.named_parameters()}


# -- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_several_lanes_on_one_gpu(grad: bool) -> None:
    model, parallel = twins(Towers(width=WIDTH), X)
    with torch.set_grad_enabled(grad):
        for seed in range(20):
            x = numbers(32, WIDTH, seed=seed).to(GPU)
            assert_same(model(x).detach(), parallel(x).detach())


@pytest.mark.parametrize("lanes", [2, 3])
def test_other_batch_sizes_and_modes(lanes: int) -> None:
    """The second batch size opens the dimension, and one program serves all that follow."""
    model, parallel = twins(NormedTowers(), numbers(32, 6), cuda0=lanes)
    for train in (True, False):
        model.train(train), parallel.train(train)
        for batch in (32, 8, 9, 33, 128, 32):
            found = []
            for module in (model, parallel):
                torch.manual_seed(batch)
                found.append(module(numbers(batch, 6, seed=batch).to(GPU)).detach())
            assert_same(*found)
    assert programs(parallel) <= 5
    assert_same_state(model, parallel)


@pytest.mark.parametrize("grad", [True, False])
def test_in_pieces(grad: bool) -> None:
    """Where Python decides on data, each graph runs on the streams, and the rest on the caller's."""
    model, parallel = twins(Talkative(), X)
    with torch.set_grad_enabled(grad):
        for seed in range(20):
            x = numbers(32 + seed % 3, WIDTH, seed=seed).to(GPU)
            assert_same(model(x).detach(), parallel(x).detach())
    assert "decides on the value of a tensor" in str(parallel) and "runs as it is" not in str(parallel)
    if grad:
        for module in (model, parallel):
            module(X.to(GPU)).square().sum().backward()
        for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
            torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-4, atol=1e-4)


def test_behind_torch_compile() -> None:
    """``torch.compile(model, backend="partitioner")``: lanes on the device on which the model lies."""
    model = Towers(width=WIDTH).to(GPU)
    options = {"spec": spec(cuda0=3)}
    compiled = torch.compile(model, backend="partitioner", options=options)
    for batch in (32, 8, 9):
        x = numbers(batch, WIDTH).to(GPU)
        assert_same(model(x).detach(), compiled(x).detach())


def test_gradients_and_random_numbers() -> None:
    """Dropout draws in the order in which ops are issued, and that is the program's; from one seed both draw the same."""
    model, parallel = twins(Pair(), X)
    for seed in range(10):
        found = []
        for module in (model, parallel):
            torch.manual_seed(seed)
            x = X.to(GPU).requires_grad_()
            module.zero_grad()
            result = module(x)
            result.square().sum().backward()
            found.append((result.detach(), x.grad, gradients(module), torch.cuda.get_rng_state()))
        assert_same(*found)


def test_buffers() -> None:
    """Statistics of batch norm, dropout, in-place ReLU, several calls."""
    model, parallel = twins(nn.Sequential(nn.Linear(WIDTH, 6), NormedTowers()), X)
    for seed in range(5):
        torch.manual_seed(seed)
        expected = model(X.to(GPU)).detach()
        torch.manual_seed(seed)
        assert_same(expected, parallel(X.to(GPU)).detach())
    assert_same_state(model, parallel)


def test_training_with_adam() -> None:
    """Fifty steps: forward, backward and update, each on the streams where they are."""
    model, parallel = twins(Pair(), X)
    losses: list[list[Tensor]] = []
    for module in (model, parallel):
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        torch.manual_seed(3)
        history = []
        for step in range(50):
            x = numbers(32, WIDTH, seed=step).to(GPU, non_blocking=True)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            history.append(loss.detach())
        losses.append(history)
    assert_same(*losses)
    assert_same_state(model, parallel)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    """Of the caller and in the model, with gradients; a call without it has a program of its own."""
    model, parallel = twins(Casting(), X)
    found: list[list[Tensor]] = [[], []]
    for results, module in zip(found, (model, parallel), strict=True):
        for enabled in (True, False, True):
            module.zero_grad()
            with torch.autocast("cuda", dtype, enabled=enabled):
                loss = module(X.to(GPU))
            loss.float().sum().backward()
            results += [loss.detach(), *(parameter.grad.clone() for parameter in module.parameters())]
    assert found[1][0].dtype is dtype
    assert_same(*found)


def test_mixed_precision() -> None:
    model, parallel = twins(Pair().eval(), X)
    found = []
    for module in (model, parallel):
        losses, _ = train_mixed(module, X.to(GPU), torch.float16, steps=3, scale=16.0, clip=1.0)
        found.append(losses[-1])
    assert_same(*found)
    assert_same_state(model, parallel)


@pytest.mark.parametrize("name", ["torchvision/googlenet", "torchvision/squeezenet1_1", "transformers/clip"])
def test_real_models(name: str) -> None:
    entry = zoo.ZOO[name]
    if not entry.installed:
        pytest.skip(f"{entry.family} is not installed")
    model = entry.build().to(GPU)
    args, kwargs = entry.inputs()
    args = tuple(arg.to(GPU) for arg in args)
    kwargs = {key: value.to(GPU) for key, value in kwargs.items()}
    parallel = partition(model, example_inputs=args, example_kwargs=kwargs, spec=spec(cuda0=4), copy=True)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(parallel(*args, **kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-4)


def test_numbers_drawn_after_partition_are_those_without_it() -> None:
    """What the comparison with eager draws on the GPU was never drawn."""
    model = Pair().to(GPU)
    torch.manual_seed(5)
    before = torch.cuda.get_rng_state()
    for check in (True, False):
        partition(model, example_inputs=X.to(GPU), spec=spec(cuda0=3), copy=True, check=check)
        assert torch.equal(before, torch.cuda.get_rng_state())


# -- measuring -------------------------------------------------------------------------------------------------------


def test_what_is_timed_is_the_device() -> None:
    """A sum of few numbers takes a kernel, and not what the host needs to issue it; a sum of many takes what memory allows."""
    few, many = (torch.ones(size, device=GPU) for size in (64, 1 << 28))
    issued = min(timeit.repeat(lambda: few + few, number=100, repeat=9)) / 100
    assert 1e-7 < time_of(lambda: few + few, GPU).seconds < max(issued, 4e-6)
    assert 1e-4 < time_of(lambda: many + many, GPU).seconds < 1e-1
    assert 1e-7 < between_streams(torch.device(GPU)).seconds < 1e-4


# -- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_gpu_and_cpu(grad: bool) -> None:
    """Kernels differ, so results are close; values and gradients cross between the devices."""
    model = Towers(width=WIDTH)
    parallel = partition(model, example_inputs=X, spec=spec(cuda0=2, cpu=2), copy=True, check=False)
    assert {p.device.type for p in parallel.parameters()} == {"cuda", "cpu"}
    with torch.set_grad_enabled(grad):
        for seed in range(20):
            x = numbers(32, WIDTH, seed=seed)
            result = parallel(x)
            torch.testing.assert_close(result.cpu(), model(x), rtol=1e-4, atol=1e-5)
    if grad:
        for module in (model, parallel):
            module.zero_grad()
            module(X).square().mean().backward()
        for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
            assert theirs.grad is not None and theirs.grad.device == theirs.device
            torch.testing.assert_close(theirs.grad.cpu(), mine.grad, rtol=1e-3, atol=1e-5)


class Beside(nn.Module):
    """A layer for the CPU, which reads what the GPU has made, and beside it a fifth of a second of work for the GPU."""

    def __init__(self, wide: int = 8192) -> None:
        super().__init__()
        self.stem, self.wide, self.beside = nn.Linear(WIDTH, WIDTH), nn.Linear(wide, wide), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, width) to (batch, width)."""
        h = self.stem(x)
        wide = h.repeat(self.wide.in_features // len(x), self.wide.in_features // WIDTH)
        for _ in range(10):
            wide = self.wide(wide)
        return wide[: len(x), :WIDTH] + self.beside(h)


def test_the_cpu_works_while_the_gpu_does() -> None:
    """It fetches what the stem has made, and does not wait for what the GPU has been given since."""
    model, busy = Beside().eval(), list[bool]()
    pins = [{"match": match, "device": GPU} for match in ("stem*", "wide*")] + [{"match": "beside*", "device": "cpu"}]
    with spying(model.beside, lambda: busy.append(not torch.cuda.current_stream().query())), torch.no_grad():
        parallel = partition(model, example_inputs=X, spec=spec(cuda0=1, cpu=1), pins=pins, check=False)
        for _ in range(3):
            parallel(X)
            torch.cuda.synchronize()
    assert busy[-1]


def test_later_programs_over_gpu_and_cpu() -> None:
    """Traced although state lies on two devices, which is left where it is; a replaced buffer lands on the module."""
    model = Counting().eval()
    parallel = partition(model, example_inputs=X, spec=spec(cuda0=1, cpu=1), copy=True)
    homes = {name: tensor.device for name, tensor in parallel.state_dict().items()}
    assert {device.type for device in homes.values()} == {"cuda", "cpu"}
    for batch, train, grad in [(32, False, True), (8, False, True), (9, True, True), (33, False, False)]:
        model.eval(), parallel.train(train)
        with torch.set_grad_enabled(grad):
            x = numbers(batch, WIDTH, seed=batch)
            torch.testing.assert_close(parallel(x).cpu(), model(x), rtol=1e-4, atol=1e-4)
    assert {name: tensor.device for name, tensor in parallel.state_dict().items()} == homes
    torch.testing.assert_close(parallel.total.cpu(), model.total, rtol=1e-4, atol=1e-3)
    assert parallel.original.total is parallel.total


def test_autocast_over_gpu_and_cpu() -> None:
    """What is placed on the CPU is under the same autocast."""
    model = Pair().eval()
    parallel = partition(model, example_inputs=X, spec=spec(cuda0=1, cpu=1), copy=True)
    twin = copy.deepcopy(model).to(GPU)
    for enabled in (True, False):
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            found, expected = parallel(X), twin(X.to(GPU))
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu().float(), expected.cpu().float(), rtol=5e-2, atol=5e-2)
        found.float().sum().backward()


def test_training_over_gpu_and_cpu() -> None:
    model = Pair().eval()
    parallel = partition(model, example_inputs=X, spec=spec(cuda0=1, cpu=1), copy=True)
    for module in (model, parallel):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        for step in range(10):
            optimizer.zero_grad()
            module(numbers(32, WIDTH, seed=step)).square().mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
    for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), mine, rtol=1e-3, atol=1e-4)


def test_python_between_graphs_over_gpu_and_cpu() -> None:
    model = Talkative().eval()
    parallel = partition(model, example_inputs=X, spec=spec(cuda0=1, cpu=1), copy=True, fullgraph=False)
    assert {one.device.type for one in parallel.parameters()} == {"cuda", "cpu"}
    for x in (X, numbers(8, WIDTH)):
        found, expected = parallel(x), model(x)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)
        found.sum().backward()


def test_refusals_over_gpu_and_cpu() -> None:
    """A graph break with its reason, the model's own complaint about a shape; and the module goes on."""
    with pytest.raises(TraceError, match=f"cannot be one graph.*{re.escape(__file__)}"):
        partition(Talkative(), example_inputs=X, spec=spec(cuda0=1, cpu=1))
    model = Pair().eval()
    parallel = partition(model, example_inputs=X, spec=spec(cuda0=1, cpu=1), copy=True)
    with pytest.raises(RuntimeError, match=rf"32.*5.*{WIDTH}.*{WIDTH}"):
        parallel(numbers(32, 5))
    torch.testing.assert_close(parallel(X).cpu(), model(X), rtol=1e-4, atol=1e-4)


def test_memory_caps_hold_for_other_sizes() -> None:
    wanted = spec(cuda0=2)
    wanted["devices"][0]["memory"] = "1MiB"
    parallel = partition(Pair().eval(), example_inputs=X, spec=wanted)
    parallel(numbers(8, WIDTH)), parallel(numbers(9, WIDTH))
    with pytest.raises(PlacementError, match="of live values, and has 1 MiB"):
        parallel(numbers(100_000, WIDTH))
    assert parallel(X).shape == (32, 8)


def test_without_examples_the_first_call_places() -> None:
    model = Pair().eval()
    twin = copy.deepcopy(model).to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = partition(model, spec=spec(cuda0=2))
    assert {p.device.type for p in parallel.parameters()} == {"cpu"}
    parallel(X).sum().backward()
    optimizer.step()
    twin(X.to(GPU)).sum().backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert_same_state(twin, parallel)


def test_a_written_input_is_the_callers() -> None:
    """Also where it had to be moved."""

    class Writes(Pair):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            y.add_(self.left(x))
            return self.right(x) + y

    model, parallel = twins(Writes(), X, X + 1)
    mine, theirs = (X + 1).to(GPU), X + 1
    with torch.no_grad():
        assert_same(model(X.to(GPU), mine), parallel(X, theirs))
    assert_same(mine.cpu(), theirs)


def test_parameters_move_in_place() -> None:
    """An optimizer that was made before holds the parameters that the module trains."""
    model = Pair().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = list(map(id, model.parameters()))
    parallel = partition(model, example_inputs=X, spec=spec(cuda0=2))
    assert held == list(map(id, parallel.parameters())) and {p.device for p in model.parameters()} == {torch.device(GPU)}
    before = parallel.head.bias.detach().clone()
    parallel(X).sum().backward()
    optimizer.step()
    assert not torch.equal(before, parallel.head.bias)


def test_inputs_on_the_wrong_device_are_moved() -> None:
    model, parallel = twins(Towers(width=WIDTH), X)
    assert_same(model(X.to(GPU)), parallel(X))
    assert parallel(X).device == torch.device(GPU)


@pytest.mark.parametrize("direct", [True, False])
def test_pinned_inputs(direct: bool) -> None:
    """Copied without waiting, by the caller or by the module, and the host goes on at once: the order of streams is enough."""
    model, parallel = twins(Towers(width=WIDTH), X)
    batches = [numbers(32, WIDTH, seed=seed) for seed in range(50)]
    results = []
    for batch in batches:
        pinned = batch.pin_memory()
        results.append(parallel(pinned if direct else pinned.to(GPU, non_blocking=True)).detach())
    for batch, result in zip(batches, results, strict=True):
        assert_same(model(batch.to(GPU)).detach(), result)


def test_streams_and_device_of_the_caller_are_restored() -> None:
    _, parallel = twins(Towers(width=WIDTH), X)
    side = torch.cuda.Stream()
    x = X.to(GPU)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        parallel(x)
        assert torch.cuda.current_stream() == side
        parallel.head.register_forward_pre_hook(lambda module, args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            parallel(x)
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_device() == 0


def test_moving_is_refused() -> None:
    _, parallel = twins(Towers(width=WIDTH), X)
    with pytest.raises(ValueError, match=r"partitioned over cuda:0; moving what lies on cuda:0 to cpu would break its plan"):
        parallel.cpu()
    assert parallel.half()(X.to(GPU).half()).dtype == torch.float16


@two_gpus
def test_two_gpus() -> None:
    """Bits, gradients, and the caller's device, which is none of lane 0's."""
    model, parallel = twins(Pair().eval(), X, cuda0=1, cuda1=1)
    assert {p.device.index for p in parallel.parameters()} == {0, 1}
    with torch.cuda.device(1):
        for seed in range(20):
            x = numbers(32, WIDTH, seed=seed)
            assert_same(model(x.to(GPU)).detach().cpu(), parallel(x).detach().cpu())
            assert torch.cuda.current_device() == 1
    for module in (model, parallel):
        module(X.to(GPU)).square().sum().to(GPU).backward()
    assert_same([p.grad.cpu() for p in model.parameters()], [p.grad.cpu() for p in parallel.parameters()])


@two_gpus
def test_training_on_two_gpus() -> None:
    model, parallel = twins(Pair().eval(), X, cuda0=1, cuda1=1)
    assert {p.device.index for p in parallel.parameters()} == {0, 1}
    for module in (model, parallel):
        optimizer = torch.optim.AdamW(module.parameters())
        for step in range(20):
            optimizer.zero_grad()
            module(numbers(32, WIDTH, seed=step).to(GPU)).square().mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
    for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), mine.cpu())


# -- memory ----------------------------------------------------------------------------------------------------------


def litter() -> None:
    """Take what memory the allocator has at hand, on several streams, fill it with NaN, and give it back."""
    for stream in [torch.cuda.current_stream(), *SIDE]:
        with torch.cuda.stream(stream):
            for size in (2**8, 2**11, 2**13, 2**15):
                for _ in range(4):
                    torch.full((size,), float("nan"), device=GPU)


SIDE: list[torch.cuda.Stream] = []


@pytest.mark.parametrize("grad", [True, False])
def test_thousands_of_calls_under_memory_pressure(grad: bool) -> None:
    """Blocks change hands all the time, and whoever reads one too late reads NaN. Bits as on one stream, every time."""
    SIDE[:] = [torch.cuda.Stream() for _ in range(2)]
    model, parallel = twins(Towers(width=WIDTH), X)
    batches = [numbers(size, WIDTH, seed=size).to(GPU) for size in (1, 7, 32, 33, 128)]
    with torch.no_grad():
        expected = [model(x) for x in batches]
    torch.cuda.synchronize()
    wrong = torch.zeros((), device=GPU, dtype=torch.int64)
    with torch.set_grad_enabled(grad):
        for number in range(3000):
            result = parallel(batches[number % 5])
            litter()
            if grad and number % 3 == 0:
                result.sum().backward()
            wrong += (result.detach() != expected[number % 5]).any()
    assert int(wrong) == 0


def taken() -> int:
    """Bytes of the tensors that there are. What a stream was announced for is given back when somebody asks for memory."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def test_a_call_leaves_no_memory_behind() -> None:
    _, parallel = twins(Towers(width=WIDTH), X)
    x = X.to(GPU)
    with torch.no_grad():
        for _ in range(3):
            parallel(x)
        before = taken()
        for _ in range(50):
            parallel(x)
    assert taken() == before


SANITIZED = """
    import torch
    from torch import nn
    from partitioner import partition
    from partitioner.runtime.pieces import Piece

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.towers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(3))
            self.head = nn.Linear(192, 8)

        def forward(self, x):
            return self.head(torch.cat([tower(x) for tower in self.towers], 1))

    spec = {"devices": [{"device": "cuda:0", "lanes": 3, "handoff": 0, "overhead": 0, "bandwidth": 4e5}], "grain": 1e-9}
    x = torch.randn(32, 64, device="cuda")
    parallel = partition(Towers().cuda(), example_inputs=x, spec=spec, check=False)
    ran = []
    call = Piece.__call__

    def counted(piece, *arguments):
        ran.append(len(set(piece.plan.placement.lane.values())))
        return call(piece, *arguments)

    Piece.__call__ = counted
    with torch.no_grad():
        for _ in range(10):
            parallel(x)
            x.mul_(0.99)
    for _ in range(10):
        parallel(x).sum().backward()
    torch.cuda.synchronize()
    assert ran == [3] * 20, ran
    print("done")
"""


def test_the_cuda_sanitizer_finds_nothing() -> None:
    """PyTorch's own happens-before, over every kernel that is launched."""
    environment = os.environ | {"TORCH_CUDA_SANITIZER": "1"}
    command = [sys.executable, "-c", textwrap.dedent(SANITIZED)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0 and "done" in result.stdout, result.stderr
    assert "CSAN detected" not in result.stdout + result.stderr


# -- graphs and threads ----------------------------------------------------------------------------------------------


def test_capture_in_a_cuda_graph() -> None:
    """Side streams fork from the capturing stream and are joined to it: replayed, the graph gives what eager gives."""
    model, parallel = twins(Towers(width=WIDTH), X)
    x = X.to(GPU)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                parallel(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = parallel(x)
        for seed in range(5):
            x.copy_(numbers(32, WIDTH, seed=seed))
            graph.replay()
            assert_same(model(x), result.clone())
        assert_same(model(x), parallel(x))


def test_calls_from_several_threads() -> None:
    """On one stream and on streams of their own; all share the side streams."""
    model, parallel = twins(Towers(width=WIDTH).eval(), X)
    inputs = [numbers(32, WIDTH, seed=number).to(GPU) for number in range(6)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
    torch.cuda.synchronize()
    ready = threading.Barrier(6)

    def work(number: int) -> None:
        ready.wait()
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream), torch.no_grad():
            results = [parallel(inputs[number]) for _ in range(100)]
            stream.synchronize()
        for result in results:
            assert_same(wanted[number], result)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, number) for number in range(6)]:
            future.result(timeout=120)


def test_deepcopy() -> None:
    model, parallel = twins(Towers(width=WIDTH), X)
    twin = copy.deepcopy(parallel)
    with torch.no_grad():
        twin.head.bias.add_(1.0)
    assert_same(model(X.to(GPU)), parallel(X.to(GPU)))
    torch.testing.assert_close(twin(X.to(GPU)), parallel(X.to(GPU)) + 1.0)
