"""Two accounts of what an op touches, held against each other: the static table is never less cautious than what was seen.

Both are taken of every op of the quick real models and of the hazard models, as Dynamo gives them, and of PyTorch's own
database of ops. The table is asked where an op cannot be called on fakes, and where there are no example inputs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from accounts import forgotten, missing
from lanes import plans_of
from torch import nn

from models import MODELS, make
from partitioner import Spec
from partitioner.frontend.analysis.static import Effect
from partitioner.ir.access import ANY, RNG
from partitioner.ir.machine import Device, Machine
from partitioner.model.call import Call, example_call
from zoo import ZOO, zoo


def compare(model: nn.Module, call: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plans = plans_of(model, call, Machine((Device("cpu", "cpu"),)), Spec())
    found = [what for plan, *_ in plans for what in forgotten(plan.graph.fx)]
    assert not found, "the static table is less cautious than what was seen:\n" + "\n".join(found[:20])


SOME = {entry.name for entry in zoo("quick")[2::3]}
LOOKED_AT = [
    pytest.param(entry.name, train, id=f"{mode}-{entry.name}", marks=[] if train and entry.name in SOME else [pytest.mark.slow])
    for mode, train in (("train", True), ("eval", False))
    for entry in zoo("quick")
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "train"), LOOKED_AT)
def test_real_models(name: str, train: bool) -> None:
    """Quick tests look at every third model, in training, where there are more ops; the hazards below are the hard ones."""
    entry = ZOO[name]
    if not entry.installed:
        pytest.skip(f"{entry.family} is not installed")
    args, kwargs = entry.inputs()
    compare(entry.build().train(train and "eval-only" not in entry.tags), Call.of(args, kwargs))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", MODELS)
def test_hazards(name: str) -> None:
    model = make(name).train()
    compare(model, Call.of(model.example_inputs(), model.example_kwargs()))


def test_the_comparison_sees_what_is_missing() -> None:
    """A table that forgot a write, a view or a draw would be found out."""
    seen = Effect(frozenset({"x", "y"}), frozenset({"x"}), frozenset({"x", RNG}))
    assert missing(seen, Effect(frozenset({"y"}), frozenset({"x"}))) == ["may share x", f"writes {RNG}", "writes x"]
    assert missing(seen, Effect(frozenset({"y"}), frozenset(), frozenset({ANY}))) == []


@pytest.mark.slow
def test_every_op_of_torch() -> None:
    """PyTorch's own database of ops, with its sample inputs; in a process of its own, for importing it freezes flags."""
    script = Path(__file__).with_name("op_database.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["faults"] == {}
    assert found["ops"] > 500


class Sliced(nn.Module):
    """Calls some of its layers, out of a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.towers[1](x) + sum(tower(x) for tower in self.towers[1:])


def test_a_slice_of_modules_touches_nothing() -> None:
    """Making a list of modules counts a use of torch. Dynamo gives that as a call, which was taken to touch everything."""
    call = example_call(Sliced(), torch.ones(2, 4), None)
    plans = plans_of(Sliced(), call, Machine((Device("cpu", "cpu"),)), Spec())
    touched = {access.resource for plan, *_ in plans for op in plan.graph.ops for access in op.accesses}
    assert touched and ANY not in touched
