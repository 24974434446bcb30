"""What forward itself does to gradients: ops of the graph, where Dynamo would end it for what AOTAutograd cannot do.

    h = x.detach()[:, None]
    h.requires_grad = True                          a write to h; features of sound are made trainable so
    force, = torch.autograd.grad(energy, h)         an op like any other, of tensors that one graph has made
    x.requires_grad_()                              of an argument that nothing has read: done before the program runs

Nothing is differentiated ahead here: ops run as they are written, and autograd records them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.exc import Unsupported
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    builtin,
)
from torch._dynamo.variables.base import VariableTracker
from torch.fx import Graph, GraphModule, Node

from partitioner.errors import TraceError
from partitioner.frontend.capture.amended import amends, method_of_tensors
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.names import name_of

_SETATTR: Any = getattr(builtin, "SetAttrBuiltinVariable", None)
"""What sets attributes; in torch 2.11 the class of all functions of Python's own."""


@amends(*method_of_tensors("requires_grad_"))
def _requires_grad_(plain: Callable[..., Any], self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    node = self.as_proxy().node
    value = all(wanted.as_python_constant() for wanted in (*args, *kwargs.values()))
    made = node.meta["example_value"]
    known = made.requires_grad is value or node.graph is not tx.output.root_tracer.graph
    unread = HERE.whole and not HERE.once and made.is_leaf and not node.users
    if known or (self.source and not (unread and _comes_with_call(self.source))):
        return plain(self, tx, *args, **kwargs)
    if (HERE.whole or HERE.between) and node.users:
        raise Unsupported("a tensor is to have a gradient that was read before, perhaps as a copy on another device")
    tx.output.create_proxy("call_method", "requires_grad_", (self.as_proxy(), value), {})
    made.requires_grad_(value)
    self.synchronize_attributes(tx)
    return self


@amends(_SETATTR or BuiltinVariable, "_call_setattr" if _SETATTR else "call_setattr")
def _set_attribute(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any) -> Any:
    tensor, name, value = arguments
    known = isinstance(tensor, TensorVariable) and (HERE.whole or not tensor.source) and value.is_python_constant()
    if not known or name.as_python_constant() != "requires_grad" or not tensor.as_proxy().node.meta["example_value"].is_leaf:
        return plain(self, tx, *arguments)
    tensor.call_method(tx, "requires_grad_", [value], {})
    return ConstantVariable.create(None)


@amends(TorchInGraphFunctionVariable, "call_function")
def _call(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """On several devices an argument may be copied, and in a job a tensor may be another rank's."""
    asks = self.value is torch.autograd.grad and not HERE.once
    if asks and HERE.between and _given(args, kwargs):
        raise Unsupported("torch.autograd.grad is asked for gradients of what it is given, and a device may have a copy")
    if self.value is nn.Buffer and HERE.between:
        raise Unsupported("it makes a buffer, and a copy of it on another device is none")
    with config.patch(trace_autograd_ops=True) if asks else nullcontext():
        return plain(self, tx, args, kwargs)


@amends(OutputGraph, "_validate_outputs_safe_for_autograd_nodes")
def _no_validation(*_arguments: Any) -> None:
    """What was differentiated may be a result: that it cannot be once more, autograd says, and to who tries."""


def _given(args: Any, kwargs: Any) -> bool:
    """Whether gradients are asked for what comes with the call, and is no parameter of the model's: those are never copied."""
    found: list[Any] = []
    VariableTracker.visit(lambda each: found.append(each) if isinstance(each, TensorVariable) else None, [args[1:2], kwargs])
    return any(each.source and _may_be_copied(each.source, each.class_type) for each in found)


def _may_be_copied(source: Any, kind: type) -> bool:
    return kind is not nn.Parameter or _comes_with_call(source)


def _comes_with_call(source: Any) -> bool:
    return name_of(source).startswith(("L['args']", "L['kwargs']"))


def asking(
    module: GraphModule, inputs: Sequence[Any], receive: Callable[[Sequence[Any]], Callable[..., Any]], apart: bool
) -> Callable[..., Any]:
    """What runs a graph that asks for gradients of its arguments: those get what is to want some before it runs.

    Where its ops may lie on several devices, all that read an argument of which a gradient is asked read one op's result
    instead. A parameter of the model is never copied.

    Args:
        module: the graph, which is changed.
        inputs: the values of its placeholders.
        receive: gives what runs the graph, for such values.
        apart: whether one graph is all of a call, whose ops may lie on several devices.
    """
    wanted = dict[int, bool]()
    places = {node: number for number, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    for node in module.graph.find_nodes(op="call_method", target="requires_grad_"):
        if node.args[0] in places:
            wanted[places[node.args[0]]] = node.args[1]
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    asked = dict.fromkeys(
        each
        for node in module.graph.find_nodes(op="call_function", target=torch.autograd.grad)
        for each in node.all_input_nodes
        if apart and each in places and _may_be_copied(each.meta["grapharg"].source, type(inputs[places[each]]))
    )
    for each in asked:
        _read_through_one(module.graph, each)
    if not wanted and not asked:
        return receive(inputs)

    def run(*arguments: Any) -> Any:
        if any(arguments[places[each]]._backward_hooks for each in asked):
            raise TraceError(
                "forward asks for gradients of an argument that has hooks; on several devices it would not call them"
            )
        for place, value in wanted.items():
            arguments[place].requires_grad_(value)
        return made(*arguments)

    before = {place: inputs[place].requires_grad for place in wanted}
    try:
        for place, value in wanted.items():
            inputs[place].requires_grad_(value)
        made = receive(inputs)
    finally:
        for place, value in before.items():
            inputs[place].requires_grad_(value)  # the guards that are yet to be made are of what came
    return run


def _read_through_one(graph: Graph, argument: Node) -> None:
    """Let all that autograd records of an argument read it through a view, which has no other copies than the views' own."""
    enabled, made = torch.is_grad_enabled(), None
    for node in list(graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            enabled = node.args[0]
        if made is None and enabled and argument in node.all_input_nodes and node.op != "output":
            with graph.inserting_before(node):
                made = graph.call_method("view_as", (argument, argument))
                made.meta["example_value"] = argument.meta["example_value"].view_as(argument.meta["example_value"])
        if made is not None and node.op != "output":
            node.replace_input_with(argument, made)
