"""What several stages share: a weight that is tied over ranks has one value and one gradient.

    embedding on rank 0    gradient g0       both have g0 + g3 before the optimizer's step
    head on rank 3         gradient g3

Nothing in torch does that for stages: each rank would train its own copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from partitioner.distributed.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Tie:
    """A parameter or buffer that several ranks hold.

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
        holders: by key, the place along the pipeline axis of each stage that has a parameter; one place is no tie.
    """
    shared = {key: places for key in sorted(holders) if len(places := tuple(sorted({*holders[key]}))) > 1}
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for places in sorted(set(shared.values())):
        for data, copy in enumerate(ranks.mesh.mesh.tolist()):
            for tensor in range(len(copy[0][0])):
                group = dist.new_group([copy[place][0][tensor] for place in places])  # ties are with the first branch
                ranks.groups.add(group)
                if (data, tensor) == (ranks.data, ranks.tensor):
                    groups[places] = group
    if ranks.branch > 0:
        return []
    return [Tie(key, places, groups[places]) for key, places in shared.items() if ranks.pipeline in places]


def held_twice(holders: Mapping[str, Sequence[int]]) -> set[str]:
    """The keys of what two stages of any rank share.

    >>> held_twice({"norm": [0, 1], "layer": [0, 1, 0]})
    {'layer'}
    """
    return {key for key, places in holders.items() if len({*places}) < len(places)}


@contextmanager
def gradients_summed(
    ties: Sequence[Tie], ranks: Ranks, parameters: Mapping[str, nn.Parameter], apart: Set[nn.Parameter] = frozenset()
) -> Iterator[None]:
    """Around forwards and backwards: after, every holder of a tied parameter has the sum of all gradients of it.

    What there is from steps before, all holders have alike; it stays with the first, so that it counts once.

    Args:
        ties: what other stages hold, too.
        ranks: this rank.
        parameters: this rank's, by key.
        apart: those that DDP or FSDP2 leave alone; their gradients are averaged over the data axis here.
    """
    trained = [(tie, parameters[tie.key]) for tie in ties if tie.key in parameters]  # buffers have values alone
    for tie, parameter in trained:
        if tie.ranks[0] != ranks.pipeline:
            parameter.grad = None
    averaged = [each for each in parameters.values() if each in apart and each.requires_grad]
    before = [each.grad for each in averaged]
    for each in averaged:
        each.grad = None
    yield
    for each, grad in zip(averaged, before, strict=True):
        each.grad = _averaged(each, ranks) if grad is None else grad + _averaged(each, ranks)
    for tie, parameter in trained:
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(local(parameter.grad), group=tie.group)


def _averaged(parameter: nn.Parameter, ranks: Ranks) -> torch.Tensor:
    """The mean gradient of the copies of a parameter."""
    grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    dist.all_reduce(grad, group=ranks.mesh.get_group("data"))
    return grad / ranks.sizes["data"]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; of any other, the tensor itself."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found
