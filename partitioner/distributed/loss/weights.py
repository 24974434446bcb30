"""What the losses of microbatches weigh, where somebody says of how many things each is the mean.

counts of the microbatches of all copies    5 1 2 0    ->    weights    2.5 0.5 1 0    mean of the weighed = mean of all
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from partitioner.distributed.ranks import Ranks
from partitioner.errors import InputError


def weights_of(counts: Sequence[Any], ranks: Ranks, *, watched: bool = True) -> torch.Tensor:
    """What the mean of each microbatch is multiplied by, for the mean over copies of the sums to be that of the whole batch.

    Args:
        counts: how many count in each of this copy's: numbers, or tensors of one.
        ranks: this rank.
        watched: whether what was counted is looked at, for which a host waits for its GPU.

    Raises:
        InputError: something else was counted.
    """
    for each in counts:
        real = each.numel() == 1 and not each.is_complex() if isinstance(each, torch.Tensor) else isinstance(each, int | float)
        if not real:
            raise InputError(
                f"count_fn gave a {type(each).__name__}; a number is needed, of what loss_fn takes the mean of in a "
                "microbatch: count_fn=lambda target: (target != -100).sum()"
            )
    found = torch.stack(
        [torch.as_tensor(each, dtype=torch.float64, device=ranks.device).reshape(()) for each in counts]
    ).detach()
    if watched and not ((found >= 0) & found.isfinite()).all():
        raise InputError(
            f"count_fn gave {', '.join(f'{each:g}' for each in found.tolist())}; of how many things a microbatch's loss is the "
            "mean is a number that is neither negative nor infinite"
        )
    whole = found.sum()
    if ranks.sizes["data"] > 1:
        dist.all_reduce(whole, group=ranks.mesh.get_group("data"))
    return found * ranks.sizes["data"] / whole


def weighted(loss: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A microbatch's part in the loss. The mean of nothing is no number, and no part of it, nor of any gradient."""
    return loss.masked_fill(~(weight > 0), 0.0) * weight.to(loss.dtype)
