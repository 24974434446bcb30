"""The two halves of a stage's backward, for zero-bubble schedules: gradients of its inputs at once, of its parameters later.

    output <- relu <- linear 2 <- relu <- linear 1 <- input      first: the path to inputs, and what arrives where it is left
                         |                    |
                      weight 2             weight 1              second: from there to the parameters, and nothing else

torch 2.13 has such halves for stages that are a row of layers. Elsewhere they are wrong without a word: gradients count twice
where parameters are reached from several ops of the path, and are lost where there is no path, as behind frozen stages.

Source: Qi et al., "Zero bubble pipeline parallelism", ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from networkx.utils import UnionFind
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from partitioner.distributed.pipeline.passing import second_half, tokens_behind
from partitioner.distributed.pipeline.reaching import reaching_all

Arrived = tuple[Tensor | None, ...]
"""The gradients of an op's results."""


@dataclass(eq=False)
class Rest:
    """Parameters whose gradients are left to the second half, and where these come from.

    Args:
        parameters: none of which another `Rest` has.
        outputs: those of the stage that no path to an input begins at, and their gradients.
        arrived: at each op where the path is left, what arrived there in the first half.
    """

    parameters: list[nn.Parameter] = field(default_factory=list)
    outputs: list[tuple[GradientEdge, Tensor]] = field(default_factory=list)
    arrived: dict[Node, Arrived] = field(default_factory=dict)


def of_inputs(
    outputs: Iterable[Tensor],
    gradients: Sequence[Tensor | None] | None,
    inputs: Sequence[Any],
    parameters: Iterable[nn.Parameter],
) -> tuple[tuple[Tensor | None, ...], list[Rest]]:
    """The first half: gradients of a stage's inputs.

    Args:
        outputs: of the stage, or the loss. They are detached, so that what is not needed any more goes.
        gradients: of the outputs; ``None`` if each is 1.
        inputs: of the stage; what is no tensor, or needs no gradient, gets ``None``.
        parameters: of the stage.

    Returns:
        The gradients of the inputs, and what the second half has to do.

    Example:
        >>> x, layer = torch.ones(1, 2, requires_grad=True), nn.Linear(2, 2)
        >>> found, rests = of_inputs([layer(x).sum()], None, [x], layer.parameters())
        >>> found[0].shape, layer.bias.grad
        (torch.Size([1, 2]), None)
        >>> of_parameters(rests)
        >>> layer.bias.grad
        tensor([1., 1.])
    """
    known = list(outputs)
    given = [torch.ones_like(each) for each in known] if gradients is None else gradients
    pairs = [
        (each, gradient) for each, gradient in zip(known, given, strict=True) if each.requires_grad and gradient is not None
    ]
    edges = [(get_gradient_edge(each), gradient) for each, gradient in pairs]
    wanted = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    wanted = wanted or tokens_behind([edge.node for edge, _ in edges])
    path = _leading_to({get_gradient_edge(each).node for each in wanted}, [edge.node for edge, _ in edges])
    rests = _rests(path, edges, [each for each in parameters if each.requires_grad])
    handles = [node.register_prehook(_note(rest.arrived, node)) for rest in rests for node in rest.arrived]
    try:
        roots, arriving = [edge for edge, _ in edges], [gradient for _, gradient in edges]
        found = torch.autograd.grad(roots, wanted, arriving, retain_graph=True, allow_unused=True) if roots and wanted else ()
    finally:
        for handle in handles:
            handle.remove()
    for each in known:
        each.detach_()
    by_input = {id(each): gradient for each, gradient in zip(wanted, found, strict=False)}
    return tuple(by_input.get(id(each)) for each in inputs), rests


def of_parameters(rests: Iterable[Rest]) -> None:
    """The second half: add what the first has left to the gradients of parameters."""
    for rest in rests:
        edges = [edge for edge, _ in rest.outputs]
        gradients = [gradient for _, gradient in rest.outputs]
        for node, arrived in rest.arrived.items():
            for place, gradient in enumerate(arrived):
                if gradient is not None:
                    edges.append(GradientEdge(node, place))
                    gradients.append(gradient)
        handles = [node.register_prehook(lambda _, arrived=arrived: arrived) for node, arrived in rest.arrived.items()]
        try:  # the hooks: what arrived at an op was all there is, and counts once, though a path from another op leads to it
            if edges:
                with second_half():
                    torch.autograd.backward(edges, gradients, retain_graph=True, inputs=rest.parameters)
        finally:
            for handle in handles:
                handle.remove()


class SplitStage(PipelineStage):
    """torch's stage, with halves of a backward of our own, whose gradients can be sent.

    The tensors that a stage receives into are the same in every step: a hook on one would be called by all later ones, and
    autograd may keep a gradient that it is given as that of a parameter, where nothing but views are between. It gets copies.
    In torch 2.11 stages greet their neighbours first, and gloo has no way from a rank to itself; and results of the last stage,
    which go nowhere, may be of sizes that depend on data.
    """

    def backward_maybe_with_nosync(self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False) -> Any:
        """A backward of the engine: a full one is torch's, under DDP and FSDP2, too; halves are those of this file."""
        if backward_type == "weight":
            of_parameters(bwd_kwargs["param_groups"])
            return (), None
        arrived = bwd_kwargs["output_grads"]
        copies = arrived and tuple(None if each is None else each.clone() for each in arrived)
        bwd_kwargs = {**bwd_kwargs, "output_grads": copies}
        if backward_type == "input":
            given = (bwd_kwargs["stage_output"], copies, bwd_kwargs["input_values"])
            found: Any = of_inputs(*given, self.submod.parameters())
        else:
            last_backward = last_backward and not self._is_frozen
            with reaching_all(self.submod, bwd_kwargs) if last_backward else nullcontext(bwd_kwargs) as asked:
                found = super().backward_maybe_with_nosync(backward_type, asked, last_backward)
        return tuple(None if each is None else each.contiguous() for each in found[0]), found[1]

    @property
    def _is_frozen(self) -> bool:
        """Whether DDP has nothing to reduce: it would wait, and take a later step's first microbatch for its last one."""
        ddp = self.submod
        return isinstance(ddp, DistributedDataParallel) and not any(each.requires_grad for each in ddp._module_parameters)

    def _validate_fwd_outputs(self, outputs: tuple[torch.Tensor, ...]) -> None:
        if not self.is_last:
            super()._validate_fwd_outputs(outputs)  # type: ignore[misc]  # not in 2.13

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]


def _note(arrived: dict[Node, Arrived], node: Node) -> Any:
    def hook(gradients: Arrived) -> None:
        arrived[node] = gradients

    return hook


def _leading_to(ends: Collection[Node], starts: Iterable[Node]) -> dict[Node, bool]:
    """For each op behind ``starts``, in an order that is the same on all ranks, whether gradients go from it to an end."""
    leads: dict[Node, bool] = {}
    waiting = [(node, False) for node in reversed(list(starts))]
    while waiting:
        node, seen = waiting.pop()
        if seen:
            leads[node] = node in ends or any(leads.get(each, False) for each in _behind(node))
        elif node not in leads:
            leads[node] = node in ends
            waiting += [(node, True), *((each, False) for each in _behind(node) if each not in leads)]
    return leads


def _behind(node: Node) -> list[Node]:
    return [each for each, _ in node.next_functions if each is not None]


def _rests(
    path: dict[Node, bool], outputs: Iterable[tuple[GradientEdge, Tensor]], parameters: Iterable[nn.Parameter]
) -> list[Rest]:
    """What is left for the second half: parameters that are reached from the same ops together."""
    own = {get_gradient_edge(each).node: each for each in parameters}
    leaving = {node: reached for node in path if path[node] and (reached := _reached(node, path, own))}
    ending = [(edge, gradient, _reached(edge.node, path, own)) for edge, gradient in outputs if not path[edge.node]]
    groups: UnionFind[Node] = UnionFind(own)
    for reached in [*leaving.values(), *(reached for _, _, reached in ending if reached)]:
        groups.union(*reached)
    rests: dict[Node, Rest] = {}
    for node, parameter in own.items():
        if node in path:
            rests.setdefault(groups[node], Rest()).parameters.append(parameter)
    for node, reached in leaving.items():
        rests[groups[reached[0]]].arrived[node] = ()
    for edge, gradient, reached in ending:
        if reached:
            rests[groups[reached[0]]].outputs.append((edge, gradient))
    return list(rests.values())


def _reached(node: Node, path: dict[Node, bool], own: Collection[Node]) -> list[Node]:
    """The parameters' ends of the graph to which gradients go from an op and never along the path."""
    found, seen, waiting = [], {node}, [node]
    while waiting:
        here = waiting.pop()
        if here in own:
            found.append(here)
        for each in _behind(here):
            if not path[each] and each not in seen:
                seen.add(each)
                waiting.append(each)
    return found
