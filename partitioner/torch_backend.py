"""The other way round: partitioner as a backend of torch.compile, for lanes of the device on which a model lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from partitioner.compile import made_of, plan_of, refuse_unmade
from partitioner.driver import partition
from partitioner.errors import SpecError
from partitioner.frontend.analysis.build import build_graph
from partitioner.frontend.capture.dynamo import Found
from partitioner.frontend.rewrite.attributes import as_arguments
from partitioner.ir.words import refuse_mistaken
from partitioner.model.state import attribute
from partitioner.runtime.pieces import Latest, Piece
from partitioner.spec.discover import asked_for


def torch_backend(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend of ``torch.compile(model, backend="partitioner", options={...})``: lanes of one device, under its guards.

    Args:
        module: a graph of torch.compile's.
        inputs: the values of its placeholders.
        options: ``devices``, ``spec``, ``policy``, ``backend``, ``compile_tasks``, ``pins``, ``colocate`` and ``grain``, as for
            `partition`. Without devices: lanes on the device on which the inputs lie.

    Raises:
        SpecError: the options name several devices, or another one than the inputs'. `partition` places state, this cannot. Or
            they ask for CUDA graphs, which would copy weights in: here nobody says which inputs those are.
    """
    asked = dict(options or {})
    refuse_mistaken([name for name in asked if name not in _OPTIONS], partition)
    graph, held = as_arguments(module)
    values = (*inputs, *(attribute(module, name) for name in held))
    lies = {str(value.device) for value in values if isinstance(value, torch.Tensor)} or {"cpu"}
    names = asked.pop("devices", None) or (None if lies == {"cpu"} else [*lies, *lies])
    document, machine = asked_for(
        names if names is not None or asked.get("spec") else ["cpu"] * min(8, torch.get_num_threads()), **asked
    )
    if document.cuda_graphs:
        raise SpecError("cuda_graphs needs to know which tensors are weights; call partition(model) in place of torch.compile")
    if {*machine.places} != lies:
        here, there = ", ".join(lies), ", ".join(machine.places)
        raise SpecError(f"the model lies on {here}, the lanes are on {there}; partition(model, devices) places state")

    refuse_unmade(document, machine)
    traced = build_graph(Found(graph, values), "GraphModule", {}, ())
    piece = Piece.of(made_of(plan_of(traced, machine, document), document), values, Latest())
    return partial(_with_held, piece, module, held) if held else piece


def _with_held(piece: Piece, module: torch.fx.GraphModule, held: Sequence[str], *arguments: Any) -> Sequence[Any]:
    """Call a graph with tensors that its module holds: torch takes them out of it when nobody needs them any more."""
    return piece(*arguments, *[attribute(module, name) for name in held])


_OPTIONS = ("devices", "spec", "policy", "backend", "compile_tasks", "pins", "colocate", "grain")
