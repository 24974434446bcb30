"""Two accounts of what each op touches: what was observed on example inputs, and what the static table says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from partitioner.frontend.analysis.build import resource_names, static_effects
from partitioner.frontend.analysis.observe import observe
from partitioner.frontend.analysis.static import Effect
from partitioner.ir.access import ANY, RNG

Account = tuple[str, str, Effect, Effect]
"""Name and target of an op, its observed effect and its static one."""


def both_accounts(
    fx: torch.fx.Graph, model: nn.Module, constants: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Iterator[Account]:
    """Both accounts of every op of a traced program.

    Raises:
        Unobservable: an op depends on values.
    """
    seen = observe(fx, model, dict(constants), tensors)
    told = static_effects(fx, model, resource_names(model))
    for node in fx.nodes:
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


def extra(seen: Effect, told: Effect) -> str:
    """In what the table is more cautious, in a word; ``""`` if it is not."""
    if ANY in told.writes:
        return "any"
    if RNG in told.writes - seen.writes:
        return "rng"
    if told.writes - seen.writes:
        return "writes"
    return "shares" if seen.tensor and told.storages - seen.storages else ""


def hold_against(accounts: Iterator[Account]) -> tuple[list[str], Counter[str], set[str]]:
    """What the table forgets; how often it is more cautious, by target; and all targets."""
    forgotten: list[str] = []
    cautious: Counter[str] = Counter()
    targets: set[str] = set()
    for name, target, seen, told in accounts:
        targets.add(target)
        forgotten += (f"{name} = {target}: {what}" for what in missing(seen, told))
        more = extra(seen, told)
        cautious.update([f"{target} ({more})"] if more else [])
    return forgotten, cautious, targets
