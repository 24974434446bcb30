"""What several stages share: a weight that is tied over ranks has one value and one gradient, and norms count it once.

    embedding on rank 0    gradient g0       both have g0 + g3 before the optimizer's step
    head on rank 3         gradient g3

Nothing in torch does that for stages: each rank would train its own copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        for data, row in enumerate(ranks.mesh.mesh.tolist()):
            group = dist.new_group([row[place] for place in places])
            if data == ranks.data:
                groups[places] = group
    return [Tie(key, places, groups[places]) for key, places in shared.items() if ranks.pipeline in places]


def sum_gradients(ties: Iterable[Tie], parameters: Mapping[str, nn.Parameter]) -> None:
    """Give every holder of a tied parameter the sum of all gradients of it."""
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
    ranks: Ranks, ties: Sequence[Tie], parameters: Mapping[str, nn.Parameter], most: float, sharded: bool
) -> torch.Tensor:
    """Scale all gradients of the model, wherever they lie, so that their norm is at most ``most``.

    Returns:
        The norm before.
    """
    elsewhere = {tie.key for tie in ties if tie.ranks[0] != ranks.pipeline}
    gradients = {key: each.grad for key, each in parameters.items() if each.grad is not None}
    squares = [local(grad).float().square().sum() for key, grad in gradients.items() if key not in elsewhere]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=ranks.device)
    dist.all_reduce(total, group=ranks.mesh.get_group("pipeline"))
    if sharded:
        dist.all_reduce(total, group=ranks.mesh.get_group("data"))
    norm = total.sqrt()
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    for grad in gradients.values():
        local(grad).mul_(scale)
    return norm
