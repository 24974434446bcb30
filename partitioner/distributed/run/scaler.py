"""A gradient scaler for a model that lies on several ranks: if a gradient overflows on one of them, all skip the step.

    scaler = GradScaler(step)
    loss = step(batch)             the loss is scaled where it is made, on the rank of the last stage
    scaler.step(optimizer)         unscales, and steps if no rank has found an inf or a nan
    scaler.update()

torch's own scaler asks each rank for itself: ranks would part, and what they hold would no longer be one model. So would ranks
with scales of their own, for one rank's scale is in all gradients: they are compared where gradients are unscaled.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.amp import GradScaler as TorchGradScaler

from partitioner.distributed.ranks import refuse, told
from partitioner.distributed.run.step import Step
from partitioner.distributed.run.ties import local
from partitioner.errors import InputError


class GradScaler(TorchGradScaler):
    """`torch.amp.GradScaler` over ranks. Made on every rank.

    Args:
        step: whose loss is scaled.
        options: of torch's scaler, such as ``init_scale``; its device is the rank's.

    Raises:
        InputError: that is no step, or torch's scaler has no such option or value.

    Source: as `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler` does for shards.
    """

    def __init__(self, step: Step, **options: Any) -> None:
        doing = "making a scaler"
        if not isinstance(step, Step):
            refuse(f"a scaler is made of a step, as parallelize gives it, and this is a {type(step).__name__}", doing)
        if "device" in options:
            refuse(f"a scaler computes where its step does, on {step.ranks.device}: leave device out", doing)
        self._device_here = step.ranks.device
        try:
            super().__init__(self._device_here.type, **options)
            self.scale(torch.zeros((), device=self._device_here))  # ranks that make no loss have a scale, too
            known = [self.get_scale(), self.get_growth_interval(), self.get_backoff_factor()] if self.is_enabled() else []
            right = all(0 < each < float("inf") for each in known)
        except (TypeError, AssertionError) as error:
            refuse(f"torch's scaler takes no such options: {error}", doing)
        if not right:
            refuse("init_scale, backoff_factor and growth_interval of a scaler are finite numbers above 0", doing)
        step.loss.scaler = self

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, *given: Any) -> dict[torch.device, torch.Tensor]:
        """Unscale this rank's gradients, and learn whether those of any rank overflowed.

        Optimizers that unscale by themselves (``fused=True``) are told so as well: for these it is called with a scale of one.
        """
        groups = [{"params": [_here(each) for each in group["params"]]} for group in optimizer.param_groups]
        found = super()._unscale_grads_(SimpleNamespace(param_groups=groups), *given)  # type: ignore[arg-type]
        none = torch.zeros((), dtype=torch.float32, device=self._device_here)  # whatever the default dtype
        anywhere = sum((each.to(self._device_here) for each in found.values()), none)
        assert self._scale is not None
        told_of = torch.stack([anywhere.reshape(()), self._scale, -self._scale])
        with told(None, "unscaling gradients"):
            dist.all_reduce(told_of, dist.ReduceOp.MAX)
            least, most = -told_of[2].item(), told_of[1].item()
            if least != most:
                raise InputError(
                    f"ranks have other scales, from {least:g} to {most:g}, and the gradients of one model: make scalers with "
                    "the same options on every rank, and load the same state into each"
                )
        anywhere = told_of[0]
        return {device: anywhere.to(device) for device in found} or {self._device_here: anywhere}


def _here(parameter: torch.Tensor) -> torch.Tensor:
    """What a rank has of a parameter, with its gradient: torch's op takes no sharded ones together with whole ones."""
    if parameter.grad is None or not hasattr(parameter.grad, "to_local"):
        return parameter
    mine = local(parameter.detach())
    mine.grad = local(parameter.grad)
    return mine
