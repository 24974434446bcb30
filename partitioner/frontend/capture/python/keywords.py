"""Arguments of which Python makes an error, and which Dynamo takes: a name that is given twice, or that is no text.

    def scaled(y, **options): ...

    scaled(y, **{"y": 2})               Dynamo counts the second one among the options
    scaled(y, **{"a": 1}, **{"a": 2})   and takes the second one for the first
    scaled(y, **{1: 2})                 or a number for a name
    y.view(*range(1, 4))                is no error, and what Dynamo gives is not the range's numbers, but what it is made of

An error is Python's, so the call runs as it is, or, where it must be one graph, is asked what it raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dis import opmap
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.symbolic_convert import (
    InliningGeneratorInstructionTranslator,
    InliningInstructionTranslator,
    InstructionTranslator,
)
from torch._dynamo.variables import RangeVariable, TupleVariable, UserFunctionVariable

from partitioner.frontend.capture.amended import amends


@amends(UserFunctionVariable, "bind_args")
def _bind(plain: Callable[..., Any], self: Any, parent: Any, args: Any, kwargs: Any) -> Any:
    code = self.get_code()
    names = code.co_varnames[code.co_posonlyargcount : min(len(args), code.co_argcount)]
    if not kwargs.keys().isdisjoint(names):
        raise TypeError("an argument is given twice")  # for which Dynamo has an answer, as for one that is missing
    return plain(self, parent, args, kwargs)


def _merge(plain: Callable[..., Any], self: Any, instruction: Any) -> None:
    """What follows on ``**`` comes to the keywords of a call."""
    keywords = self.stack[-1 - instruction.arg].realize().items
    given = dict(keywords)
    keywords.clear()
    plain(self, instruction)
    texts = (key.vt.is_python_constant() and isinstance(key.vt.as_python_constant(), str) for key in keywords)
    if not given.keys().isdisjoint(keywords) or not all(texts):
        raise Unsupported("failed to bind arguments: a name is given twice, or is no text")
    merged = {**given, **keywords}
    keywords.clear()
    keywords.update(merged)


def _spread(plain: Callable[..., Any], self: Any, instruction: Any) -> Any:
    """``f(*range(5))`` is given the numbers, and was given 0, 5 and 1: what the range is made of."""
    for place in range(max(len(self.stack) - 2, 0), len(self.stack)):
        if isinstance(given := self.stack[place].realize(), RangeVariable):
            self.stack[place] = TupleVariable(given.unpack_var_sequence(self))
    return plain(self, instruction)


for _kind in (InstructionTranslator, InliningInstructionTranslator, InliningGeneratorInstructionTranslator):
    amends(_kind.dispatch_table, opmap["DICT_MERGE"])(_merge)
    amends(_kind.dispatch_table, opmap["CALL_FUNCTION_EX"])(_spread)
