"""The text of one op's call: names for everything that is no literal, and the expression itself.

Names in generated code: values keep their graph name, submodules start with ``m_``, functions are called after where they come
from (``torch_cat``, ``aten_relu_default``). ``R`` is the model, ``S`` the call, ``C`` the lifted constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from typing import Any

import torch
from torch.fx.graph import magic_methods

from partitioner.backends.nodes import retarget

OURS = frozenset({"R", "S", "C", "torch"})


def variable(value: str) -> str:
    """The local variable of a value; copies are named after their device.

    Example:
        >>> variable("relu_1"), variable("relu_1@cuda:1")
        ('relu_1', 'relu_1__on__cuda_1')
    """
    name = re.sub(r"\W", "_", value.replace("@", "__on__"))
    return f"{name}_" if name in OURS else name


def _is_name(word: str) -> bool:
    """Whether Python takes a word as a name. Attributes and keyword arguments may be called anything at all."""
    return word.isidentifier() and not iskeyword(word)


class Names:
    """Names in use, and the objects that generated code finds under them.

    Args:
        values: names of all values and ops, which are taken.
        constants: what tracing lifted out of the model, by qualified name.
    """

    def __init__(self, values: Iterable[str], constants: Mapping[str, Any]) -> None:
        self.namespace: dict[str, Any] = {"torch": torch, "C": dict(constants)}
        self.constants = constants
        self.taken = {variable(value) for value in values} | OURS
        self.labels: dict[int, str] = {}
        self.modules = {"": "R"}

    def module(self, path: str) -> str:
        """The local name of a submodule."""
        if path not in self.modules:
            self.modules[path] = self._fresh("m_" + re.sub(r"\W", "_", path))
        return self.modules[path]

    def state(self, path: str) -> str:
        """An expression for a parameter, buffer, attribute or constant."""
        if path in self.constants:
            return f"C[{path!r}]"
        owner, _, name = path.rpartition(".")
        return f"{self.module(owner)}.{name}" if _is_name(name) else f"getattr({self.module(owner)}, {name!r})"

    def object(self, value: Any, label: str) -> str:
        """A name for any object, the same one each time."""
        if id(value) not in self.labels:
            self.labels[id(value)] = self._fresh(re.sub(r"\W", "_", label))
            self.namespace[self.labels[id(value)]] = value
        return self.labels[id(value)]

    def _fresh(self, label: str) -> str:
        while label in self.taken:
            label = f"{label}_"
        self.taken.add(label)
        return label

    def call(self, node: torch.fx.Node, device: str, local: Mapping[str, str]) -> str:
        """The expression of a node on a device.

        Args:
            node: a call, or a ``get_attr`` that the model returns.
            device: torch device, for the device arguments in it.
            local: the expression of each value that is no state, by name.
        """
        if node.op == "get_attr":
            return self.state(str(node.target))
        target, args, kwargs = retarget(node, device)
        texts = [self.argument(arg, local) for arg in args]
        operator = _infix(target, texts) if not kwargs else None
        if operator is not None:
            return operator
        named = ((key, self.argument(arg, local)) for key, arg in kwargs.items())
        texts += (f"{key}={text}" if _is_name(key) else f"**{{{key!r}: {text}}}" for key, text in named)
        if node.op == "call_module":
            return f"{self.module(target)}({', '.join(texts)})"
        if node.op == "call_method":
            return f"{texts[0]}.{target}({', '.join(texts[1:])})"
        return f"{self.object(_callable(target), _label(target))}({', '.join(texts)})"

    def argument(self, value: Any, local: Mapping[str, str]) -> str:
        """The text of one argument."""
        match value:
            case torch.fx.Node():
                return local[value.name] if value.name in local else self.state(str(value.target))
            case tuple() if not hasattr(value, "_fields"):
                return f"({''.join(f'{self.argument(item, local)}, ' for item in value).rstrip(' ')})"
            case list():
                return f"[{', '.join(self.argument(item, local) for item in value)}]"
            case dict():
                return f"{{{', '.join(f'{self._literal(key)}: {self.argument(item, local)}' for key, item in value.items())}}}"
            case slice():
                return f"slice({', '.join(self.argument(part, local) for part in (value.start, value.stop, value.step))})"
        return self._literal(value)

    def _literal(self, value: Any) -> str:
        if value is Ellipsis:
            return "..."
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        return self.object(value, str(value) if isinstance(value, torch.device) else type(value).__name__)


_SIMPLE = re.compile(r"[A-Za-z_][\w.]*|\d+")


def _infix(target: Any, texts: list[str]) -> str | None:
    """An operator as an operator: one bytecode instead of a call."""
    name = getattr(target, "__name__", "")
    if getattr(target, "__module__", "") != "_operator" or name not in magic_methods:
        return None
    if name == "getitem":
        return f"{texts[0]}[{texts[1]}]"
    form = magic_methods[name]
    if form.count("{}") != len(texts):
        return None
    return form.format(*(text if _SIMPLE.fullmatch(text) else f"({text})" for text in texts))


def _callable(target: Any) -> Any:
    """What to call. An OpOverload only forwards to the dispatcher's function, at the price of a Python frame for each op."""
    return target._op if isinstance(target, torch._ops.OpOverload) else target


def _label(target: Any) -> str:
    """A readable name for a function: ``aten_relu_default``, ``functional_relu``."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or "torch"
    return f"{module.rpartition('.')[2].lstrip('_')}_{getattr(target, '__name__', 'call')}"
