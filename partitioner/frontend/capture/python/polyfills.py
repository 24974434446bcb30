"""Where Dynamo's own Python for what Python has in C takes less than that does, or something else.

    seen.union(q for q in rows)      it asks whether each can be hashed, and of an iterator nothing is left then
    max(iter(rows), default=0)       an iterator is a constant, from which nothing is taken
    enumerate(rows, Level.LOW)       the first number is ``Level.LOW``, and not 0
    float(Index(3))                  gives 3
    table[Index(1):]                 takes no object that says which number it is
    dict(having_keys)                takes mappings and pairs, but not what has ``keys``
    case Base(a):                    goes by the ``__match_args__`` of the object's class
    Kind(number)                     the member that an open number names is initialised with that number
    next([1])                        gives 1
    del self.state                   is no error where there is no such attribute
    half = partialmethod(scaled, 2)  functions have no ``__get__`` in the Python that binds it
    [1].remove(2), (1,)[1]           what the error says is said of others: ``tuple.index()``, a list
    SimpleNamespace(x=1)             is a class without a constructor to trace, whose attributes nobody may set
    super().__init__(text)           of an error's class sets its ``args``

Some are put right; at the others the graph ends, and Python does what it does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dis import opmap
from enum import EnumType
from functools import partialmethod
from types import FunctionType, MemberDescriptorType, SimpleNamespace
from typing import Any

from torch._dynamo import utils
from torch._dynamo.exc import Unsupported, raise_observed_exception
from torch._dynamo.guards import install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import AttrSource
from torch._dynamo.symbolic_convert import (
    InliningGeneratorInstructionTranslator,
    InliningInstructionTranslator,
    InstructionTranslator,
)
from torch._dynamo.variables import (  # type: ignore[attr-defined]  # it says so of SetVariable
    BuiltinVariable,
    ConstantVariable,
    DeletedVariable,
    FunctoolsPartialVariable,
    RangeVariable,
    SetVariable,
    SliceVariable,
    SuperVariable,
    TupleVariable,
    UserDefinedClassVariable,
    UserDefinedExceptionObjectVariable,
    UserDefinedObjectVariable,
    UserMethodVariable,
    user_defined,
)
from torch._dynamo.variables.base import AsPythonConstantNotImplementedError, VariableTracker
from torch._dynamo.variables.functions import PolyfilledFunctionVariable
from torch._dynamo.variables.lists import BaseListVariable, CommonListMethodsVariable, ListIteratorVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.python.absent import has_guard

_MATCHES_ITSELF = 1 << 22
"""The flag of a class of Python's own that ``case int(number)`` gives as it is."""

_PLAIN = (SimpleNamespace.__new__, SimpleNamespace.__setattr__)
"""Methods that do what those of ``object`` do."""

_OF_ITEMS = ("add", "discard", "remove", "__contains__")
"""Methods of sets that are given an item; all others are given items."""


@amends(SetVariable, "call_method")
def _of_set(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, *named: Any) -> Any:
    if name not in _OF_ITEMS:
        args = [TupleVariable(each.force_unpack_var_sequence(tx)) if _is_iterator(each) else each for each in args]
    return plain(self, tx, name, args, *named)


def _is_iterator(value: Any) -> bool:
    value = value.realize()
    try:
        return hasattr(value.python_type(), "__next__")
    except NotImplementedError:
        return False


@amends(ListIteratorVariable, "as_python_constant")
def _no_constant(plain: Callable[..., Any], self: Any) -> Any:
    raise AsPythonConstantNotImplementedError(self)


@amends(PolyfilledFunctionVariable, "call_function")
def _call_polyfilled(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn is enumerate:
        args = [*args[:1], *map(_index, args[1:])]
        kwargs = {name: _index(value) if name == "start" else value for name, value in kwargs.items()}
    return plain(self, tx, args, kwargs)


def _index(value: Any) -> Any:
    value = value.realize()
    if isinstance(value, UserDefinedObjectVariable) and not value.is_python_constant():
        raise Unsupported("enumerate is told by an object where to begin")
    known = value.is_python_constant() and isinstance(value.as_python_constant(), int)
    return ConstantVariable.create(operator.index(int(value.as_python_constant()))) if known else value


if hasattr(RangeVariable, "range_count"):  # not in all versions of torch

    @amends(RangeVariable, "range_count")
    def _count(plain: Callable[..., int], self: Any, value: Any) -> int:
        return self.as_python_constant().count(value.as_python_constant()) if self.is_python_constant() else plain(self, value)


if hasattr(BuiltinVariable, "call_next"):  # not in all versions of torch

    @amends(BuiltinVariable, "call_next")
    def _next(plain: Callable[..., Any], self: Any, tx: Any, value: Any, *default: Any) -> Any:
        if isinstance(value.realize(), BaseListVariable) and not _is_iterator(value):
            raise Unsupported("next of what is no iterator")
        return plain(self, tx, value, *default)


@amends(BuiltinVariable, "call_function")
def _call(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn is dict:
        _refuse_keys(args)
    found = plain(self, tx, args, kwargs)
    if self.fn is float and (found.is_python_constant() or isinstance(found, SymNodeVariable)) and found.python_type() is int:
        return plain(self, tx, [found], {})
    return found


def _refuse_keys(args: Any) -> None:
    for kind in (each.python_type() for each in args if isinstance(each.realize(), UserDefinedObjectVariable)):
        if not issubclass(kind, Mapping) and hasattr(kind, "keys"):
            raise Unsupported("a dictionary is made of an object that is no mapping, and has keys")


@amends(SliceVariable, "__init__")
def _init_slice(plain: Callable[..., None], self: Any, items: Any, *arguments: Any, **options: Any) -> None:
    if any(isinstance(each.realize(), UserDefinedObjectVariable) and not each.is_python_constant() for each in items):
        raise Unsupported("a slice is made of objects that say which numbers they are")
    plain(self, items, *arguments, **options)


def _say_what_is_missing(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, *named: Any) -> Any:
    known = name in ("index", "remove") and args and all(each.is_python_constant() for each in (*self.items, *args))
    if known and self.python_type() in (list, tuple):
        try:
            held = self.python_type()(each.as_python_constant() for each in self.items)
            getattr(held, name)(*(each.as_python_constant() for each in args))
        except ValueError as error:
            raise_observed_exception(ValueError, tx, args=[str(error)])
    return plain(self, tx, name, args, *named)


for _kind in {BaseListVariable, *BaseListVariable.__subclasses__(), *CommonListMethodsVariable.__subclasses__()}:
    if "call_method" in vars(_kind):
        amends(_kind, "call_method")(_say_what_is_missing)


@amends(BaseListVariable, "getitem_const")
def _say_of_what(plain: Callable[..., Any], self: Any, tx: Any, place: Any) -> Any:
    where = place.as_python_constant() if place.is_python_constant() else 0
    if isinstance(where, int) and issubclass(self.python_type(), tuple) and not -len(self.items) <= where < len(self.items):
        raise_observed_exception(IndexError, tx, args=["tuple index out of range"])
    return plain(self, tx, place)


def _match_class(plain: Callable[..., None], self: Any, instruction: Any) -> None:
    subject, kind = (each.realize() for each in self.stack[-3:-1])
    if instruction.arg and isinstance(kind, UserDefinedClassVariable):
        names = getattr(kind.value, "__match_args__", None)
        known = kind.value.__flags__ & _MATCHES_ITSELF if names is None else True
        if not known or getattr(subject.python_type(), "__match_args__", names) != names:
            raise Unsupported(f"a case of {kind.value.__name__} is met by position")
    plain(self, instruction)


for _kind in (InstructionTranslator, InliningInstructionTranslator, InliningGeneratorInstructionTranslator):
    amends(_kind.dispatch_table, opmap["MATCH_CLASS"])(_match_class)


def _is_plain(plain: Callable[..., bool], method: Any) -> bool:
    return method in _PLAIN or plain(method)


amends(user_defined, "is_standard_setattr")(_is_plain)
amends(UserDefinedClassVariable, "is_supported_new_method")(_is_plain)


@amends(UserDefinedClassVariable, "call_function")
def _call_class(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if issubclass(self.value, dict):
        _refuse_keys(args)
    if self.value is SimpleNamespace and not args:
        made = tx.output.side_effects.track_new_user_defined_object(self, self, [])
        for name, value in kwargs.items():
            made.call_method(tx, "__setattr__", [ConstantVariable.create(name), value], {})
        return made
    known = [utils.specialize_symnode(each.realize()) for each in args] if isinstance(self.value, EnumType) else args
    return plain(self, tx, known, kwargs)


if hasattr(UserDefinedObjectVariable, "invoke_descriptor_get"):  # not in all versions of torch

    @amends(UserDefinedObjectVariable, "invoke_descriptor_get")
    def _bind(plain: Callable[..., Any], self: Any, tx: Any, name: str, descriptor: Any, source: Any) -> Any:
        if not isinstance(descriptor, partialmethod) or not isinstance(descriptor.func, FunctionType) or not self.cls_source:
            return plain(self, tx, name, descriptor, source)
        where = self.get_source_by_walking_mro(tx, name)
        held = [VariableTracker.build(tx, getattr(descriptor, each), AttrSource(where, each)) for each in ("args", "keywords")]
        method = UserMethodVariable(descriptor.func, self, source_fn=AttrSource(where, "func"))
        return FunctoolsPartialVariable(method, held[0].unpack_var_sequence(tx), held[1].realize().keys_as_python_constant())


@amends(SideEffects, "store_attr")
def _store(plain: Callable[..., None], self: Any, item: Any, name: str, value: Any, *kinds: Any, **named: Any) -> None:
    if isinstance(value, DeletedVariable):
        pending = self.has_pending_mutation_of_attr(item, name)
        if isinstance(self.load_attr(item, name, deleted_ok=True), DeletedVariable) if pending else not _is_its_own(item, name):
            raise Unsupported(f"an attribute {name} is deleted that may not be there")
        if not pending:
            install_guard(has_guard(item.source, name))
    plain(self, item, name, value, *kinds, **named)


def _is_its_own(item: Any, name: str) -> bool:
    """Whether an object from outside of the frame has an attribute that no class of its has."""
    owner = getattr(item, "value", None)
    of_class = getattr(type(owner), name, None)
    if isinstance(of_class, MemberDescriptorType):
        return item.source is not None and hasattr(owner, name)
    return item.source is not None and of_class is None and name in getattr(owner, "__dict__", {})


@amends(SuperVariable, "call_method")
def _of_super(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    made = self.objvar
    if name != "__init__" or kwargs or made.source is not None or not isinstance(made, UserDefinedExceptionObjectVariable):
        return plain(self, tx, name, args, kwargs)
    found = getattr(super(self.typevar.as_python_constant(), made.python_type()), name)
    owner = getattr(found, "__objclass__", BaseException)
    if isinstance(found, FunctionType) or any(isinstance(each, MemberDescriptorType) for each in vars(owner).values()):
        return plain(self, tx, name, args, kwargs)
    made.exc_vt.args = list(args)
    tx.output.side_effects.store_attr(made, "args", TupleVariable(list(args)))
    return ConstantVariable.create(None)
