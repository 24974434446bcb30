"""Operators that Dynamo does not know, of which it says that Python does not know them either.

    int.__sub__(5, n), list.__iadd__(items, [n])      called on the class: NotImplemented, and nothing is written
    deque.__gt__(first, second)                       a TypeError, which forward may catch
    self.buffer + b"end"                              NotImplemented, as what a bytearray and bytes give

    complex(3) * n, divmod(n, 2), "text" % counter    a TypeError, where a size is open or a class is not Python's own
    Level.HIGH == n, n in [Key(2)], Key(2) < n        False, where a number is open, whatever the object's class says
    n.items                                           an AttributeError when the frame ends, which forward could not catch

The graph ends at each, and Python does what it does.

    bool(t) is True, match n > 3: case True           False, where it differs from call to call; the truth is asked itself
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

from torch._dynamo import symbolic_convert, variables
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables import (  # type: ignore[attr-defined]  # it says so of SetVariable
    BuiltinVariable,
    ConstantVariable,
    ConstDictVariable,
    GetAttrVariable,
    MethodWrapperVariable,
    SetVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    builtin,
    misc,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from partitioner.frontend.capture.amended import COMPARE, GETATTR, amends

_NUMBERS = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift".split()
_NAMES = frozenset(f"__{name}__" for each in _NUMBERS for name in (each, f"r{each}", f"i{each}")) | {
    f"__{name}__" for name in "eq ne lt le gt ge neg pos abs invert bool int float index".split()
}

_EQUALS = ("__eq__", "__ne__")
_ORDERS = ("__lt__", "__le__", "__gt__", "__ge__")  # of lists and tuples torch 2.11 calls them by name itself
_LITERALS = (int, float, bool, complex, str, bytes)  # of which Dynamo says what == says, and not ``NotImplemented``
_KEYS: type = type({}.keys())
_PROTOCOL = getattr(variables, "object_protocol", None)
_MADE = frozenset({"__init__", "__setattr__", "__delattr__", "__getattribute__", "__call__", "__get__"})
_ITEMS = ("__contains__", "__setitem__", "__delitem__")
_TRACED = (object, type, dict, list, set, tuple, OrderedDict)


def _by_name(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, *named: Any) -> Any:
    kind = self.as_python_constant() if name not in _MADE else None
    method = getattr(kind, name, None) if isinstance(kind, type) else None
    if name == "fromkeys" and isinstance(kind, type) and kind not in _TRACED:
        raise Unsupported(f"fromkeys of the class {kind.__name__}, of which the tracer would make a dictionary")
    if isinstance(method, MethodDescriptorType) and method.__objclass__ in (OrderedDict, defaultdict):
        raise Unsupported(f"{name} is called on the class {method.__objclass__.__name__}")
    if isinstance(method, MethodDescriptorType) and not all(issubclass(each, method.__objclass__) for each in _kinds(args[:1])):
        raise Unsupported(f"{name} of the class {method.__objclass__.__name__} is given what is none")
    if isinstance(method, WrapperDescriptorType):
        giver = method.__objclass__
        if (
            name in _NAMES
            or giver not in _TRACED
            or (giver in (list, tuple) and name in _ITEMS)
            or (name, giver) == ("__repr__", OrderedDict)
        ):
            raise Unsupported(f"{name} is called on the class {giver.__name__}")
    return plain(self, tx, name, args, *named)


_KNOWN = (ConstantVariable, BaseListVariable, ConstDictVariable, SetVariable)
"""Of what Python makes of their kinds, Dynamo knows all."""

for _kind in (UserDefinedClassVariable, *(each for name, each in vars(builtin).items() if name.endswith("BuiltinVariable"))):
    if "call_method" in vars(_kind):
        amends(_kind, "call_method")(_by_name)


def _by_name_of_object(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    """``items.__iadd__([1])``: as it is called on the class, but that objects are asked whether they are equal."""
    name = self.name if isinstance(self, GetAttrVariable) else self.method_name
    kind = next(iter(_kinds([self.obj])), None) if name in _NAMES else None
    known = (kind in (list, tuple) and name in _ORDERS) or (kind not in _LITERALS and name in _EQUALS)
    if isinstance(getattr(kind, name, None), WrapperDescriptorType) and not known:
        raise Unsupported(f"{name} is called by its name")
    return plain(self, *arguments)


for _kind in {GetAttrVariable, getattr(misc, "CallMethodVariable", GetAttrVariable)}:  # torch 2.14 has one for methods
    amends(_kind, "call_function")(_by_name_of_object)


@amends(SetVariable, "call_method")
def _call_method_of_set(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, *named: Any) -> Any:
    found = plain(self, tx, name, args, *named)
    if found is self and name in ("union", "intersection", "difference"):
        raise Unsupported(f"{name} of a frozenset and nothing else is another one")
    return ConstantVariable.create(None) if name == "update" and not args else found  # it was the set


if hasattr(_PROTOCOL, "binop_type_error"):  # older ones have none

    @amends(_PROTOCOL, "binop_type_error")
    def _no_operator(plain: Callable[..., Any], tx: Any, left: Any, right: Any, symbol: str) -> Any:
        known = all(isinstance(each, _KNOWN) and not isinstance(each, SymNodeVariable) for each in (left, right))
        if not known or symbol.startswith("%"):
            raise Unsupported(f"{symbol} of what the tracer does not know")
        return plain(tx, left, right, symbol)


_BASES = ("_base_vt", "_set_vt")  # in torch 2.11 the latter
_OF_SETS = (operator.ior, operator.isub, operator.iand, operator.ixor)


@amends(BuiltinVariable, "call_function")
def _operate(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    if self.fn in _OF_SETS and any(isinstance(getattr(arguments[1][0], each, None), SetVariable) for each in _BASES):
        raise Unsupported("a set of the user's own class is written by an operator, and would stay as it was")
    if self.fn in (operator.or_, operator.ior) and _kinds(arguments[1]) == {Counter, dict}:
        raise Unsupported("what a Counter and a dictionary give is a dictionary, and to the tracer a Counter")
    if {int, float} & (kinds := _kinds(arguments[1])) and complex in kinds and any(map(_is_open, arguments[1])):
        raise Unsupported("a complex number meets one that differs from call to call")
    if self.fn in (int, float, complex) and str in kinds and not all(each.is_python_constant() for each in arguments[1]):
        raise Unsupported("a number is made of the text of one that differs from call to call")
    if self.fn in (operator.is_, operator.is_not):
        found = _identity(arguments[0], arguments[1], self.fn is operator.is_)
        return plain(self, *arguments) if found is None else found
    found = plain(self, *arguments)
    operates = getattr(self.fn, "__module__", None) == operator.add.__module__ and self.fn is not operator.getitem
    if operates and found.is_constant_match(NotImplemented):
        raise Unsupported(f"operator.{self.fn.__name__} of what the tracer does not know")
    return found


@amends(MethodWrapperVariable, "call_function")
def _by_name_of_users(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    """The same, where the object is of a class that is derived from one of Python's."""
    name = getattr(getattr(self, "descriptor", getattr(self, "method_wrapper", None)), "__name__", "")
    if name in _NAMES and (name not in _EQUALS or any(map(_is_open, arguments[1]))):
        raise Unsupported(f"{name} is called by its name")
    return plain(self, *arguments)


if hasattr(BuiltinVariable, "_comparison_with_symnode"):  # not in all versions of torch

    @amends(BuiltinVariable, "_comparison_with_symnode")
    def _compare(plain: Callable[..., Any], self: Any, tx: Any, left: Any, right: Any) -> Any:
        return plain(self, tx, _compared(left, self.fn), _compared(right, self.fn))


if COMPARE in vars(SymNodeVariable):

    @amends(SymNodeVariable, COMPARE)
    def _compare_by_slot(plain: Callable[..., Any], self: Any, tx: Any, other: Any, name: str) -> Any:
        return plain(self, tx, _compared(other, getattr(operator, name)), name)


def _compared(variable: Any, op: Any) -> Any:
    """What an open number is held against: of a member of an `IntEnum` and its like, the number."""
    variable = variable.realize()
    if not isinstance(variable, UserDefinedObjectVariable):
        return variable
    kind, name = variable.python_type(), f"__{op.__name__}__"
    number: Any
    for number in (int, float):
        if variable.is_python_constant() and getattr(kind, name) is getattr(number, name):
            return ConstantVariable.create(number(variable.as_python_constant()))
    if op not in (operator.eq, operator.ne) or any(getattr(kind, each) is not getattr(object, each) for each in _EQUALS):
        raise Unsupported(f"a number that differs from call to call is held against a {kind.__name__}")
    return variable


@amends(SymNodeVariable, GETATTR)
def _attribute(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if not hasattr(self.python_type(), name):
        raise Unsupported(f"a number that differs from call to call is asked for {name}")
    return VariableTracker.build(tx, self.python_type()) if name == "__class__" else plain(self, tx, name)


def _is_weak_key(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    if self.referent_vt.is_tensor() and any(getattr(each, "referent_vt", self).is_tensor() for each in arguments):
        raise Unsupported("a tensor is looked for among weak keys, which Python tells apart by their numbers")
    return plain(self, *arguments)


for _name in {"is_python_equal", COMPARE} & vars(misc.WeakRefVariable).keys():
    amends(misc.WeakRefVariable, _name)(_is_weak_key)


def _is(same: bool, plain: Callable[..., Any], tx: Any, operands: Any, *named: Any) -> Any:
    found = _identity(tx, operands, same)
    return plain(tx, operands, *named) if found is None else found


def _identity(tx: Any, operands: Any, same: bool) -> Any:
    """Whether an open number or truth is another one, or is not: a truth is True where it is true."""
    kinds, opened = _kinds(operands), [each.realize() for each in operands if _is_open(each)]
    if not opened or kinds not in ({int}, {bool}):
        return None
    known = [each.as_python_constant() for each in operands if each.is_python_constant()]
    if kinds == {int} or not known:
        raise Unsupported("whether a number that differs from call to call is another one")
    return opened[0] if known[0] is same else BuiltinVariable(operator.not_).call_function(tx, opened, {})


for _name in ("is", "is not"):
    amends(symbolic_convert.compare_op_handlers, _name)(partial(_is, _name == "is"))


for _name in {"generic_contains", "pysequence_contains"} & vars(symbolic_convert).keys():  # torch 2.12 and before have none

    @amends(symbolic_convert, _name)
    def _contains(plain: Callable[..., Any], tx: Any, held: Any, wanted: Any) -> Any:
        if _is_asked_first(held, wanted):
            raise Unsupported("what equals not even itself is looked for")
        return BuiltinVariable(bool).call_function(tx, [plain(tx, held, wanted)], {})  # a ``__contains__`` may give anything


def _is_asked_first(held: Any, wanted: Any) -> bool:
    """Whether Python finds it by being it, past what equality says, in what Dynamo looks through by equality alone."""
    wanted = wanted.realize()
    own = isinstance(wanted, UserDefinedObjectVariable) and _equals_in_its_own_way(wanted.python_type())
    nan = wanted.is_python_constant() and isinstance(value := wanted.as_python_constant(), float) and value != value
    return (own or nan) and not _kinds([held]) & {list, tuple, dict, set, frozenset, _KEYS, deque}


def _equals_in_its_own_way(kind: type) -> bool:
    """Whether an object of a class may not equal itself: flags are numbers of Python's."""
    return not isinstance(kind.__eq__, WrapperDescriptorType) or issubclass(kind, float | complex)


def _is_open(variable: Any) -> bool:
    return isinstance(variable.realize(), SymNodeVariable)


def _kinds(operands: Any) -> set[Any]:
    with suppress(NotImplementedError):
        return {each.python_type() for each in operands}
    return set()


if "sq_repeat_impl" in vars(UserDefinedObjectVariable):

    @amends(UserDefinedObjectVariable, "sq_inplace_repeat_impl")
    @amends(UserDefinedObjectVariable, "sq_repeat_impl")
    def _repeat(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
        """A named tuple once is a tuple, and was the named one."""
        found = plain(self, *arguments)
        is_base = found is self._base_vt and issubclass(self.python_type(), tuple)
        return type(found)(list(found.items)) if is_base else found
