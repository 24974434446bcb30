"""Which hooks a module has: whoever registers the same ones anew for each picture needs no further program.

To torch each registration is a number of its own. A program knows hooks for forward by what they do, and by their place; and
those for backward, where they are found in the call (`hooked.py`), not at all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from torch import nn
from torch._dynamo.symbolic_convert import InstructionTranslator

from partitioner.frontend.capture.here import Condition
from partitioner.frontend.capture.names import found_at, holds_at, name_of, value_at
from partitioner.model.source import is_user_code

NO_HOOKS = "EMPTY_NN_MODULE_HOOKS_DICT"
"""What Dynamo calls the guard that a module has no hooks of a kind."""

OF_BACKWARD, OF_FORWARD = ("._backward_hooks", "._backward_pre_hooks"), ("._forward_hooks", "._forward_pre_hooks")


def found_in_call(inner: Any, traced: Iterable[CodeType], scope: Mapping[str, Any]) -> Iterator[tuple[str, Condition]]:
    """The conditions that modules with hooks for backward have some, in the place of Dynamo's guards on them.

    Code of the user's that asks for them itself is guarded as all else.

    Args:
        inner: Dynamo's guards, edited.
        traced: the code that was traced.
        scope: ``L`` and ``G`` of the frame.
    """
    names = {name for name in map(name_of, inner) if any(part in name for part in OF_BACKWARD)}
    asked = (each.co_names for each in traced if is_user_code(each.co_filename))
    if not names or any("_backward_hooks" in each or "_backward_pre_hooks" in each for each in asked):
        return
    inner -= {each for each in inner if name_of(each) in names and each.create_fn_name() != NO_HOOKS}
    ordered: Any = InstructionTranslator.current_tx().output.guard_on_key_order
    ordered -= {each for each in ordered if name_of(each) in names}
    for name in sorted(names):
        code, value = found_at(name, scope) if name.endswith(OF_BACKWARD) else (None, None)
        if code and value:
            yield name, holds_at(code, bool)


def hooked_alike(name: str, hooks: Mapping[int, Any], scope: Mapping[str, Any]) -> Callable[[Mapping[int, Any]], bool]:
    """A test of a module's hooks for forward: whether they are those, or as many, of which none wants more than others.

    Args:
        name: what Dynamo calls them.
        hooks: those that there are.
        scope: as above.
    """
    numbers, places, module = list(hooks), _places(hooks), value_at(name.rpartition(".")[0], scope)
    held = weakref.ref(module) if isinstance(module, nn.Module) else lambda: None
    special = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")

    def test(now: Mapping[int, Any]) -> bool:
        if list(now) == numbers:
            return True
        return _places(now) == places and not any(getattr(held(), each, True) for each in special)

    return test


def _places(hooks: Mapping[int, Any]) -> list[int]:
    """Which is called when, of hooks in the order in which they came: the order that Dynamo sees."""
    came: list[int] = list(dict.keys(hooks))  # type: ignore[arg-type]
    return [came.index(number) for number in hooks]
