"""A gradient scaler for a model that lies on several ranks: if a gradient overflows on one of them, all skip the step.

    scaler = GradScaler(step)
    loss = step(batch)             the loss is scaled where it is made, on the rank of the last stage
    scaler.step(optimizer)         unscales, and steps if no rank has found an inf or a nan
    scaler.update()

torch's own scaler asks each rank for itself: ranks would part, and what they hold would no longer be one model.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.amp import GradScaler as TorchGradScaler

from partitioner.distributed.ranks import told
from partitioner.distributed.run.step import Step
from partitioner.distributed.run.ties import local


class GradScaler(TorchGradScaler):
    """`torch.amp.GradScaler` over ranks. Made on every rank.

    Args:
        step: whose loss is scaled.
        options: of torch's scaler, such as ``init_scale``.

    Source: as `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler` does for shards.
    """

    def __init__(self, step: Step, **options: Any) -> None:
        super().__init__(step.ranks.device.type, **options)
        self._device_here = step.ranks.device
        self.scale(torch.zeros((), device=self._device_here))  # ranks that make no loss have a scale, too
        step.loss.scaler = self

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, *given: Any) -> dict[torch.device, torch.Tensor]:
        """Unscale this rank's gradients, and learn whether those of any rank overflowed.

        Optimizers that unscale by themselves (``fused=True``) are told so as well: for these it is called with a scale of one.
        """
        groups = [{"params": [_here(each) for each in group["params"]]} for group in optimizer.param_groups]
        found = super()._unscale_grads_(SimpleNamespace(param_groups=groups), *given)  # type: ignore[arg-type]
        none = torch.zeros((), dtype=torch.float32, device=self._device_here)  # whatever the default dtype
        anywhere = sum((each.to(self._device_here) for each in found.values()), none)
        with told(None, "unscaling gradients"):
            dist.all_reduce(anywhere)
        return {device: anywhere.to(device) for device in found} or {self._device_here: anywhere}


def _here(parameter: torch.Tensor) -> torch.Tensor:
    """What a rank has of a parameter, with its gradient: torch's op takes no sharded ones together with whole ones."""
    if parameter.grad is None or not hasattr(parameter.grad, "to_local"):
        return parameter
    mine = local(parameter.detach())
    mine.grad = local(parameter.grad)
    return mine
