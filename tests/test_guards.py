"""What a program depends on beside its inputs: attributes that forward read while it was traced, hooks, replaced methods.

torch.compile's guards watch them. Whatever is changed afterwards, a call gives what the model gives now.
"""

from __future__ import annotations

import copy
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lanes import OLD_TORCH, programs, spec
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from partitioner import Parallel, partition

X = torch.arange(12.0).reshape(3, 4) / 7


class Branch(nn.Module):
    """Reads attributes of every kind."""

    momentum = 0.5  # of the class: an instance may have its own

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop, self.bias = nn.Linear(4, 4), nn.Dropout(0.0), None
        self.register_parameter("shift", None)
        self.config = SimpleNamespace(factor=1.0, inner=SimpleNamespace(factor=2.0))
        self.weights, self.named, self.activation = [1.0, 2.0], {"one": 1.0}, torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.drop(self.linear(x)) * self.momentum)
        x = x * self.config.factor * self.config.inner.factor * self.weights[1] * self.named["one"]
        if self.shift is not None:
            x = x + self.shift
        return x if getattr(self, "extra", None) is None else x + self.extra


class Halved(Branch):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


class Model(nn.Module):
    """Two branches and a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.scale = Branch(), Branch(), 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x) * self.scale


def parallel(kind: type[nn.Module] = Model) -> Parallel:
    torch.manual_seed(0)
    return partition(kind(), ["cpu:0", "cpu:1"], example_inputs=X)


def assert_as_eager(module: Parallel) -> None:
    torch.testing.assert_close(module(X), module.original(X), rtol=0, atol=0)


CHANGES: dict[str, Callable[[Any], object]] = {
    "attribute": lambda model: setattr(model, "scale", 3.0),
    "attribute of another type": lambda model: setattr(model, "scale", 2),
    "attribute of a class": lambda model: setattr(Branch, "momentum", 0.75),
    "method of a class": lambda model: setattr(Branch, "forward", lambda self, x: self.linear(x)),
    "class of a branch": lambda model: setattr(model.right, "__class__", Halved),
    "attribute of a branch": lambda model: setattr(model.left, "momentum", 0.25),
    "function": lambda model: setattr(model.left, "activation", torch.tanh),
    "field of a config": lambda model: setattr(model.left.config, "factor", 5.0),
    "field of a config in a config": lambda model: setattr(model.right.config.inner, "factor", 5.0),
    "item of a list": lambda model: model.left.weights.__setitem__(1, 7.0),
    "list with another in front": lambda model: model.left.weights.insert(0, 9.0),
    "item of a dictionary": lambda model: model.right.named.update(one=4.0),
    "attribute that was not there": lambda model: setattr(model.right, "extra", 1.0),
    "parameter that was None": lambda model: setattr(model.right, "shift", nn.Parameter(torch.ones(4))),
    "bias taken away": lambda model: setattr(model.left.linear, "bias", None),
    "probability of a dropout": lambda model: setattr(model.left.drop, "p", 1.0),
    "forward of a branch": lambda model: setattr(
        model.right, "forward", types.MethodType(lambda self, x: self.linear(x), model.right)
    ),
    "forward of the model": lambda model: setattr(model, "forward", types.MethodType(lambda self, x: self.left(x), model)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_attribute_is_what_the_next_call_sees(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("momentum", "forward"):
        monkeypatch.setattr(Branch, name, getattr(Branch, name))  # to be put back
    module = parallel()
    assert_as_eager(module)
    before = module(X)
    CHANGES[change](module.original)
    assert_as_eager(module)
    alike = change in ("attribute of another type", "probability of a dropout")  # 2 is 2.0 here, and dropout is off or on
    assert alike or not torch.equal(module(X), before), "the change must show, or this shows nothing"


def test_a_dropout_is_changed_in_training() -> None:
    """`model.drop.p = ...` is what people do between two phases of training."""
    module = parallel().train()
    assert_as_eager(module)
    module.original.left.drop.p = module.original.right.drop.p = 1.0
    assert_as_eager(module)
    assert not module(X).any()


def test_going_back_finds_the_first_program() -> None:
    module = parallel()
    for scale in (2.0, 3.0, 2.0, 3.0):
        module.original.scale = scale
        assert_as_eager(module)
    assert programs(module) == 2


def test_further_programs_make_no_call_slower() -> None:
    """What is asked of the process before each call was asked once for each program that there was."""
    module = parallel()
    traced = module._partitioner_programs.forward
    asked = len(traced.backend.conditions)
    for mode in MODES.values():
        with mode():
            assert_as_eager(module)
    assert programs(module) > 3 and len(traced.backend.conditions) == asked > 0


def test_attributes_that_forward_does_not_read_cost_no_program() -> None:
    module = parallel()
    module.original.note = "said"
    module.original.left.history = [1, 2, 3]
    assert_as_eager(module)
    assert programs(module) == 1


def test_a_copy_has_attributes_of_its_own() -> None:
    module = parallel()
    twin = copy.deepcopy(module)
    twin.original.scale = 5.0
    assert_as_eager(twin)
    assert_as_eager(module)
    assert not torch.equal(twin(X), module(X))
    module.original.left.config.factor = 3.0
    assert_as_eager(module)
    assert_as_eager(twin)
    changed = copy.deepcopy(module)
    assert_as_eager(changed)


def test_a_copy_made_after_a_part_was_replaced() -> None:
    """The copy took the new tree for the one that its programs had been traced from."""
    module = parallel()
    module.original.left = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    assert_as_eager(copy.deepcopy(module))
    assert_as_eager(module)


def test_a_copy_made_when_no_program_holds() -> None:
    module = parallel()
    module.original.scale = 9.0
    assert_as_eager(copy.deepcopy(module))


class Seen:
    """A hook that keeps what it has seen."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def __call__(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        self.tensors.append(output)


def test_hooks_of_a_container_are_called_in_every_call() -> None:
    """People take features with a hook on a block. Tracing into the block would call it once, with a proxy."""
    module, seen = parallel(), Seen()
    handle = module.original.left.register_forward_hook(seen)
    assert_as_eager(module)
    seen.tensors.clear()
    module(X)
    (found,) = seen.tensors
    assert torch.equal(found, module.original.left(X))
    handle.remove()
    seen.tensors.clear()
    assert_as_eager(module)
    assert not seen.tensors
    assert programs(module) == 2


def test_a_hook_of_a_container_may_change_its_output() -> None:
    module = parallel()
    before = module(X)
    module.original.right.register_forward_hook(lambda module, args, output: output * 10)
    assert_as_eager(module)
    assert not torch.equal(before, module(X))


def test_hooks_that_were_there_before() -> None:
    model, seen = Model(), Seen()
    model.left.register_forward_hook(seen)
    module = partition(model, ["cpu:0", "cpu:1"], example_inputs=X)
    seen.tensors.clear()
    module(X)
    assert [type(tensor) for tensor in seen.tensors] == [torch.Tensor]


def test_hooks_are_called_by_calls_alone() -> None:
    """A list of features holds what the user's calls gave, and nothing of what tracing did for a new program."""
    model, early, late = Model(), Seen(), Seen()
    model.left.linear.register_forward_hook(early)
    module = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, check=False)
    assert not early.tensors
    module(X)
    model.right.register_forward_hook(late)
    module(X)
    wanted = model.left.linear(X)
    assert [torch.equal(tensor, wanted) for tensor in early.tensors] == [True, True, True]  # the last by the line before
    assert [torch.equal(tensor, model.right(X)) for tensor in late.tensors[:1]] == [True]


class Collector(Model):
    """Its forward uses what hooks of its own have kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.left.register_forward_hook(lambda module, args, output: self.kept.append(output))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = []
        x = super().forward(x)
        return x + self.kept[0] if self.kept else x


def test_a_forward_that_uses_what_hooks_keep() -> None:
    module = parallel(Collector)
    assert_as_eager(module)
    assert len(module.kept) == 1


class Wide(nn.Module):
    """Four branches, each long enough to overlap with the others."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([branch(x) for branch in self.branches]).sum(0)


def test_hooks_run_in_the_order_of_eager() -> None:
    """Two lanes that append to one list would do it in any order, and features be taken for each other's."""
    model, seen = Wide(), Seen()
    for number, branch in enumerate(model.branches):
        branch[5 - number].register_forward_hook(seen)
    module = partition(model, example_inputs=X, spec=spec())
    assert len(set(module.placement.lane.values())) > 1, "the test wants lanes"
    seen.tensors.clear()
    model(X)
    wanted, seen.tensors = seen.tensors, []
    for _ in range(300):
        module(X)
        assert [torch.equal(one, other) for one, other in zip(wanted, seen.tensors, strict=True)] == [True] * 4
        seen.tensors.clear()


def test_a_hook_that_changes_what_it_is_given() -> None:
    """In place, on a tensor that the other branches read: they see it as in eager, before or after."""
    model = Wide()
    model.branches[1][0].register_forward_pre_hook(lambda module, args: args[0].add_(1))
    model.branches[2][0].register_forward_hook(lambda module, args, output: args[0])
    model.branches[2][1].register_forward_hook(lambda module, args, output: args[0].mul_(2))
    module = partition(model, example_inputs=X.clone(), spec=spec())
    with torch.no_grad():
        wanted, given = model(first := X.clone()), X.clone()
        for _ in range(100):
            torch.testing.assert_close(module(given), wanted, rtol=0, atol=0)
            assert torch.equal(first, given)
            given = X.clone()


def test_a_hooked_module_does_not_ask_for_a_program_in_every_call() -> None:
    module, seen = parallel(), Seen()
    module.original.left.register_forward_hook(seen)
    made = []
    for _ in range(2):
        for size in (1, 2, 3):
            seen.tensors.clear()  # a list that grows from call to call is another one in each
            torch.testing.assert_close(module(X[:size]), module.original(X[:size]), rtol=0, atol=0)
        made.append(programs(module))
    assert made[0] == made[1]


def test_backward_hooks_of_a_container() -> None:
    module = parallel()
    found: list[torch.Tensor] = []
    module.original.left.register_full_backward_hook(lambda module, inputs, outputs: found.append(outputs[0]))
    x = X.clone().requires_grad_()
    module(x)
    found.clear()
    module(x).sum().backward()
    assert len(found) == 1
    assert torch.equal(found[0], torch.ones(3, 4))


def test_backward_hooks_where_no_gradient_is_recorded() -> None:
    """They do nothing there, and no program of it asks for them; one that records gradients does."""
    module = parallel()
    found: list[torch.Tensor] = []
    with torch.no_grad():
        assert_as_eager(module)
        before = programs(module)
        module.original.left.register_full_backward_hook(lambda module, inputs, outputs: found.append(outputs[0]))
        assert_as_eager(module)
        assert programs(module) == before
    module(X.clone().requires_grad_()).sum().backward()
    assert len(found) == 1


class Enables(nn.Module):
    """Records gradients where the caller does not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return self.inner(x)


def test_backward_hooks_where_forward_records_gradients() -> None:
    module = partition(Enables(), ["cpu:0"], example_inputs=X)
    found: list[torch.Tensor] = []
    with torch.no_grad():
        x = X.clone().requires_grad_()
        module(x)
        module.original.inner.register_full_backward_hook(lambda module, inputs, outputs: found.append(outputs[0]))
        result = module(x)
    result.sum().backward()
    assert len(found) == 1


def test_hooks_for_all_modules() -> None:
    module = parallel()
    names: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: names.append(type(module).__name__))
    try:
        module(X)
        names.clear()
        module(X)
        found, names = names, []
        module.original(X)
    finally:
        handle.remove()
    assert found == names and len(names) == 7
    before, made = len(names), programs(module)
    assert_as_eager(module)
    assert len(names) == before
    assert programs(module) == made == 2, "calls under these hooks have a program, and those without keep theirs"


def test_counting_flops() -> None:
    """`FlopCounterMode` registers hooks for all modules: such a call gets programs of its own, and later ones the old ones."""
    module = parallel()
    with FlopCounterMode(display=False) as counter:
        module(X)
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 4
    counted = programs(module)
    assert_as_eager(module)
    assert programs(module) == counted


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_a_hook_computes() -> None:
    """The older `weight_norm` computes the weight in a hook, before each forward."""
    torch.manual_seed(0)
    model = Model()
    model.left.linear = nn.utils.weight_norm(model.left.linear)
    module = partition(model, ["cpu:0", "cpu:1"], example_inputs=X)
    with torch.no_grad():
        model.left.linear.weight_g.mul_(2)
    assert_as_eager(module)


class Timed(Model):
    """Asks for the time, which is a function that no tracer sees into."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if time.time() > 0 else 2)


def test_the_tracer_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    """It warned of functions in C, on the user's terminal; the summary says where a graph ends."""
    torch._dynamo.utils.warn_once_cache.clear()
    module = partition(Timed(), ["cpu:0", "cpu:1"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert_as_eager(module)
    assert [str(warning.message) for warning in recwarn] == []
    assert "time.time" in str(module)


class Options:
    """An argument that is hashed by identity and can be changed in place."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Optioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, options: Options) -> torch.Tensor:
        return self.left(x) + self.right(x) * options.factor


def test_an_argument_that_is_changed_in_place() -> None:
    options = Options(2.0)
    module = partition(Optioned(), ["cpu:0", "cpu:1"], example_inputs=(X, options))
    assert torch.equal(module(X, options), module.original(X, options))
    options.factor = 3.0
    assert torch.equal(module(X, options), module.original(X, options))


class AsksForGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def asks(self) -> bool:
        return torch.is_grad_enabled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x) * (2.0 if self.asks() else 3.0)


class AsksForInference(AsksForGradients):
    def asks(self) -> bool:
        return torch.is_inference_mode_enabled()


class AsksForAutocast(AsksForGradients):
    def asks(self) -> bool:
        return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


MODES: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.autocast("cpu", enabled=False),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("kind", [AsksForGradients, AsksForInference, AsksForAutocast])
def test_a_forward_that_asks_for_the_callers_modes(kind: type[nn.Module], first: str) -> None:
    """Each mode gets a program of its own, and finds it again."""
    torch.manual_seed(0)
    model = kind()
    with MODES[first]():
        module = partition(model, ["cpu:0", "cpu:1"], example_inputs=X)
    made = []
    for _ in range(2):
        for mode in MODES.values():
            with mode():
                assert_as_eager(module)
        made.append(programs(module))
    assert made[0] == made[1]


class MakesOnes(AsksForGradients):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x) * torch.ones(4)


def test_the_default_dtype() -> None:
    module = partition(MakesOnes(), ["cpu:0", "cpu:1"], example_inputs=X)
    assert module(X).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert module(X).dtype == module.original(X).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("copied", [True, False])
def test_a_module_made_under_inference_mode_can_be_trained(copied: bool) -> None:
    model = MakesOnes()
    with torch.inference_mode():
        module = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, copy=copied)
    module(X).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


class Regions(nn.Module):
    """Attributes that only the bodies of `cond` read, which dynamo traces out of sight."""

    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.shift = nn.Linear(4, 4), nn.Linear(4, 4), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.one, self.other, (x,))

    def one(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) * self.factor + self.shift

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.right(x) - self.shift


@pytest.mark.sampled(2)
@pytest.mark.xfail(OLD_TORCH, reason="there eager raises, once a number that a branch reads has changed", strict=False)
@pytest.mark.parametrize("name", ["factor", "shift"])
@pytest.mark.parametrize("on_the_class", [True, False])
def test_what_the_body_of_a_region_reads(name: str, on_the_class: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = partition(Regions().eval(), ["cpu:0", "cpu:1"], example_inputs=X)
    assert_as_eager(module)
    before = module(X)
    if on_the_class and name == "factor":
        monkeypatch.setattr(Regions, "factor", 7.0)
    else:
        setattr(module.original, name, 7.0)
    assert_as_eager(module)
    assert not torch.equal(module(X), before)


class Counts(Model):
    """Reads and changes a number of its own in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


def test_a_counter_is_an_input_and_no_reason_for_another_program() -> None:
    model = Counts()
    module = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, copy=True)
    for calls in range(1, 6):
        torch.testing.assert_close(module(X), model(X), rtol=0, atol=0)
        assert module.calls == model.calls == calls
    assert programs(module) <= 2


@pytest.mark.parametrize("on", [True, False])
def test_torchs_log_says_why_a_program_did_not_fit(on: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """The message of too many programs sends users there, and what torch logs of our tracing was dropped."""
    torch._logging.set_logs(recompiles=on)
    try:
        module = parallel()
        module.left.extra = torch.ones(4)
        assert_as_eager(module)
    finally:
        torch._logging.set_logs()
    told = capfd.readouterr().err
    assert ("not hasattr(self._modules['left'], 'extra')" in told) == on
    assert (f"{Path(__file__).name}:{Branch.forward.__code__.co_firstlineno + 5} in forward" in told) == on
