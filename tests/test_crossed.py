"""Every ingredient of real models in every scene of a script: the partitioned module does what the plain one does.

What one imagines is a program of a few lines; the cross product of models and scenes holds what nobody imagines. Each
ingredient (`ingredients`) meets each scene (`scenes`) once, several in a row on one module, in training and in eval by turns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import ingredients_kinds
import ingredients_more
import ingredients_systems
import pytest
import scenes_of_change
import torch
from hostile.judge import FAULTS, Variant, assert_equal, judge
from hostile.program import Program, Run, Steps, raised, rand
from ingredients import INGREDIENTS, Layers
from pretend import TWO, pretending, spread
from scenes import SCENES
from torch import Tensor, nn

from partitioner import partition

IN_A_ROW = 4
QUICK = 20
"""One of so many ingredients belongs to the quick tests, with its first scenes."""

WRONG_IN_TORCH = {
    ("conditional", "gradient_of_gradient"),
    ("conditional", "hooked"),
    ("shared_batch_norm", "under_transforms"),
}
"""`torch.cond` in eager loses a part of gradients of gradients, and hooks that a layer in it was given after the first call; as
the `if` that it becomes in a graph it does not. `functional_call` leaves what it was given in a module that has two names."""

__all__ = ["ingredients_kinds", "ingredients_more", "ingredients_systems", "scenes_of_change"]  # which register what they hold


@dataclass(frozen=True)
class Crossing:
    """An ingredient, and the scenes that it plays one after the other."""

    ingredient: str
    scenes: tuple[str, ...]
    training: bool

    def __str__(self) -> str:
        return "-".join((self.ingredient, "train" if self.training else "eval", *self.scenes))


def crossings() -> Iterator[Crossing]:
    """Each pair once; the order of the scenes is another one for each ingredient."""
    for name in INGREDIENTS:
        order = [scene for scene in SCENES if (name, scene) not in WRONG_IN_TORCH]
        random.Random(name).shuffle(order)
        for number, first in enumerate(range(0, len(order), IN_A_ROW)):
            yield Crossing(name, tuple(order[first : first + IN_A_ROW]), number % 2 == 0)


def program(crossing: Crossing) -> Program:
    """The crossing as a program that is judged."""
    ingredient = INGREDIENTS[crossing.ingredient]

    def script(run: Run) -> Steps:
        for name in crossing.scenes:
            yield from SCENES[name](run, ingredient.inputs)

    return Program(str(crossing), ingredient.build, script, lambda: (ingredient.inputs(3, 1), {}))


ALL = list(crossings())
FEW = [next(one for one in ALL if one.ingredient == name) for name in list(INGREDIENTS)[::QUICK]]

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "crossing", [pytest.param(one, id=str(one), marks=[] if one in FEW else [pytest.mark.slow]) for one in ALL]
)
def test_equal_or_refused(crossing: Crossing) -> None:
    verdict = judge(program(crossing), Variant(crossing.training, True))
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.detail}"


def alone(ingredient: str, *scenes: str, training: bool = False) -> None:
    """Holds a crossing against eager."""
    assert_equal(program(Crossing(ingredient, scenes, training)), Variant(training, True))


def test_padded_rows_of_an_encoder() -> None:
    """Without gradients, an encoder gives zeros for what is padded, unless it is told that a tracer is at work; and it was."""
    alone("encoder_with_padding", "without_gradients")


@pytest.mark.parametrize("ingredient", ["reversal", "own_function"])
def test_gradients_of_gradients_through_own_functions(ingredient: str) -> None:
    """Backward was taken as constant: a gradient penalty was wrong, and what eager refuses to differentiate twice was done."""
    alone(ingredient, "gradient_of_gradient", training=True)


def test_gradients_of_gradients_that_were_recorded_on_lanes() -> None:
    """The engine freed, on its way through what backward had recorded, the graph that the call was still to go through."""

    def on_lanes(model: nn.Module, program: Program) -> nn.Module:
        return partition(
            model, ["cpu:0", "cpu:1"], backward="lanes", policy="scatter", grain=0, example_inputs=program.example()[0]
        )

    twice = Crossing("weight_norm", ("gradient_of_gradient", "gradient_of_gradient", "backward_twice"), True)
    assert_equal(program(twice), Variant(True, True), on_lanes)


class Slope(nn.Module):
    """A gradient that is part of forward, of something that can fail on data."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (self.table(ids) * self.head(y)).sum())(x)


def test_an_op_fails_within_a_transform(capfd: pytest.CaptureFixture[str]) -> None:
    """From then on hooks for saved tensors were refused on the thread, and a page of generated code was printed."""
    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7])

    def script(run: Run) -> Steps:
        yield run(rand(), good), raised(lambda: run.module(rand(), bad))
        with torch.autograd.graph.save_on_cpu():
            yield run.module.head(rand())
        yield run(rand(), good)

    assert_equal(Program("slope", Slope, script, lambda: ((rand(), good), {})), Variant(True, True))
    assert capfd.readouterr().err == ""


def test_wrong_arguments_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that the model itself refuses was told as one that cannot be one graph."""
    with pretending(monkeypatch):
        parallel = spread(Layers(), (rand(),), TWO)
        for wrong in ((), (rand(), rand(), rand())):
            with pytest.raises(TypeError, match="positional argument"):
                parallel(*wrong)
        with pytest.raises(TypeError, match="must be Tensor"):
            parallel(1)
