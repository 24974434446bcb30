"""Jumps on tensors of which one side does nothing but raise: what is checked there is an op of the graph, which goes on.

    assert (y > 0).all(), "negative"                                    the op raises it
    if not torch.isfinite(y).all(): raise ValueError(f"{y} is ...")     the op asks for the model's own error

Distributions look at their arguments in the second way. An error of Python's own that is given constants is known while the
check is traced. Any other one is found by calling the model as it is once more, its state and arguments left as they were.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from inspect import getattr_static
from traceback import walk_tb
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import SymBool, Tensor
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    TorchInGraphFunctionVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import SkipFunctionVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import lazy_property
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from partitioner.frontend.capture.amended import GETATTR, amends
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.python.handlers import frames, handlers, leaves
from partitioner.model.call import CheckFailed
from partitioner.model.definite import CHECK, definite_in_tensors
from partitioner.model.source import is_user_code

_IN_TENSORS = cast(FunctionType, definite_in_tensors)


class Check(NamedTuple):
    """What a jump comes to.

    Args:
        wanted: the truth value with which the code goes on.
        jumps: whether it then jumps.
        error: the name of the error and what it is given; ``""`` and the place, if only the model knows.
    """

    wanted: bool
    jumps: bool
    error: tuple[Any, ...]


def check_at(tx: Any, jump: Any, on_cpu: bool) -> Check | None:
    """The check that a jump is, if the graph may go on after it.

    It may not where the model may catch the error, or Python has begun the call: then that is for Python to decide. Work of an
    accelerator that goes on after a failed check may break the device, so there only a call that must be one graph does.

    Args:
        tx: the tracer, before the jump.
        jump: the instruction.
        on_cpu: whether what it asks is found on the CPU.
    """
    if not jump.opname.startswith("POP_JUMP") or not jump.opname.endswith(("TRUE", "FALSE")):
        return None
    if not HERE.first or not (HERE.whole or on_cpu):
        return None
    sides = tx.instruction_pointer, tx.indexof[jump.target]
    raises = [not leaves(tx, side, jump.exn_tab_entry) for side in sides]
    around = [(frame, start) for frame in frames(tx) for start in handlers(frame)]
    if raises[0] is raises[1] or any(leaves(frame, start) for frame, start in around):
        return None
    error = () if around else _error(tx, sides[raises.index(True)])
    return Check(jump.opname.endswith("TRUE") is raises[0], raises[0], error or ("", _place(tx)))


def checked(condition: Any, wanted: bool, error: str, *given: object) -> None:
    """Raise an error where there are values, and not those that are wanted. Of torch's op an accelerator would not recover.

    Raises:
        CheckFailed: only the model knows the error, and so in a job, where no process has all of it, nobody does.
    """
    has_values = not isinstance(condition, FakeTensor | SymBool) and not (isinstance(condition, Tensor) and condition.is_meta)
    if has_values and bool(condition) is not wanted:
        raise getattr(builtins, error)(*given) if error else CheckFailed(*map(str, given))


def check_sizes(graph: Graph) -> None:
    """Make checks of what the tracer takes for granted of sizes that nobody knows before an op has run.

    Of two that meet it takes it that they are equal, and neither is 1. What comes of others is for the model to say.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        condition, text = node.args
        taken = text.partition("expression ")[2].partition(" on node")[0]
        with graph.inserting_before(node):
            graph.call_function(checked, (condition, True, "", "", taken)).meta.update(node.meta)
        graph.erase_node(node)


def is_of_sizes(check: Node) -> bool:
    """Whether a check is one of those, and none of the model's."""
    return check.args[2:4] == ("", "")


def can_only_raise(error: Exception) -> bool:
    """Whether tracing ended where a function comes to nothing but an error, such as where its text is made.

    A method that raises whatever it is given says nothing of this call.
    """
    held = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    traced = {id(each): each for each in held if isinstance(each, InstructionTranslatorBase)}
    if not any(leaves(tx, 0) for tx in traced.values() if is_user_code(tx.f_code.co_filename)):
        return False
    steps = ((tx, tx.current_instruction) for tx in traced.values())
    return any(not leaves(tx, tx.indexof[step], step.exn_tab_entry) for tx, step in steps)


@amends(TorchInGraphFunctionVariable, "call_function")
def _call(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Torch's own assertion is one of Python's, and no check that holds needs the text that it would have."""
    asserts: Any = torch._assert
    if self.value is asserts:
        return UserFunctionVariable(asserts).call_function(tx, args, kwargs)
    if self.value in _CHECKS and _holds(args[0] if args else kwargs.get("cond")):
        return ConstantVariable.create(None)
    return plain(self, tx, args, kwargs)


_CHECKS = (torch._check, torch._check_index, torch._check_value, torch._check_type, torch._check_not_implemented)


def _holds(condition: Any) -> bool:
    """Whether a condition is known to hold: a constant, or a matter of sizes."""
    if isinstance(condition, SymNodeVariable) and not free_unbacked_symbols(condition.sym_num):
        return condition.evaluate_expr() is True
    return isinstance(condition, VariableTracker) and condition.is_python_constant() and condition.as_python_constant() is True


@amends(SkipFunctionVariable, "call_function")
def _call_skipped(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Whether what a distribution asks of an argument can be checked alone is a matter of its class."""
    if self.value is not constraints.is_dependent:
        return plain(self, tx, args, kwargs)
    return BuiltinVariable(isinstance).call_function(tx, [*args, VariableTracker.build(tx, constraints._Dependent)], kwargs)


@amends(UserFunctionVariable, "call_function")
def _call_user(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Whether matrices are symmetric decides what else a distribution asks of them."""
    if self.fn is CHECK:
        return plain(UserFunctionVariable(_IN_TENSORS), tx, [*self.self_args(), *args], kwargs)
    return plain(self, tx, args, kwargs)


@amends(UserDefinedClassVariable, GETATTR)
def _attribute(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    """A distribution's class holds lazy properties, of which only their class is asked; torch would guard what lies in them."""
    held = getattr_static(self.value, name, None) if issubclass(self.value, Distribution) else None
    return UserDefinedObjectVariable(held) if isinstance(held, lazy_property) else plain(self, tx, name)


def _place(tx: Any) -> str:
    """Function and line of the user's, without the file: a plan may be made in one folder and run in another."""
    here = next((each for each in frames(tx) if is_user_code(each.f_code.co_filename)), tx)
    return f"line {here.lineno} of {here.f_code.co_qualname}"


_BESIDE = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG", "NOP"}


def _error(tx: Any, start: int) -> tuple[Any, ...]:
    """Name and arguments of the error that is raised from an instruction on, if it is one of Python's that gets constants."""
    steps = [each for each in tx.instructions[start : start + 12] if each.opname not in _BESIDE]
    end = next((number for number, each in enumerate(steps) if each.opname == "RAISE_VARARGS"), 0)
    if not end or steps[end].arg != 1:
        return ()
    first, *rest = steps[:end]
    given = [each.argval for each in rest if each.opname == "LOAD_CONST" and isinstance(each.argval, str | int | float)]
    if [each.opname for each in rest[len(given) :]] != ["CALL"] * bool(rest):
        return ()
    if first.opname == "LOAD_ASSERTION_ERROR":
        return "AssertionError", *given
    name = first.argval if first.opname == "LOAD_GLOBAL" else ""
    kind = None if name in tx.f_globals else vars(builtins).get(name)
    return (name, *given) if isinstance(kind, type) and issubclass(kind, Exception) else ()
