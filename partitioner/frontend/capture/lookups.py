"""Keys and attributes that a frame looks up in vain, and goes on without: ``try: k = table[key]; except KeyError: k = 1``.

Dynamo guards that ``key in table`` and `hasattr` were false. What is caught instead it does not guard, so that a table which is
filled later would stay empty for the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch._dynamo.exc import ObservedAttributeError, ObservedKeyError
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstDictVariable, UserDefinedObjectVariable


@contextmanager
def lookups_guarded() -> Iterator[None]:
    """While a frame is traced: what is not there when it is looked up is guarded not to be there."""
    item, attribute = ConstDictVariable.getitem_const_raise_exception_if_absent, UserDefinedObjectVariable.var_getattr

    def look_up(self: Any, tx: Any, key: Any) -> Any:
        try:
            return item(self, tx, key)
        except ObservedKeyError:
            self.install_dict_contains_guard(tx, [key])
            raise

    def look_for(self: Any, tx: Any, name: str) -> Any:
        try:
            return attribute(self, tx, name)
        except ObservedAttributeError:
            if self.source is not None:
                install_guard(self.source.make_guard(partial(GuardBuilder.HASATTR, attr=name)))
            raise

    ConstDictVariable.getitem_const_raise_exception_if_absent = look_up  # type: ignore[method-assign, assignment]
    UserDefinedObjectVariable.var_getattr = look_for  # type: ignore[method-assign]
    try:
        yield
    finally:
        ConstDictVariable.getitem_const_raise_exception_if_absent = item  # type: ignore[method-assign]
        UserDefinedObjectVariable.var_getattr = attribute  # type: ignore[method-assign]
