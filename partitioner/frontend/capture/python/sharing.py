"""Whether what a frame knows as two objects is still two, and not one under two names; and whether one is one.

A list or an object that comes in under two names, or is an attribute, too, is for Dynamo one object for each name if it was so
when it was traced: what is written under one name, the other name would not read, and ``a is b`` stays false. It asks this of
tensors, and of nothing else. And that an object is one under two names it asks where both lead from local variables, or both
from globals, but not of one that is a global and an attribute. A tuple under two names is for it two, each made anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import is_from_global_source, is_from_local_source
from torch._dynamo.symbolic_convert import InstructionTranslator, compare_op_handlers
from torch._dynamo.variables import TupleVariable, UserMethodVariable, builder

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE, Condition
from partitioner.frontend.capture.names import found_at, look_at, name_of, value_at


@amends(compare_op_handlers, "==")
@amends(compare_op_handlers, "!=")
def _equal(plain: Callable[..., Any], tx: Any, pair: list[Any], options: dict[str, Any]) -> Any:
    """Dynamo compares the functions of bound methods, and not whose they are."""
    if all(isinstance(variable.realize(), UserMethodVariable) for variable in pair):
        raise Unsupported("bound methods are compared")
    return plain(tx, pair, options)


@amends(compare_op_handlers, "is")
@amends(compare_op_handlers, "is not")
def _compare(plain: Callable[..., Any], tx: Any, pair: list[Any], options: dict[str, Any]) -> Any:
    """Note the pairs of objects of which a frame asks whether they are one. What is one now is held against itself."""
    if pair[0] is not pair[1] and all(isinstance(variable.realize(), UserMethodVariable) for variable in pair):
        raise Unsupported("bound methods are compared, of which there is a new one each time")
    if all(variable.source is not None for variable in pair):
        one, other = (name_of(variable.source) for variable in pair)
        if one != other and "()" in one + other and isinstance(pair[0].realize(), TupleVariable):
            raise Unsupported("a tuple is compared that a cache or a context gives")
        HERE.compared[one, other] = None
        if len(_objects((one, other), HERE.scope)) == 1:
            pair = [pair[0], pair[0]]
    return plain(tx, pair, options)


@amends(builder, "make_dupe_guard")
def _still_one(plain: Callable[..., Any], source: Any, known: Any) -> Any:
    """A guard: whether what lies at two sources is one object, as it is now."""
    found = plain(source, known)
    reached = known and all(is_from_local_source(each) or is_from_global_source(each) for each in (source, known))
    if found is None and reached and source != known:
        return partial(GuardBuilder.DUPLICATE_INPUT, source_b=known)
    return found


def distinct(scope: Mapping[str, Any]) -> Iterator[Condition]:
    """Conditions on objects that must still be one, or different: those that were compared, and all of a class that is written.

    Called by a backend.

    Args:
        scope: ``L`` and ``G`` of the frame that is being traced.
    """
    for pair in HERE.compared:
        if found := _objects(pair, scope):
            yield _are_so_many(len(found), [code for code, _ in (found_at(name, scope) for name in pair) if code])
    effects = InstructionTranslator.current_tx().output.side_effects
    outside = [variable for variable in effects.id_to_variable.values() if variable.source is not None]
    known = defaultdict[type, list[CodeType]](list)
    if written := {type(value_at(name_of(each.source), scope)) for each in outside if effects.is_modified(each)}:
        for variable in outside:
            code, value = found_at(name_of(variable.source), scope)
            if code and type(value) in written:
                known[type(value)].append(code)
    yield from (_are_so_many(len(codes), codes) for codes in known.values() if len(codes) > 1)


def _objects(names: tuple[str, str], scope: Mapping[str, Any]) -> set[int]:
    """Who has these names, by ``id``; nobody if one of them only Dynamo has, is no object of its own, or is asked."""
    if any("()" in name for name in names):
        return set()
    found = [found_at(name, scope) for name in names]
    return {id(value) for _, value in found} if all(code and _has_identity(value) for code, value in found) else set()


def _has_identity(value: Any) -> bool:
    """Whether Dynamo would not notice that it is another object: constants are compared, and tensors looked at."""
    if isinstance(value, torch.Tensor):
        return torch.__version__ < "2.12"  # which looks at those of one module, and not of two
    return not isinstance(value, str | bytes | int | float | complex | None)


def _are_so_many(number: int, codes: list[CodeType]) -> Condition:
    return lambda scope: len({id(look_at(code, scope)) for code in codes}) == number
