"""What a thread is tracing, and what is said of it: torch's loggers keep silent, a failure is one line."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch._dynamo import utils

from partitioner.frontend.capture.amended import amends
from partitioner.model.source import is_pythons, is_user_code

Condition = Callable[[dict[str, Any]], bool]
"""On ``L``, a frame's local variables, and ``G``, its globals; or on neither."""

Watched = tuple[Condition, ...]


@dataclass(eq=False)
class Here(threading.local):
    """What this thread is tracing: whose frame, whether torch's loggers keep silent, and what else is to be guarded.

    Args:
        first: whether the call begins with this frame.
        whole: whether one graph must be all of the call.
        between: whether Python may stand between graphs although state lies on several devices, which have copies.
        once: whether it is taken for all other calls.
        apart: whether one graph must be all of the call, its ops may lie on several devices, and one thread issues them.
        counts: whether counts of batches stay tensors.
        inference: whether the call is under inference mode, which Dynamo leaves while it traces.
        empty: whether the model lies on the meta device.
        compared: pairs of names of which the frame asks whether they are one object.
        builtins: names of functions of Python's own that no global hides, with those globals, by their ``id``.
        dressed: names of tuples, texts and numbers that have attributes.
        handled: for each kind of handler of the user's around an op, whether it is an ``except``.
        functions: names of the autograd functions that are being traced, the inner ones last.
        now: answers to questions about the process where the frame begins, and ``answers`` to those that it asks.
        decisions: what values of the frame have decided while it was traced.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    code: CodeType | None = None
    tracing: bool = False
    first: bool = False
    whole: bool = False
    between: bool = False
    once: bool = False
    apart: bool = False
    counts: bool = False
    inference: bool = False
    empty: bool = False
    scope: Mapping[str, Any] = field(default_factory=dict)
    watched: Watched = ()
    compared: dict[tuple[str, str], None] = field(default_factory=dict)
    builtins: dict[int, tuple[dict[str, Any], set[str]]] = field(default_factory=dict)
    dressed: dict[str, None] = field(default_factory=dict)
    handled: set[bool] = field(default_factory=set)
    functions: list[str] = field(default_factory=list)
    now: Mapping[Callable[[], Any], Any] = field(default_factory=dict)
    answers: dict[Callable[[], Any], Any] = field(default_factory=dict)
    decisions: dict[Any, Condition] = field(default_factory=dict)


HERE = Here()


class _Silence(logging.Filter):
    """What torch warns of in a try of ours is nobody's concern. What TORCH_LOGS asks for is, and what other threads log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not HERE.tracing or record.levelno < logging.WARNING


_TALKING = ("torch._dynamo", "torch._subclasses", "torch.fx.experimental", "torch._guards", "torch._logging")
for _name in [name for name in logging.root.manager.loggerDict if name.startswith(_TALKING)]:
    logging.getLogger(_name).addFilter(_Silence())


@amends(utils, "warn_once")
def _no_warning(*_args: Any, **_kwargs: Any) -> None:
    """Torch does not warn of what it cannot trace. The summary of a module says it."""


_WORDS = {
    r"(torch\.func\.\w+)\(fn\) requires the function": r"what \1 is given cannot be traced",
    r"(?s)^(generic_jump|Data-dependent branching).*UnspecializedPythonVariable": "Python decides on a number that it draws",
    r"partial tensor op.*UnspecializedPythonVariable": "Python computes with a number that it draws",  # torch 2.11: or decides
    r"^generic_jump|^Data-dependent branching|data-dependent expression": "Python decides on the value of a tensor",
    r"^step_unsupported$": "what follows cannot be traced, nor gone on with in the middle of it",
    r"distributions/constraints\.py": "a distribution looks at the values of its arguments, unless given validate_args=False",
    r"found no exception handler": "what is called there raises an error",
    r"support (sparse Tensor|strided NestedTensor)": r"torch's tracer takes no \1",
    r"quantized nyi in meta tensors": "torch's tracer takes no quantized tensor",
    r"with fake tensors: .*: got (.*)": r"on tensors without values: \1",
    r"trace numpy function <.*?([\w.]+) (?:of|at) ": r"numpy's \1 is called",
    r"`(Tensor\.numpy\(\))` was called": r"\1 gives values to Python",
    r"`(Tensor\.retain_grad\(\))` does not work": r"\1 keeps a gradient of what forward computes, which no tracer sees",
    r"Attempted to call `(torch\.autograd\.\w+)` with config": r"\1 is asked for gradients of what forward computes",
    r"Module-level backwards hooks require": "a module in it has backward hooks",
    r"^Attempted to use `torch\.nn\.Parameter\(\)`": "it makes a parameter, or a layer that has one",
    r"Opaque objects cannot be created|Generator\.__new__": "it makes a torch.Generator, or an object that no op takes",
    r"marked that (?:the function )?`([\w.]+)`": r"torch's tracer does not look into \1",
    r"non-Tensor output whose value is dependent": "an op looks at the values of what it is given",
    r"ops that return a non-Tensor": "an op gives what is no tensor",
    r"^logging\.Logger method": "it logs",
    r"builtin operator `print`": "it prints",
    r"the Python builtin `_warnings\.warn`": "it warns",
    r"perator `?([\w.]+?)(?:\.default)?`? does not have a (?:Fake|meta)": r"\1 says nothing of its result without values",
    r"how to trace .*pybind11_(?:object|type)": "it makes an object of a library of C++",
    r"how to trace the builtin `(?:<unknown module>\.)?([\w.]+?)\.?`": r"torch's tracer does not look into \1",
    r"(?s)Missing `as_proxy\(\)`.*UserDefined\w+Variable\((\w+)\)": r"an op is given a \1, which no graph can hold",
    r"Missing `as_proxy\(\)`": "an op is given an object that no graph can hold",
    r"^(.+)\n *Explanation: (?:Dynamo does not support this|(?:This is |This is c|C)(?:urrently )?not supported)": r"\1",
    r"(?m)^ *(?:Explanation|Developer debug context): (.+)": r"\1",
}
"""What torch's tracer says, and what it means for the model; the first that is found counts."""

_JARGON = re.compile(
    r"Variable(?:Tracker)?\b|[Ss]ourceless|[a-z]Source\b|OutputGraph|bytecode|proxy|SymNode|[Gg]raph break|\bHOP\b"
    r"|\b(?:tp|sq|mp|nb)_\w+"
)
"""What only those who write the tracer have names for."""


def explain(error: BaseException) -> str:
    """Why something could not be traced, in one line with the line of the user's code."""
    return _placed(_plainly(str(error)) or type(error).__name__, getattr(error, "real_stack", ()))


def reason_of(module: torch.fx.GraphModule) -> str:
    """Why a graph ends where it does, if forward goes on after it."""
    found = getattr(module, "compile_subgraph_reason", None)
    return _placed(_plainly(found.reason), found.user_stack) if found is not None and found.graph_break else ""


def _placed(text: str, stack: Iterable[Any]) -> str:
    """A text with the innermost line of the user's, or where there is none, as in a function of Python's, with that."""
    frames = [frame for frame in stack if is_user_code(frame.filename)]
    own = [frame for frame in frames if not is_pythons(frame.filename)] or frames
    return f"{text} (at {own[-1].filename}:{own[-1].lineno})" if own else text


def _plainly(text: str) -> str:
    """What torch says, in one line: in words of the model's where they are known, or else its explanation where it has one."""
    known = (found.expand(words) for pattern, words in _WORDS.items() if (found := re.search(pattern, text)))
    said = next(known, "") or next((line.strip() for line in text.splitlines() if line.strip()), "")
    return (
        "it does what torch's tracer does not know" if _JARGON.search(said) else re.sub(r"\bDynamo\b", "torch's tracer", said)
    )
