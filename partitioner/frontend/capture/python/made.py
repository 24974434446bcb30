"""Objects that forward makes, and texts of what may change.

Dynamo holds an empty object for each that forward makes, and what is in it elsewhere; some of its answers are of the empty one.

- ``vars(made)``: who returns it and not the object had no attributes, for the object was taken to be dead.
- Its text, where its class leaves that to `object`, which is what ``repr`` says.
- A copy, by `copy.copy` or `copy.deepcopy`, has the attributes alone: no items, no slots, nothing of what a class says itself
  of how it is copied. Where there is more than attributes the graph ends.
- A copy of an ordered dictionary of the user's class, and what ``|`` makes of one, was a plain one: there the graph ends.
- A set of a class of the user's would be returned without its members. Where one is made the graph ends.
- A text that is formatted, ``f"{x}"``, is so when the frame ends: it would tell what was written to a tensor, a list or an
  object since. Of what may change the graph ends. Of an open number Dynamo gives the number for its text, which nothing equals.
- ``format(x, "03d")`` is taken for ``str(x).format("03d")``.
- A partial of a partial is one of the innermost function, with the arguments of both.
- A class that is made by a call, ``type("Made", (Base,), {})``, a named tuple's or an enumeration's, is of the module that
  calls: that was one of Dynamo's own.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo import variables
from torch._dynamo.exc import Unsupported
from torch._dynamo.symbolic_convert import InstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    ConstDictVariable,
    StringFormatVariable,
    TupleVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    dicts,
    user_defined,
)
from torch._dynamo.variables.base import AsPythonConstantNotImplementedError
from torch._dynamo.variables.functions import FunctoolsPartialVariable
from torch._dynamo.variables.lists import SizeVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from partitioner.frontend.capture.amended import GETATTR, amends
from partitioner.model.functions import is_users

HEAP_TYPE = 1 << 9
"""The flag of a class that was made by Python, and has nothing in it but attributes and slots."""

_SAYS_HOW = frozenset(("__slots__", "__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"))


if hasattr(dicts, "DunderDictVariable"):  # torch 2.11 has none

    @amends(dicts.DunderDictVariable, "__init__")
    def _init(plain: Callable[..., None], self: Any, owner: Any, *arguments: Any, **options: Any) -> None:
        plain(self, owner, *arguments, **options)
        self.owner = owner  # whoever lives holds what it holds, which is found among its attributes

    @amends(dicts.SideEffectsProxyDict, "__iter__")
    def _names(plain: Callable[..., Iterator[Any]], self: Any) -> Iterator[Any]:
        """Attributes that were there come first, in their order: Dynamo has those first that the frame has set."""
        places = {name: number for number, name in enumerate(self.item_dict)}
        return iter(sorted(plain(self), key=lambda each: places.get(each.vt.as_python_constant(), len(places))))


@amends(BuiltinVariable, "call_str")
def _text(plain: Callable[..., Any], self: Any, tx: Any, value: Any) -> Any:
    if isinstance(value, UserDefinedObjectVariable) and type(value.value).__str__ is object.__str__:
        return BuiltinVariable(repr).call_function(tx, [value], {})
    if isinstance(value, SymNodeVariable):
        return BuiltinVariable(format).call_function(tx, [value], {})
    return plain(self, tx, value)


@amends(UserDefinedObjectVariable, GETATTR)
def _attribute(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if name == "__reduce_ex__" and not _is_all_attributes(kind := self.python_type()):
        raise Unsupported(f"a {kind.__name__} is copied")
    return plain(self, tx, name)


def _is_all_attributes(kind: type) -> bool:
    """Whether objects of a class consist of their attributes, and no class says otherwise how they are copied."""
    return all(base.__flags__ & HEAP_TYPE and not _SAYS_HOW & vars(base).keys() for base in kind.__mro__[:-1])


@amends(UserDefinedClassVariable, "call_function")
def _call_class(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    if issubclass(self.value, set | frozenset) and is_users(getattr(self.value, "__module__", None)):
        raise Unsupported(f"a {self.value.__name__} is made, which is a set")
    return plain(self, *arguments)


@amends(UserDefinedClassVariable, "__init__")
def _class(plain: Callable[..., None], self: Any, kind: type, **options: Any) -> None:
    plain(self, kind, **options)
    if str(module := getattr(kind, "__module__", "")).startswith("torch._dynamo.") and _is_new(kind, module):
        kind.__module__ = InstructionTranslator.current_tx().output.current_tx.f_globals["__name__"]


def _is_new(kind: type, module: str) -> bool:
    """Whether a class is none that its module has under its name."""
    return getattr(sys.modules[module], kind.__name__, None) is not kind


_KINDS = (getattr(user_defined, "OrderedDictVariable", ConstDictVariable), user_defined.UserDefinedDictVariable)
_ORDERED: Any = next(each for each in _KINDS if issubclass(each, user_defined.UserDefinedDictVariable))
"""What stands for an ordered dictionary of the user's class: in torch 2.13 alone there is a kind of variable for it."""


def _copy(plain: Callable[..., Any], self: Any, tx: Any, name: Any, *arguments: Any, **options: Any) -> Any:
    kind = self.python_type()
    if _is_ordered(kind) and (name in ("copy", "__copy__", "__or__", "__ror__") or not isinstance(name, str)):
        raise Unsupported(f"a {kind.__name__} is copied")
    return plain(self, tx, name, *arguments, **options)


for _name in ("call_method", "nb_or_impl"):
    if hasattr(_ORDERED, _name):
        amends(_ORDERED, _name)(_copy)


@amends(_ORDERED, "as_python_constant")
def _constant(plain: Callable[..., Any], self: Any) -> Any:
    if _is_ordered(self.python_type()):
        raise AsPythonConstantNotImplementedError(self)
    return plain(self)


def _is_ordered(kind: type) -> bool:
    """Whether a class of the user's is one of ordered dictionaries."""
    return issubclass(kind, OrderedDict) and kind is not OrderedDict


@amends(FunctoolsPartialVariable, "__init__")
def _partial(plain: Callable[..., None], self: Any, function: Any, args: Any, keywords: Any, **options: Any) -> None:
    inner = function.realize()
    if options.get("source") is None and type(inner) is FunctoolsPartialVariable:
        function, args, keywords = inner.func, [*inner.args, *args], {**inner.keywords, **keywords}
    plain(self, function, args, keywords, **options)


@amends(StringFormatVariable, "__init__")
def _format(plain: Callable[..., None], self: Any, text: str, values: Any, named: Any, **options: Any) -> None:
    if not all(map(stays, (*values, *named.values()))):
        raise Unsupported("a text of what may change is made")
    plain(self, text, values, named, **options)


@amends(InstructionTranslatorBase, "_format_value")
def _format_value(plain: Callable[..., None], self: Any, spec: Any, flags: int) -> None:
    """An open number, too, gets its text when the frame ends. Without a format, ``str`` and ``repr`` say the same of it."""
    if not isinstance(self.stack[-1], SymNodeVariable):
        plain(self, spec, flags)
    elif flags & 0x03 and spec.as_python_constant():
        raise Unsupported("a text of a number that differs from call to call is formatted")
    else:
        self.call_function(BuiltinVariable(format), [self.pop(), spec], {})


@amends(BuiltinVariable, "call_format")
def _call_format(plain: Callable[..., Any], self: Any, tx: Any, value: Any, *args: Any, **named: Any) -> Any:
    if self.fn is not format:
        return plain(self, tx, value, *args, **named)
    wanted = args[0].as_python_constant() if args else ""
    if "{" in wanted or "}" in wanted:
        raise Unsupported("a format has braces")
    return plain(self, tx, ConstantVariable.create(f"{{:{wanted}}}"), value)


_KEYS = getattr(variables, "hashable", dicts)  # where torch 2.13 has what stands for keys

if hasattr(_KEYS, "specialize_symnode"):

    @amends(_KEYS, "specialize_symnode")
    def _as_key(plain: Callable[..., Any], value: Any) -> Any:
        """A text that is looked for is known, as an open number is; Dynamo found no other that is like it."""
        if type(value) is not StringFormatVariable:  # isinstance() would look into what Dynamo has put off
            return plain(value)
        named = {name: plain(each) for name, each in value.sym_kwargs.items()}
        known = StringFormatVariable.create(value.format_string, [*map(plain, value.sym_args)], named)
        if isinstance(known, StringFormatVariable):
            raise Unsupported("a text of what may change is a key")
        return known


def stays(value: Any) -> bool:
    """Whether nothing can be written to a value."""
    value = value.realize()
    if type(value) is SizeVariable or type(value) is TupleVariable:
        return all(map(stays, value.items))
    return isinstance(value, ConstantVariable | SymNodeVariable)
