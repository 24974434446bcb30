"""Equal ops of one level as one: the same values and gradients, in fewer calls, and nobody's memory is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import numbers
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner import partition
from partitioner.backends.compiling import compilers
from partitioner.backends.compiling.batched import put_together
from partitioner.model.call import memory
from partitioner.testing import assert_equal_runs
from partitioner.tuning import trials

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")]


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that can be put together are, whatever the clock says."""
    monkeypatch.setattr(compilers, "is_faster", lambda one, other, arguments: True)


def recorded(function: Callable[..., object], *examples: object) -> torch.fx.GraphModule:
    """The ops of a function, as a task has them: what the module holds is an argument."""
    graphs: list[tuple[torch.fx.GraphModule, Sequence[Tensor]]] = []

    def keep(module: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        graphs.append((module, inputs))
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, dynamic=False)(*examples)
    ((module, inputs),) = graphs
    module.inputs = list(inputs)  # type: ignore[assignment]
    return module


def calls(module: torch.fx.GraphModule) -> int:
    return sum(node.op in ("call_function", "call_method") for node in module.graph.nodes)


class Branches(nn.Module):
    """Branches of the same shape with weights of their own, whose results are one or stay apart."""

    def __init__(self, make: Callable[[], nn.Module], count: int, shared: bool, join: bool = True) -> None:
        super().__init__()
        self.branches, self.shared, self.join = nn.ModuleList(make() for _ in range(count)), shared, join

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = tuple(branch(x if self.shared else x + number) for number, branch in enumerate(self.branches))
        return torch.stack(found) if self.join else found


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "linear": lambda: [nn.Linear(6, 6)],
    "linear without bias": lambda: [nn.Linear(6, 6, bias=False)],
    "relu": lambda: [nn.ReLU()],
    "gelu": lambda: [nn.GELU(approximate="tanh")],
    "leaky": lambda: [nn.LeakyReLU(0.3)],
    "norm": lambda: [nn.LayerNorm(6)],
    "softmax": lambda: [nn.Softmax(-1)],
}
PICTURES: dict[str, Callable[[], list[nn.Module]]] = {
    "conv": lambda: [nn.Conv2d(4, 4, 3, padding=1)],
    "depthwise": lambda: [nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)],
    "groups": lambda: [nn.Conv2d(4, 4, 1, groups=2)],
    "norm": lambda: [nn.BatchNorm2d(4)],
    "max": lambda: [nn.MaxPool2d(3, 1, 1)],
    "average": lambda: [nn.AvgPool2d(3, 1, 1)],
    "silu": lambda: [nn.SiLU()],
    "relu": lambda: [nn.BatchNorm2d(4), nn.ReLU(inplace=True)],
}


def of(layers: dict[str, Callable[[], list[nn.Module]]], names: Sequence[str]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(layer for name in names for layer in layers[name]()))


def randomised(model: nn.Module) -> nn.Module:
    """With statistics and weights of norms that differ from layer to layer."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    return model


@given(
    names=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    count=st.integers(2, 4),
    shared=st.booleans(),
    join=st.booleans(),
    shape=st.sampled_from([(6,), (3, 6), (2, 3, 6)]),
)
@settings(max_examples=settings.default.max_examples // 4)
def test_random_branches_of_layers(names: list[str], count: int, shared: bool, join: bool, shape: tuple[int, ...]) -> None:
    check(randomised(Branches(of(LAYERS, names), count, shared, join)).eval(), numbers(*shape), "linear" in " ".join(names))


@given(
    names=st.lists(st.sampled_from(sorted(PICTURES)), min_size=1, max_size=4),
    count=st.integers(2, 4),
    shared=st.booleans(),
    join=st.booleans(),
    batch=st.sampled_from([1, 2]),
    lies=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
@settings(max_examples=settings.default.max_examples // 4)
def test_random_branches_of_convolutions(
    names: list[str], count: int, shared: bool, join: bool, batch: int, lies: torch.memory_format
) -> None:
    convolves = bool({"conv", "depthwise", "groups"} & set(names))
    model = randomised(Branches(of(PICTURES, names), count, shared, join)).eval()
    check(model, numbers(batch, 4, 5, 5).contiguous(memory_format=lies), convolves)


def check(model: Branches, x: Tensor, merges: bool) -> None:
    """Hold what was put together against the ops one by one: values, strides, gradients, and whose memory is whose."""
    module = recorded(model, x)
    given: list[Tensor] = module.inputs  # type: ignore[assignment]
    inputs = [value.detach().requires_grad_(model.join and (value is given[0] or value.requires_grad)) for value in given]
    found = put_together(module, inputs)
    assert (found is not None) == merges
    if found is None:
        return
    expected, results = tree_leaves(module(*inputs)), tree_leaves(found(*inputs))
    torch.testing.assert_close(results, expected)
    assert len(set(memory(results))) == len(results)
    assert [each.stride() for each in results] == [each.stride() for each in expected]
    if not model.join:
        return
    for one, other in zip(gradients(results, inputs), gradients(expected, inputs), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            most = float(other.abs().max()) if other is not None and other.numel() else 1.0
            torch.testing.assert_close(one, other, rtol=1.3e-6, atol=1e-5 * max(1.0, most))  # sums in other orders


def gradients(results: list[Tensor], inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    total = sum((result * torch.linspace(0, 1, result.numel()).view(result.shape)).sum() for result in results)
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, [value for value in inputs if value.requires_grad], allow_unused=True)


def test_towers_take_as_many_calls_as_one_of_them() -> None:
    tower = of(LAYERS, ["linear", "relu", "linear", "relu"])
    module = recorded(Branches(tower, 8, shared=False).eval(), numbers(3, 6))
    found = put_together(module, list(module.inputs))  # type: ignore[arg-type]
    assert found is not None
    names = [getattr(node.target, "__name__", "") for node in found.graph.nodes]
    assert names.count("baddbmm") == 2 and names.count("relu") == 2, (
        "both of the layers, and what lies between them in one piece"
    )


@pytest.mark.usefixtures("merges")
@pytest.mark.parametrize("train", [False, True])
def test_a_partitioned_module_equals_eager(train: bool) -> None:
    model = Branches(of(LAYERS, ["linear", "gelu", "linear"]), 4, shared=True).train(train)
    parallel = partition(model, ["cpu"], example_inputs=numbers(3, 6), compile_tasks="batched", copy=True)
    assert "compiled: 13 of 13 ops, in 1 function" in str(parallel)
    assert_equal_runs(model, parallel, (numbers(3, 6),), train=train, bitwise=False, gradient_bitwise=False)


@pytest.mark.usefixtures("merges")
def test_weights_that_change_count() -> None:
    model = Branches(of(LAYERS, ["linear", "relu"]), 3, shared=True).eval()
    parallel = partition(model, ["cpu"], example_inputs=numbers(3, 6), compile_tasks="batched", copy=True)
    for module in (model, parallel):
        with torch.no_grad():
            for number, parameter in enumerate(module.parameters()):
                parameter.fill_(number + 1)
    torch.testing.assert_close(parallel(numbers(3, 6)), model(numbers(3, 6)))


def test_what_writes_is_left_alone() -> None:
    def writes(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        first = F.linear(x, w)
        return F.relu(first, inplace=True) + first, F.linear(x, v)

    examples = numbers(3, 6), numbers(6, 6), numbers(6, 6)
    module = recorded(writes, *examples)
    assert put_together(module, examples) is None
    with torch.inference_mode():
        assert put_together(module, [each.clone() for each in examples]) is None, "no versions are counted there"


def test_activations_in_place_are_no_obstacle() -> None:
    """They are how most convolutional networks are written."""
    branch = of({**PICTURES, "block": lambda: [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)]}, ["block"])
    module = recorded(randomised(Branches(branch, 3, shared=False)).eval(), numbers(2, 4, 5, 5))
    found = put_together(module, list(module.inputs))  # type: ignore[arg-type]
    assert found is not None
    assert [getattr(node.target, "__name__", "") for node in found.graph.nodes].count("relu") == 1


def test_what_would_share_memory_is_left_alone() -> None:
    """Views of two results that are apart would lie in one tensor, where a write to one counts as a write to the other."""

    def views(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, w).t(), F.linear(x, v).t()

    examples = numbers(3, 6), numbers(6, 6), numbers(6, 6)
    assert put_together(recorded(views, *examples), examples) is None


def test_what_can_be_viewed_only_apart_stays_apart(capfd: pytest.CaptureFixture[str]) -> None:
    """Layers of other inputs' shape lie in one tensor with gaps, of which torch makes no view: its trace was shown."""

    def flat(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, w).view(-1).relu(), F.linear(x, v).relu().view(-1)

    examples = numbers(2, 3, 6), numbers(6, 6), numbers(6, 6)
    assert put_together(recorded(flat, *examples), examples) is None
    assert "FX-traced" not in capfd.readouterr().err


class Heads(nn.Module):
    """Results of which a loss may read some."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x).relu(), self.second(x).relu()


@pytest.mark.usefixtures("merges")
@pytest.mark.parametrize("tune", [False, True])
def test_a_weight_that_the_loss_does_not_reach_has_no_gradient(tune: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that were one op had zeros, which AdamW takes for a reason to decay a weight."""
    monkeypatch.setattr(trials.Trials, "best", lambda race: list(race.choices)[-1])
    compiled = {"tune": True} if tune else {"compile_tasks": "batched"}
    parallel = partition(Heads(), ["cpu"], example_inputs=numbers(3, 6), **compiled)
    parallel(numbers(3, 6))[0].sum().backward()
    assert parallel.first.weight.grad is not None and parallel.second.weight.grad is None


@pytest.mark.usefixtures("merges")
def test_a_frozen_branch_asks_for_no_gradient() -> None:
    """It had one beside a branch that is trained, for the op that both were has one."""
    model = Heads()
    model.second.requires_grad_(False)
    parallel = partition(model, ["cpu"], example_inputs=numbers(3, 6), compile_tasks="batched")
    assert [each.requires_grad for each in parallel(numbers(3, 6))] == [True, False]


@pytest.mark.parametrize("shape", [(), (3, 6)])
def test_a_bias_of_another_shape_is_left_alone(shape: tuple[int, ...]) -> None:
    """Three numbers, one for each of three layers, were taken for one for each of three rows."""
    weights, biases = [numbers(6, 6) + number for number in range(3)], [numbers(3, 6) * number for number in range(3)]
    biases = [bias if shape else bias.sum() for bias in biases]

    def layers(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
        return torch.stack([F.linear(x + number, *both) for number, both in enumerate(zip(weights, biases, strict=True))])

    module = recorded(layers, numbers(3, 6), weights, biases)
    assert put_together(module, list(module.inputs)) is None  # type: ignore[arg-type]


def test_what_is_slower_together_stays_apart() -> None:
    """Weights are put together in each call: of eight layers of 512 that is far more than one call of each costs."""
    model = Branches(lambda: nn.Linear(512, 512), 8, shared=True, join=False).requires_grad_(False)
    module = recorded(model, numbers(1, 512))
    assert put_together(module, list(module.inputs)) is not None  # type: ignore[arg-type]
    parallel = partition(model, ["cpu"], example_inputs=numbers(1, 512), compile_tasks="batched", copy=True)
    torch.testing.assert_close(parallel(numbers(1, 512)), model(numbers(1, 512)))
    (body,) = parallel._partitioner_programs.shown.executable.bodies.values()
    with torch.no_grad(), torch.autograd.profiler.profile() as profile:
        body(*module.inputs)  # type: ignore[misc]
    assert not any(event.name == "aten::cat" for event in profile.function_events)


def test_dropout_draws_as_ever() -> None:
    model = Branches(of({**LAYERS, "drop": lambda: [nn.Dropout(0.5)]}, ["linear", "drop", "linear"]), 3, shared=True).train()
    parallel = partition(model, ["cpu"], example_inputs=numbers(3, 6), compile_tasks="batched", copy=True)
    assert_equal_runs(model, parallel, (numbers(3, 6),), train=True, bitwise=False, gradient_bitwise=False)
