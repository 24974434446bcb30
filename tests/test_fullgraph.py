"""``fullgraph=False``: Python between graphs where state lies on several devices. The accelerators are pretended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from lanes import Tower, assert_same, numbers
from pretend import put, spec
from test_state_on_devices import TWO, assert_two_calls_alike
from torch import Tensor, nn

from models import MODELS, make
from partitioner import Parallel, PlacementError, SpecError, TraceError, partition
from partitioner.driver import planned
from scatter import scatter

X = numbers(12, 6)

pytestmark = pytest.mark.usefixtures("one_thread", "world")


def between(model: nn.Module, *inputs: Tensor, caps: Mapping[str, int] | None = None, **options: Any) -> Parallel:
    """A copy of a model on two devices, with Python between graphs."""
    given = {"example_inputs": inputs or None, "copy": True, **options}
    return partition(model, spec=spec(TWO, **(caps or {})), fullgraph=False, **given)


def assert_trains_alike(parallel: Parallel, model: nn.Module, *inputs: Tensor) -> None:
    """Results, buffers and gradients of a call are eager's."""
    found = []
    for module in (model, parallel):
        module.zero_grad()
        result = module(*(each.clone() for each in inputs))
        result.sum().backward()
        gradients = {name: one.grad for name, one in module.named_parameters()}
        found.append((result.detach(), dict(module.named_buffers()), gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6, check_device=False)


class Expert(nn.Module):
    """One of several that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, 6) to (rows, 6)."""
        return self.down(self.up(x).relu())


class Experts(nn.Module):
    """Each row goes to one expert; those that get none are not called."""

    def __init__(self, count: int = 16, expert: Callable[[], nn.Module] = Expert) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(6, count), nn.Linear(6, 6)
        self.experts = nn.ModuleList(expert() for _ in range(count))
        self.register_buffer("rows", torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, 6) to (rows, 6)."""
        chosen, y = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == number)[:, 0]
            if rows.numel() == 0:
                continue
            self.rows[number] += rows.numel()
            y = y.index_add(0, rows, expert(x[rows]))
        return self.out(y)


def test_experts_of_which_python_asks_who_has_rows() -> None:
    """No device holds all of them. Those that are alike once shared a program, and took each other's weights for arguments."""
    torch.manual_seed(0)
    model = Experts()
    caps = dict.fromkeys(("lazy0", "lazy1"), 28_000)
    parallel = between(model, X, caps=caps)
    homes = [{str(one.device) for one in expert.parameters()} for expert in parallel.original.experts]  # type: ignore[union-attr]
    assert {"lazy:1"} in homes and {str(one.device) for one in parallel.parameters()} == {*TWO}
    for rows in (12, 12, 5, 1):
        assert_trains_alike(parallel, model, numbers(rows, 6))
    assert "Python decides on the value of a tensor" in repr(parallel)


def test_layers_of_torchs_own_in_a_loop_that_is_no_graph() -> None:
    """Dynamo traces them with their callers alone, and notes for the whole process that it leaves them out: nothing was traced,
    and "nothing of Experts could be traced" was the answer to most mixtures of experts that people write."""
    torch.manual_seed(0)
    model = Experts(expert=lambda: nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6)))
    for compiled in (torch.compile(model, backend="eager"), partition(model, ["cpu:0", "cpu:1"], copy=True)):
        compiled(X)
    model.rows.zero_()
    parallel = between(model, X, caps=dict.fromkeys(("lazy0", "lazy1"), 28_000))
    assert {str(one.device) for one in parallel.experts.parameters()} == {*TWO}
    for rows in (12, 3):
        assert_trains_alike(parallel, model, numbers(rows, 6))


class Scripted(nn.Module):
    """One of its parts is TorchScript's, whose class has no forward to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.part = nn.Linear(6, 6), nn.Linear(6, 6), torch.jit.script(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, 6) to (rows, 6)."""
        y = self.part(self.left(x))
        return self.right(y) if y.sum() > 0 else y


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_a_part_of_torchscript() -> None:
    """It was an AttributeError of torch's."""
    model = Scripted().eval()
    with torch.no_grad():
        torch.testing.assert_close(between(model, X, check=False)(X), model(X), check_device=False)


def test_what_does_not_fit_beside_what_the_others_keep_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"lazy:0|lazy:1"):
        between(Experts(), X, caps=dict.fromkeys(("lazy0", "lazy1"), 9_000))


class Passing(nn.Module):
    """Two towers and a buffer, and between them whatever ``middle`` does with views of what was there before."""

    def __init__(self, middle: Callable[..., Any]) -> None:
        super().__init__()
        self.left, self.right, self.middle = Tower(), Tower(), middle
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, 6) to (rows, 6)."""
        a, b = self.left(x), self.right(x)
        flat, first, late = self.scale.view(2, 3), a[0], x.view(-1)
        c = (a * b * self.scale).relu()
        upper, lower = c[:6], c[6:]
        print(end="")
        self.middle(flat=flat, first=first, late=late, upper=upper, whole=c)
        return c * self.scale + lower.sum() + late.sum() + a.sum()


def _scales(flat: Tensor, **_: Tensor) -> None:
    flat.mul_(2)


def _writes_a_part(upper: Tensor, **_: Tensor) -> None:
    upper.add_(1)


def _writes_the_whole(whole: Tensor, **_: Tensor) -> None:
    whole.mul_(3)


def _writes_the_argument(late: Tensor, **_: Tensor) -> None:
    late.add_(1)


MIDDLES = [_scales, _writes_a_part, _writes_the_whole, _writes_the_argument]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("middle", MIDDLES)
def test_views_that_leave_a_graph_are_views(middle: Callable[..., Any]) -> None:
    """On another device they would be copies, and what is written to them lost: state, arguments, one result of another one."""
    torch.manual_seed(0)
    model = Passing(torch.compiler.disable(middle)).eval()
    with torch.no_grad():
        parallel = between(model, X, policy=scatter)
        for _ in range(2):
            mine, theirs = X.clone(), put(X, "lazy:0")
            torch.testing.assert_close(parallel(theirs), model(mine), rtol=1e-5, atol=1e-5, check_device=False)
            torch.testing.assert_close(theirs, mine, check_device=False)
            assert_same(model.scale, parallel.scale)
    assert {str(one.device) for one in parallel.parameters()} == {*TWO}, "what is no view still goes anywhere"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("middle", MIDDLES[:3])
def test_a_graph_that_writes_what_others_share_is_refused(middle: Callable[..., Any]) -> None:
    with torch.no_grad(), pytest.raises(PlacementError, match="arguments of this call share memory that the model writes"):
        between(Passing(middle).eval(), X, policy=scatter)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.filterwarnings("ignore")  # some of these models make torch warn in eager, too
def test_hazards(name: str) -> None:
    """Each is its eager self, those that cannot be one graph, too."""
    model = make(name).train()
    parallel = partition(
        make(name).train(),
        example_inputs=model.example_inputs(),
        example_kwargs=model.example_kwargs(),
        spec=spec(TWO),
        policy=scatter,
        fullgraph=False,
    )
    assert_two_calls_alike(model, parallel)


def test_without_examples_the_first_call_places_all_graphs() -> None:
    """It ran up to its first graph, and all other state would have gone to the first device."""
    torch.manual_seed(0)
    model = Experts()
    parallel = between(model, caps=dict.fromkeys(("lazy0", "lazy1"), 14_000))
    with torch.no_grad():
        torch.testing.assert_close(parallel(X), model(X), check_device=False)
    assert {str(one.device) for one in parallel.parameters()} == {*TWO}
    torch.testing.assert_close(parallel.rows, model.rows, check_device=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cap", [14_000, 18_000])
def test_experts_that_a_call_does_not_reach_go_where_there_is_room(cap: int) -> None:
    """They would all have gone to the first device, which is full."""
    torch.manual_seed(0)
    model = Experts().eval()
    with torch.no_grad():
        parallel = between(model, X[:1], caps=dict.fromkeys(("lazy0", "lazy1"), cap))
        places = [str(expert.up.weight.device) for expert in parallel.original.experts]  # type: ignore[union-attr]
        assert {*places} == {*TWO} and max(places.count(one) for one in TWO) * 1272 < cap
        torch.testing.assert_close(parallel(X), model(X), check_device=False)
        with pytest.raises(
            PlacementError, match="that the example call did not reach, fit on no device beside what its graphs"
        ):
            between(model, X[:1], caps=dict.fromkeys(("lazy0", "lazy1"), 9_000))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("match", "pinned"), [("experts.3", 1), ("*", 4)])
def test_a_pin_speaks_of_the_graphs_that_have_its_ops(match: str, pinned: int) -> None:
    """Each graph looked for the ops of each pin, and had none of "experts.3"; "*" pinned away what brings results back."""
    torch.manual_seed(0)
    model = Experts(4)
    rows = {"example_inputs": numbers(64, 6)}
    parallel = between(model, pins=[{"match": match, "device": "lazy:1"}], **rows)
    places = [str(expert.up.weight.device) for expert in parallel.original.experts]  # type: ignore[union-attr]
    assert places.count("lazy:1") == pinned and places[3] == "lazy:1"
    assert_trains_alike(parallel, model, numbers(64, 6))
    with pytest.raises(PlacementError, match=r"pattern 'expert.3' matches no op of the \d+ graphs"):
        between(model, pins=[{"match": "expert.3", "device": "lazy:1"}], **rows)


class Mixing(Experts):
    """Takes a weight that a graph has used, too, where nothing is traced."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, 6) to (rows, 6)."""
        super().forward(x)
        if x.sum() > 0:
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")
        return x


def test_what_runs_as_it_is_and_finds_two_devices_says_so() -> None:
    torch.manual_seed(0)
    parallel = between(Mixing(), -X.abs())
    line = next(n for n, text in enumerate(Path(__file__).read_text().split("\n"), 1) if "Expected all tensors" in text)
    with pytest.raises(TraceError, match=rf"Mixing runs in part as it is.*at {__file__}:{line}.*Pin the modules"):
        parallel(X.abs())


def test_other_methods_run_once() -> None:
    """What cannot be traced was refused, and then called as it is; here it has been called as it is already."""

    class Told(Experts):
        def told(self) -> None:
            calls.append(1)
            print(self.gate(X).sum())
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")

    calls: list[int] = []
    parallel = between(Told(), X)
    with pytest.raises(TraceError, match="Told runs in part as it is"):
        parallel.told()
    assert calls == [1]


def test_a_graph_break_is_refused_on_one_device_if_that_is_asked_for() -> None:
    for options in ({"example_inputs": X}, {}):
        with pytest.raises(TraceError, match=r"cannot be one graph, as state on several devices or fullgraph=True asks for"):
            partition(Experts(), ["cpu:0", "cpu:1"], fullgraph=True, **options)(X)
    parallel = partition(model := Tower(), ["cpu:0", "cpu:1"], example_inputs=X, fullgraph=True)
    assert torch.equal(parallel(X), model(X))


def test_what_does_not_go_with_it_is_refused() -> None:
    with pytest.raises(SpecError, match=r"tune=True moves the state of one graph.*leave it or fullgraph=False out"):
        between(Experts(), X, tune=True)
    with torch.device("meta"):
        empty = Experts()
    with pytest.raises(SpecError, match=r"weights= plans without values.*leave fullgraph=False out"):
        partition(empty, spec=spec(TWO), example_inputs=X, weights="nowhere", fullgraph=False)
    with pytest.raises(SpecError, match="fullgraph"):
        partition(Experts(), spec=spec(TWO), fullgraph="no")  # type: ignore[arg-type]


def test_a_plan_of_it_is_shown() -> None:
    plan = planned(Experts(), ["cuda:0", "cuda:1"], example_inputs=X, spec={"fullgraph": False})
    assert any("Python goes on after" in note for note in plan.graph.notes)


class Remembers(nn.Module):
    """Keeps what it is given, as another tensor on its memory, and reads both behind a break."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, 6) to (rows, 6)."""
        self.last = x.detach()
        print(end="")
        return self.left(x) + self.last.sum() + self.right(self.last)


@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
def test_an_argument_that_the_model_holds_too(example: bool) -> None:
    """One memory was used on two devices: what reads the argument and what reads the attribute were planned apart."""
    parallel = partition(
        model := Remembers(), spec=spec(TWO), policy=scatter, fullgraph=False, copy=True, example_inputs=X if example else None
    )
    assert_trains_alike(parallel, model, X)
