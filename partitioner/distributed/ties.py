"""What several stages share: a weight that is tied over ranks has one value and one gradient, and norms count it once.

    embedding on rank 0    gradient g0       both have g0 + g3 before the optimizer's step
    head on rank 3         gradient g3

Nothing in torch does that for stages: each rank would train its own copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from partitioner.distributed.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Tie:
    """A parameter that several ranks hold.

    Args:
        key: in the model.
        ranks: places along the pipeline axis.
        group: of those ranks.
    """

    key: str
    ranks: tuple[int, ...]
    group: dist.ProcessGroup


def ties_of(ranks: Ranks, holders: Mapping[str, Iterable[int]]) -> list[Tie]:
    """The ties of this rank's copy of the model. Every rank calls it, with the same holders: groups are made by all.

    Args:
        ranks: this rank.
        holders: by key, the places along the pipeline axis of the ranks that hold a parameter; those with one are no tie.
    """
    shared = {key: places for key in sorted(holders) if len(places := tuple(sorted(holders[key]))) > 1}
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for places in sorted(set(shared.values())):
        for data, copy in enumerate(ranks.mesh.mesh.tolist()):
            for tensor in range(len(copy[0][0])):
                group = dist.new_group([copy[place][0][tensor] for place in places])  # ties are with the first branch
                if (data, tensor) == (ranks.data, ranks.tensor):
                    groups[places] = group
    if ranks.branch > 0:
        return []
    return [Tie(key, places, groups[places]) for key, places in shared.items() if ranks.pipeline in places]


@contextmanager
def gradients_summed(ties: Sequence[Tie], ranks: Ranks, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Around forwards and backwards: after, every holder of a tied parameter has the sum of all gradients of it.

    What there is from steps before, all holders have alike; it stays with the first, so that it counts once.
    """
    for tie in ties:
        if tie.ranks[0] != ranks.pipeline:
            parameters[tie.key].grad = None
    yield
    for tie in ties:
        parameter = parameters[tie.key]
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(local(parameter.grad), group=tie.group)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; of any other, the tensor itself."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def clip_gradients(
    ranks: Ranks,
    ties: Sequence[Tie],
    parameters: Mapping[str, nn.Parameter],
    most: float,
    sharded: bool,
    parts: Collection[str] = (),
) -> torch.Tensor:
    """Scale all gradients of the model, wherever they lie, so that their norm is at most ``most``.

    Args:
        ranks: this rank.
        ties: what other stages hold, too.
        parameters: this rank's.
        most: the norm after.
        sharded: whether parameters are sharded along the data axis.
        parts: the keys of those of which ranks of the tensor axis have a part each; of all others each has the whole.

    Returns:
        The norm before.
    """
    elsewhere = {tie.key for tie in ties if tie.ranks[0] != ranks.pipeline}
    elsewhere |= {key for key in parameters if key not in parts and ranks.tensor > 0}
    gradients = {key: each.grad for key, each in parameters.items() if each.grad is not None}
    squares = [local(grad).float().square().sum() for key, grad in gradients.items() if key not in elsewhere]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=ranks.device)
    for axis in ranks.wide("pipeline", "branch", "tensor", *(["data"] if sharded else [])):
        dist.all_reduce(total, group=ranks.mesh.get_group(axis))
    norm = total.sqrt()
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    for grad in gradients.values():
        local(grad).mul_(scale)
    return norm
