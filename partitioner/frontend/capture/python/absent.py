"""Attributes that were not there when a frame asked for them, and may be there later.

Dynamo asks again whether an object of the user's, or a class, has what ``hasattr`` did not find. It does not ask that of
functions, modules of Python's, partials and tensors, nor of a class where ``except AttributeError`` answered. And that an
attribute is the one of a base, it asks of the classes in between, but not of the object's own, which may get one later. Of a
list, or a tensor that was just made, it looks for an attribute only when that is used, where no ``except`` stands any more.
And what a `functools.cached_property` has left on an object, its guard reads with ``getattr``: of an object that was not asked
yet, the guard would ask, before forward has written what the property reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from inspect import getattr_static, isdatadescriptor, signature
from types import ClassMethodDescriptorType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

from torch import Size, Tensor
from torch._dynamo import symbolic_convert
from torch._dynamo.exc import ObservedAttributeError, Unsupported, raise_observed_exception
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, DictGetItemSource, TypeDictSource
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    GetAttrVariable,
    TensorVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
)
from torch._dynamo.variables import builtin as builtins
from torch._dynamo.variables.base import VariableTracker

from partitioner.frontend.capture.amended import GETATTR, amends
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.names import name_of, value_at

_MISSING = object()
_CLOSED = (list, tuple, dict, set, frozenset, range, slice, deque, Size)
"""Classes whose objects have what their class has, and nothing else."""

_ALWAYS = (WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType)
"""Methods that Python has in C, and which no object of the class is without."""


def has_guard(source: Any, name: str) -> Any:
    """A guard: whether what lies at a source has an attribute, as it does or does not now."""
    if "attr" in signature(GuardBuilder.HASATTR).parameters:
        return source.make_guard(partial(GuardBuilder.HASATTR, attr=name))
    return AttrSource(source, name).make_guard(GuardBuilder.HASATTR)  # torch 2.11


def _is_default(found: Any, default: Sequence[Any]) -> bool:
    return any(found.realize() is each.realize() for each in default)


def _is_no(found: Any, _default: Sequence[Any]) -> bool:
    return isinstance(found, ConstantVariable) and found.value is False


def _is_yes(found: Any) -> bool:
    return isinstance(found, ConstantVariable) and found.value is True


def _ask(in_vain: Callable[..., bool], plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any, **options: Any) -> Any:
    """``getattr`` or ``hasattr`` of Dynamo's; the arguments come one by one, or in a list."""
    given = arguments[0] if isinstance(arguments[0], list | tuple) else arguments
    try:
        found = plain(self, tx, *arguments, **options)
        if type(found) is GetAttrVariable and found.name == "persistent" and isinstance(found.obj, TensorVariable):
            held = vars(found.obj.proxy.node.meta["example_value"])  # a Buffer that an op gave back, as `.to` may
            return ConstantVariable.create(held["persistent"]) if "persistent" in held else found
        if in_vain is _is_no and _is_yes(found) and isinstance(given[1], ConstantVariable):
            return ConstantVariable.create(not _has_none(given[0].realize(), given[1].value))
        if type(found) is GetAttrVariable and _has_none(found.obj, found.name):
            if given[2:]:
                return given[2]
            kind = found.obj.python_type().__name__
            text = ConstantVariable.create(f"{kind!r} object has no attribute {found.name!r}")
            raise_observed_exception(AttributeError, tx, args=[text])
    except ObservedAttributeError:
        _not_found(tx, *given[:2])
        raise
    if in_vain(found, given[2:]):
        _not_found(tx, *given[:2])
    return found


def _has_none(owner: Any, name: str) -> bool:
    """Whether something cannot have such an attribute: its class has none, and it has no dictionary, or an empty one."""
    try:
        kind = owner.python_type()
    except NotImplementedError:
        return False
    made = kind is Tensor and owner.source is None  # a Buffer has attributes that its class has not
    return (made or kind in _CLOSED) and not _of_kind(kind, name)


def _of_kind(kind: type, name: str) -> list[Any]:
    """What a class and its bases have under a name; not what the class of the class has, as its ``__name__``."""
    return [vars(owner)[name] for owner in kind.__mro__ if name in vars(owner)]


if hasattr(builtins, "GetAttrBuiltinVariable"):
    amends(builtins.GetAttrBuiltinVariable, "call_function")(partial(_ask, _is_default))
    amends(builtins.HasAttrBuiltinVariable, "call_function")(partial(_ask, _is_no))
else:  # torch 2.12 and before
    amends(BuiltinVariable, "call_getattr")(partial(_ask, _is_default))
    amends(BuiltinVariable, "call_hasattr")(partial(_ask, _is_no))


if hasattr(symbolic_convert, "generic_getattr"):  # before torch 2.14, ``owner.name`` is ``getattr(owner, "name")``

    @amends(symbolic_convert, "generic_getattr")
    def _load(plain: Callable[..., Any], tx: Any, owner: Any, name: str) -> Any:
        return _ask(_is_default, lambda _, *__: plain(tx, owner, name), None, tx, owner, ConstantVariable.create(name))


def _always_has(owner: Any, name: str) -> bool:
    """Whether each object of a class has what Python has in C, such as ``__get__`` of a function, whatever Dynamo says."""
    try:
        return name == "__class__" or isinstance(next(iter(_of_kind(owner.python_type(), name)), None), _ALWAYS)
    except NotImplementedError:
        return False


def _not_found(tx: Any, owner: Any, name: Any) -> None:
    """Guard that an attribute is not there; if it is, and was not deleted while tracing, Dynamo does not see it.

    ``None`` never has more, and is guarded to be ``None``; torch 2.11 cannot guard what it lacks.
    """
    owner = owner.realize()
    if not isinstance(name, ConstantVariable):
        return
    if _always_has(owner, name.value):
        raise Unsupported(f"{name.value} of a {owner.python_type().__name__} is used")
    if owner.source is None:
        return
    value = value_at(name_of(owner.source), HERE.scope)
    if value is None or tx.output.side_effects.has_pending_mutation_of_attr(owner, name.value):
        return
    if getattr_static(value, name.value, _MISSING) is _MISSING:
        install_guard(has_guard(owner.source, name.value))
    elif name.value in getattr(value, "__dict__", ()):
        raise Unsupported(f"{name.value} of a {type(value).__name__} is used")


def _walk(source: str, plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    """What a class has from a base is guarded not to be its own.

    Args:
        source: the attribute that says where the class lies.
    """
    name, held = arguments[-1], self.value if source == "source" else type(self.value)
    if name not in vars(held):
        install_guard(TypeDictSource(getattr(self, source)).make_guard(_lacks(name)))
    return plain(self, *arguments)


for _kind, _source in ((UserDefinedObjectVariable, "cls_source"), (UserDefinedClassVariable, "source")):
    if hasattr(_kind, "get_source_by_walking_mro"):
        amends(_kind, "get_source_by_walking_mro")(partial(_walk, _source))


def _lacks(key: str) -> Callable[..., None]:
    """A guard: whether a dictionary has no such key."""
    if hasattr(GuardBuilder, "DICT_NOT_CONTAINS"):
        return partial(GuardBuilder.DICT_NOT_CONTAINS, key=key)
    return partial(GuardBuilder.DICT_CONTAINS, key=key, invert=True)  # torch 2.12 and before


@amends(UserDefinedObjectVariable, GETATTR)
def _left_by_a_property(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    held = getattr(self.value, "__dict__", {})
    written = name in tx.output.side_effects.store_attr_mutations.get(self, ())
    if (
        self.source is None
        or written
        or name not in held
        or not _is_made_when_asked(getattr_static(type(self.value), name, None))
    ):
        return plain(self, tx, name)
    return VariableTracker.build(tx, held[name], DictGetItemSource(AttrSource(self.source, "__dict__"), name))


def _is_made_when_asked(found: Any) -> bool:
    """Whether a class has what an object gets when it is first asked for it."""
    known = isinstance(found, (FunctionType, staticmethod, classmethod, type, *_ALWAYS))
    return hasattr(type(found), "__get__") and not known and not isdatadescriptor(found)
