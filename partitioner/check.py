"""Does the traced program compute what the model computes? Run both once and compare.

Tracers can be silently wrong: they burn in what a forward decided on the example, and drop what they do not see. So a traced
graph is interpreted beside eager, on the examples and on a second draw of the same shapes: outputs, buffers afterwards and, in
training mode, gradients. Both start from one random state, and all state is put back.

The graph is interpreted node by node, where the model's state lies at the moment, before anything is placed. What placement
and emission do is proved by the verifier and needs no run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from partitioner.ir.call import Call
from partitioner.ir.graph import Graph
from partitioner.state import untouched


@dataclass(frozen=True)
class Outcome:
    """What one run gave: flat outputs, buffers afterwards, gradients of parameters and inputs."""

    outputs: list[Any]
    buffers: dict[str, torch.Tensor]
    gradients: list[torch.Tensor | None]


@dataclass(frozen=True)
class Difference:
    """The first thing in which a program differs from its model."""

    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


def compare(graph: Graph, module: nn.Module, call: Call) -> Difference | None:
    """Compare the graph with the module on the call's inputs and on a second draw of the same shapes.

    Args:
        graph: the traced program.
        module: the model; its state and the random generators are put back.
        call: the example inputs.

    Returns:
        The first difference, or ``None``. Costs two eager calls, with a backward each in training mode.

    Raises:
        Exception: whatever the model raises on the call.
    """
    if _is_meta(module, call):
        return None
    for second, tensors in enumerate((call.tensors, [redraw(tensor) for tensor in call.tensors])):
        try:
            wanted = _run(module, lambda inputs: _eager(module, call, inputs), tensors)
        except Exception:  # a second draw may be outside of the model's domain, and then eager says nothing about it
            if not second:
                raise
            return None
        try:
            found = _run(module, lambda inputs: interpret(graph, module, inputs), tensors)
        except Exception as error:  # any op may raise anything
            return Difference("the program fails", f"{type(error).__name__}: {error}")
        difference = differs(wanted, found)
        if difference is not None:
            return difference
    return None


def try_eager(module: nn.Module, call: Call) -> None:
    """Run the model once, and put its state back; on the meta device do nothing.

    Raises:
        Exception: whatever the model raises on the call.
    """
    if not _is_meta(module, call):
        _run(module, lambda inputs: _eager(module, call, inputs), call.tensors)


def _is_meta(module: nn.Module, call: Call) -> bool:
    return any(tensor.is_meta for tensor in (*call.tensors, *module.parameters(), *module.buffers()))


def redraw(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same shape: floats are negated and shuffled, anything else is shuffled.

    Shuffling keeps every value in the domain that the example had: indices stay valid, masks stay masks.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(tensor.numel(), generator=generator, device="cpu").to(tensor.device)
    shuffled = tensor.detach().reshape(-1)[order].reshape(tensor.shape)
    return -shuffled if tensor.is_floating_point() else shuffled


def _eager(module: nn.Module, call: Call, tensors: Sequence[torch.Tensor]) -> list[Any]:
    args, kwargs = call.fill(tensors)
    return tree_flatten(module.forward(*args, **kwargs))[0]


def interpret(graph: Graph, module: nn.Module, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Run the traced graph node by node on the module's state."""
    return _Interpreter(graph, module).run(tensors)


class _Interpreter:
    def __init__(self, graph: Graph, module: nn.Module) -> None:
        self.graph, self.module = graph, module
        self.values: dict[torch.fx.Node, Any] = {}

    def run(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        inputs = iter(tensors)
        for node in self.graph.fx.nodes:
            if node.op == "output":
                return list(torch.fx.node.map_arg(node.args[0], self.values.__getitem__))
            self.values[node] = next(inputs) if node.op == "placeholder" else self._call(node)
        raise AssertionError("a graph ends with its output")

    def _call(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            return self._state(str(node.target))
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        if node.op == "call_module":
            return self.module.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _state(self, path: str) -> Any:
        if path in self.graph.constants:
            return self.graph.constants[path]
        value: Any = self.module
        for part in path.split("."):
            value = getattr(value, part)
        return value


def _run(
    module: nn.Module, function: Callable[[Sequence[torch.Tensor]], list[Any]], tensors: Sequence[torch.Tensor]
) -> Outcome:
    inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
    training = module.training and torch.is_grad_enabled()
    with _state_kept(module), torch.random.fork_rng(devices=[], device_type="cpu"):
        torch.manual_seed(0)
        given = [tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in inputs]
        outputs = function(given)
        gradients = _gradients(module, inputs, outputs) if training else []
        buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        return Outcome(tree_map(_detached, outputs), buffers, gradients)


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _gradients(module: nn.Module, inputs: list[torch.Tensor], outputs: list[Any]) -> list[torch.Tensor | None]:
    roots = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    wanted = [tensor for tensor in (*module.parameters(), *inputs) if tensor.requires_grad]
    if not roots or not wanted:
        return []
    # Weights that differ from entry to entry, so that swapped or transposed values do not cancel.
    weights = [torch.linspace(0.5, 1.5, root.numel(), device=root.device).to(root.dtype).reshape(root.shape) for root in roots]
    return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))


@contextmanager
def _state_kept(module: nn.Module) -> Iterator[None]:
    """Put back buffers, tensor attributes and assigned attributes, whatever runs inside."""
    attributes = [value for child in module.modules() for value in child.__dict__.values() if isinstance(value, torch.Tensor)]
    kept = [(tensor, tensor.detach().clone()) for tensor in (*module.buffers(), *attributes)]
    with untouched(module):
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in kept:
                    if tensor.shape == value.shape and not torch.equal(tensor, value):
                        tensor.detach().copy_(value)


def differs(wanted: Outcome, found: Outcome) -> Difference | None:
    """The first difference between two runs."""
    if len(wanted.outputs) != len(found.outputs):
        return Difference("outputs", f"{len(wanted.outputs)} in the model, {len(found.outputs)} in the program")
    named: list[tuple[str, Any, Any]] = [
        (f"output {number}", mine, theirs)
        for number, (mine, theirs) in enumerate(zip(wanted.outputs, found.outputs, strict=True))
    ]
    named += _by_name("buffer", wanted.buffers, found.buffers)
    named += [
        (f"gradient {number}", mine, theirs)
        for number, (mine, theirs) in enumerate(zip(wanted.gradients, found.gradients, strict=False))
    ]
    for what, mine, theirs in named:
        detail = _unlike(mine, theirs)
        if detail is not None:
            return Difference(what, detail)
    return None


def _by_name(kind: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(f"{kind} {name}", wanted.get(name), found.get(name)) for name in wanted.keys() | found.keys()]


def _unlike(mine: Any, theirs: Any) -> str | None:
    """How two values differ beyond rounding, or ``None``."""
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        alike = type(mine) is type(theirs) and (isinstance(mine, torch.Tensor) or _same(mine, theirs))
        return None if alike else f"{mine!r} in the model, {theirs!r} in the program"
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return f"{tuple(mine.shape)} {mine.dtype} in the model, {tuple(theirs.shape)} {theirs.dtype} in the program"
    try:
        torch.testing.assert_close(theirs, mine, rtol=tolerance(mine.dtype), atol=tolerance(mine.dtype), equal_nan=True)
    except AssertionError:
        gap = (theirs.to(torch.float64) - mine.to(torch.float64)).abs().max() if not mine.is_complex() else float("nan")
        return f"values differ by up to {float(gap):.3g}"
    return None


def tolerance(dtype: torch.dtype) -> float:
    """Rounding that is allowed: export calls other kernels than eager for a few ops, so bits may differ."""
    return {torch.float16: 1e-2, torch.bfloat16: 2e-2, torch.float64: 1e-8}.get(dtype, 1e-4)


def _same(mine: Any, theirs: Any) -> bool:
    try:
        return bool(mine == theirs)
    except Exception:  # a user's own type may compare as it likes
        return True
