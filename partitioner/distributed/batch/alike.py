"""What ranks have alike, compared in some of the first steps, for nothing else would notice: what differs makes other
numbers.

batch         the ranks of one copy of the model get the same rows
parameters    copies under DDP, and what ranks of a tensor axis have whole: one learning rate, one checkpoint for all
loss          ranks of a tensor or branch axis each compute it: what it draws has to be the same
trained       some rank of a copy trains something: what passes between stages has a gradient also where none does
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.ranks import Ranks
from partitioner.errors import InputError
from partitioner.spec.distributed import DistributedSpec


def alike_along(asked: DistributedSpec, part: nn.Module, parts: Collection[str]) -> dict[str, list[nn.Parameter]]:
    """The trained parameters that ranks along an axis have alike, by axis.

    Args:
        asked: the mesh, and how copies agree.
        part: what a rank holds.
        parts: the keys of the parameters of which ranks of a tensor axis have a part each.
    """
    trained = {key: each for key, each in part.named_parameters() if each.requires_grad}
    if asked.wrap == "fsdp2" and asked.mesh.data > 1:
        return {}
    along_data = {"data": [*trained.values()]} if asked.wrap == "ddp" else {}
    return along_data | {"tensor": [each for key, each in trained.items() if key not in parts]}


def refuse_other_batches(batches: Batches, ranks: Ranks) -> None:
    """Refuse batches that differ within a copy of the model, as of a sampler that gives each rank its own.

    Raises:
        InputError: names two of the ranks.
    """
    mine = batches.checksum().to(ranks.device)
    for axis in ranks.wide("pipeline", "branch", "tensor"):
        if other := _other(mine, ranks, axis):
            raise InputError(
                f"the ranks of one copy of the model were given different batches: {axis} 0 and {axis} {other}. Give "
                f"ranks along the {axis} axis the same: DistributedSampler(num_replicas=data axis, rank=step.ranks.data)"
            )


def refuse_untrained(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Refuse a step in which all parameters of all ranks are frozen; in one process its backward fails, and here it would not.

    Raises:
        InputError: says so.
    """
    trained = torch.tensor(float(any(each.requires_grad for each in parameters)), device=ranks.device)
    axes = ranks.wide("pipeline", "branch", "tensor")
    for axis in axes:
        dist.all_reduce(trained, dist.ReduceOp.MAX, group=ranks.mesh.get_group(axis))
    if axes and not trained:  # else the loss tells, and an input may be trained
        raise InputError(
            "nothing in the model requires a gradient, and a step would train nothing: a parameter is to be trained"
        )


def refuse_other_parameters(alike: Mapping[str, Sequence[nn.Parameter]], ranks: Ranks) -> None:
    """Refuse parameters that differ where they are to be one.

    Raises:
        InputError: names two of the ranks.
    """
    for axis in ranks.wide(*alike):
        none = torch.zeros((), dtype=torch.float64, device=ranks.device)
        mine = sum((_size(each.detach()).to(ranks.device) for each in alike[axis]), none)
        if other := _other(mine, ranks, axis, 1e-6):
            raise InputError(
                f"ranks along the {axis} axis have one model, and other parameters: {axis} 0 and {axis} {other}. Do the same "
                "on every rank: weights that are loaded or written, learning rates, what is clipped (step.clip_grad_norm_)"
            )


def refuse_other_losses(loss: torch.Tensor, ranks: Ranks) -> None:
    """Refuse losses of one batch that differ, as where a loss function draws from each rank's own generator.

    Raises:
        InputError: names two of the ranks.
    """
    for axis in ranks.wide("branch", "tensor"):
        if other := _other(loss, ranks, axis, 1e-2):
            raise InputError(
                f"the ranks of one copy of the model have other losses of one batch: {axis} 0 and {axis} {other}. Each of them "
                "computes loss_fn: let what it draws or reads be the same, as part of the batch, or of a generator of one seed"
            )


def _size(parameter: torch.Tensor) -> torch.Tensor:
    """The sum of absolute values, in double precision, without a copy of single ones."""
    precise = None if parameter.element_size() > 2 else torch.float32
    found: torch.Tensor = torch.linalg.vector_norm(parameter, 1, dtype=precise)
    return found.double()


def _other(mine: torch.Tensor, ranks: Ranks, axis: str, tolerance: float = 0.0) -> int:
    """The first place along an axis with other numbers than at its beginning, or 0; near zero, by a thousandth as much."""
    group = ranks.mesh.get_group(axis)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    same = (torch.allclose(each, found[0], rtol=tolerance, atol=tolerance / 1000, equal_nan=True) for each in found)
    return next((place for place, is_same in enumerate(same) if not is_same), 0)
