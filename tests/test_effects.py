"""Two accounts of what an op touches, held against each other: the static table is never less cautious than what was seen.

Both are taken of every op of the quick real models, as both front ends trace them, and of the hazard models. ``-s`` prints
where the table is more cautious, by op, which is where a plan without example inputs loses parallelism.
`benchmarks/corpus.py` does the same over every model of the corpus.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from accounts import both_accounts, hold_against, missing
from torch import nn

from models import MODELS, make
from partitioner.frontend.analysis.observe import Unobservable
from partitioner.frontend.analysis.static import Effect
from partitioner.frontend.capture.capture import Capture, Refused
from partitioner.frontend.capture.export import capture_export
from partitioner.frontend.capture.symbolic import capture_symbolic
from partitioner.ir.access import ANY, RNG
from partitioner.model.call import Call
from zoo import ZOO, zoo

FRONT_ENDS: dict[str, Callable[[nn.Module, Call], Capture]] = {"symbolic": capture_symbolic, "export": capture_export}


def compare(model: nn.Module, call: Call, front_end: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            capture = FRONT_ENDS[front_end](model, call)
            forgotten, cautious, _ = hold_against(both_accounts(capture.fx, model, capture.constants, call.tensors))
        except (Refused, Unobservable) as reason:
            pytest.skip(str(reason)[:80])
    print(*(f"{count:4d} x more cautious: {what}" for what, count in cautious.most_common(8)), sep="\n")
    assert not forgotten, "the static table is less cautious than what was seen:\n" + "\n".join(forgotten[:20])


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", [model.name for model in zoo("quick")])
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_real_models(name: str, front_end: str, train: bool) -> None:
    entry = ZOO[name]
    if not entry.installed:
        pytest.skip(f"{entry.family} is not installed")
    args, kwargs = entry.inputs()
    compare(entry.build().train(train and "eval-only" not in entry.tags), Call.of(args, kwargs), front_end)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", MODELS)
def test_hazards(name: str, front_end: str) -> None:
    if name == "SameInputTwice":
        pytest.skip(
            "without example inputs, inputs are taken to be distinct; a call where they are not gets a program of its own"
        )
    model = make(name).train()
    compare(model, Call.of(model.example_inputs(), model.example_kwargs()), front_end)


def test_the_comparison_sees_what_is_missing() -> None:
    """A table that forgot a write, a view or a draw would be found out."""
    seen = Effect(frozenset({"x", "y"}), frozenset({"x"}), frozenset({"x", RNG}))
    assert missing(seen, Effect(frozenset({"y"}), frozenset({"x"}))) == ["may share x", f"writes {RNG}", "writes x"]
    assert missing(seen, Effect(frozenset({"y"}), frozenset(), frozenset({ANY}))) == []


def test_every_op_of_torch() -> None:
    """PyTorch's own database of ops, with its sample inputs; in a process of its own, for importing it freezes flags."""
    script = Path(__file__).with_name("op_database.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["faults"] == {}
    assert found["ops"] > 500
