"""What forward tells, where one graph must be all of it: ``print``, `warnings.warn`, and what a logger says.

Dynamo ends the graph there. Here what is told is told when the graph has run, before Python's objects are set, in its order,
and names the line of forward that tells it. That holds of numbers, texts and shapes, which are the same then. A tensor ends the
graph. So does what a backward may run again, what is told after something was set in a module of Python's, as ``sys.stdout``
is, and a warning where forward may handle or hold it, or a filter may make an error of it.

Which filters there are and which level a logger has is asked before each call. A method with a cache, as ``warning_once`` of
transformers, is called while it is traced, and has then been called for the process.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import GlobalSource
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    PythonModuleVariable,
    SkipFunctionVariable,
    StringFormatVariable,
    WithExitFunctionVariable,
)
from torch._dynamo.variables.ctx_manager import CatchWarningsCtxManagerVariable
from torch._dynamo.variables.misc import DebuggingVariable, LoggingLoggerVariable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.python.asked import asked
from partitioner.frontend.capture.python.handlers import frames, handlers
from partitioner.frontend.capture.python.made import stays

_LOGS = [getattr(logging.Logger, name) for name in "debug info warning error critical log isEnabledFor".split()]
_LOGGING = ("_log", "findCaller", "isEnabledFor")
"""What a class of loggers may do in its own way."""


@amends(BuiltinVariable, "call_function")
def _print(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    constants = self.fn is print and all(each.is_python_constant() for each in kwargs.values())
    if not constants or not _may_wait(tx, args):
        return plain(self, tx, args, kwargs)
    return _tell(tx, partial(print, **{name: each.as_python_constant() for name, each in kwargs.items()}), args)


@amends(SkipFunctionVariable, "call_function")
def _warn(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """One that names the line of forward. Which line a higher ``stacklevel`` names, only the call knows."""
    options = dict(zip(("category", "stacklevel"), args[1:], strict=False)) | kwargs
    known = all(each.is_python_constant() for each in options.values())
    if self.value is not warnings.warn or not known or not args or not _may_wait(tx, args[:1]) or _may_be_handled(tx):
        return plain(self, tx, args, kwargs)
    said = {"category": UserWarning, "stacklevel": 1} | {name: each.as_python_constant() for name, each in options.items()}
    if len(said) > 2 or said["stacklevel"] != 1 or not isinstance(said["category"], type):
        return plain(self, tx, args, kwargs)
    ask = partial(_is_error, said["category"])
    if asked(tx, ask, ask()).as_python_constant():
        return plain(self, tx, args, kwargs)
    file, line, _ = _line(tx)
    return _tell(tx, partial(_warns, tx.f_globals, said["category"], file, line), args[:1])


def _is_error(category: type) -> bool:
    """Whether a filter may make an error of such a warning: forward ends there then, with what it has done so far."""
    for action, message, kind, module, line in warnings.filters:
        if issubclass(category, kind) and action == "error":
            return True
        if issubclass(category, kind) and not (message or module or line):
            return False
    return False


def _warns(names: dict[str, Any], category: type[Warning], file: str, line: int, message: str) -> None:
    module, registry = names.get("__name__", "<string>"), names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, module, registry)


@amends(LoggingLoggerVariable, "call_method")
def _log(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    logger, method = self.value, getattr(getattr(self.value, name, None), "__func__", None)
    constants = all(each.is_python_constant() for each in (*args, *kwargs.values()))
    if HERE.whole and hasattr(method, "cache_info") and constants:
        getattr(logger, name)(
            *(each.as_python_constant() for each in args), **{k: v.as_python_constant() for k, v in kwargs.items()}
        )
        return ConstantVariable.create(None)
    takes = name in ("log", "isEnabledFor")
    own = any(getattr(type(logger), each) is not getattr(logging.Logger, each) for each in _LOGGING)
    if not HERE.whole or method not in _LOGS or own or (takes and not (args and args[0].is_python_constant())):
        return plain(self, tx, name, args, kwargs)
    if self.source is not None:
        install_guard(self.source.make_guard(GuardBuilder.ID_MATCH))
    level = args[0].as_python_constant() if takes else getattr(logging, name.upper())
    enabled = asked(tx, partial(logger.isEnabledFor, level), logger.isEnabledFor(level))
    if name == "isEnabledFor":
        return enabled
    if not enabled.as_python_constant():
        return ConstantVariable.create(None)
    said = args[takes:]
    if kwargs or not _may_wait(tx, said):
        return plain(self, tx, name, args, kwargs)
    return _tell(tx, partial(_logs, logger, level, _line(tx)), said)


def _logs(logger: logging.Logger, level: int, line: tuple[str, int, str], message: str, *args: Any) -> None:
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, *line[:2], message, args, None, line[2]))


def _may_wait(tx: Any, said: Any) -> bool:
    """Whether what is said is the same when the graph has run, and is said then, once and in the same place."""
    if not HERE.whole or HERE.once or not tx.output.is_root_tracer():
        return False
    effects, values = tx.output.side_effects, [each.realize() for each in said]
    modules = [each for each in effects.id_to_variable.values() if isinstance(each, PythonModuleVariable)]
    return all(stays(each) or type(each) is StringFormatVariable for each in values) and not any(
        map(effects.is_modified, modules)
    )


def _may_be_handled(tx: Any) -> bool:
    """Whether forward goes on after an error, or holds warnings back."""
    contexts = [each.ctx for frame in frames(tx) for each in frame.stack if isinstance(each, WithExitFunctionVariable)]
    held = any(isinstance(each, CatchWarningsCtxManagerVariable) for each in contexts)
    return held or any(True for frame in frames(tx) for _ in handlers(frame))


def _line(tx: Any) -> tuple[str, int, str]:
    """The file, line and function that are being traced."""
    line = getattr(tx.current_instruction.positions, "lineno", None) or tx.lineno
    return tx.f_code.co_filename, line, tx.f_code.co_name


def _tell(tx: Any, tells: Callable[..., None], said: Any) -> ConstantVariable:
    """Have it told when the graph has run."""
    source = GlobalSource(tx.output.install_global("___tells", tells))
    tx.output.root_tx.debug_locals.append((DebuggingVariable(tells, source=source), list(said)))
    return ConstantVariable.create(None)
