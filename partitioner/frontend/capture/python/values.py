"""Values from outside of a frame that Dynamo takes for others.

It forgets the maximum of a deque that it did not make itself, so that a history would grow for ever: it is told. It forgets
that of one that it copies or repeats, and asks a list for its length by the ``__len__`` of its class, which may say another
one. It takes a generator of random numbers, a `random.Random`, to be for good in the state in which it is found, and of what
an optimizer keeps it loses a part. Where such a value is used the graph ends, and Python does what it does. The numbers that
the process draws come with a call, from `random.uniform` and others, and so do those of `random.random`, a method of C that it
forgets. Of a method such as `torch.Tensor.sin` it does not ask again which one it is. A range of which a number has changed it
cannot take in: here each range is one constant. A tensor of a class that says itself what functions do with it, it would give
as a plain one, unless the class was made to be traced; and one that forward gives another class it would look up where the
first one lies. Tuples, texts and numbers of a user's class may have attributes, of
which torch does not ask as long as the object is the same: they are noted, to be asked for here. An exception that the model
holds is none to it when it is raised. What a member of an enumeration holds that forward has looked up by a name is asked for
again, as it is where an attribute leads to the member.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from enum import Enum
from types import BuiltinMethodType, MethodDescriptorType
from typing import Any

import torch
from torch._dynamo import variables
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import AttrSource, GlobalSource
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import ConstantVariable, RangeVariable, UserDefinedObjectVariable
from torch._dynamo.variables.builder import VariableBuilder, wrap_fx_proxy
from torch._dynamo.variables.functions import SkipFunctionVariable
from torch._dynamo.variables.lists import DequeVariable
from torch._dynamo.variables.tensor import TensorSubclassVariable
from torch._dynamo.variables.user_defined import call_random_fn

from partitioner.frontend.capture.amended import GETATTR, amended, amends, method_of_tensors
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.names import name_of
from partitioner.model.overriding import has_own_rules

_CONSTANT = (tuple, str, bytes, int, float, frozenset)


@amends(VariableBuilder, "_wrap")
def _wrap(plain: Callable[..., Any], self: Any, value: Any) -> Any:
    """Such values end the graph, or are guarded to be what they were."""
    if type(value) is random.Random:
        raise Unsupported("a random.Random of the model's own is used")
    if has_own_rules(value) and not hasattr(value, "__tensor_flatten__"):
        raise Unsupported(f"a tensor of class {type(value).__name__}, which overrides functions, is used")
    if isinstance(value, torch.optim.Optimizer):
        raise Unsupported("an optimizer is used")
    if isinstance(value, list) and type(value).__len__ is not list.__len__:
        raise Unsupported(f"a list is used of which its class {type(value).__name__} says how long it is")
    if isinstance(value, deque):
        if value.maxlen is not None and (type(value) is not deque or not value.maxlen):
            raise Unsupported(f"a {type(value).__name__} of at most {value.maxlen} items is used")
        install_guard(AttrSource(self.source, "maxlen").make_guard(GuardBuilder.CONSTANT_MATCH))
        made = plain(self, value)
        if type(made) is DequeVariable:
            made.maxlen = ConstantVariable.create(value.maxlen)
        return made
    if isinstance(value, _CONSTANT) and isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, Enum):
        HERE.dressed[name_of(self.source)] = None
    if type(value) is range:
        install_guard(self.source.make_guard(GuardBuilder.EQUALS_MATCH))
        return RangeVariable([ConstantVariable.create(each) for each in (value.start, value.stop, value.step)])
    if type(value) is MethodDescriptorType:
        install_guard(self.source.make_guard(GuardBuilder.ID_MATCH))
    return plain(self, value)


@amends(VariableBuilder, "wrap_listlike")
def _wrap_listlike(plain: Callable[..., Any], self: Any, value: Any) -> Any:
    """A tuple of a module's that holds a list is no constant: what forward wrote to the list was lost."""
    if type(value) is not tuple or not _holds_what_changes(value):
        return plain(self, value)
    with amended(ConstantVariable, is_literal=staticmethod(lambda *_: False)):
        return plain(self, value)


def _holds_what_changes(value: Any) -> bool:
    return type(value) in (list, set) or (type(value) is tuple and any(map(_holds_what_changes, value)))


@amends(getattr(variables, "EnumVariable", UserDefinedObjectVariable), GETATTR)  # torch 2.11 has one of its own for members
def _of_member(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if isinstance(self.value, Enum) and self.source is None:
        self.source = GlobalSource(tx.output.install_global_by_id("___member", self.value))
    return plain(self, tx, name)


def _alias(tx: Any, tensor: Any) -> Any:
    """What eager gives another class: an alias, an object of its own of which nothing is known from outside of the frame."""
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", torch.ops.aten.alias.default, (tensor.as_proxy(),), {}))


@amends(*method_of_tensors("as_subclass"))
def _as_subclass(plain: Callable[..., Any], self: Any, tx: Any, kind: Any) -> Any:
    return plain(_alias(tx, self), tx, kind)


@amends(TensorSubclassVariable, "call_function")
def _call_subclass(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    given = len(args) == 1 and not kwargs and args[0].realize().is_tensor() and self.value.__new__ is torch.Tensor.__new__
    return plain(self, tx, [_alias(tx, args[0])] if given else args, kwargs)


@amends(SideEffects, "codegen_update_mutated")
def _write_back(plain: Callable[..., None], self: Any, codegen: Any, *arguments: Any, **named: Any) -> None:
    """A deque with a maximum gets its items as another one: by now it is known which are left."""
    held = [(each, each.maxlen) for each in self.id_to_variable.values() if isinstance(each, DequeVariable)]
    for each, _ in held:
        each.maxlen = ConstantVariable.create(None)
    plain(self, codegen, *arguments, **named)
    for each, most in held:
        each.maxlen = most


@amends(DequeVariable, "call_method")
def _call_method_of_deque(plain: Callable[..., Any], self: Any, tx: Any, name: str, *arguments: Any) -> Any:
    return _refuse_bounded(plain, self, tx, name, *arguments) if name in _FORGETFUL else plain(self, tx, name, *arguments)


def _refuse_bounded(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    """What Dynamo makes of a deque, without its maximum."""
    if isinstance(self, DequeVariable) and not self.maxlen.is_constant_match(None):
        raise Unsupported("a deque with a maximum is copied or repeated")
    return plain(self, *arguments)


_FORGETFUL = ("copy", "__copy__", "__mul__", "__rmul__", "__imul__")
for _name in ("sq_repeat_impl", "sq_inplace_repeat_impl"):
    if hasattr(DequeVariable, _name):
        amends(DequeVariable, _name)(_refuse_bounded)


_RAISE = "do_raise" if hasattr(InstructionTranslatorBase, "do_raise") else "_raise_exception_variable"
"""What raises an exception; torch 2.14 names it after CPython's."""


@amends(InstructionTranslatorBase, _RAISE)
def _raise(plain: Callable[..., Any], self: Any, value: Any, *arguments: Any, **named: Any) -> Any:
    found = None if value is None else value.realize()
    if found is not None and found.source is not None and isinstance(getattr(found, "value", None), BaseException):
        raise Unsupported(f"a {type(found.value).__name__} is raised that was made before")
    return plain(self, value, *arguments, **named)


@amends(SkipFunctionVariable, "call_function")
def _call_skipped(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    draws = type(self.value) is BuiltinMethodType and self.value == random.random
    return call_random_fn(tx, self.value, args, kwargs) if draws else plain(self, tx, args, kwargs)
