"""Losses that are means over the targets that are not ignored, of which microbatches and copies have different numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lanes import OLD_TORCH
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from partitioner.distributed import parallelize
from partitioner.errors import InputError

CLASSES, IGNORED = 5, -100
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])


class Plain(nn.Module):
    """Logits of each of four places in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.second(self.first(x).relu())
        return logits


class Measured(Plain):
    """Gives its own loss, of the place that follows each, as language models do."""

    def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        logits, following = super().forward(x), functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), following.flatten()), "logits": logits}


class Masked(Measured):
    """Likewise, by hand."""

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = Plain.forward(self, x)
        return {"loss": masked(logits[:, :-1].flatten(0, 1)[None], labels[:, 1:].flatten()[None])}


class Selected(Measured):
    """Likewise, of those places alone."""

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        return {"loss": selected(Plain.forward(self, x)[:, :-1], labels[:, 1:])}


def plain(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over what is not ignored."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def weighed(logits: Tensor, target: Tensor) -> Tensor:
    """Likewise, where classes weigh differently."""
    return functional.nll_loss(logits.log_softmax(-1).flatten(0, 1), target.flatten(), WEIGHTS)


def masked(logits: Tensor, target: Tensor) -> Tensor:
    """The first, by hand."""
    valid = target != IGNORED
    found = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return (found * valid.flatten()).sum() / valid.sum()


def selected(logits: Tensor, target: Tensor) -> Tensor:
    """A mean over those places that count."""
    return (logits[target != IGNORED] - 1).square().mean()


def own(output: dict[str, Tensor]) -> Tensor:
    """That of the model."""
    return output["loss"]


def kept(target: Tensor) -> Tensor:
    """How many targets count."""
    return (target != IGNORED).sum()


def heavy(target: Tensor) -> Tensor:
    """What those that count weigh."""
    return WEIGHTS[target[target != IGNORED]].sum()


def following(x: Tensor, labels: Tensor) -> Tensor:
    """How many targets count for `Measured`."""
    return kept(labels[:, 1:])


LOSSES: dict[str, tuple[type[Plain], Callable[..., Tensor], Callable[..., Any]]] = {
    "plain": (Plain, plain, kept),
    "weighed": (Plain, weighed, heavy),
    "own": (Measured, own, following),
    "masked": (Plain, masked, kept),
    "selected": (Plain, selected, kept),
    "own, masked": (Masked, own, following),
    "own, selected": (Selected, own, following),
}
SPECS: dict[str, dict[str, Any]] = {
    "stages": {"mesh": {"pipeline": 2}, "microbatches": 4},
    "copies": {"mesh": {"data": 2}},
    "copies in parts": {"mesh": {"data": 2}, "microbatches": 2, "wrap": "fsdp2"},
    "parts of layers": {"mesh": {"tensor": 2}, "microbatches": 2, "schedule": "gpipe"},
}
TARGETS = {"uneven": 0.4, "even": 0.0}
"""The part of the targets that is ignored; in the uneven ones, the first two rows have none that counts."""


def answer(every: int) -> dict[str, Any]:
    """Of each loss, spec and target, or of every third: how far loss and gradients are from one process's, with what counts and
    without."""
    ways = [(loss, spec, target) for loss in LOSSES for spec in SPECS for target in TARGETS]
    ways = [way for way in ways if way[:2] != ("own, selected", "parts of layers")]  # sizes that depend on data are refused
    if OLD_TORCH:  # whose engine passes nothing between stages that gets no gradient, as targets
        ways = [way for way in ways if not (way[0].startswith("own") and way[1] == "stages")]
    return {", ".join(way): [_apart(*way, count) for count in (True, False)] for way in ways[::every]} | {"nothing": _nothing()}


def _apart(loss: str, spec: str, target: str, count: bool) -> float | str:
    kind, loss_fn, count_fn = LOSSES[loss]
    torch.manual_seed(0)
    model, x, labels = kind(), torch.randn(8, 4, 6), torch.randint(CLASSES, (8, 4))
    labels[torch.rand(8, 4) < TARGETS[target]] = IGNORED
    if target == "uneven":
        labels[:2] = IGNORED
    elif loss == "weighed":
        labels[:] = labels[:1]
    whole, section = copy.deepcopy(model), SPECS[spec]
    copies, place = section["mesh"].get("data", 1), dist.get_rank() if "data" in section["mesh"] else 0
    mine = slice(place * 8 // copies, (place + 1) * 8 // copies)
    batch: Any = {"x": x[mine], "labels": labels[mine]} if issubclass(kind, Measured) else x[mine]
    try:
        part, step = parallelize(
            model, batch, {"distributed": section | {"timeout": 60}}, loss_fn, count_fn=count_fn if count else None
        )
        found = step(batch if issubclass(kind, Measured) else (batch, labels[mine]))
    except (InputError, SystemExit) as error:
        return str(error)
    expected = own(whole(x, labels)) if issubclass(kind, Measured) else loss_fn(whole(x), labels)
    expected.backward()
    grown = torch.stack([each.grad.norm() for each in whole.parameters() if each.grad is not None]).norm()
    apart = [(found - expected).abs().item(), (step.clip_grad_norm_(torch.inf) - grown).abs().item()]
    for key, each in part.named_parameters():
        gradient: Any = each.grad
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        other = whole.get_parameter(key).grad
        if other is not None and gradient.shape == other.shape:  # else it is of a part
            apart.append((gradient - other).abs().max().item())
    return max(apart)


def _nothing() -> list[float]:
    """The loss and the largest gradient of targets that are all ignored: in eager, no number and zero."""
    part, step = parallelize(Plain(), torch.ones(4, 4, 6), {"distributed": SPECS["stages"]}, plain, count_fn=kept)
    found = step((torch.ones(4, 4, 6), torch.full((4, 4), IGNORED)))
    return [found.item(), max(each.grad.abs().max().item() for each in part.parameters() if each.grad is not None)]
