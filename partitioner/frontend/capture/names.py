"""What Dynamo calls things: expressions over the local variables and the globals of a frame, and what they are now."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

_STEP = re.compile(r"\.([^\W\d]\w*)|\['([^'\\]*)'\]|\[(\d+)\]")
_PATH = re.compile(r"[LG](\.[^\W\d]\w*|\['[^'\\]*'\]|\[\d+\])+")
"""An expression that goes from item to attribute, and its steps."""


def found_at(name: str, scope: Mapping[str, Any]) -> tuple[CodeType | None, Any]:
    """What Dynamo calls something: as code, and what it is now. No code if it speaks of what only Dynamo has.

    Args:
        name: an expression of torch's own making.
        scope: ``L`` and ``G`` of the frame that is being traced.
    """
    try:
        tree = ast.fix_missing_locations(_Looking().visit(ast.parse(name, mode="eval")))
        code = compile(tree, "<partitioner guard>", "eval")
        return code, look_at(code, scope)
    except Exception:
        return None, None


def value_at(name: str, scope: Mapping[str, Any]) -> Any:
    """What something is now; ``None`` if only Dynamo has it. A path is walked, for compiling it takes far longer."""
    if not _PATH.fullmatch(name):
        return found_at(name, scope)[1]
    value = scope[name[0]]
    try:
        for attribute, key, index in _STEP.findall(name):
            value = getattr(value, attribute) if attribute else _item(value, int(index) if index else key)
    except Exception:
        return None
    return value


def look_at(code: CodeType, scope: Mapping[str, Any]) -> Any:
    """What something is now, of which `found_at` gave the code."""
    return eval(code, {**scope, "item": _item})


def holds_at(code: CodeType, test: Callable[[Any], bool]) -> Callable[[dict[str, Any]], bool]:
    """The condition that something passes a test, of which `found_at` gave the code."""
    return lambda scope: test(look_at(code, scope))


class _Looking(ast.NodeTransformer):
    """To ask a `defaultdict` for an item that it does not have makes one: here it does not."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name):
            return node  # a variable
        return ast.Call(ast.Name("item", ast.Load()), [node.value, node.slice], [])


def _item(owner: Any, key: Any) -> Any:
    if isinstance(owner, dict) and key not in owner:
        raise KeyError(key)
    return owner[key]


def name_of(source: Any) -> str:
    """What Dynamo calls a source or guard; ``""`` if that is no name in the frame."""
    try:
        return str(source.name() if callable(source.name) else source.name)  # torch 2.11 has methods
    except NotImplementedError:
        return ""
