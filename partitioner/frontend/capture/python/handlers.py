"""Where the user's code goes on after what an op raises: at ``except``, or in a context manager of its own.

try: z = table[rows]                 a program knows nothing of the handler: a call that fails is made again as it is,
except IndexError: z = table         if it begins with the program; otherwise the frame runs as it is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo.bytecode_analysis import TERMINAL_OPCODES
from torch._dynamo.output_graph import SubgraphTracer
from torch._dynamo.variables import WithExitFunctionVariable
from torch._dynamo.variables.ctx_manager import GenericContextWrappingVariable
from torch._ops import OperatorBase, OpOverloadPacket

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE
from partitioner.model.source import is_user_code

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "YIELD")


@amends(SubgraphTracer, "create_proxy")
def _create_proxy(plain: Callable[..., Any], self: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
    """Note who would handle what an op raises."""
    if kind.startswith("call_"):
        torchs = not isinstance(kwargs.get("target", args[0] if args else None), OperatorBase | OpOverloadPacket)
        for tx in frames(self.output_graph.current_tx):
            if tx.current_instruction.exn_tab_entry is not None:
                HERE.handled.update(_is_except(tx, start, torchs) for start in handlers(tx))
    return plain(self, kind, *args, **kwargs)


def _is_except(tx: Any, start: int, torchs: bool) -> bool:
    """Whether a handler asks which error it is, or goes on; a ``finally`` does neither.

    ``except`` of an error of the user's own, or of a package's, is for none that an op of torch raises.
    """
    code = tx.instructions
    if code[start + 1].opname == "WITH_EXCEPT_START":
        return False
    while code[asked := _next(tx, start, "CHECK_EXC_MATCH", "POP_JUMP", "RERAISE")].opname == "CHECK_EXC_MATCH":
        if not torchs or not _is_own_error(tx, code[asked - 1]):
            return True
        start = tx.indexof[code[_next(tx, asked, "POP_JUMP")].target]
    return leaves(tx, start)


def _next(tx: Any, start: int, *names: str) -> int:
    """Where one of some instructions comes next; the last one of all, if none does."""
    rest = range(start, len(tx.instructions))
    return next((place for place in rest if tx.instructions[place].opname.startswith(names)), len(tx.instructions) - 1)


def _is_own_error(tx: Any, instruction: Any) -> bool:
    """Whether an instruction loads a class of errors that is neither Python's nor torch's."""
    kind = tx.f_globals.get(instruction.argval) if instruction.opname == "LOAD_GLOBAL" else None
    return isinstance(kind, type) and kind.__module__.partition(".")[0] not in ("builtins", "torch")


def frames(tx: Any) -> Iterator[Any]:
    """The functions that are being traced, the innermost first."""
    while tx is not None:
        yield tx
        tx = tx.parent


def handlers(tx: Any) -> Iterator[int]:
    """Where a function of the user's goes on after an exception, from inside out: at ``except``, or in a context of its own.

    Since Python 3.12 comprehensions and generators have handlers, too, which only put things in order and push nothing.
    """
    contexts = [each.ctx for each in tx.stack if isinstance(each, WithExitFunctionVariable)]
    torchs = not any(isinstance(each, GenericContextWrappingVariable) for each in contexts)
    entry, seen = tx.current_instruction.exn_tab_entry, set[int]()
    while entry is not None and tx.indexof[entry.target] not in seen and is_user_code(tx.f_code.co_filename):
        start = tx.indexof[entry.target]
        seen.add(start)
        body = tx.instructions[start:]
        if body[0].opname == "PUSH_EXC_INFO" and (not torchs or body[1].opname != "WITH_EXCEPT_START"):
            yield start
        entry = next((each.exn_tab_entry for each in body if each.opname == "RERAISE"), None)


def leaves(tx: Any, start: int, within: Any = None) -> bool:
    """Whether a function may come to its end, or give something, from one of its instructions on.

    Exceptions lead to their handlers, but for those that reach out of the block that the instruction is in.
    """
    waiting, seen = [start], set[int]()
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        each = tx.instructions[index]
        if each.opname.startswith(_ENDS):
            return True
        handled = each.exn_tab_entry is not None and (within is None or each.exn_tab_entry.target is not within.target)
        targets = [each.target, each.exn_tab_entry.target if handled else None]
        waiting += [tx.indexof[target] for target in targets if target is not None]
        if each.opcode not in TERMINAL_OPCODES:
            waiting.append(index + 1)
    return False
