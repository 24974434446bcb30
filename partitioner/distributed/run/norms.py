"""The norm of the gradients of a whole model, wherever they lie, and gradients scaled by it.

rank 0    |g|^p of what it holds      a tie is counted by the first of its holders, and what all ranks
rank 1    |g|^p of what it holds      of a tensor axis have alike by the first of these
all       (sum of them)^(1/p)         the largest, or least, of all for a norm of inf, or -inf
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from partitioner.distributed.ranks import Ranks
from partitioner.distributed.run.ties import Tie, local
from partitioner.errors import InputError


def total_norm(
    ranks: Ranks,
    ties: Sequence[Tie],
    parameters: Mapping[str, nn.Parameter],
    kind: float,
    sharded: bool,
    parts: Collection[str] = (),
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The norm of all gradients of the model, on every rank.

    Args:
        ranks: this rank.
        ties: what other stages hold, too.
        parameters: this rank's, by key.
        kind: of the norm, as torch's: a power, inf or -inf.
        sharded: whether parameters are sharded along the data axis.
        parts: the keys of those of which ranks of the tensor axis have a part each; of all others each has the whole.
        dtype: of the result, the same on all ranks.

    Raises:
        InputError: ``kind`` is 0, which torch takes for the number of parameters that have a gradient.
    """
    if kind == 0:
        raise InputError("norm_type 0 counts parameters and is no norm; take a power, inf or -inf")
    elsewhere = {tie.key for tie in ties if tie.ranks[0] != ranks.pipeline}
    elsewhere |= {key for key in parameters if key not in parts and ranks.tensor > 0}
    elsewhere |= {key for key, each in parameters.items() if sharded and ranks.data > 0 and not hasattr(each, "to_local")}
    own = (local(each.grad) for key, each in parameters.items() if each.grad is not None and key not in elsewhere)
    norms = [_norm(grad, kind).to(ranks.device) for grad in own if grad.numel()]
    if math.isinf(kind):
        found = torch.stack(norms) if norms else torch.full((1,), 0.0 if kind > 0 else math.inf, device=ranks.device)
        total, how = (found.max(), dist.ReduceOp.MAX) if kind > 0 else (found.min(), dist.ReduceOp.MIN)
    else:
        powers = [norm**kind for norm in norms]
        total, how = torch.stack(powers).sum() if powers else torch.zeros((), device=ranks.device), dist.ReduceOp.SUM
    total = total.double()  # whatever the gradients of a rank are, all send the same
    for axis in ranks.wide("pipeline", "branch", "tensor", *(["data"] if sharded else [])):
        dist.all_reduce(total, how, group=ranks.mesh.get_group(axis))
    return (total if math.isinf(kind) else total ** (1.0 / kind)).to(dtype)


def _norm(grad: torch.Tensor, kind: float) -> torch.Tensor:
    precise = torch.float64 if grad.dtype in (torch.float64, torch.complex128) else torch.float32
    found: torch.Tensor = torch.linalg.vector_norm(grad.abs() if grad.is_complex() else grad, kind, dtype=precise)
    return found.double()


def scale_gradients(parameters: Mapping[str, nn.Parameter], most: float, norm: torch.Tensor, *, foreach: bool) -> None:
    """Scale gradients whose norm is ``norm`` so that it is at most ``most``.

    Args:
        parameters: this rank's, by key.
        most: the norm after.
        norm: the norm before, of the whole model.
        foreach: whether with one kernel for all of them.
    """
    gradients = [local(each.grad) for each in parameters.values() if each.grad is not None]
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    if foreach and gradients:
        torch._foreach_mul_(gradients, scale)
    for grad in () if foreach else gradients:
        grad.mul_(scale)
