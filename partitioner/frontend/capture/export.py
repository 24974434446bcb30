"""Front end two: `torch.export`, non-strict, for models that branch on structure or shapes.

It runs the model's forward on fake tensors and gives ATen ops. Modes are burned in; dimension 0 of every input stays open
where the model allows that, and whatever did not stay open is a guard that names input, dimension and both values.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import TreeSpec, tree_flatten

from partitioner.frontend.capture.capture import Capture, Refused
from partitioner.frontend.capture.reads import Reads, every_read, noting_reads
from partitioner.ir.signature import Open, Signature
from partitioner.model.call import Call
from partitioner.model.hooks import hooked
from partitioner.model.keep import Assigned, untouched
from partitioner.model.source import is_user_code, user_line
from partitioner.model.state import attribute, lookup

_PREFIX = "model."


class _Flat(nn.Module):
    """The model behind a flat calling convention. Calls ``forward``, so that hooks of the root are not traced in."""

    def __init__(self, model: nn.Module, call: Call, result: _Result) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.result = result

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        args, kwargs = self.call.fill(tensors)
        leaves, self.result.spec = tree_flatten(self.model.forward(*args, **kwargs))
        return leaves


class _Result:
    """Holds the structure of the result outside of the wrapper, whose attributes export resets."""

    spec: TreeSpec | None = None


def capture_export(module: nn.Module, call: Call, *, open_dims: Open = frozenset()) -> Capture:
    """Export ``module`` on the example call.

    Args:
        module: what to export; left as it was.
        call: the example arguments.
        open_dims: dimensions to leave open beside dimension 0 of every tensor.

    Raises:
        Refused: export gives up, with the last line of its reason.

    Source: torch.export, https://docs.pytorch.org/docs/stable/export.html
    """
    _refuse_hooks(module)
    result = _Result()
    flat = _Flat(module, call, result)
    flat.training = module.training  # not flat.train(), which would reach into the model
    try:
        with untouched(module) as assigned, _quiet():
            exported, notes, reads = _watched_export(flat, call, open_dims)
            unlifted = exported.module()
    except Refused:
        raise
    except Exception as error:  # export runs the user's forward and may raise anything
        raise Refused(_reason(error), source=user_line(error)) from error
    _refuse_lost_tensors(assigned)
    assert result.spec is not None
    names = call.names(module.forward)
    constants, accepts = _clean(unlifted, names, module)
    if any(isinstance(constant, torch.fx.GraphModule) for constant in constants.values()):
        reads = every_read(module)  # the bodies of regions are traced by other means, which cannot be watched
    return Capture(
        fx=unlifted.graph,
        signature=Signature(call.spec, call.constants, result.spec, accepts, reads.lasting, reads.modes),
        tracer="export",
        constants=constants,
        sources={node.name: _source(node) for node in unlifted.graph.nodes},
        paths={node.name: _path(node) for node in unlifted.graph.nodes},
        notes=(*notes, *(f"forward assigns {item.name}; a traced program does not" for item in assigned)),
    )


def _watched_export(flat: _Flat, call: Call, open_dims: Open) -> tuple[torch.export.ExportedProgram, tuple[str, ...], Reads]:
    """Export, and what forward read of the model meanwhile."""
    try:
        with noting_reads(flat.model) as reads:
            return *_export(flat, call, open_dims), reads
    except Exception as error:
        if type(error).__name__ != "UncapturedHigherOrderOpError":  # dynamo's, and importing dynamo takes seconds
            raise
        # The body of a region reads an attribute, and dynamo gives up where that is watched.
        return *_export(flat, call, open_dims), every_read(flat.model)


def _export(flat: _Flat, call: Call, open_dims: Open) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """Export with dimensions open, or with all of them closed where that fails."""
    tensors = call.tensors
    dims = [
        {dim: Dim.AUTO for dim in range(tensor.dim()) if dim == 0 or (number, dim) in open_dims}
        for number, tensor in enumerate(tensors)
    ]
    try:
        return torch.export.export(flat, _fresh(tensors), dynamic_shapes={"tensors": tuple(dims)}, strict=False), ()
    except Exception as error:  # whatever the reason, closed dimensions ask less of the model
        note = f"all dimensions are closed, because with open ones export says {_reason(error)}"
        return torch.export.export(flat, _fresh(tensors), strict=False), (note,)


def _fresh(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The same data in new tensor objects: export leaves marks on those that it is given, a failed try included."""
    return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors)


def _refuse_hooks(module: nn.Module) -> None:
    found = hooked(module)
    if found:
        raise Refused(f"{found[0]} has hooks, and an exported program would not call them", found[0])


def _refuse_lost_tensors(assigned: list[Assigned]) -> None:
    lost = [item.name.removeprefix(_PREFIX) for item in assigned if item.tensor]
    if lost:
        raise Refused(f"forward assigns tensors to {', '.join(lost[:3])}, and the program would lose that")


def _clean(
    unlifted: torch.fx.GraphModule, names: list[str], module: nn.Module
) -> tuple[dict[str, Any], Callable[..., str | None]]:
    """Take the wrapper's traces out of the graph; its lifted constants and its guard are returned."""
    constants: dict[str, Any] = {}
    guard: Callable[..., Any] | None = None
    for node, name in zip(unlifted.graph.find_nodes(op="placeholder"), names, strict=True):
        node._rename(name)
        node.target = node.name
    for node in reversed(list(unlifted.graph.nodes)):
        if node.target == "_guards_fn":
            guard = unlifted.get_submodule("_guards_fn").forward
            unlifted.graph.erase_node(node)
        elif node.op == "call_function" and "_assert_tensor_metadata" in str(node.target):
            unlifted.graph.erase_node(node)  # it asserts dtypes and devices that .half() and placement change
        elif node.op == "get_attr" and not node.users:
            unlifted.graph.erase_node(node)
        elif node.op == "get_attr":
            lifted = attribute(unlifted, str(node.target))
            node.target = str(node.target).removeprefix(_PREFIX)
            if lookup(module, node.target) is None:  # a tensor literal, or the body of a region
                constants[node.target] = lifted
    return constants, _acceptance(guard, names)


def _acceptance(guard: Callable[..., Any] | None, names: list[str]) -> Callable[..., str | None]:
    def accepts(tensors: Sequence[torch.Tensor]) -> str | None:
        if guard is None:
            return None
        try:
            guard(*tensors)
        except (AssertionError, RuntimeError, TypeError) as error:
            return re.sub(r"tensors_(\d+)", lambda match: names[int(match[1])], str(error))
        return None

    return accepts


_FILE = re.compile(r'File "([^"]+)", line (\d+)')


def _source(node: torch.fx.Node) -> str:
    found = _FILE.findall(node.meta.get("stack_trace") or "")
    theirs = [f"{file}:{line}" for file, line in found if is_user_code(file)]
    return theirs[-1] if theirs else ""


def _path(node: torch.fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    if path.startswith("_empty_nn_module_stack"):  # what export calls a check of its own
        return ""
    return path.removeprefix("model").removeprefix(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Export warns, logs and prints about what it tries; only its final reason matters here."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
