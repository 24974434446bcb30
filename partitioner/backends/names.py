"""The text of one op's call: names for everything that is no literal, and the expression itself.

Names in generated code: values keep their graph name, functions are called after where they come
from (``torch_cat``, ``aten_relu_default``). ``A`` are the arguments, ``S`` is the call.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx.graph import magic_methods
from torch.nn import functional as F

from partitioner.backends.nodes import retarget

OURS = frozenset({"A", "S", "torch", *keyword.kwlist, *keyword.softkwlist})


def variable(value: str) -> str:
    """The local variable of a value; copies are named after their device.

    Example:
        >>> variable("relu_1"), variable("relu_1@cuda:1")
        ('relu_1', 'relu_1__on__cuda_1')
    """
    name = value if value.isidentifier() else re.sub(r"\W", "_", value.replace("@", "__on__"))
    return f"{name}_" if name in OURS else name


class Names:
    """Names in use, and the objects that generated code finds under them.

    Args:
        values: names of all values and ops, which are taken.
        bodies: graph modules that ops call, by the name that the graph has for them.
    """

    def __init__(self, values: Iterable[str], bodies: Mapping[str, Any]) -> None:
        self.namespace: dict[str, Any] = {"torch": torch}
        self.bodies = bodies
        self.taken = {variable(value) for value in values} | OURS
        self.labels: dict[int, str] = {}

    def object(self, value: Any, label: str) -> str:
        """A name for any object, the same one each time."""
        if id(value) not in self.labels:
            self.labels[id(value)] = self.fresh(re.sub(r"\W", "_", label))
            self.namespace[self.labels[id(value)]] = value
        return self.labels[id(value)]

    def fresh(self, label: str) -> str:
        """A name that nothing has."""
        while label in self.taken:
            label = f"{label}_"
        self.taken.add(label)
        return label

    def call(self, node: torch.fx.Node, device: str | None, local: Mapping[str, str]) -> str:
        """The expression of a node on a device.

        Args:
            node: a call.
            device: torch device, for the device arguments in it, if it is not the one that it was traced on.
            local: the expression of each value that is no variable of its own name.
        """
        target, args, kwargs = _directly(*retarget(node, device))
        texts = [self.argument(arg, local) for arg in args]
        operator = _infix(target, texts) if not kwargs else None
        if operator is not None:
            return operator
        texts += (_keyword(key, self.argument(arg, local)) for key, arg in kwargs.items())
        if isinstance(target, str):
            return f"{texts[0]}.{target}({', '.join(texts[1:])})"
        return f"{self.object(_callable(target), _label(target))}({', '.join(texts)})"

    def argument(self, value: Any, local: Mapping[str, str]) -> str:
        """The text of one argument."""
        match value:
            case torch.fx.Node():
                if value.op == "get_attr":
                    return self.object(self.bodies[str(value.target)], str(value.target))
                return local.get(value.name, variable(value.name))
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


def _keyword(key: str, text: str) -> str:
    """A keyword argument; torch has some that Python keeps for itself, as in ``x.random_(from=0, to=5)``."""
    return f"**{{{key!r}: {text}}}" if keyword.iskeyword(key) else f"{key}={text}"


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


def _directly(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call of ``F.dropout`` as one of what that calls: looking it up takes four times as long as the op does in eval mode."""
    if target is F.dropout:
        given = {"p": 0.5, "training": True, "inplace": False, **dict(zip(_DROPOUT, args, strict=False)), **kwargs}
        if isinstance(given["p"], float) and not given["inplace"]:
            return torch.dropout, (given["input"], given["p"], given["training"]), {}
    return target, args, kwargs


_DROPOUT = ("input", "p", "training", "inplace")


def _label(target: Any) -> str:
    """A readable name for a function: ``aten_relu_default``, ``functional_relu``."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or "torch"
    return f"{module.rpartition('.')[2].lstrip('_')}_{getattr(target, '__name__', 'call')}"
