"""Whatever a program does, the partitioned module does what the plain one does, or refuses in a few lines and changes nothing.

`python tests/hostile/report.py` prints the same as a table, with what was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hostile import PROGRAMS, Program
from hostile.judge import DIFFERENT, EQUAL, FAULTS, RAW, REFUSED, VARIANTS, Variant, Verdict, judge
from hostile.program import Run, Steps, Two, rand
from torch import Tensor, nn

from partitioner import InputError
from partitioner.planner.policies import POLICIES

JUDGED = [
    pytest.param(name, variant, id=f"{name}-{variant}", marks=[pytest.mark.slow] if program.slow else [])
    for name, program in PROGRAMS.items()
    for variant in VARIANTS
]
"""Every program in every variant."""


@pytest.fixture(autouse=True, scope="module")
def policy_of_these_tests() -> Iterator[None]:
    yield
    POLICIES.pop("scatter", None)


@pytest.mark.sampled(13)
@pytest.mark.parametrize(("name", "variant"), JUDGED)
def test_equal_or_refused(name: str, variant: Variant) -> None:
    if not variant.example and not PROGRAMS[name].bare:
        pytest.skip("needs an example")
    verdict = judge(PROGRAMS[name], variant)
    limit = PROGRAMS[name].limit or ("" if variant.example else PROGRAMS[name].unchecked)
    if verdict.kind in FAULTS and limit:
        pytest.xfail(limit)
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.detail}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_equals_eager(name: str) -> None:
    """A program whose own two runs differ says nothing. Quick tests tell it, too, as a difference, but not whose it is."""
    assert judge(PROGRAMS[name], Variant(True, True), unchanged) == Verdict(EQUAL)


def unchanged(model: nn.Module, program: Program) -> nn.Module:
    return model


class Damaged(nn.Module):
    """Stands for a model and does one thing differently."""

    def __init__(self, inner: nn.Module, damage: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.__dict__.update({name: inner.__dict__[name] for name in ("_parameters", "_buffers", "_modules", "training")})
        self.__dict__["damage"], self.__dict__["inner"] = damage, inner

    def forward(self, x: Tensor) -> object:
        return self.damage(self.inner(x))


def _draws(x: Tensor) -> Tensor:
    torch.rand(1)
    return x


def _leaves_gradients_off(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return x


def _fails(x: Tensor) -> Tensor:
    raise KeyError("of another kind")


def _refuses_late(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    raise InputError("refused, and something was changed")


def _refuses_at_length(x: Tensor) -> Tensor:
    raise InputError("\n".join("line" for _ in range(40)))


def _refuses(x: Tensor) -> Tensor:
    raise InputError("refused")


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * 1.01


DAMAGES: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "value": (lambda x: x * 1.001, DIFFERENT),
    "sign of zero": (lambda x: torch.where(x.detach() == 0, -0.0, x), DIFFERENT),
    "dtype": (lambda x: x.double(), DIFFERENT),
    "strides": (lambda x: x.T.contiguous().T, DIFFERENT),
    "detached": (lambda x: x.detach(), DIFFERENT),
    "container": (lambda x: [x], DIFFERENT),
    "gradient": (_Scaled.apply, DIFFERENT),
    "random state": (_draws, DIFFERENT),
    "mode left behind": (_leaves_gradients_off, DIFFERENT),
    "error": (_fails, RAW),
    "refusal that changes something": (_refuses_late, DIFFERENT),
    "refusal of many lines": (_refuses_at_length, DIFFERENT),
    "refusal": (_refuses, REFUSED),
    "nothing": (lambda x: x, EQUAL),
}


class WithZeros(Two):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.left(x))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported(damage: str) -> None:
    change, expected = DAMAGES[damage]
    one_call = Program("one call", WithZeros, _one_call, lambda: ((rand(),), {}))
    verdict = judge(one_call, Variant(damage == "gradient", True), lambda model, _: Damaged(model, change))
    assert verdict.kind == expected, verdict.detail


def _one_call(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


def test_there_are_many() -> None:
    assert len(PROGRAMS) > 300
