"""`compile_tasks="frozen"`: weights are laid out for their kernels once, and nobody sees values that they no longer have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from lanes import assert_same, numbers, spec
from torch import Tensor, nn

from partitioner import partition
from partitioner.backends.compiling import frozen
from partitioner.backends.compiling.frozen import AGAIN, LAYOUTS, Frozen, Laid, stamp
from partitioner.backends.compiling.scripted import Scripted
from partitioner.runtime.module import Parallel
from partitioner.testing import GeneratedModule, assert_equal_runs, modules

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")]

TURNED, IN_BLOCKS = range(len(LAYOUTS))

X = numbers(4, 6)


@pytest.fixture(autouse=True)
def is_faster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """One of the layouts is the fastest, whatever the clock says."""
    number = getattr(request, "param", TURNED)
    monkeypatch.setattr(frozen, "_fastest", lambda plainly, others, _: [plainly, *others][: number + 2][-1])
    with torch.no_grad():
        yield


each_layout = pytest.mark.parametrize("is_faster", [TURNED, IN_BLOCKS, 2, 3], indirect=True)
"""As the ops are; and with equal ones put together, if some are."""


def made(model: nn.Module, *inputs: Tensor, lanes: int = 1, **options: object) -> Parallel:
    """A partition of a copy, in eval mode."""
    return partition(model.eval(), example_inputs=inputs, spec=spec(lanes), copy=True, compile_tasks="frozen", **options)  # type: ignore[arg-type]


def tasks(parallel: Parallel) -> list[Frozen]:
    """What holds weights."""
    bodies = parallel._partitioner_programs.shown.executable.bodies.values()  # type: ignore[union-attr]
    return [body.run for body in bodies if isinstance(body.run, Frozen)]


def assert_near(one: object, other: object) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class Towers(nn.Module):
    """Equal branches of linear layers, and one that differs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(2))
        self.gate = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x - 1) + self.right(x + 1) * self.gate(x).sigmoid()


class Pictures(nn.Module):
    """Convolutions with running statistics, strides, groups and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Sequential(nn.Conv2d(8, 4, 1, stride=2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x)
        return self.head(F.relu(found + self.second(found)))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "towers": (Towers, lambda batch: numbers(batch, 6)),
    "pictures": (Pictures, lambda batch: numbers(batch, 3, 8, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda batch: numbers(batch, 5, 8)),
    "recurrent": (lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LSTM(6, 4)), lambda batch: numbers(3, batch, 6)),
}


@pytest.mark.sampled(5)
@each_layout
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_models_equal_eager_to_rounding(name: str, lanes: int) -> None:
    """At the size that weights were laid out for, and at others."""
    build, inputs = CASES[name]
    model = build().eval()
    parallel = made(model, inputs(4), lanes=lanes)
    for batch in (4, 1, 7, 4):
        assert_near(parallel(inputs(batch)), model(inputs(batch)))


@pytest.mark.sampled(2)
@each_layout
@given(model=modules())
@settings(max_examples=settings.default.max_examples // 2)
def test_random_modules_equal_eager(model: GeneratedModule) -> None:
    inputs = model.example_inputs(seed=0)
    parallel = partition(model.eval(), example_inputs=inputs, spec=spec(3), copy=True, check=False, compile_tasks="frozen")
    assert_equal_runs(model, parallel, inputs, train=False, gradients=False, bitwise=False, rtol=1e-4, atol=1e-4)


def test_layers_are_laid_out() -> None:
    """Each of the layouts is what its name says."""
    for number, found in enumerate([["aten::t", "aten::linear"], ["aten::batch_norm"]]):
        model, x = (Towers(), X) if number == TURNED else (Pictures(), numbers(2, 3, 8, 8))
        parallel = made(model, x)
        (task,) = tasks(parallel)
        assert "in 1 function, 1 on weights that are laid out" in str(parallel)
        assert not any(f"{name}(" in str(task.laid.function.function.graph) for name in found)
        assert all(f"{name}(" in str(task.plainly.function.graph) for name in found if name != "aten::t")


@pytest.mark.parametrize("is_faster", [3], indirect=True)
def test_weights_of_equal_ops_are_put_together_once() -> None:
    (task,) = tasks(made(Towers(), X))
    graph = str(task.laid.function.function.graph)
    assert "aten::baddbmm(" in graph and graph.count("aten::stack(") == 1, "of inputs alone"


def write(model: nn.Module) -> None:
    model.left[0].weight.mul_(2)


def step(model: nn.Module) -> None:
    with torch.enable_grad():
        model(X).square().sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()


def load(model: nn.Module) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def assign(model: nn.Module) -> None:
    model.load_state_dict({name: value.clone() + 1 for name, value in model.state_dict().items()}, assign=True)


def replace_memory(model: nn.Module) -> None:
    model.gate.weight.data = model.gate.weight + 1


def replace_weight(model: nn.Module) -> None:
    model.gate.weight = nn.Parameter(model.gate.weight + 1)


def replace_layer(model: nn.Module) -> None:
    model.right = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)).requires_grad_(False)
    model.right.load_state_dict({name: value.sin() for name, value in model.left.state_dict().items()})


def exchange(model: nn.Module) -> None:
    """The same two tensors, and neither was written."""
    left, right = model.left[0], model.right[0]
    left.weight, right.weight = right.weight, left.weight


def widen(model: nn.Module) -> None:
    model.double().float().left[0].bias.add_(1)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    "change",
    [write, step, load, assign, replace_memory, replace_weight, replace_layer, exchange, widen],
    ids=attrgetter("__name__"),
)
def test_weights_that_change_count(change: Callable[[nn.Module], None], lanes: int) -> None:
    """At once; and once they stay as they are for a while, they are laid out anew."""
    model = Towers().eval()
    parallel = made(model, X, lanes=lanes)
    for _ in range(2):
        for each in (model, parallel):
            change(each)
        for _ in range(AGAIN + 3):
            assert_near(parallel(X), model(X))
        assert tasks(parallel), "they are held"
        assert all(task.laid.stamp == stamp(task.laid.weights) for task in tasks(parallel))


def test_what_changes_in_every_call_is_not_laid_out() -> None:
    """A running value that another task reads."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            found = self.layer(x).relu() + self.seen
            self.seen += x.mean(0)
            return found

    model = Counting().eval()
    parallel = made(model, X, lanes=3)
    for _ in range(AGAIN + 5):
        assert_near(parallel(X), model(X))
    assert_near(parallel.seen, model.seen)


def test_memory_that_is_held_is_nobody_else_s() -> None:
    """A weight whose memory was given back might get another one at the same address, written as often."""
    weight = nn.Parameter(numbers(64, 64), requires_grad=False)
    laid = Laid(Scripted(None), [0], [weight], stamp([weight]), [weight.detach()])
    assert laid.holds([weight])
    for value in range(20):
        weight.data = torch.empty(0)
        weight.data = torch.full((64, 64), float(value))
        assert not laid.holds([weight])


class Table(nn.Module):
    """What is made of weights alone, and given away."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(numbers(6, 6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        doubled = (self.table * 2).tanh()
        return self.layer(x).relu(), doubled, doubled.t() + 1


@each_layout
def test_what_follows_from_weights_alone_is_the_caller_s() -> None:
    """He may write to it, and gets it anew from the next call."""
    model = Table().eval()
    parallel = made(model, X)
    for _ in range(3):
        found = parallel(X)
        assert_near(found, model(X))
        for each in found:
            each.zero_()


def test_a_task_may_write_to_what_another_has_made_of_weights() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Parameter(numbers(4, 6)), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            start = (self.table * 2).tanh()
            start += self.layer(x).relu()
            start[0] = x.sum()
            return start * x

    model = Writing().eval()
    for lanes in (1, 3):
        parallel = made(model, X, lanes=lanes)
        for _ in range(3):
            assert_near(parallel(X), model(X))


def test_one_weight_in_two_places() -> None:
    model = Towers().eval()
    model.gate.weight = nn.Parameter(numbers(6, 6))
    model.left[2].weight = model.right[2].weight
    parallel = made(model, X)
    for each in (model, parallel):
        each.right[2].weight.add_(1)
    assert_near(parallel(X), model(X))
    assert len(list(parallel.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize("train", [False, True])
def test_with_gradients_weights_stay_as_they_are(train: bool) -> None:
    model = Pictures()
    with torch.enable_grad():
        parallel = partition(model, ["cpu"], example_inputs=numbers(4, 3, 8, 8), copy=True, compile_tasks="frozen")
        assert_equal_runs(model, parallel, (numbers(4, 3, 8, 8),), train=train, gradient_bitwise=False)
        assert not tasks(parallel)


def test_weights_whose_writes_nobody_counts_stay_as_they_are() -> None:
    with torch.inference_mode():
        model = Towers().eval()
        parallel = partition(copy.deepcopy(model), ["cpu"], example_inputs=X, compile_tasks="frozen")
        assert not tasks(parallel)
        for each in (model, parallel):
            each.left[0].weight.mul_(2)
        assert_same(parallel(X), model(X))


def test_a_layout_that_is_not_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    seconds: list[dict[str, float]] = []

    def measured(ways: dict[str, Callable[[], object]], **_: object) -> dict[str, float]:
        seconds.append({name: 1.0 - number * 0.01 for number, name in enumerate(ways)})
        return seconds[-1]

    monkeypatch.setattr(frozen, "measured", measured)
    assert not tasks(made(Towers(), X)) and len(seconds) == 1


def test_a_layout_that_gives_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's passes make is held against the ops as they are."""
    lay = frozen._laid_out

    def wrong(function: Scripted, positions: Sequence[int], passes: Sequence[str], arguments: Sequence[object]) -> Laid:
        return lay(function, positions, passes, [each + 1 if isinstance(each, nn.Parameter) else each for each in arguments])  # type: ignore[operator]

    monkeypatch.setattr(frozen, "_laid_out", wrong)
    model = Towers().eval()
    parallel = made(model, X)
    assert not tasks(parallel)
    assert_same(parallel(X), model(X))
