"""A frame that fails in the middle of a call is run once more as it is: then Python's objects, too, are as eager leaves them.

    self.calls += 1                 Dynamo sets attributes when the graph has run, so not where an op fails
    return self.table[rows]

A call that begins with the graph that fails is made again from its beginning (`Programs.run`). Where Python has begun it, that
cannot be; but a graph comes first in its own frame, whose arguments are still there.
"""

from __future__ import annotations

import inspect
import sys
from traceback import walk_stack
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame


def run_again(code: CodeType) -> None:
    """Run the function that called a graph, of which nothing but the graph has run: what it raises is eager's.

    Args:
        code: of the function as it was written.
    """
    frame = next((each for each, _ in walk_stack(sys._getframe(1)) if _is_of(each, code)), None)
    names, rest, named = inspect.getargs(code)
    if frame is None or not {*names, *code.co_freevars} <= {*frame.f_locals}:
        return
    held: dict[str, Any] = frame.f_locals
    function = FunctionType(code, frame.f_globals, closure=tuple(CellType(held[name]) for name in code.co_freevars))
    positional = [held[name] for name in names[: code.co_argcount]]
    keywords = {name: held[name] for name in names[code.co_argcount :]} | (held[named] if named else {})
    before = set_eval_frame(None)
    try:
        function(*positional, *(held[rest] if rest else ()), **keywords)
    finally:
        set_eval_frame(before)


def _is_of(frame: FrameType, code: CodeType) -> bool:
    """Whether a frame runs what Dynamo has made of a code."""
    made = frame.f_code
    return (made.co_filename, made.co_name, made.co_firstlineno) == (code.co_filename, code.co_name, code.co_firstlineno)
