"""What a frame finds when it looks something up, where Dynamo does not ask again whether it would find the same.

It guards that ``key in table`` was false, and not that ``try: table[key]`` was in vain; the keys of a dictionary, and not their
order where they are copied or unpacked; the shape of a tensor, and not whether it is a leaf, a view, or has hooks; a function
of Python's own, and not that no global hides it; attributes of a class, and not those of the class's class. Objects it makes
past what the class's class does when it is called: there the graph ends. Whether a tensor is in a list is a tensor to it, and
whether a number is in a range a number: either is true or not, and the graph ends where the numbers of tensors say which. And
an object is in a list that holds it, whatever the ``__eq__`` of its class says of itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from dis import opmap
from enum import EnumType
from functools import partial
from inspect import getattr_static
from types import FunctionType
from typing import Any

from torch import nn
from torch._dynamo import symbolic_convert, utils
from torch._dynamo.exc import ObservedAttributeError, ObservedKeyError, Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.symbolic_convert import InstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    ConstDictVariable,
    DefaultDictVariable,
    GetAttrVariable,
    RangeVariable,
    TensorVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    dicts,
    lists,
    user_defined,
)
from torch._dynamo.variables.base import VariableTracker

from partitioner.frontend.capture.amended import GETATTR, amends
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.python.absent import has_guard
from partitioner.model.functions import has_any, is_users
from partitioner.model.source import is_user_code

_OF_TENSORS = {
    "is_leaf": ("is_leaf", GuardBuilder.CONSTANT_MATCH),
    "grad_fn": ("is_leaf", GuardBuilder.CONSTANT_MATCH),  # a leaf has none
    "_base": ("_base", GuardBuilder.TYPE_MATCH),  # None, or a tensor
}
_KINDS = ("UserDefined", "Ordered", "Default")
_LOST = ("retains_grad", "_backward_hooks")  # the fake that stands for a tensor has none
_OF_OBJECTS = getattr(dicts, "DunderDictVariable", ConstDictVariable)  # torch 2.11 has none


@amends(BuiltinVariable, "call_str")
def _text(plain: Callable[..., Any], self: Any, tx: Any, error: Any) -> Any:
    """What an error says whose class says it in its own way, as a `KeyError` does, ends the graph."""
    kind = getattr(error, "exc_type", None) or type(getattr(error, "value", None))
    if issubclass(kind, BaseException) and kind.__str__ is not BaseException.__str__:
        raise Unsupported(f"the text of a {kind.__name__} is asked for")
    return plain(self, tx, error)


@amends(BuiltinVariable, "call_repr")
def _shown(plain: Callable[..., Any], self: Any, tx: Any, error: Any) -> Any:
    """An error about what differs from call to call was shown with what the tracer calls that."""
    if not all(each.is_python_constant() for each in getattr(error.realize(), "args", ())):
        raise Unsupported("an error about what differs from call to call is shown")
    return plain(self, tx, error)


@amends(InstructionTranslatorBase, "load_builtin")
def _load_builtin(plain: Callable[..., None], self: Any, instruction: Any) -> None:
    plain(self, instruction)
    if not self.f_globals.get("__name__", "").startswith("torch."):
        HERE.builtins.setdefault(id(self.f_globals), (self.f_globals, set()))[1].add(instruction.argval)


@amends(utils, "iter_contains")
@amends(lists, "iter_contains")
def _contains(plain: Callable[..., Any], items: Any, search: Any, *arguments: Any, **options: Any) -> Any:
    known = [utils.specialize_symnode(item.realize()) for item in items]  # guarded, and numbers that are open are known
    wanted = search.realize()
    for place, item in enumerate(known):
        if item is wanted or (_is_object(item) and _is_object(wanted) and item.value is wanted.value):
            plain(known[:place], search, *arguments, **options)  # for what their classes' __eq__ does
            return ConstantVariable.create(True)
        if item.is_tensor() and wanted.is_tensor() and utils._get_fake_tensor(item) is utils._get_fake_tensor(wanted):
            return ConstantVariable.create(True)
        if (item.is_tensor() or wanted.is_tensor()) and _is_number(item) and _is_number(wanted):
            raise Unsupported("a tensor is looked for among others, by its numbers")
        if wanted.is_python_constant() and _says_what_it_equals(item):
            raise Unsupported(f"a constant is looked for among objects, by the __eq__ of {item.python_type_name()}")
    return plain([item for item in known if item.is_tensor() is wanted.is_tensor()], search, *arguments, **options)


@amends(lists.BaseListVariable, "call_method")
def _count(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, *named: Any) -> Any:
    if name == "count" and any(each.realize().is_tensor() for each in (*self.items, *args)):
        raise Unsupported("tensors are counted, by their numbers")
    return plain(self, tx, name, args, *named)


if "sq_contains" in vars(RangeVariable):  # torch 2.12 and before have none

    @amends(RangeVariable, "sq_contains")
    def _in_range(plain: Callable[..., Any], *arguments: Any) -> Any:
        return ConstantVariable.create(bool(plain(*arguments).as_python_constant()))


if "is_python_equal" in vars(UserDefinedObjectVariable):

    @amends(UserDefinedObjectVariable, "is_python_equal")
    def _is_the_key(plain: Callable[..., bool], self: Any, other: Any) -> bool:
        """Dynamo finds an object among keys if it is one of them, whatever the ``__eq__`` of its class says."""
        if plain(self, other):
            return True
        known = self.is_python_constant() and other.is_python_constant()
        if not known and any(kind.__eq__ is not object.__eq__ for kind in (self.python_type(), other.python_type())):
            raise Unsupported(f"a {self.python_type_name()} is looked for among keys, by the __eq__ of a class")
        return False


if "hash_impl" in vars(user_defined.FrozenDataClassVariable):

    @amends(user_defined.FrozenDataClassVariable, "hash_impl")
    def _hash(plain: Callable[..., Any], self: Any, tx: Any) -> Any:
        """Dynamo takes all fields of a frozen dataclass, where some may not count, or its class says otherwise."""
        kind = self.python_type()
        made = (getattr(getattr(each, "__code__", None), "co_filename", "") for each in (kind.__eq__, kind.__hash__))
        if any(name != "<string>" for name in made) or not all(each.compare and each.hash is None for each in fields(kind)):
            raise Unsupported(f"a {kind.__name__} is a key, of which not all fields count")
        return plain(self, tx)


def _is_object(value: Any) -> bool:
    return isinstance(value, UserDefinedObjectVariable)


def _says_what_it_equals(value: Any) -> bool:
    """Whether its class may take a constant for its equal. A dataclass's own method takes none."""
    method = value.python_type().__eq__ if _is_object(value) and not value.is_python_constant() else None
    return isinstance(method, FunctionType) and method.__code__.co_filename != "<string>"


def _is_number(value: Any) -> bool:
    """Whether a tensor's numbers are compared with it: texts and ``None`` are no tensor's equal."""
    return not value.is_python_constant() or isinstance(value.as_python_constant(), int | float | complex)


@amends(ConstDictVariable, "getitem_const_raise_exception_if_absent")
def _look_up(plain: Callable[..., Any], self: Any, tx: Any, key: Any) -> Any:
    try:
        return plain(self, tx, key)
    except ObservedKeyError:
        self.install_dict_contains_guard(tx, [key])
        raise


def _as_of_any(guard: Callable[..., None], _plain: Callable[..., None], *arguments: Any) -> None:
    """Of an object's attributes is guarded what is guarded of any dictionary."""
    guard(*arguments)


for _name in ("install_dict_keys_match_guard", "install_dict_contains_guard"):
    amends(_OF_OBJECTS, _name)(partial(_as_of_any, getattr(ConstDictVariable, _name)))


@amends(ConstDictVariable, "install_dict_keys_match_guard")
def _guard_keys(plain: Callable[..., None], self: Any) -> None:
    plain(self)
    if self.source is not None:
        InstructionTranslator.current_tx().output.guard_on_key_order.add(self.source)


@amends(ConstDictVariable, "as_python_constant")
def _as_constant(plain: Callable[..., dict[Any, Any]], self: Any) -> dict[Any, Any]:
    """Whether a dictionary is empty, and its text, are taken of its items; that there are no others is guarded here."""
    value = plain(self)
    self.install_dict_keys_match_guard()
    return value


@amends(DefaultDictVariable, "is_python_constant")
def _is_constant(plain: Callable[..., bool], self: Any) -> bool:
    """If a factory cannot be traced, Dynamo makes an item of a copy, once and for all, and the dictionary never gets it."""
    return plain(self) and isinstance(self.default_factory.as_python_constant(), type | None)


def guard_all(*values: Any) -> None:
    """Guards the keys of dictionaries, of those that objects are made of, and of those that are viewed."""
    for value in (each.realize() for each in values):
        for held in (value, getattr(value, "_base_vt", None), getattr(value, "dv_dict", None)):
            if isinstance(held, ConstDictVariable):
                held.install_dict_keys_match_guard()


@amends(BuiltinVariable, "call_not_")
def _not(plain: Callable[..., Any], self: Any, tx: Any, value: Any) -> Any:
    guard_all(value)
    return plain(self, tx, value)


for _name in {"generic_bool", "generic_is_true"} & vars(symbolic_convert).keys():  # torch 2.12 and before have none

    @amends(symbolic_convert, _name)
    def _truth(plain: Callable[..., Any], tx: Any, value: Any) -> Any:
        """At a jump Dynamo takes the variable that stands for the truth of a view for the truth itself, which is never no."""
        found = plain(tx, value)
        if isinstance(value, UserDefinedObjectVariable):
            return found
        return found.as_python_constant() if found.is_python_constant() else found.evaluate_expr()


def _text_of_all(plain: Callable[..., Any], self: Any, tx: Any) -> Any:
    guard_all(self)
    return plain(self, tx)


for _kind in (ConstDictVariable, *(getattr(user_defined, f"{name}DictVariable", object) for name in _KINDS)):
    if "repr_impl" in vars(_kind):  # torch 2.11 has none
        amends(_kind, "repr_impl")(_text_of_all)


if not hasattr(user_defined, "OrderedDictVariable"):  # torch 2.11, where their text was a plain dictionary's

    @amends(ConstDictVariable, "as_python_constant")
    def _constant(plain: Callable[..., Any], self: Any) -> Any:
        if self.user_cls not in (dict, OrderedDict):
            raise NotImplementedError(f"a constant {self.user_cls.__name__}")
        return self.user_cls(plain(self))

else:

    @amends(user_defined.OrderedDictVariable, "call_method")
    def _move(plain: Callable[..., Any], self: Any, tx: Any, name: str, *arguments: Any) -> Any:
        if name == "move_to_end":
            vars(self).get("_base_vt", self).should_reconstruct_all = True  # or the keys would stay where they are
        return plain(self, tx, name, *arguments)


@amends(UserDefinedObjectVariable, GETATTR)
def _of_object(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    try:
        found = plain(self, tx, name)
    except ObservedAttributeError:
        if self.source is not None:
            install_guard(has_guard(self.source, name))
        raise
    if self.source is not None and _is_made_up(self.value, name):
        install_guard(self.source.make_guard(partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)))
    return found


def _is_made_up(owner: Any, name: str) -> bool:
    """Whether a ``__getattr__`` of the user's gives an attribute that its owner does not have."""
    method = getattr(type(owner), "__getattr__", None)
    if not isinstance(method, FunctionType) or method is nn.Module.__getattr__:
        return False
    return name not in getattr(owner, "__dict__", {name}) and not hasattr(type(owner), name)


_WRITES = frozenset(opmap[name] for name in ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL"))


@amends(UserDefinedObjectVariable, "call_obj_hasattr")
def _has(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    """Whether an object has an attribute is asked again before each call, which its ``__getattr__`` may count."""
    if _is_made_up(self.value, name) and has_any(type(self.value).__getattr__.__code__, _WRITES):
        raise Unsupported(f"its class {type(self.value).__name__} writes where it is asked for attributes")
    return plain(self, tx, name)


@amends(UserDefinedClassVariable, "call_function")
def _call_class(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    kind = type(self.value)
    call = getattr_static(kind, "__call__", None) if issubclass(kind, type) else None
    if isinstance(call, FunctionType) and call is not EnumType.__call__ and is_user_code(call.__code__.co_filename):
        raise Unsupported(f"{self.value.__name__} is called, of which its metaclass {kind.__name__} makes what it likes")
    if is_users(getattr(self.value, "__module__", None)) and hasattr(self.value, "__del__"):
        raise Unsupported(f"a {self.value.__name__} is made, which has a finaliser")
    return plain(self, *arguments)


@amends(UserDefinedClassVariable, GETATTR)
def _of_class(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    found = plain(self, tx, name)
    if type(found) is GetAttrVariable and found.source is not None and not callable(value := getattr(self.value, name)):
        return VariableTracker.build(tx, value, found.source)  # of its metaclass, as a value that is guarded
    if self.source is not None and ConstantVariable.is_literal(getattr_static(self.value, name, ...)):
        install_guard(AttrSource(self.source, name).make_guard(GuardBuilder.CONSTANT_MATCH))  # torch 2.11 has none
    return found


@amends(TensorVariable, GETATTR)
def _of_tensor(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if self.source is not None and name in _LOST:
        raise Unsupported(f"{name} of a tensor is read")
    if self.source is None and name == "grad" and self.has_grad_fn:
        raise Unsupported("the gradient of what forward has computed is read")  # there is none, and Dynamo has a tensor
    if self.source is not None and name in _OF_TENSORS:
        asked, guard = _OF_TENSORS[name]
        install_guard(AttrSource(self.source, asked).make_guard(guard))
    return plain(self, tx, name)
