"""Cross entropy of logits of which each rank has some classes: a rule of its own, for ranks pass on sums and no logits.

    rank 0   classes 0 .. 63      largest, sum of exp          log of the whole sum, minus the target's logit if it is here
    rank 1   classes 64 .. 127    largest, sum of exp                               minus the target's logit if it is here
                      \\_______ both over all ranks _______/    summands, whose sum is the loss

Two numbers pass for each target, where a gather of the logits would pass as many as there are classes. Backward passes nothing:
each rank knows the probabilities of its own classes. Source: the vocabulary-parallel cross entropy of Shoeybi et al.,
"Megatron-LM", 2019.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from partitioner.distributed.tensor.collectives import OPS, total
from partitioner.ir.sharding import P, Placement, R, shard
from partitioner.ir.shared import Axis

FLOAT = 4
"""Bytes of the numbers that pass."""


def form_of_logits(node: torch.fx.Node, inputs: Sequence[torch.fx.Node]) -> Placement | None:
    """The form in which ranks can have the logits of a node that is a cross entropy; ``None`` if it is none, or another one.

    Left out are targets that are probabilities, weights of classes, and autocast, under which it gives another type.
    """
    if node.target is not cross_entropy or len(inputs) != 2:
        return None
    options = _options(node)
    logits, target = (source.meta["example_value"] for source in inputs)
    if [options.get("input"), options.get("target")] != list(inputs) or logits.dim() == 0 or target.is_floating_point():
        return None
    plain = all(options.get(name) is None for name in ("weight", "size_average", "reduce"))
    return shard(1 if logits.dim() > 1 else 0) if plain and node.meta["example_value"].dtype == logits.dtype else None


def _options(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a cross entropy by name, defaults included."""
    given = inspect.signature(cross_entropy).bind(*node.args, **node.kwargs)
    given.apply_defaults()
    return dict(given.arguments)


def part_arguments(node: torch.fx.Node, inputs: Sequence[torch.fx.Node], rank: int, group: str) -> tuple[Any, ...]:
    """What `cross_entropy_of_part` is called with on one rank.

    Args:
        node: the cross entropy.
        inputs: its logits and its target.
        rank: on the axis.
        group: the ranks of the axis.
    """
    options, logits = _options(node), inputs[0].meta["example_value"]
    classes = logits.shape[1 if logits.dim() > 1 else 0]
    rest = (options[name] for name in ("ignore_index", "reduction", "label_smoothing"))
    return (*inputs, *rest, classes, rank, group)


def exchange_seconds(inputs: Sequence[torch.fx.Node], axis: Axis) -> float:
    """Seconds in which ranks pass on the largest logit and the sum for each target."""
    sent = axis.seconds((P, R), inputs[1].meta["example_value"].numel() * FLOAT, grad=False)
    assert sent is not None
    return 2 * sent[0]


def cross_entropy_of_part(
    logits: Tensor, target: Tensor, ignored: int, reduction: str, smoothing: float, classes: int, rank: int, group: str
) -> Tensor:
    """A cross entropy of which each rank has the logits of some classes: a summand of it.

    Args:
        logits: of this rank's classes.
        target: classes, of all.
        ignored: the target that does not count.
        reduction: ``mean``, ``sum`` or ``none``.
        smoothing: the part of a target that is spread over all classes.
        classes: how many there are.
        rank: this one.
        group: the ranks of the axis.

    Raises:
        RuntimeError: a target is no class.
    """
    return _CrossEntropy.apply(logits, target, ignored, reduction, smoothing, classes, rank, group)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """A rank's summand; its gradient is that of the whole loss, for the logits of this rank."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        ignored: int,
        reduction: str,
        smoothing: float,
        classes: int,
        rank: int,
        group: str,
    ) -> Tensor:
        dim = 1 if logits.dim() > 1 else 0
        x = logits.movedim(dim, -1)
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        counts = target != ignored
        torch._assert_async(((target >= 0) & (target < classes) | ~counts).all(), f"a target is none of {classes} classes")
        largest = OPS.wait_tensor(OPS.all_reduce(x.amax(-1), "max", group))
        exponents = (x - largest.unsqueeze(-1)).exp()
        sums = total(exponents.sum(-1), group)
        here = target - rank * x.shape[-1]
        own = (here >= 0) & (here < x.shape[-1]) & counts
        place = torch.where(own, here, 0).unsqueeze(-1)
        picked = x.gather(-1, place).squeeze(-1).masked_fill(~own, 0.0) * (1 - smoothing)
        each = (largest + sums.log() if rank == 0 else torch.zeros_like(sums)) - picked
        each = (each - x.sum(-1) * (smoothing / classes) if smoothing else each).masked_fill(~counts, 0.0)
        ctx.save_for_backward(exponents.div_(sums.unsqueeze(-1)), place, own, counts)
        ctx.form = reduction, smoothing, classes, dim, logits.dtype
        if reduction == "none":
            return each.to(logits.dtype)
        return (each.sum() / counts.sum() if reduction == "mean" else each.sum()).to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (probabilities, place, own, counts), (reduction, smoothing, classes, dim, dtype) = ctx.saved_tensors, ctx.form
        scale = gradients[0].to(probabilities.dtype) / (counts.sum() if reduction == "mean" else 1)
        found = probabilities - smoothing / classes if smoothing else probabilities.clone()
        found.scatter_add_(-1, place, own.unsqueeze(-1).to(found.dtype) * (smoothing - 1))
        found *= torch.where(counts, scale, torch.zeros_like(scale)).unsqueeze(-1)
        return found.movedim(-1, dim).to(dtype).contiguous(), *[None] * 7
