"""What users do with a rank's part between steps, of which stages see nothing; `refuse.py` asks for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from jobs.refuse_nets import Layers
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from partitioner.distributed import load, parallelize, save

DRAW = torch.Generator().manual_seed(0)
X, TARGET = torch.randn(8, 4, generator=DRAW), torch.randn(8, 4, generator=DRAW)
DDP: dict[str, Any] = {"mesh": {"data": 2}, "microbatches": 1, "timeout": 60, "wrap": "ddp"}
FSDP2 = DDP | {"wrap": "fsdp2"}
TENSOR: dict[str, Any] = {"mesh": {"tensor": 2}, "microbatches": 1, "timeout": 60}


class Tied(nn.Module):
    """Its first and last layer have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return found


def touched(do: Callable[[nn.Module], Any], model: nn.Module | None = None, of_part: bool = True, **spec: Any) -> None:
    """A right step, and then one of a part, or a model, with which something was done."""
    model = Layers() if model is None else model
    part, step = parallelize(model, X, {"distributed": DDP | spec}, nn.functional.mse_loss)
    step((X, TARGET))
    do(part if of_part else model)
    step((X, TARGET))


def frozen_here() -> None:
    model = Layers()
    model.layers[0].requires_grad_(dist.get_rank() == 0)
    parallelize(model, X, {"distributed": DDP}, nn.functional.mse_loss)


def cast_here() -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=dist.get_rank() == 1):
        parallelize(Layers(), X, {"distributed": DDP}, nn.functional.mse_loss)


def ended() -> dict[str, Callable[[], Any]]:
    """What is asked for once the process group is destroyed; called before."""
    part, step = parallelize(Layers(), X, {"distributed": DDP}, nn.functional.mse_loss)
    step((X, TARGET))
    return {
        "a step at the end": lambda: step((X, TARGET)),
        "clipped at the end": lambda: step.clip_grad_norm_(1.0),
        "saved at the end": lambda: save("nowhere", part),
        "loaded at the end": lambda: load("nowhere", part),
    }


@torch.no_grad()
def untrained() -> None:
    parallelize(Layers(), X, {"distributed": DDP}, nn.functional.mse_loss)


def unkept() -> None:
    with torch.inference_mode():
        made = X * 2
    _, step = parallelize(Layers(), X, {"distributed": DDP}, nn.functional.mse_loss)
    step((made, TARGET))


def replaced(part: nn.Module) -> None:
    part.get_submodule("layers.0").weight = nn.Parameter(torch.ones(4, 4))


def centered(part: nn.Module) -> None:
    parametrize.register_parametrization(part.get_submodule("layers.0"), "weight", nn.Tanh())


def twice(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2.0)


def hooked(module: nn.Module, after: bool = False) -> None:
    """Each gradient doubled, by a hook."""
    for each in module.parameters():
        if after:
            each.register_post_accumulate_grad_hook(twice)
        else:
            each.register_hook(lambda grad: grad * 2.0)


def doubled(after: bool, **spec: Any) -> None:
    """Hooks where they see what they would see in one process."""
    part, step = parallelize(Layers(), X, {"distributed": spec}, nn.functional.mse_loss)
    step((X, TARGET))
    known = [each.grad.clone() for each in part.parameters() if each.grad is not None]
    part.zero_grad()
    hooked(part, after)
    step((X, TARGET))
    for one, each in zip(known, part.parameters(), strict=True):
        assert each.grad is not None
        torch.testing.assert_close(each.grad, one * 2.0)


class Counting(TorchDispatchMode):
    """Sees the ops of a step, and changes none."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def counted(mode: Any) -> None:
    _, step = parallelize(Layers(), X, {"distributed": DDP}, nn.functional.mse_loss)
    with mode:
        step((X, TARGET))
    assert mode.count > 0


TOUCHED: dict[str, Callable[[], Any]] = {
    "frozen on one rank": frozen_here,
    "autocast on one rank": cast_here,
    "a parameter of the part replaced": partial(touched, replaced),
    "a layer of the part pruned": partial(
        touched, lambda part: prune.l1_unstructured(part.get_submodule("layers.0"), "weight", 2)
    ),
    "a layer of the part parametrized": partial(touched, centered),
    "a parameter added to the part": partial(touched, lambda part: part.register_parameter("more", nn.Parameter(X))),
    "the part in another dtype": partial(touched, nn.Module.double),
    "the part in another dtype with fsdp2": partial(touched, nn.Module.double, **FSDP2),
    "the part emptied with fsdp2": partial(touched, lambda part: part.to_empty(device="cpu"), **FSDP2),
    "the part in its own dtype with fsdp2": partial(touched, lambda part: part.float().cpu(), **FSDP2),
    "the model in another dtype": partial(touched, nn.Module.double, of_part=False),
    "a hook of a layer of the part": partial(
        touched, lambda part: part.get_submodule("layers.0").register_forward_hook(lambda *_: None)
    ),
    "hooks on sharded gradients": partial(touched, hooked, **FSDP2),
    "hooks on gradients of the model": partial(touched, hooked, of_part=False, **TENSOR),
    "hooks before copies agree": partial(touched, partial(hooked, after=True)),
    "hooks before stages agree": partial(
        touched, lambda part: hooked(part, True), Tied(), mesh={"pipeline": 2}, microbatches=2
    ),
    "hooks before all microbatches": partial(touched, partial(hooked, after=True), **TENSOR | {"microbatches": 2}),
    "a hook of all modules": lambda: counted(FlopCounterMode(display=False)),
    "made where gradients are off": untrained,
    "what was made under inference mode": unkept,
    "a part pickled": partial(touched, lambda part: torch.save(part, io.BytesIO())),
}

HOOKED: dict[str, Callable[[], Any]] = {
    "hooks on gradients": partial(doubled, False, **DDP),
    "hooks on gradients over stages": partial(doubled, False, mesh={"pipeline": 2}, microbatches=2),
    "hooks behind whole gradients": partial(doubled, True, **TENSOR),
    "ops counted": lambda: counted(Counting()),
}
"""Taken."""
