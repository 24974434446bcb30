"""Programs of first calls, of loops and of objects as arguments, also where state is spread over pretended devices.

There a first call plans, and in pieces it runs the model to find what Python goes on with; of all that nothing may be left.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hostile import PROGRAMS, Program, portrait
from hostile.judge import EQUAL, REFUSED, Variant, judge
from hostile.portrait import Picture
from hostile.program import Run, Steps, Towers, kept_in, rand
from lanes import OLD_TORCH
from pretend import TWO, World, spec
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from partitioner import partition

SPREAD = {name: one for name, one in PROGRAMS.items() if name.startswith(("begun.", "generating.", "later.", "loops."))}

ONES_OWN: dict[str, Program] = {}

own = kept_in(ONES_OWN)

BEYOND = {
    "begun.first_call_under_other_modes": "autocast casts an argument on each device, so its gradients are summed in float32",
    "begun.first_call_within_a_checkpoint": "of what a checkpoint saves, pretended devices are told in backward alone",
    "loops.optimizer_fused": "fused optimizers know no pretended device",
}

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


@pytest.fixture(autouse=True)
def wherever_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors is compared what they hold."""
    pictured: Callable[..., Picture] = portrait._tensor

    def without_devices(value: Tensor, kind: str) -> Picture:
        found = pictured(value, "torch.Tensor" if kind == "pretend.Placed" else kind)
        facts = tuple(fact for fact in found.facts if fact[0] != "device")
        return Picture(found.kind, facts, found.parts, found.numbers)

    monkeypatch.setattr(portrait, "_tensor", without_devices)


def over_two(example: bool, fullgraph: bool | None) -> Callable[[nn.Module, Program], nn.Module]:
    """Spreads the model of a program."""

    def made(model: nn.Module, program: Program) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            args, kwargs = program.example() if example else (None, None)
        return partition(
            model, example_inputs=args, example_kwargs=kwargs, spec=spec(TWO), policy="scatter", fullgraph=fullgraph
        )

    return made


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fullgraph", [None, False], ids=["whole", "in pieces"])
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", [name for name in SPREAD if name not in BEYOND])
def test_on_several_devices(name: str, example: bool, fullgraph: bool | None, world: World) -> None:
    verdict = judge(SPREAD[name], Variant(True, example), over_two(example, fullgraph))
    assert verdict.kind in (EQUAL, REFUSED), f"{verdict.kind}: {verdict.detail}"


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("begun.first_call_with_one_row", False),
        ("generating.object_that_grows", False),
        ("generating.object_that_is_an_example", True),
        ("generating.arguments_of_all_kinds_written", False),
    ],
)
@pytest.mark.parametrize("fullgraph", [None, False], ids=["whole", "in pieces"])
def test_what_planning_does_is_put_back(name: str, example: bool, fullgraph: bool | None, world: World) -> None:
    """What a first call in pieces put into an object, or wrote to an argument, was there when it was made, so twice.

    And a first call on which the model fails left nothing of what it does until then: no number drawn, nothing counted.
    """
    verdict = judge(SPREAD[name], Variant(True, example), over_two(example, fullgraph))
    assert verdict.kind == EQUAL, f"{verdict.kind}: {verdict.detail}"


@pytest.mark.xfail(OLD_TORCH, reason="torch 2.11 does not get to the end of transformers' wrapper: docs/limits.md", strict=True)
def test_hidden_states_that_are_asked_for_later(world: World) -> None:
    """At the first request transformers registers hooks, under a lock, which no graph can do: it was refused."""
    verdict = judge(PROGRAMS["language.hidden_states_now_and_then"], Variant(False, True), over_two(True, None))
    assert verdict.kind == EQUAL, f"{verdict.kind}: {verdict.detail}"


@own(Towers)
def saved_tensors_are_counted(run: Run) -> Steps:
    """Hooks of the caller on what is saved for backward were called by what planned the first call, too."""
    sizes: list[torch.Size] = []

    def pack(saved: Tensor) -> Tensor:
        sizes.append(saved.shape)
        return saved

    for _ in range(2):
        with saved_tensors_hooks(pack, lambda saved: saved):
            yield run.learn(rand(grad=True))[0], len(sizes)


@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("fullgraph", [None, False], ids=["whole", "in pieces"])
def test_hooks_see_calls_alone(example: bool, fullgraph: bool | None, world: World) -> None:
    """A count of them, or a checkpoint around the module, had twice as many at the first call."""
    verdict = judge(ONES_OWN["saved_tensors_are_counted"], Variant(True, example), over_two(example, fullgraph))
    assert verdict.kind == EQUAL, f"{verdict.kind}: {verdict.detail}"
