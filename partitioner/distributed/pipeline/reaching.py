"""A backward under DDP that each of its parameters hears of: also those that were frozen since DDP was made.

    loss  <-  ...  <-  weight      a gradient
    token <-  weight, bias         none: that there will be no more of it

DDP sends a bucket of gradients once all of them are there, and would wait for ever for one that no backward makes. It can look
for these itself, ``find_unused_parameters``: by going through the graph of every step, and by one more exchange between ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class _Token(torch.autograd.Function):
    """A number whose backward reaches every parameter, and gives it nothing."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (None,) * len(ctx.needs_input_grad)


@contextmanager
def reaching_all(stage: nn.Module, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A block in which a stage's backward reaches all parameters of DDP, where that does not look for those that it does not.

    Args:
        stage: with DDP around it, or without.
        asked: a backward of `torch.distributed.pipelining`: ``stage_output``, ``output_grads``.

    Yields:
        The backward to run. A frozen parameter keeps the gradient that it has, as in one process.
    """
    if not isinstance(stage, DistributedDataParallel) or stage.find_unused_parameters:
        yield asked
        return
    frozen = {each: each.grad for each in stage._module_parameters if not each.requires_grad}
    outputs, gradients = asked["stage_output"], asked["output_grads"]
    if isinstance(outputs, Tensor):
        outputs, gradients = (outputs,), (gradients,)
    try:
        token = _token_of(stage._module_parameters, frozen)
        yield {**asked, "stage_output": (*outputs, token), "output_grads": (*gradients, torch.ones_like(token))}
    finally:
        for parameter, before in frozen.items():
            parameter.grad = before


def _token_of(parameters: list[nn.Parameter], frozen: Iterable[nn.Parameter]) -> Tensor:
    """A token of parameters; of those that are frozen, too, whose gradients DDP takes for zeros then."""
    for each in frozen:
        each.requires_grad_(True)
        each.grad = None
    try:
        token: Tensor = _Token.apply(*parameters)  # type: ignore[no-untyped-call]
    finally:
        for each in frozen:
            each.requires_grad_(False)
    return token
