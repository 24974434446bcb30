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
from accounts import forgotten, missing
from lanes import plans_of
from torch import nn

from models import MODELS, make
from partitioner import Spec
from partitioner.frontend.analysis.static import Effect
from partitioner.ir.access import ANY, RNG
from partitioner.ir.machine import Device, Machine
from partitioner.model.call import Call
from zoo import ZOO, zoo


def compare(model: nn.Module, call: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plans = plans_of(model, call, Machine((Device("cpu", "cpu"),)), Spec())
    found = [what for plan, *_ in plans for what in forgotten(plan.graph.fx)]
    assert not found, "the static table is less cautious than what was seen:\n" + "\n".join(found[:20])


@pytest.mark.parametrize("name", [model.name for model in zoo("quick")])
@pytest.mark.parametrize("train", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["train", "eval"])
def test_real_models(name: str, train: bool) -> None:
    entry = ZOO[name]
    if not entry.installed:
        pytest.skip(f"{entry.family} is not installed")
    args, kwargs = entry.inputs()
    compare(entry.build().train(train and "eval-only" not in entry.tags), Call.of(args, kwargs))


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
