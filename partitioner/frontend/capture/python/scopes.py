"""Globals of functions whose module is not the one that `sys.modules` has under its name, as Dynamo takes for granted.

    spec_from_file_location("model", path), not registered      there is no module of that name: no graph
    two files loaded as "model", one after the other            the first one's functions read the second one's globals
    a model traced, its module then loaded anew                 the new one's functions read and write the old one's globals

So do functions that were made by ``exec`` or `runpy`, or whose module was loaded anew. Their globals are attributes of an
object that stands for their module, which Dynamo reads, guards and writes.

And a function of which a variable is not set yet when it is called, as it sets it itself, is traced like any other one:

    [y for v in values if (y := v % 3)]                         of Python before 3.12, where that is a function
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.source import AttrSource, GlobalSource
from torch._dynamo.symbolic_convert import InliningInstructionTranslator, _import_module
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.functions import ClosureConversionError, NestedUserFunctionVariable

from partitioner.frontend.capture.amended import amends


class _Scope:
    """A module in all but name."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


@amends(InliningInstructionTranslator, "get_globals_source_and_value")
def _globals_of(plain: Callable[..., Any], self: Any, name: str) -> Any:
    module = self.f_globals.get("__name__", "")
    if "torch_package" in module or _is_known(module, self.f_globals):
        return plain(self, name)
    scopes: dict[int, _Scope] = vars(self.output).setdefault("scopes", {})
    scope = scopes.setdefault(id(self.f_globals), _Scope(self.f_globals))
    source = GlobalSource(self.output.install_global_by_id("___scope", scope))
    return scope, VariableBuilder(self, source)(scope), AttrSource(source, name)


def _is_known(module: str, names: dict[str, Any]) -> bool:
    """Whether globals are of the module of that name, and of the one that Dynamo keeps for it once it has asked."""
    return _names(sys.modules.get(module)) is names and _names(_import_module(module)) is names


def _names(module: Any) -> dict[str, Any] | None:
    return getattr(module, "__dict__", None)


@amends(NestedUserFunctionVariable, "get_function")
def _as_it_is(plain: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
    """The function itself, which Dynamo has if it closes over constants. What is not there yet is none, as a tensor is none."""
    try:
        return plain(self, *args, **options)
    except Unsupported as error:
        raise ClosureConversionError("a variable that is not set yet") from error
