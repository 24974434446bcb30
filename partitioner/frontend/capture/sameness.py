"""Guards that Dynamo leaves out.

It compares constants by ``==``, and to that 0.0 is -0.0 and ``(2,)`` is ``(2.0,)``. Only values for which this matters are
looked at again, and only where they are the user's: no layer of torch's own tells them apart. A forward that reads the
environment depends on all of it. Hooks for all modules come and go, and methods of classes may be replaced.
"""

from __future__ import annotations

import copy
import math
import os
import re
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import TracingContext
from torch.nn.modules import module as everywhere

from partitioner.frontend.capture.here import HERE, Condition, Watched
from partitioner.frontend.capture.names import found_at, holds_at, name_of, value_at
from partitioner.frontend.capture.python.answers import AnswerIs, answers
from partitioner.frontend.capture.python.methods import methods
from partitioner.frontend.capture.python.registered import NO_HOOKS, OF_BACKWARD, OF_FORWARD, found_in_call, hooked_alike
from partitioner.frontend.capture.python.sharing import distinct

_FLOATS = (float, np.floating)
_KINDS = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH"})
_LAST = re.compile(r"(?:\.\w+|\[[^\[\]]*\])$")


def watched(scope: Mapping[str, Any], root: nn.Module, whole: bool) -> tuple[Watched, Watched]:
    """What to look at again, of all that the frame being traced depends on: in the frame, and in the process.

    Called by a backend. Dynamo's guard on hooks for saved tensors is taken back: ops run under those of the call, and it is a
    function of Python, which costs time in each call and loses an interrupt that comes meanwhile. So are those on hooks for a
    backward, where there is none.

    Args:
        scope: ``L`` and ``G`` of that frame.
        root: the model.
        whole: whether the frame cannot run as it is.
    """
    context = TracingContext.try_get()
    if context is None:
        return (), ()
    inner = context.guards_context.dynamo_guards.inner
    inner -= {guard for guard in inner if guard.create_fn_name() == "AUTOGRAD_SAVED_TENSORS_HOOKS"}
    if _has_no_backward():
        inner -= {each for each in inner if each.create_fn_name() == NO_HOOKS and name_of(each).endswith(OF_BACKWARD)}
    if HERE.apart:
        HERE.decisions.update(found_in_call(inner, context.traced_code, scope))
    guards = [(name_of(guard), guard.create_fn_name()) for guard in inner]
    kinds = [type(module) for module in root.modules()] + [*_kinds(guards, scope)]
    return tuple(_within(guards, scope)), tuple(_around(guards, kinds, set(context.traced_code), whole))


def _has_no_backward() -> bool:
    """Whether no op of the frame records gradients. Hooks for a backward, a seventh of all guards, do nothing then."""
    nodes = InstructionTranslator.current_tx().output.graph.nodes
    recorded = torch.is_grad_enabled() and not HERE.inference
    return not recorded and not any(node.target is torch._C._set_grad_enabled for node in nodes)


def _kinds(guards: list[tuple[str, str]], scope: Mapping[str, Any]) -> Iterator[type]:
    """The classes that the frame uses, and those of the objects that it uses."""
    for variable in InstructionTranslator.current_tx().output.side_effects.id_to_variable.values():
        yield type(vars(variable).get("value"))
    for name in sorted({name for name, kind in guards if kind == "CLASS_MATCH"}):
        if isinstance(found := value_at(name, scope), type):
            yield found


def _within(guards: list[tuple[str, str]], scope: Mapping[str, Any]) -> Iterator[Condition]:
    """What is looked at again in the frame.

    Those are constants that have twins, attributes of tuples, texts and numbers of a class of the user's, which torch takes to
    be constant, and the keys of dictionaries that are gone through: of ordered ones torch sees the order in which they came. Of
    a `defaultdict` with such keys it does not look at what makes its values.
    """
    for name in sorted({name for name, kind in guards if kind in _KINDS}):
        if not _has_twins(value_at(name, scope)) or type(value_at(_LAST.sub("", name), scope)).__module__.startswith("torch."):
            continue
        code, value = found_at(name, scope)
        if code:
            yield holds_at(code, partial(same, copy.deepcopy(value)))
    for name in HERE.dressed:
        code, value = found_at(name, scope)
        if code:
            yield holds_at(code, partial(_is_dressed, dict(vars(value))))
    for source in sorted(map(name_of, InstructionTranslator.current_tx().output.guard_on_key_order)):
        code, value = found_at(source, scope)
        if code and isinstance(value, defaultdict):
            yield holds_at(code, partial(_made_alike, value.default_factory))
        if code and source.endswith(OF_FORWARD):
            yield holds_at(code, hooked_alike(source, value, scope))
        elif code and (isinstance(value, OrderedDict) or _has_twins(tuple(value))):
            yield holds_at(code, lambda now, keys=list(value): same(list(now), keys))  # type: ignore[misc]
    yield from distinct(scope)
    yield from HERE.decisions.values()


def _made_alike(then: Any, now: Any) -> bool:
    """Whether a dictionary makes values as another one did: by the same thing, or by one line that reads nothing else."""
    made = getattr(now, "default_factory", now)
    if not isinstance(then, FunctionType) or not isinstance(made, FunctionType):
        return made is then
    return made is then or (
        made.__code__ is then.__code__ and not (made.__closure__ or made.__defaults__ or made.__kwdefaults__)
    )


def _is_dressed(then: dict[str, Any], value: Any) -> bool:
    now = vars(value)
    return now.keys() == then.keys() and all(now[name] is each for name, each in then.items())


def _around(
    guards: list[tuple[str, str]], kinds: Iterable[type], traced: Collection[CodeType], whole: bool
) -> Iterator[Condition]:
    """What is looked at again in the process."""
    if os.getenv.__code__ in traced or any(".environ" in name for name, _ in guards):
        yield AnswerIs(_variables, _variables())
    if any("._global_" in name for name, _ in guards):  # Dynamo looks at hooks for all modules, and guards where they are
        yield _HooksAre(_hooks(), whole)
    yield from methods(kinds, traced)
    for module, (held, names) in HERE.builtins.items():
        yield _AreNoGlobals(module, frozenset(names), held)
    yield from answers()


def these_modules(held: Mapping[str, Any]) -> Watched:
    """That the modules among a frame's local variables are these, and no others whose weights would do as well."""
    return tuple(_IsTheModule(name, weakref.ref(each)) for name, each in held.items() if isinstance(each, nn.Module))


@dataclass(frozen=True)
class _IsTheModule:
    name: str
    module: weakref.ref[nn.Module]

    def __call__(self, scope: dict[str, Any]) -> bool:
        return scope["L"].get(self.name) is self.module()


def _variables() -> tuple[tuple[str, str], ...]:
    return tuple(os.environ.items())


@dataclass(frozen=True)
class _AreNoGlobals:
    """Names that a module has no globals of; the ``id`` of its globals, and these."""

    module: int
    names: frozenset[str]
    held: dict[str, Any] = field(compare=False, repr=False)

    def __call__(self, _scope: object) -> bool:
        return self.held.keys().isdisjoint(self.names)


_HOOKS = (
    everywhere._global_forward_hooks,
    everywhere._global_forward_pre_hooks,
    everywhere._global_backward_hooks,
    everywhere._global_backward_pre_hooks,
)


def _hooks() -> tuple[int, ...]:
    return tuple(number for held in _HOOKS for number in held)


@dataclass(frozen=True)
class _HooksAre:
    """Tools that count FLOPs or memory register some together with a dispatch mode, under which nothing can be traced."""

    then: tuple[int, ...]
    whole: bool

    def __call__(self, _scope: object) -> bool:
        if self.then or any(_HOOKS):
            return _hooks() == self.then or (self.whole and torch._C._len_torch_dispatch_stack() > 0)
        return True


def _has_twins(value: Any) -> bool:
    """Whether there is another value that is equal and not the same, or it may become another one: a list in a tuple."""
    if type(value) in (tuple, list, set, frozenset):
        return type(value) is list or any(type(item) in (int, float, bool, complex) or _has_twins(item) for item in value)
    if type(value) is complex:
        return 0.0 in (value.real, value.imag)
    return type(value) is range or (isinstance(value, _FLOATS) and value == 0.0)


def check(found: Watched, module_globals: dict[str, Any]) -> Callable[[Any], bool]:
    """A guard: whether everything watched is what it was, for a frame's local variables."""

    def holds(local_variables: Any) -> bool:
        scope = {"L": local_variables, "G": module_globals}
        return all(condition(scope) for condition in found)

    return holds


def same(one: Any, other: Any) -> bool:
    """Whether two constants are equal, of one type, and zeros of one sign.

    Example:
        >>> same(0.0, -0.0), same((2,), (2.0,)), same((1, 0.5), (1, 0.5)), same({0.0}, {-0.0})
        (False, False, True, False)
    """
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) in (set, frozenset):
        return {(type(item), repr(item)) for item in one} == {(type(item), repr(item)) for item in other}
    if type(one) in (range, complex):
        return repr(one) == repr(other)
    return one == other and (not isinstance(one, _FLOATS) or math.copysign(1, one) == math.copysign(1, other))
