"""What a frame writes, and whether that is still as many objects as when it was traced.

A list or an object that comes in under two names, or is an attribute, too, is for Dynamo one object for each name if it was so
when it was traced: what is written under one name, the other name would not read. It asks this of tensors, and of nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslator


def distinct(scope: Mapping[str, Any]) -> Iterator[Callable[[dict[str, Any]], bool]]:
    """For each class of which something is written: the condition that all that the frame knows of it are still different.

    Called by a backend.

    Args:
        scope: ``L`` and ``G`` of the frame that is being traced.
    """
    effects = InstructionTranslator.current_tx().output.side_effects
    known, written = defaultdict[type, list[CodeType]](list), set[type]()
    for variable in effects.id_to_variable.values():
        if variable.source is None:
            continue  # made by the frame itself
        try:
            code = compile(variable.source.name, "<partitioner guard>", "eval")
            kind = type(eval(code, dict(scope)))  # an expression of torch's own making
        except Exception:  # it speaks of what only Dynamo has
            continue
        known[kind].append(code)
        if effects.is_modified(variable):
            written.add(kind)
    for kind, codes in known.items():
        if kind in written and len(codes) > 1:
            yield _are_different(codes)


def _are_different(codes: list[CodeType]) -> Callable[[dict[str, Any]], bool]:
    return lambda scope: len({id(eval(code, scope)) for code in codes}) == len(codes)
