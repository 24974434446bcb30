"""What DDP and FSDP2 cannot make one model of: refused before stages are wrapped, and where a job is predicted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import nn

from partitioner.distributed.pipeline.part import Stage, written_parameters
from partitioner.errors import SpecError
from partitioner.frontend.rewrite.higher_order import is_reentrant
from partitioner.ir.graph import Graph
from partitioner.spec.distributed import DistributedSpec

SPARSE: Mapping[object, int] = {nn.functional.embedding: 6, nn.functional.embedding_bag: 7}
"""Which argument of an op says that its weight's gradient is sparse."""


def refuse_stages(asked: DistributedSpec, modules: Iterable[Stage]) -> None:
    """`refuse_copies` for stages that are made."""
    for module in modules:
        state = dict(module.named_parameters())
        refuse_copies(asked, module.graph, state, [state])


def refuse_copies(
    asked: DistributedSpec, graph: Graph, state: Mapping[str, torch.Tensor], stages: Iterable[Collection[str]]
) -> None:
    """Refuse what DDP or FSDP2 would fail on, and whose copies would part.

    Args:
        asked: the mesh, and how copies agree.
        graph: of one stage, or of all.
        state: what it uses, by key.
        stages: the keys of each stage.

    Raises:
        SpecError: names a parameter that forward writes, a sparse gradient, a checkpoint of the older kind under DDP, or, under
            FSDP2, parameters of several dtypes, or one that is not contiguous.
    """
    if asked.mesh.data == 1 or asked.wrap == "none":
        return
    for key in written_parameters(graph, state):
        raise SpecError(
            f"forward writes the parameter {key} (max_norm of an embedding does), each copy by its own rows, and {asked.wrap} "
            "makes gradients alike and nothing else: leave that out, or write it after each step of the optimizer"
        )
    for node in graph.fx.nodes:
        _refuse_gradient(node, asked.wrap)
    if asked.wrap == "fsdp2":
        for keys in stages:
            _refuse_unlike({key: state[key] for key in keys if isinstance(state.get(key), nn.Parameter)})


def _refuse_gradient(node: torch.fx.Node, wrap: str) -> None:
    if wrap == "ddp" and is_reentrant(node):
        raise SpecError(
            f"{node.name} is a checkpoint with use_reentrant=True, which is a backward within a backward, and ddp fails on "
            "those: give use_reentrant=False, or leave checkpoints out and take recompute: segments"
        )
    place = SPARSE.get(node.target)
    if place is not None and node.kwargs.get("sparse", len(node.args) > place and node.args[place]):
        raise SpecError(f"{node.name} has a sparse gradient, which {wrap} cannot reduce: leave out sparse=True")


def _refuse_unlike(parameters: Mapping[str, torch.Tensor]) -> None:
    """FSDP2 puts the parameters of a stage into one piece of memory, row by row."""
    found: dict[torch.dtype, str] = {}
    for key, each in parameters.items():
        if not each.is_contiguous():
            raise SpecError(
                f"wrap fsdp2 takes contiguous parameters, and {key} has shape {tuple(each.shape)} and strides "
                f"{each.stride()}, as of a transpose or channels_last: make it contiguous() before parallelize, or take ddp"
            )
        if each.requires_grad and each.dim():
            found.setdefault(each.dtype, key)
    if len(found) > 1:
        pair = " and ".join(f"{key} of {dtype}" for dtype, key in [*found.items()][:2])
        raise SpecError(f"wrap fsdp2 takes trained parameters of one dtype in each stage, and one has {pair}; take ddp")
