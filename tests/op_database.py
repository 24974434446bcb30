"""The static table of effects beside what is observed, over PyTorch's own database of ops: `op_db`, with its sample inputs.

    python tests/op_database.py

Every op is taken as a function, as a method and in place, where it has these forms. A process of its own, because importing
the database freezes flags of `torch.backends`. Prints one JSON object.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accounts import both_accounts, missing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from partitioner.model.node import call_node, fill

SAMPLES = 12
"""Inputs tried of each op."""

Form = tuple[str, Callable[..., Any] | str]
"""How an op is called, and what: a function, or the name of a method."""


def main() -> None:
    logging.disable(logging.CRITICAL)  # fake tensors log what they cannot do
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    faults: dict[str, list[str]] = {}
    ops, cases, unobservable = set(), 0, 0
    for op in op_db:
        for form, target, sample in calls(op):
            cases += 1
            graph = one_call(target, (sample.input, *sample.args), sample.kwargs)
            if graph is None:
                unobservable += 1
                continue
            ops.add(op.name)
            for _name, _target, seen, told in both_accounts(graph):
                found = missing(seen, told)
                if found:
                    faults.setdefault(f"{op.name} ({form})", found)
    print(json.dumps({"ops": len(ops), "cases": cases, "unobservable": unobservable, "faults": faults}))


def calls(op: Any) -> Iterator[tuple[str, Callable[..., Any] | str, Any]]:
    """Each form of an op with each of its samples."""
    try:
        samples = list(op.sample_inputs("cpu", torch.float32))[:SAMPLES]
    except Exception:  # the database cannot say for this dtype, or lacks a library
        return
    for sample in samples:
        for form, target in forms(op):
            yield form, target, sample


def forms(op: Any) -> Iterator[Form]:
    """The forms that a traced graph can hold."""
    if hasattr(op.op, "__name__"):
        yield "function", op.op
    for form, variant in (("method", op.method_variant), ("in place", op.inplace_variant)):
        name = getattr(variant, "__name__", "")
        if name and hasattr(torch.Tensor, name):
            yield form, name


def one_call(target: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Graph | None:
    """A graph of one call, with a fake for each value, as Dynamo would give it; ``None`` if the op depends on values."""
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    fakes: dict[torch.fx.Node, Any] = {}

    def placeholder(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        node = graph.placeholder(f"x{len(fakes) + 1}")
        node.meta["example_value"] = fakes[node] = mode.from_tensor(leaf.detach())
        return node

    args, kwargs = tree_map(placeholder, (args, kwargs))
    call = graph.call_method(target, args, kwargs) if isinstance(target, str) else graph.call_function(target, args, kwargs)
    try:
        with mode, torch.no_grad():
            call.meta["example_value"] = call_node(call, *fill((call.args, call.kwargs), fakes.__getitem__))
    except Exception:  # a fake kernel may raise anything
        return None
    graph.output(call)
    return graph


if __name__ == "__main__":
    main()
