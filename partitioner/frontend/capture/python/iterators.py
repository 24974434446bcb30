"""Iterators that a frame gives, and what a generator returns.

Dynamo runs a generator to its end while it traces, and gives an iterator over a tuple in the place of it, of an iterator over a
list, and of most that `itertools` makes. Who is given one may ask for more than the next item: its class, its length, to close
it. So a frame goes on as it is where it returns one, or puts one into a list or a dictionary. So it does where a generator goes
on behind the end of a graph: it may never end, and be asked for its ``send``; or where an iterator over a list does, or is an
attribute, for what is written to the list comes out of it (a loop in which a graph ends is one of Python's in any case). And
``yield from`` would give ``None``: where a generator returns something, the graph ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from torch._dynamo.exc import ObservedException, ObservedUserStopIteration, Unsupported
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import UserDefinedObjectVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.functions import LocalGeneratorObjectVariable
from torch._dynamo.variables.iter import ZipVariable
from torch._dynamo.variables.lists import BaseListVariable, ListIteratorVariable, TupleIteratorVariable

from partitioner.frontend.capture.amended import amends

_OTHERS = (LocalGeneratorObjectVariable, ListIteratorVariable)
DEEPEST = 3
"""Containers in containers in which is looked."""


@amends(InstructionTranslator, "_return")
def _return(plain: Callable[..., Any], self: Any, instruction: Any) -> None:
    if self.stack:
        effects = self.output.side_effects
        written = [each for each in effects.id_to_variable.values() if _is_held(each) and effects.is_modified(each)]
        for value in chain.from_iterable(_given(each, DEEPEST) for each in (self.stack[-1].realize(), *written)):
            if value.source is None and (type(value) in _OTHERS or _is_polyfill(value)):
                raise _as_it_is("an iterator is returned")
    plain(self, instruction)


@amends(LocalGeneratorObjectVariable, "reconstruct")
def _reconstruct(plain: Callable[..., Any], self: Any, codegen: Any) -> None:
    if not self.inline_tracer.generator_exhausted:
        raise _as_it_is("a generator goes on where the graph has ended")
    plain(self, codegen)


@amends(ListIteratorVariable, "reconstruct")
@amends(ZipVariable, "reconstruct")  # what ``map`` gives is one, too
def _over_a_list(plain: Callable[..., Any], self: Any, codegen: Any) -> None:
    made = self.mutation_type is not None  # what a generator left is put together by the tracer
    if made and type(self) is not TupleIteratorVariable and not getattr(self, "is_exhausted", False):
        raise _as_it_is("an iterator over a list goes on where the graph has ended")
    plain(self, codegen)


def _as_it_is(reason: str) -> Unsupported:
    """What lets a frame run as it is, or the graph would end at an earlier line, and give the iterator to what is left."""
    error = Unsupported(reason)
    error.skip_frame = True
    return error


def _is_held(value: Any) -> bool:
    return value.source is not None and isinstance(value, BaseListVariable | ConstDictVariable)


def _is_polyfill(value: Any) -> bool:
    """Whether its class stands for one of Python's own, as of what ``iter`` gives of a function and a last value."""
    return isinstance(value, UserDefinedObjectVariable) and value.python_type().__module__.startswith("torch._dynamo.")


@amends(LocalGeneratorObjectVariable, "next_variable")
@amends(UserDefinedObjectVariable, "next_variable")
def _next(plain: Callable[..., Any], self: Any, tx: Any) -> Any:
    try:
        return plain(self, tx)
    except ObservedUserStopIteration:
        if tx.current_instruction.opname == "SEND" and tx.exn_vt_stack.get_current_exception().args:
            raise Unsupported("yield from gives what a generator returns") from None
        raise


@amends(ZipVariable, "tp_iternext_impl" if hasattr(ZipVariable, "tp_iternext_impl") else "next_variable")
def _next_of_zip(plain: Callable[..., Any], self: Any, tx: Any) -> Any:
    try:
        return plain(self, tx)
    except ObservedUserStopIteration:
        raise
    except ObservedException:
        raise Unsupported("zip tells which of its arguments is shorter") from None


def _given(value: Any, deep: int) -> Iterator[Any]:
    """A value, and what lies in it."""
    yield value
    if deep and type(value) is not ListIteratorVariable and isinstance(value, BaseListVariable | ConstDictVariable):
        for item in value.items if isinstance(value, BaseListVariable) else value.items.values():
            yield from _given(item, deep - 1)
