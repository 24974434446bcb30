"""Front end one: `torch.fx.symbolic_trace`, made to refuse what it would silently get wrong.

It runs the model's forward on proxies. Modules of torch.nn stay whole, with their hooks; shapes and devices stay symbolic,
so any batch size works. What it cannot see it drops without a word: autocast and no_grad regions, random numbers drawn from
nothing, attributes that forward assigns. Each of these is noticed here and refused, so that the other front end gets a try.
"""

from __future__ import annotations

import inspect
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten

from partitioner.frontend.capture.capture import Capture, Refused
from partitioner.frontend.capture.reads import noting_reads
from partitioner.ir.signature import Signature
from partitioner.model.call import Call
from partitioner.model.hooks import has_hooks
from partitioner.model.keep import untouched
from partitioner.model.modes import Modes
from partitioner.model.source import model_line, user_line


def capture_symbolic(module: nn.Module, call: Call, *, leaves: frozenset[str] = frozenset()) -> Capture:
    """Trace ``module.forward`` on proxies.

    Args:
        module: what to trace; left as it was.
        call: the arguments; tensors become graph inputs.
        leaves: qualified names of submodules that are called as a whole instead of being traced into.

    Raises:
        Refused: it cannot be traced, or the trace would not do what the model does.

    Source: torch.fx, https://docs.pytorch.org/docs/stable/fx.html
    """
    tracer = FlatTracer(call, leaves)
    try:
        with untouched(module) as assigned, _functions_whole(), noting_reads(module) as reads:
            graph = tracer.trace(module)
    except Refused:
        raise
    except Exception as error:  # forward is the user's code and may raise anything on a proxy
        raise Refused(_reason(error), tracer.failed_in, user_line(error)) from error
    _refuse_lost(sorted(item.name for item in assigned if not item.name.startswith("_tensor_constant")))
    assert tracer.out_spec is not None
    return Capture(
        fx=graph,
        signature=Signature(call.spec, call.constants, tracer.out_spec, attribute_reads=reads.lasting, modes=reads.modes),
        tracer="symbolic_trace",
        constants=_constants(graph, tracer),
        sources=tracer.sources,
        paths=tracer.paths,
        notes=tuple(f"{path} is called as a whole" for path in sorted(leaves)),
    )


@contextmanager
def _functions_whole() -> Iterator[None]:
    """Trace a call of a `torch.autograd.Function` as one op, for tracing into it would lose its backward."""
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        proxies: list[torch.fx.Proxy] = []
        torch.fx.node.map_aggregate((args, kwargs), lambda a: proxies.append(a) if isinstance(a, torch.fx.Proxy) else None)
        function = plain.__get__(None, cls)
        if not proxies:
            return function(*args, **kwargs)
        return proxies[0].tracer.create_proxy("call_function", function, args, kwargs)

    setattr(torch.autograd.Function, "apply", classmethod(apply))  # noqa: B010  (a type checker would object)
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", plain)  # noqa: B010


def _refuse_lost(assigned: list[str]) -> None:
    if assigned:
        owner = assigned[0].rpartition(".")[0]
        names = ", ".join(assigned[:3])
        hint = "a buffer that is written in place, as in self.n.add_(1), would be kept"
        raise Refused(f"forward changes {names}, and the trace would lose that; {hint}", owner)


def _constants(graph: torch.fx.Graph, tracer: FlatTracer) -> dict[str, Any]:
    """Tensors made while tracing, from nothing that depends on an input."""
    lifted = {name: tensor for tensor, name in tracer.tensor_attrs.items() if name.startswith("_tensor_constant")}
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return {name: tensor for name, tensor in lifted.items() if name in used}


class InPlaceProxy(torch.fx.Proxy):
    """A proxy on which ``x += y`` and ``x[i] = y`` are the in-place ops that they are on a tensor.

    torch.fx traces the first as ``x = x + y``, which leaves every other view of ``x`` behind, and refuses the second.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _augmented(function: Callable[..., Any]) -> Callable[[torch.fx.Proxy, Any], torch.fx.Proxy]:
    def method(self: torch.fx.Proxy, other: Any) -> torch.fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in "iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split():
    setattr(InPlaceProxy, f"__{_name}__", _augmented(getattr(operator, _name)))


class FlatTracer(torch.fx.Tracer):
    """A tracer over flattened arguments that notes where each node comes from and notices what it would lose."""

    proxy_buffer_attributes = True

    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """Proxies that know in-place operators."""
        return InPlaceProxy(node, self)

    def __init__(self, call: Call, leaves: frozenset[str]) -> None:
        super().__init__(param_shapes_constant=False)
        self.call, self.leaf_names = call, leaves
        self.thread = threading.get_ident()
        self.out_spec: TreeSpec | None = None
        self.sources: dict[str, str] = {}
        self.paths: dict[str, str] = {}
        self.failed_in = ""
        self.modes = Modes.of_this_thread()

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """One placeholder for each tensor leaf, and a forward that puts the leaves back into their structure."""
        forward = self.root.forward

        def flat_forward(_root: nn.Module, *tensors: torch.fx.Proxy) -> list[Any]:
            args, kwargs = self.call.fill(tensors)
            generator = torch.get_rng_state()
            result, self.out_spec = tree_flatten(forward(*args, **kwargs))
            if not torch.equal(generator, torch.get_rng_state()):
                raise Refused("forward draws random numbers that depend on no input; the trace would burn them in")
            return result

        names = self.call.names(forward)
        return flat_forward, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Modules of torch.nn, those that the caller asked for, and those whose hooks would be called now and never again."""
        asked = module_qualified_name in self.leaf_names
        return asked or has_hooks(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """As torch.fx does, but remember the innermost module in which tracing failed.

        torch.fx patches `nn.Module` for the whole process meanwhile: what other threads call is none of our business.
        """
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
        """As torch.fx does, but note source and module, and refuse under a mode that the node would not carry."""
        if Modes.of_this_thread() != self.modes:
            raise Refused("forward switches grad mode, inference mode or autocast, and the trace would drop that")
        node = super().create_node(kind, target, *args, **kwargs)
        self.sources[node.name] = model_line(sys._getframe(1))
        self.paths[node.name] = str(target) if kind == "call_module" else self.scope.module_path
        return node


def _reason(error: BaseException) -> str:
    text = inspect.cleandoc(str(error)).split("\n")[0].strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
