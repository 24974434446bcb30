"""Whatever a user does to a model between two calls, the partitioned module does what the plain one does.

Two copies of one model, one of them partitioned. Hypothesis picks actions: it trains, changes attributes, replaces parts, adds
hooks, casts, freezes, loads, copies, and calls both under every mode. After each call outputs, gradients, state and random
state are compared. Values are in double precision, where the order in which gradients are summed hides far below the
tolerance.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from lanes import spec
from torch import nn

from partitioner import Parallel, partition

WIDTH = 4


class Branch(nn.Module):
    """Statistics, random numbers, writes in place, attributes of several kinds."""

    def __init__(self, activation: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.one, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.25)
        self.two = nn.Linear(WIDTH, WIDTH)
        self.activation, self.factor = activation, 1.5
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.register_parameter("shift", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.activation(self.norm(self.one(x)) * self.factor))
        if self.training:
            self.seen.add_(x.detach().mean(0))
        x = self.two(x)
        if self.shift is not None:
            x = x + self.shift
        return x + self.seen


class Shifted(Branch):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


class Model(nn.Module):
    """Two branches with a tied weight, a config, a loop over a size, a question for the caller's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.left, self.right = Branch(torch.tanh), Branch(torch.relu)
        self.right.two.weight = self.left.two.weight  # tied
        self.config = SimpleNamespace(mix=0.5, layers=["left", "right"])

    def forward(self, x: torch.Tensor, flag: bool = False) -> dict[str, torch.Tensor]:
        for number in range(x.shape[1]):
            x = x + number
        x = self.stem(x) if torch.is_grad_enabled() else self.stem(x) * 2
        found = [getattr(self, name)(x) for name in self.config.layers]
        mixed = sum(branch * self.config.mix for branch in found)
        return {"logits": self.head(mixed), "last": found[-1]} if flag else {"logits": self.head(mixed)}


MODES: dict[str, Callable[[], Any]] = {
    "plain": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def half(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.full_like(tensor, 0.5))


CHANGES: dict[str, Callable[[Any], object]] = {
    "more dropout": lambda m: setattr(m.left.drop, "p", 0.5),
    "less dropout": lambda m: setattr(m.left.drop, "p", 0.0),
    "factor": lambda m: setattr(m.left, "factor", 0.75),
    "integer factor": lambda m: setattr(m.left, "factor", 2),
    "activation": lambda m: setattr(m.right, "activation", torch.sigmoid),
    "mix": lambda m: setattr(m.config, "mix", m.config.mix + 0.25),
    "other order": lambda m: m.config.layers.reverse(),
    "one branch": lambda m: m.config.__setattr__("layers", ["right"]),
    "both branches": lambda m: m.config.__setattr__("layers", ["left", "right"]),
    "shift": lambda m: setattr(m.left, "shift", half(m.stem.bias)),
    "no shift": lambda m: setattr(m.left, "shift", None),
    "bias away": lambda m: setattr(m.right.one, "bias", None),
    "other weight": lambda m: setattr(m.stem, "weight", half(m.stem.weight)),
    "untied": lambda m: setattr(m.right.two, "weight", half(m.right.two.weight)),
    "tied": lambda m: setattr(m.right.two, "weight", m.left.two.weight),
    "buffer filled": lambda m: m.right.seen.fill_(0.125),
    "buffer replaced": lambda m: setattr(m.left, "seen", torch.full_like(m.left.seen, 0.25)),
    "part replaced": lambda m: setattr(m.left, "one", nn.Identity()),
    "part put back": lambda m: setattr(m.left, "one", copy.deepcopy(m.right.one)),
    "branch replaced": lambda m: setattr(m, "left", nn.Sequential(copy.deepcopy(m.right.one), nn.Tanh())),
    "branch put back": lambda m: setattr(m, "left", copy.deepcopy(m.right)),
    "branch in eval mode": lambda m: m.left.eval(),
    "frozen": lambda m: m.left.requires_grad_(False),
    "thawed": lambda m: m.requires_grad_(True),
    "momentum": lambda m: setattr(m.left.norm, "momentum", 0.5),
    "no statistics": lambda m: setattr(m.right.norm, "track_running_stats", False),
    "class replaced": lambda m: setattr(m.left, "__class__", Shifted),
    "class put back": lambda m: setattr(m.left, "__class__", Branch),
    "forward replaced": lambda m: setattr(m.right, "forward", m.right.two.forward),
}
HOOKED = ["left", "right.one", "stem", "right"]


class Actions(RuleBasedStateMachine):
    """Both copies, and what is done to them."""

    @initialize(training=st.booleans(), example=st.booleans())
    def start(self, training: bool, example: bool) -> None:
        torch.manual_seed(0)
        self.plain = Model().double().train(training)
        inputs = (torch.randn(3, WIDTH, dtype=torch.float64),) if example else None
        self.parallel: Parallel = partition(self.plain, example_inputs=inputs, spec=spec(), copy=True)
        self.handles: list[Any] = []
        self.calls = 0

    @rule(batch=st.integers(2, 4), mode=st.sampled_from(sorted(MODES)), flag=st.booleans())
    def call(self, batch: int, mode: str, flag: bool) -> None:
        self.calls += 1
        torch.manual_seed(self.calls)
        x = torch.randn(batch, WIDTH, dtype=self.plain.stem.weight.dtype)
        wanted, found = (outcome(module, x, mode, flag) for module in (self.plain, self.parallel))
        assert_close(wanted, found)

    @rule(change=st.sampled_from(sorted(CHANGES)))
    def change(self, change: str) -> None:
        for module in (self.plain, self.parallel.original):
            with torch.no_grad(), suppress(AttributeError):  # there may be another branch now, in both
                CHANGES[change](module)

    @rule(mode=st.booleans())
    def train(self, mode: bool) -> None:
        self.plain.train(mode)
        self.parallel.train(mode)

    @rule(kind=st.sampled_from([torch.optim.SGD, torch.optim.AdamW]))
    def step(self, kind: type[torch.optim.Optimizer]) -> None:
        for module in (self.plain, self.parallel):
            kind(module.parameters(), lr=0.01).step()  # type: ignore[call-arg]

    @rule()
    def clear_gradients(self) -> None:
        self.plain.zero_grad()
        self.parallel.zero_grad()

    @rule(dtype=st.sampled_from([torch.float32, torch.float64]))
    def cast(self, dtype: torch.dtype) -> None:
        self.plain.to(dtype)
        self.parallel.to(dtype)

    @rule()
    def load(self) -> None:
        state = {name: tensor * 0.5 for name, tensor in self.plain.state_dict().items()}
        self.plain.load_state_dict(state)
        self.parallel.load_state_dict(state)

    @rule()
    def copy(self) -> None:
        self.forget_hooks()
        self.clear_gradients()  # no copy of a parameter has them
        self.parallel = copy.deepcopy(self.parallel)

    @rule(name=st.sampled_from(HOOKED))
    def hook(self, name: str) -> None:
        for module in (self.plain, self.parallel.original):
            self.handles.append(module.get_submodule(name).register_forward_hook(lambda module, args, output: output * 1.25))

    @rule()
    def forget_hooks(self) -> None:
        while self.handles:
            self.handles.pop().remove()

    @invariant()
    def keys_are_alike(self) -> None:
        if hasattr(self, "parallel"):
            assert list(self.plain.state_dict()) == list(self.parallel.state_dict())
            assert [name for name, _ in self.plain.named_parameters()] == [name for name, _ in self.parallel.named_parameters()]


def outcome(module: nn.Module, x: torch.Tensor, mode: str, flag: bool) -> dict[str, Any]:
    """Everything that a caller can see of a call: an error, or values, gradients, state, random state."""
    torch.manual_seed(7)
    x = x.clone().requires_grad_()
    with MODES[mode]():
        try:
            result = module(x, flag=flag)
        except (RuntimeError, ValueError, TypeError) as error:
            return {"error": type(error).__name__}
    if result["logits"].requires_grad:
        try:
            sum(value.double().square().sum() for value in result.values()).backward()
        except RuntimeError as error:
            return {"error": type(error).__name__}
    return {
        **{f"result {name}": value.detach() for name, value in result.items()},
        **{f"needs gradient {name}": value.requires_grad for name, value in result.items()},
        **{f"gradient {name}": parameter.grad for name, parameter in module.named_parameters()},
        **{f"state {name}": value.clone() for name, value in module.state_dict().items()},
        "gradient x": x.grad,
        "generator": torch.get_rng_state(),
    }


def assert_close(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    assert list(wanted) == list(found), (wanted.get("error"), found.get("error"))
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor) and isinstance(found[name], torch.Tensor):
            rounding = {torch.float64: 1e-9, torch.bfloat16: 3e-2}.get(value.dtype, 2e-3)
            torch.testing.assert_close(
                found[name], value, rtol=rounding, atol=rounding, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )
        else:
            assert value is found[name] or value == found[name], name


SIZES = {"quick": (12, 10), "ci": (150, 25)}
EXAMPLES, STEPS = SIZES[os.environ.get("HYPOTHESIS_PROFILE", "quick")]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_whatever_a_user_does() -> None:
    torch.set_num_threads(1)
    run_state_machine_as_test(Actions, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS))
