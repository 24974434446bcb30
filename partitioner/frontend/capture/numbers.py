"""Floats of Python's that differ from call to call: Dynamo passes them as tensors, and asks those for their numbers at once.

Such a tensor would lie on the host like state of the model, and be moved to where it is asked. Here it is the number again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def as_numbers(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[frozenset[int], tuple[Any, ...]]:
    """Make numbers of what is only asked for its number, in the graph and among its inputs.

    Returns:
        The places of the inputs that are numbers now, and all inputs.
    """
    numbers, given = set[int](), list(inputs)
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        asked = list(node.users)
        if not getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False) or not asked or not all(map(_asks, asked)):
            continue
        node.meta["example_value"] = asked[0].meta["example_value"]
        for user in asked:
            user.replace_all_uses_with(node)
            module.graph.erase_node(user)
        given[place] = given[place].item()
        numbers.add(place)
    if numbers:
        module.recompile()
    return frozenset(numbers), tuple(given)


def _asks(user: torch.fx.Node) -> bool:
    return user.op == "call_method" and user.target == "item" and len(user.args) == 1


def given_numbers(run: Callable[..., Any], numbers: frozenset[int]) -> Callable[..., Any]:
    """A function of inputs of which some are numbers, called with tensors in their places."""
    if not numbers:
        return run

    def with_numbers(*inputs: Any) -> Any:
        return run(*(value.item() if place in numbers else value for place, value in enumerate(inputs)))

    return with_numbers
