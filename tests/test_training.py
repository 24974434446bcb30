"""What autograd, optimizers and PyTorch's modes make of a partitioned module: the same as of a plain one.

Models here have no more than two uses of any value, so gradients are equal to the bit: autograd does not promise in which order
it sums three.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lanes import Tower, assert_same, assert_same_state, numbers, spread, spying, train_mixed
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from partitioner.runtime.module import Parallel

X = numbers(4, 6)

pytestmark = pytest.mark.usefixtures("one_thread")


class Pair(nn.Module):
    """Two branches with two layers each, their own inputs, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Tower(), Tower()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 2)."""
        return self.head(self.left(x) * self.right(x))


def twins(model: nn.Module | None = None, *inputs: Any) -> tuple[nn.Module, Parallel]:
    """A model, and a copy of it on two lanes."""
    model = Pair() if model is None else model
    return model, spread(model, *(inputs or (X,)), lanes=2, copy=True)


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    """Gradients by name, named as in the model."""
    return {name: parameter.grad for name, parameter in module.named_parameters()}


# -- autograd --------------------------------------------------------------------------------------------------------


def test_gradients_of_parameters_and_inputs() -> None:
    found = []
    for module in twins():
        x = X.clone().requires_grad_()
        module(x).square().sum().backward()
        found.append((gradients(module), x.grad))
    assert_same(*found)


def test_accumulated_gradients() -> None:
    """Two batches before one step."""
    model, parallel = twins()
    for module in (model, parallel):
        for seed in range(3):
            (module(numbers(4, 6, seed=seed)).sum() / 3).backward()
    assert_same(gradients(model), gradients(parallel))


def test_backward_twice_through_one_graph() -> None:
    model, parallel = twins()
    for module in (model, parallel):
        loss = module(X).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same(gradients(model), gradients(parallel))


def test_two_forwards_before_their_backwards() -> None:
    """A call leaves nothing behind that the next one could overwrite: siamese losses, GANs."""
    model, parallel = twins()
    for module in (model, parallel):
        first, second = module(X), module(X * 2)
        (first * second).sum().backward()
    assert_same(gradients(model), gradients(parallel))


def test_double_backward() -> None:
    """A gradient penalty."""
    found = []
    for module in twins():
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append((slope.detach(), gradients(module), x.grad))
    assert_same(*found)


def test_gradcheck() -> None:
    _, parallel = twins(Pair().double(), X.double())
    assert torch.autograd.gradcheck(parallel, numbers(2, 6).double().requires_grad_())


def test_frozen_parameters() -> None:
    """`requires_grad` may change between calls, in either direction."""
    model, parallel = twins()
    for module in (model, parallel):
        module.left.requires_grad_(False)
        module(X).sum().backward()
    assert parallel.left[0].weight.grad is None
    assert_same(gradients(model), gradients(parallel))
    for module in (model, parallel):
        module.left.requires_grad_(True)
        module(X).sum().backward()
    assert_same(gradients(model), gradients(parallel))


class Dropping(Pair):
    """Draws random numbers in both branches."""

    def forward(self, x: Tensor) -> Tensor:
        drop = nn.functional.dropout
        return self.head(drop(self.left(x), 0.5, self.training) * drop(self.right(x), 0.5, self.training))


class CheckpointsInside(Dropping):
    """Recomputes one branch in backward."""

    def branch(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.left(x), 0.5, self.training)

    def forward(self, x: Tensor) -> Tensor:
        left = checkpoint(self.branch, x, use_reentrant=False)
        return self.head(left * nn.functional.dropout(self.right(x), 0.5, self.training))


def test_checkpointing_inside() -> None:
    """The branch draws the same random numbers when it is run again."""
    model, parallel = twins(CheckpointsInside())
    for module in (model, parallel):
        torch.manual_seed(5)
        module(X.clone().requires_grad_()).sum().backward()
    assert_same(gradients(model), gradients(parallel))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_around(reentrant: bool) -> None:
    """The whole module is run again in backward, under hooks, and draws the same random numbers."""
    model, parallel = twins(Dropping())
    for module in (model, parallel):
        torch.manual_seed(5)
        checkpoint(module, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert_same(gradients(model), gradients(parallel))


def test_saved_tensor_hooks() -> None:
    """Hooks are kept per thread: every tensor that autograd saves must pass through the caller's."""
    counts = []
    for module in twins():
        packed: list[int] = []

        def pack(tensor: Tensor, packed: list[int] = packed) -> Tensor:
            packed.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(X).sum().backward()
        counts.append(sorted(packed))
    assert counts[0] == counts[1] and counts[0]


class Averages(Pair):
    """A buffer is written between ops that keep what they read for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.more = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0))
        return self.more(x).exp() * 2 + self.more(x * x).exp() * 3 + self.mean[0]


def test_what_a_checkpoint_runs_again_is_what_eager_does() -> None:
    """A checkpoint around a module ends when it has the last of the tensors that it wants. Hooks on saved tensors stay on the
    caller's thread, but the plan's order is not eager's: what forward writes was written once, where eager does so twice.
    """
    found = []
    for module in twins(Averages()):
        packed: list[tuple[int, ...]] = []
        checkpoint(module, X.clone().requires_grad_(), use_reentrant=False).sum().backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=packed: to.append(tuple(x.shape)) or x, lambda x: x):
            module(X)
        found.append([module.mean, packed])
    assert_same(*found)


def test_anomaly_mode() -> None:
    _, parallel = twins()
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        parallel(X).sum().backward()


# -- modes of the caller ---------------------------------------------------------------------------------------------

Seen = list[tuple[int, Any]]


def observed(module: Parallel, look: Callable[[], Any]) -> Seen:
    """What ``look`` gives on the thread of each branch while the module runs: pairs of thread and result."""
    seen: Seen = []
    with ExitStack() as stack:
        for tower in (module.left, module.right):
            stack.enter_context(spying(tower[0], lambda: seen.append((threading.get_ident(), look()))))
        module(X)
    assert len({thread for thread, _ in seen}) == 2, "the test wants both branches on threads of their own"
    return seen


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_every_lane_takes_over_grad_modes(mode: Callable[[], Any]) -> None:
    def look() -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    model, parallel = twins()
    for _ in range(2):  # and the worker is put back for the call after
        with mode():
            assert {found for _, found in observed(parallel, look)} == {look()}
            result = parallel(X)
            assert_same(model(X), result)
        assert {found for _, found in observed(parallel, look)} == {(True, False)}
    assert result.requires_grad == (mode is torch.enable_grad)
    assert result.is_inference() == (mode is torch.inference_mode)


def test_every_lane_takes_over_autocast() -> None:
    model, parallel = twins()
    with torch.autocast("cpu", torch.bfloat16):
        assert {found for _, found in observed(parallel, lambda: torch.is_autocast_enabled("cpu"))} == {True}
        result = parallel(X)
        assert result.dtype == torch.bfloat16
        assert_same(model(X), result)
        result.sum().backward()
        model(X).sum().backward()
    assert_same(gradients(model), gradients(parallel))
    assert {found for _, found in observed(parallel, lambda: torch.is_autocast_enabled("cpu"))} == {False}
    assert_same(model(X), parallel(X))


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["grad", "inference", "autocast"],
)
def test_a_program_of_one_mode_is_not_used_in_another(mode: Callable[[], Any]) -> None:
    """The usual training loop first evaluates under `no_grad`, and trains afterwards."""
    model, parallel = twins()
    model.eval(), parallel.eval()
    with mode():
        assert_same(model(X), parallel(X))
    assert_same(model(X), parallel(X))
    for module in (model, parallel):
        module(X).sum().backward()
    assert_same(gradients(model), gradients(parallel))


def test_under_fake_tensors() -> None:
    """No worker can take over a dispatch mode, so the caller runs every lane; the next call runs on lanes again."""
    model, parallel = twins()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert parallel(mode.from_tensor(X)).shape == (4, 2)
    assert_same(model(X), parallel(X))
    observed(parallel, lambda: None)


def test_under_a_device_context() -> None:
    """`torch.device("meta")` as a context is meant for what is built in it, not for a module that exists, nor for tracing."""
    model, parallel = twins()
    model.eval(), parallel.eval()
    with torch.device("meta"):
        assert_same(model(X), parallel(X))
    assert_same(model(X), parallel(X))


def test_profiler() -> None:
    """Ops of both lanes are in the profile. PyTorch leaves out other threads than the caller's unless it is told not to."""
    _, parallel = twins()
    cpu, config = torch.profiler.ProfilerActivity.CPU, torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(activities=[cpu], experimental_config=config, acc_events=True) as profile:
        parallel(X).sum().backward()
    calls = {entry.key: entry.count for entry in profile.key_averages()}
    assert calls["aten::linear"] == 5


# -- function transforms ---------------------------------------------------------------------------------------------


def test_func_grad() -> None:
    def loss(module: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
        return lambda parameters: torch.func.functional_call(module, parameters, X).square().sum()

    model, parallel = twins()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    assert_same(torch.func.grad(loss(model))(parameters), torch.func.grad(loss(parallel))(parameters))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_vmap_and_jvp() -> None:
    model, parallel = twins()
    batches = numbers(5, 4, 6)
    torch.testing.assert_close(torch.vmap(parallel)(batches), torch.vmap(model)(batches))
    tangents = (X,), (torch.ones_like(X),)
    torch.testing.assert_close(torch.func.jvp(parallel, *tangents), torch.func.jvp(model, *tangents))


def test_gradients_of_each_example() -> None:
    """`vmap(grad(...))` over a shape that no program was made for."""
    model, parallel = twins()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def each(module: nn.Module) -> Any:
        def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(module, values, x[None]).sum()

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, X)

    torch.testing.assert_close(each(parallel), each(model))


# -- optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    kind.__name__: (kind, {})
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
for _name in "Adadelta Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD Adafactor".split():
    OPTIMIZERS[f"{_name} foreach"] = (getattr(torch.optim, _name), {"foreach": True})
for _name in "Adagrad Adam AdamW SGD".split():
    OPTIMIZERS[f"{_name} fused"] = (getattr(torch.optim, _name), {"fused": True})


class PairOfTables(nn.Module):
    """Two embeddings with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(9, 6, sparse=True), nn.Embedding(9, 6, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        """Maps indices to the product of two vectors."""
        return self.left(x).tanh() * self.right(x).tanh()


def optimizer_case(name: str) -> tuple[nn.Module, Tensor, Callable[[nn.Module], torch.optim.Optimizer]]:
    """A model and an input that the optimizer can take, and how to make it."""
    kind, options = OPTIMIZERS[name]
    model, x = (PairOfTables(), torch.tensor([1, 4, 1])) if kind is torch.optim.SparseAdam else (Pair(), X)

    def make(module: nn.Module) -> torch.optim.Optimizer:
        wanted = [p for p in module.parameters() if p.ndim == 2 or kind is not torch.optim.Muon]
        return kind(wanted, lr=0.1, **options)

    return model, x, make


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    """Three steps of each, for-loops, foreach and fused: equal to the bit, its own state included."""
    model, x, make = optimizer_case(name)
    model, parallel = twins(model, x)
    states = []
    for module in (model, parallel):
        optimizer = make(module)
        for _ in range(3):

            def closure(module: nn.Module = module, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = module(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        states.append(optimizer.state_dict()["state"])
    assert_same_state(model, parallel)
    assert_same(*states)


def test_an_optimizer_that_was_made_before() -> None:
    """Parameters move in place, so what holds them goes on holding them."""
    plain = Pair()
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.Adam(module.parameters()) for module in (plain, model)]
    parallel = spread(model, X, lanes=2)
    for module, optimizer in zip((plain, parallel), optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            module(X).sum().backward()
            optimizer.step()
    assert_same_state(plain, parallel)


def test_gradient_scaler_and_clipping() -> None:
    """The loop of mixed precision: scaled loss, unscaled gradients, clipped, stepped."""
    model, parallel = twins()
    norms: list[float] = []
    for module in (model, parallel):
        _, found = train_mixed(module, X, torch.bfloat16, steps=2, scale=8.0, clip=0.01)
        norms += (norm.item() for norm in found)
    assert norms[:2] == norms[2:] and all(map(math.isfinite, norms))
    assert_same_state(model, parallel)


def test_averaged_models() -> None:
    """`AveragedModel` deep-copies the module and updates the copy."""
    _, parallel = twins()
    average = torch.optim.swa_utils.AveragedModel(parallel)
    with torch.no_grad():
        for parameter in parallel.parameters():
            parameter.add_(2.0)
    before = copy.deepcopy(average.module.state_dict())
    average.update_parameters(parallel)
    average.update_parameters(parallel)
    assert not torch.equal(before["head.bias"], average.module.head.bias)
    assert average(X).shape == (4, 2)


# -- data parallel ---------------------------------------------------------------------------------------------------


def _rank(rank: int, folder: str) -> None:
    """One process of two: train on half of the batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(rank)  # the wrapper gives every process the first one's parameters
    parallel = spread(Pair(), X, lanes=2)
    wrapped = DistributedDataParallel(parallel, device_ids=None)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(X[rank * 2 : rank * 2 + 2]).square().mean().backward()
        optimizer.step()
    torch.save(parallel.state_dict(), Path(folder) / f"{rank}.pt")
    dist.barrier()  # gloo's threads let go of the backward's context before PyTorch joins them, with the GIL held
    dist.destroy_process_group()


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path: Path) -> None:
    """Two processes, each with two lanes, average their gradients: as one process with the whole batch."""
    torch.multiprocessing.start_processes(_rank, (str(tmp_path),), nprocs=2, start_method="spawn")
    torch.manual_seed(0)
    plain = Pair()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        plain(X).square().mean().backward()
        optimizer.step()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert_same(first, second)
    torch.testing.assert_close(first, dict(plain.state_dict()))
