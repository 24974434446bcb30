"""The view without examples: `torch.fx.symbolic_trace`, which runs a forward on proxies.

It is fast, takes no memory, and knows no shapes. It drops what it does not see (modes, random numbers drawn from nothing,
attributes that forward assigns), so what it gives is for looking at and for provisional plans, and never run.
"""

from __future__ import annotations

import inspect
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from partitioner.errors import TraceError
from partitioner.model.call import Call, guess_call
from partitioner.model.keep import state_kept
from partitioner.model.source import model_line, user_line


def capture_symbolic(module: nn.Module) -> tuple[torch.fx.Graph, dict[str, torch.Tensor]]:
    """Run ``module.forward`` on proxies, one for each parameter without a default; the model is left as it was.

    Returns:
        What is seen, each node with its ``source``, ``file:line``, and the ``path`` of its module; and the tensors that were
        made while tracing, by the target of the node that loads them.

    Raises:
        TraceError: the forward needs to know more than proxies do.

    Source: torch.fx, https://docs.pytorch.org/docs/stable/fx.html
    """
    tracer = _Tracer(guess_call(module))
    try:
        with state_kept(module):
            graph = tracer.trace(module)
    except Exception as error:  # forward is the user's code and may raise anything on a proxy
        where = " ".join(filter(None, (tracer.failed_in and f"in {tracer.failed_in}", user_line(error))))
        text = inspect.cleandoc(str(error)).split("\n")[0].strip() or type(error).__name__
        raise TraceError(
            f"{type(module).__name__} cannot be seen without example inputs: {text}{where and f' ({where})'}"
        ) from error
    return graph, _constants(graph, tracer)


def _constants(graph: torch.fx.Graph, tracer: _Tracer) -> dict[str, torch.Tensor]:
    made = {name: value for value, name in tracer.tensor_attrs.items() if isinstance(value, torch.Tensor)}
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return {name: tensor for name, tensor in made.items() if name in used and name.startswith("_tensor_constant")}


class _Proxy(torch.fx.Proxy):
    """A proxy on which ``x += y`` and ``x[i] = y`` are the in-place ops that they are on a tensor."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _augmented(function: Callable[..., Any]) -> Callable[[torch.fx.Proxy, Any], torch.fx.Proxy]:
    def method(self: torch.fx.Proxy, other: Any) -> torch.fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in "iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split():
    setattr(_Proxy, f"__{_name}__", _augmented(getattr(operator, _name)))


class _Tracer(torch.fx.Tracer):
    """Notes where each node comes from. What other threads call meanwhile passes through, though torch.fx has patched it."""

    proxy_buffer_attributes = True

    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """Proxies that know in-place operators."""
        return _Proxy(node, self)

    def __init__(self, call: Call) -> None:
        super().__init__(param_shapes_constant=False)
        self.call, self.thread = call, threading.get_ident()
        self.failed_in = ""

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """One placeholder for each argument, and a forward that gives a flat list."""
        forward = self.root.forward

        def flat_forward(_root: nn.Module, *tensors: torch.fx.Proxy) -> list[Any]:
            args, kwargs = self.call.fill(tensors)
            return tree_leaves(forward(*args, **kwargs))

        names = self.call.names(forward)
        return flat_forward, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """As torch.fx does, but remember the innermost module in which tracing failed."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed_in = self.failed_in or self.path_of_module(m)
            raise

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """As torch.fx does, on the thread that traces."""
        mine = threading.get_ident() == self.thread
        return super().getattr(attr, attr_val, parameter_proxy_cache) if mine else attr_val

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """As torch.fx does, but note source and module."""
        node = super().create_node(kind, target, *args, **kwargs)
        node.meta["source"] = model_line(sys._getframe(1))
        node.meta["path"] = str(target) if kind == "call_module" else self.scope.module_path
        return node
