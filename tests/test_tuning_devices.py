"""`tune=True` on several devices: plans that want state in different places, run beside each other on copies of it.

The accelerators are pretended (see `pretend`), so which plan is the fastest is told to each test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from lanes import NormedTowers, Towers, assert_same, numbers
from pretend import TWO, World, pretending, put, spec
from torch import Tensor, nn

from partitioner import PlacementError, partition
from partitioner.driver import planned
from partitioner.ir.footprint import footprints
from partitioner.ir.plan import Plan, state_devices
from partitioner.runtime import standins
from partitioner.runtime.module import Parallel
from partitioner.runtime.standins import Spares
from partitioner.tuning import trials

X = numbers(4, 6)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world for each test, in which stand-ins lie where they should."""
    with pretending(monkeypatch) as made:
        monkeypatch.setattr(standins, "_copied", put)
        monkeypatch.setattr(standins, "stand_in", _there)
        monkeypatch.setattr(standins, "_another", _there)
        yield made
        assert made.faults() == []


def _there(value: Any) -> Any:
    return put(value, str(value.device)) if isinstance(value, Tensor) else value


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What is measured of each plan: filled with the names of all that ran, of which those that it holds are the fastest."""
    seconds: dict[str, float] = {}

    def measured(ways: Mapping[str, Callable[[], None]], _: object) -> dict[str, float]:
        for name, way in ways.items():
            way()
            seconds.setdefault(name, 2.0)
        return {name: seconds[name] for name in ways}

    monkeypatch.setattr(trials, "measured", measured)
    return seconds


def homes(module: nn.Module) -> dict[str, str]:
    """The device of each parameter and buffer."""
    return {name: str(tensor.device) for name, tensor in module.state_dict(keep_vars=True).items()}


def tune(model: nn.Module, policy: str, x: Tensor = X, **caps: int) -> Parallel:
    """``model`` on two pretended accelerators, tuned."""
    return partition(model, example_inputs=(x,), spec=spec(TWO, **caps), policy=policy, tune=True)


@pytest.mark.parametrize(("asked", "best", "places"), [("list", "serial", {"lazy:0"}), ("single", "list", {*TWO})])
def test_state_lies_where_the_fastest_plan_wants_it(ran: dict[str, float], asked: str, best: str, places: set[str]) -> None:
    """It was refused: one plan's state lies where another one's does not."""
    ran[best] = 1.0
    model = Towers().eval()
    held, plain = {name: id(parameter) for name, parameter in model.named_parameters()}, copy.deepcopy(model)
    found = tune(model, asked)
    assert {"serial", "list"} <= {*ran}
    assert set(homes(found).values()) == places
    assert held == {name: id(parameter) for name, parameter in found.named_parameters()}, "moved in place, and not copied"
    assert "  kept, as measured on the examples: " in str(found)
    with torch.no_grad():
        assert_same(plain(X), found(X))
    assert all(homes(found)[name] == device for name, device in state_devices(found.plan).items())


def test_what_was_asked_for_stays_where_it_is_if_nothing_is_faster(ran: dict[str, float]) -> None:
    ran["list"] = 1.0
    placed = homes(partition(Towers().eval(), example_inputs=(X,), spec=spec(TWO), policy="list"))
    assert homes(tune(Towers().eval(), "list")) == placed and "serial" in ran


def test_training_has_a_backward_and_leaves_no_gradient(ran: dict[str, float]) -> None:
    ran["serial"] = 1.0
    model = NormedTowers()
    before = copy.deepcopy(model.state_dict())
    found = tune(model, "list")
    assert set(homes(found).values()) == {"lazy:0"}
    assert all(parameter.grad is None for parameter in found.parameters())
    assert_same(before, found.state_dict())


def capped(plan: Plan, cap: int) -> Plan:
    """A plan for devices of so much memory."""
    devices = tuple(replace(device, memory=cap) for device in plan.machine.devices)
    return replace(plan, machine=replace(plan.machine, devices=devices))


def test_a_plan_whose_copies_do_not_fit_is_no_candidate() -> None:
    """Each plan keeps its caps alone; beside what lies there for the other one, it does not."""
    model = Towers().eval()
    serial, parts = (
        planned(model, example_inputs=(X,), spec=spec(TWO, lazy0=10**6, lazy1=10**6), policy=policy)
        for policy in ("single", "list")
    )
    state = {serial.graph.states.get(name): name for name in serial.graph.arguments}
    named = dict(model.named_parameters())
    arguments = [put(named[key], "lazy:0") if key in named else X for key in state]
    takes = max(each.total for each in footprints(serial).values())
    enough, tight = Spares(arguments), Spares(arguments)
    for plan in (serial, parts, serial):
        given = enough.enter(capped(plan, 2 * takes))
        homes = state_devices(plan)
        assert all(str(each.device) == homes[key] for each, key in zip(given, state, strict=True) if key in homes)
    assert len(enough.copies) == sum(home == "lazy:1" for home in state_devices(parts).values()), "each is made once"
    tight.enter(capped(serial, takes))
    with pytest.raises(PlacementError, match="no room for copies"):
        tight.enter(capped(parts, takes - 1))
    assert not tight.copies and len(tight.entered) == 1
