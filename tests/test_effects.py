"""Two accounts of what an op touches, held against each other: the static table is never less cautious than what was seen.

Both are taken of every op of the quick real models, as both front ends trace them, and of the hazard models. ``-s`` prints
where the table is more cautious, by op, which is where a plan without example inputs loses parallelism.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from torch import nn

from models import MODELS, make
from partitioner.ir.call import Call
from partitioner.ir.graph import ANY, RNG
from partitioner.trace.build import resource_names, static_effects
from partitioner.trace.capture import Capture, Refused
from partitioner.trace.effects import Effect
from partitioner.trace.exporting import capture_export
from partitioner.trace.observe import Unobservable, observe
from partitioner.trace.symbolic import capture_symbolic
from zoo import ZOO, zoo

FRONT_ENDS: dict[str, Callable[[nn.Module, Call], Capture]] = {"symbolic": capture_symbolic, "export": capture_export}


def both_accounts(model: nn.Module, call: Call, front_end: str) -> Iterator[tuple[str, str, Effect, Effect]]:
    """Name, target, observed and static effect of each op."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            capture = FRONT_ENDS[front_end](model, call)
            seen = observe(capture.fx, model, capture.constants, call.tensors)
        except (Refused, Unobservable) as reason:
            pytest.skip(str(reason)[:80])
        told = static_effects(capture, model, resource_names(model))
    for node in capture.fx.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            target = type(model.get_submodule(str(node.target))).__name__ if node.op == "call_module" else str(node.target)
            yield node.name, target, seen[node.name], told[node.name]


def missing(seen: Effect, told: Effect) -> list[str]:
    """What was seen and the table does not say."""
    if ANY in told.writes:
        return []
    found = [f"may share {name}" for name in sorted(seen.storages - told.storages)] if seen.tensor else []
    found += [f"writes {name}" for name in sorted(seen.writes - told.writes)]
    found += [f"reads {name}" for name in sorted(seen.reads - told.reads - told.writes)]
    return found + (["gives a tensor"] if seen.tensor and not told.tensor else [])


def hold_against(model: nn.Module, call: Call, front_end: str) -> None:
    wrong: list[str] = []
    cautious: Counter[str] = Counter()
    for name, target, seen, told in both_accounts(model, call, front_end):
        wrong += (f"{name} = {target}: {what}" for what in missing(seen, told))
        extra = "any" if ANY in told.writes else "rng" if RNG in told.writes - seen.writes else ""
        extra = extra or ("writes" if told.writes - seen.writes else "shares" if told.storages - seen.storages else "")
        cautious.update([f"{target} ({extra})"] if extra else [])
    print(*(f"{count:4d} x more cautious: {what}" for what, count in cautious.most_common(8)), sep="\n")
    assert not wrong, "the static table is less cautious than what was seen:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", [model.name for model in zoo("quick")])
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_real_models(name: str, front_end: str, train: bool) -> None:
    entry = ZOO[name]
    if not entry.installed:
        pytest.skip(f"{entry.family} is not installed")
    args, kwargs = entry.inputs()
    hold_against(entry.build().train(train and "eval-only" not in entry.tags), Call.of(args, kwargs), front_end)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", MODELS)
def test_hazards(name: str, front_end: str) -> None:
    if name == "SameInputTwice":
        pytest.skip(
            "without example inputs, inputs are taken to be distinct; a call where they are not gets a program of its own"
        )
    model = make(name).train()
    hold_against(model, Call.of(model.example_inputs(), model.example_kwargs()), front_end)


def test_the_comparison_sees_what_is_missing() -> None:
    """A table that forgot a write, a view or a draw would be found out."""
    seen = Effect(frozenset({"x", "y"}), frozenset({"x"}), frozenset({"x", RNG}))
    assert missing(seen, Effect(frozenset({"y"}), frozenset({"x"}))) == ["may share x", f"writes {RNG}", "writes x"]
    assert missing(seen, Effect(frozenset({"y"}), frozenset(), frozenset({ANY}))) == []
