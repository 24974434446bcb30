"""Floats of Python's that differ from call to call: Dynamo passes them as tensors, and asks those for their numbers at once.

Such a tensor would lie on the host like state of the model, and be moved to where it is asked. Here it is the number again.
And some functions of numbers are wrong where a number is open: rounding to tens, asking for the sign of a zero and, in torch
2.11, the truth of an object that says it itself. Whatever else asks a zero for its sign (``hex``) finds none: a zero is a
constant, as infinity is to torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables import BuiltinVariable, ConstantVariable, TorchInGraphFunctionVariable, UserMethodVariable
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.tensor import SymNodeVariable

from partitioner.frontend.capture.amended import amends


@amends(BuiltinVariable, "call_round")
def _round(plain: Callable[..., Any], self: Any, tx: Any, number: Any, *digits: Any, **named: Any) -> Any:
    if isinstance(number, SymNodeVariable) and (digits or named):
        raise Unsupported("a number that differs from call to call is rounded to some digits")
    return plain(self, tx, number, *digits, **named)


@amends(VariableBuilder, "wrap_symfloat")
def _zero(plain: Callable[..., Any], self: Any, value: float) -> Any:
    with config.patch(specialize_float=True) if value == 0 else nullcontext():
        return plain(self, value)


@amends(TorchInGraphFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value in (math.copysign, math.atan2) and any(isinstance(each, SymNodeVariable) for each in args):
        raise Unsupported(f"math.{self.value.__name__} of a number that differs from call to call")
    return plain(self, tx, args, kwargs)


if torch.__version__ < "2.12":  # which goes on as if a truth that depends on an open number were the other one

    @amends(UserMethodVariable, "call_function")
    def _call_method(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
        found = plain(self, *arguments)
        if isinstance(found, SymNodeVariable) and getattr(self.fn, "__name__", "") in ("__bool__", "__len__"):
            return ConstantVariable.create(found.evaluate_expr())
        return found


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
