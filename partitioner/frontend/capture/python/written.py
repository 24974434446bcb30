"""Classes that a frame writes to, and lists and dictionaries of a user's class that it changes in place.

What is written to a class Dynamo keeps until the frame ends. It looks there when the class itself is asked for the attribute,
and not when an heir is, which is told here, or an object of the class, of which the graph ends. And what an operator in place
gives, ``items += [1]``, was the plain list that the user's one is made of, so that the user's stayed as it was. What is put
into a set that holds objects was lost, for Dynamo takes it for an object, of which attributes are written, and nothing else.
What an operator takes out of a set stayed in it, and a dictionary that is written back as a whole lost what had come since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import (  # type: ignore[attr-defined]  # it says so of none of them
    ConstDictVariable,
    ListVariable,
    SetVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
)

from partitioner.frontend.capture.amended import GETATTR, amends
from partitioner.frontend.capture.python.lookups import guard_all


def _giver(bases: tuple[type, ...], name: str) -> Any:
    """The first class that has an attribute, if it was given it in this frame."""
    effects = InstructionTranslator.current_tx().output.side_effects
    for base in bases:
        if base in effects and effects.has_pending_mutation_of_attr(effects[base], name):
            return effects[base]
        if name in vars(base):
            return None
    return None


@amends(UserDefinedClassVariable, GETATTR)
def _of_class(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    giver = _giver(self.value.__mro__, name)
    return tx.output.side_effects.load_attr(giver, name) if giver and giver is not self else plain(self, tx, name)


@amends(UserDefinedObjectVariable, GETATTR)
def _of_object(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if _giver(type(self.value).__mro__, name) and name not in getattr(self.value, "__dict__", ()):
        raise Unsupported(f"{name} of a {type(self.value).__name__} is read, which a class of it was given before")
    return plain(self, tx, name)


@amends(SideEffects, "track_object_existing")
def _track(plain: Callable[..., Any], self: Any, item: Any, variable: Any) -> Any:
    return self.track_mutable(item, variable) if isinstance(variable, SetVariable) else plain(self, item, variable)


@amends(SideEffects, "mutation")
def _write(plain: Callable[..., None], self: Any, variable: Any) -> None:
    held = (each is variable for each in self.id_to_variable.values())
    if isinstance(variable, SetVariable) and variable.source is not None and not any(held):
        raise Unsupported("a set of the user's own class is written, which would be lost")
    if isinstance(variable, ConstDictVariable):
        variable.install_dict_keys_match_guard()  # for it is written back as a whole
    plain(self, variable)


if "nb_inplace_subtract_impl" in vars(SetVariable):

    @amends(SetVariable, "nb_inplace_subtract_impl")
    def _subtract(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
        """What is put into a set would be written back, and not what is taken out."""
        found = plain(self, *arguments)
        self.should_reconstruct_all = True
        return found


@amends(ListVariable, "call_method")
def _call_method_of_list(plain: Callable[..., Any], self: Any, tx: Any, name: str, *arguments: Any) -> Any:
    if name == "__iadd__":
        raise Unsupported("__iadd__ of a list is called by its name, which would write nothing")
    if name == "extend":
        guard_all(*arguments[0])
    return plain(self, tx, name, *arguments)


def _in_place(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    found = plain(self, *arguments)
    return self if found is self._base_vt is not None else found


for _name in dir(UserDefinedObjectVariable):
    if "_inplace_" in _name:
        amends(UserDefinedObjectVariable, _name)(_in_place)
