"""One training step of all ranks: a batch in, the loss out, gradients where the parameters are.

    batch       16 rows, 4 microbatches     rows 0-3 | 4-7 | 8-11 | 12-15
    schedule    torch.distributed.pipelining's, forwards and backwards
    ties        gradients of what several stages hold are summed
    loss        the mean over microbatches and over the data axis, on every rank

Whatever is not as the stages were made for is refused before anything is sent: the engine itself would not notice.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from partitioner.distributed.example import Example
from partitioner.distributed.ranks import Ranks, told
from partitioner.distributed.tensor.shards import Shards
from partitioner.distributed.ties import Tie, clip_gradients, gradients_summed
from partitioner.errors import InputError
from partitioner.model.call import Call, example_call

WATCHED_STEPS = 2
"""Steps at the beginning in which ranks compare their batches."""


@dataclass(eq=False)
class Batches:
    """The microbatches of the step that is under way: stages ask for what they need of them.

    Args:
        model: the whole model, for its signature.
        example: a call with a microbatch, as it was traced.
        count: microbatches of a step.
        device: where they are wanted.
    """

    model: nn.Module
    example: Example
    count: int
    device: torch.device
    inputs: list[dict[str, torch.Tensor]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)

    def __call__(self, number: int) -> Mapping[str, torch.Tensor]:
        """The graph's inputs of one microbatch, by name."""
        return self.inputs[number]

    def fill(self, inputs: Any, target: Any) -> None:
        """Divide a batch.

        Raises:
            InputError: it is not like the example, or does not divide.
        """
        call = example_call(self.model, inputs, None)
        assert call is not None
        if call.spec != self.example.call.spec:
            raise InputError("the batch has another structure than the example inputs")
        rows = self.rows(call)
        self._refuse_target(target, rows)
        self.inputs = [
            self.example.arguments(
                [
                    (self._rows(tensor, number, rows) if by_row else tensor).to(self.device)
                    for tensor, by_row in zip(call.tensors, self.example.by_rows, strict=True)
                ]
            )
            for number in range(self.count)
        ]
        self.targets = [
            tree_map(lambda leaf, number=number: self._rows(leaf, number, rows), target) for number in range(self.count)
        ]

    def _refuse_target(self, target: Any, rows: int) -> None:
        """A target of as many rows as a microbatch would be taken whole for each of them, and no loss function would notice."""
        for leaf in tree_leaves(target):
            if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] != rows:
                raise InputError(
                    f"the target has a tensor of shape {tuple(leaf.shape)}, and the batch {rows} rows: a target's tensors have "
                    "a row for each of them; what else a loss needs, let loss_fn hold it"
                )

    def rows(self, call: Call) -> int:
        """How many rows a batch has, once each of its tensors is seen to be that many times the example's.

        Raises:
            InputError: a tensor has another shape or dtype than the stages were made for.
        """
        for place, (tensor, known) in enumerate(zip(call.tensors, self.example.call.tensors, strict=True)):
            by_row = self.example.by_rows[place]
            wanted = (known.shape[0] * self.count, *known.shape[1:]) if by_row else tuple(known.shape)
            if tuple(tensor.shape) != wanted or tensor.dtype != known.dtype:
                name = call.names(self.model.forward)[place]
                each = f": {self.count} microbatches of {tuple(known.shape)}" if by_row else ""
                raise InputError(
                    f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, and the stages were made for {known.dtype} of "
                    f"shape {wanted}{each}. Pad it, drop the last batch of an "
                    "epoch (drop_last=True), or make stages for this size"
                )
        return self.example.rows * self.count

    def checksum(self) -> torch.Tensor:
        """What tells one batch from another: sums of its microbatches' inputs, as they are and by place."""
        given = [leaf for leaf in tree_leaves((self.inputs, self.targets)) if isinstance(leaf, torch.Tensor)]
        tensors = [each.detach().double().flatten().cpu() for each in given]
        places = (torch.arange(each.numel(), dtype=torch.float64) for each in tensors)
        sums = [torch.stack((each.sum(), each @ place)) for each, place in zip(tensors, places, strict=True)]
        return torch.stack(sums).sum(0) if sums else torch.zeros(2, dtype=torch.float64)

    def _rows(self, leaf: Any, number: int, rows: int) -> Any:
        """The rows of one microbatch, of a tensor that has a row for each of the batch's; anything else as it is."""
        if not isinstance(leaf, torch.Tensor) or not leaf.dim() or leaf.shape[0] != rows:
            return leaf
        each = rows // self.count
        return leaf[number * each : (number + 1) * each]


@dataclass(eq=False)
class Step:
    """Called with a batch on every rank, it leaves gradients in the rank's parameters, and gives the loss.

    A batch is what the example inputs were, a tensor, a tuple or a dict; with a loss that takes a target, a pair of that and
    the target. Ranks of one copy of the model get the same batch; those along the data axis each get their own.

    Args:
        ranks: this rank.
        schedule: of `torch.distributed.pipelining`.
        batches: what stages read.
        loss: of the model's output and, if there is one, the target.
        ties: parameters that other ranks of this copy hold, too.
        parameters: this rank's, by key.
        last: the place along the pipeline axis of the rank that has the last stage.
        first_here: whether this rank has the first stage.
        sharded: whether parameters are sharded along the data axis.
        shards: which part of each parameter this rank has, if there is a tensor axis.
        steps: how many have been watched for ranks that are given different batches.
    """

    ranks: Ranks
    schedule: Any
    batches: Batches
    loss: Loss
    ties: Sequence[Tie]
    parameters: Mapping[str, nn.Parameter]
    last: int
    first_here: bool
    sharded: bool
    shards: Shards | None = None
    steps: int = 0

    def __call__(self, batch: Any) -> torch.Tensor:
        """Forward and backward of one batch.

        Returns:
            The loss: a detached scalar, the same on every rank.

        Raises:
            InputError: the batch is not what the stages were made for.
            RanksError: another rank failed or is lost; names it and its cause.
        """
        with told(self.ranks, "reading a batch"):
            inputs, target = self.loss.divided(batch)
            self.batches.fill(inputs, target)
        with told(self.ranks, "in a training step"):
            self._see_one_batch()
            if self.shards is not None:
                self.shards.start_step()
            with gradients_summed(self.ties, self.ranks, self.parameters):
                losses = self._run()
            return self._shared(losses)

    def clip_grad_norm_(self, most: float) -> torch.Tensor:
        """Scale the gradients of the whole model so that their norm is at most ``most``; the norm before, on every rank."""
        with told(self.ranks, "clipping gradients"):
            parts = self.shards.forms if self.shards is not None else ()
            return clip_gradients(self.ranks, self.ties, self.parameters, most, self.sharded, parts)

    def _run(self) -> list[torch.Tensor]:
        numbers = torch.arange(self.batches.count)
        losses: list[torch.Tensor] = []
        given = (numbers,) if self.first_here else ()
        wanted = {"target": numbers, "losses": losses} if self.ranks.pipeline == self.last else {}
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "find_unused_parameters=True was specified"
            )  # the loss shows whether it is needed
            self.schedule.step(*given, number=numbers, return_outputs=False, **wanted)
        return losses

    def _see_one_batch(self) -> None:
        """Compare what the ranks of one copy were given, in the first steps: a sampler that gives each its own goes unnoticed.

        Raises:
            InputError: they differ.
        """
        axes = self.ranks.wide("pipeline", "branch", "tensor")
        if self.steps >= WATCHED_STEPS or not axes:
            return
        self.steps += 1
        mine = self.batches.checksum().to(self.ranks.device)
        for axis in axes:
            group = self.ranks.mesh.get_group(axis)
            found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(found, mine, group=group)
            others = [place for place, each in enumerate(found) if not torch.equal(each, found[0])]
            if others:
                raise InputError(
                    f"the ranks of one copy of the model were given different batches: {axis} 0 and {axis} {others[0]}. Give "
                    f"ranks along the {axis} axis the same: DistributedSampler(num_replicas=data axis, rank=step.ranks.data)"
                )

    def _shared(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        """The mean loss, which the rank of the last stage tells the others."""
        mean = torch.stack([each.detach() for each in losses]).sum() if losses else torch.zeros((), device=self.ranks.device)
        mean = mean.float() if self.loss.scaler is None else mean.float() / self.loss.scaler.get_scale()
        mesh = self.ranks.mesh
        dist.broadcast(mean, group=mesh.get_group("pipeline"), group_src=self.last)
        if mesh["data"].size() > 1:
            dist.all_reduce(mean, group=mesh.get_group("data"))
            mean /= mesh["data"].size()
        return mean


class Scaler(Protocol):
    """What scales a loss, so that small gradients do not vanish in half precision."""

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:
        """A loss, scaled."""

    def get_scale(self) -> float:
        """By how much."""


@dataclass(eq=False)
class Loss:
    """A user's loss function, as schedules call it: with the results of the last stage and the number of the microbatch.

    What it gives is divided by the number of microbatches, so that their sum is the mean over all of them.

    Args:
        function: of the model's output, and of a target if it takes two arguments.
        batches: which know the targets.
        scaler: scales what the schedule gets, if there is one; see `partitioner/distributed/scaler.py`.
    """

    function: Callable[..., torch.Tensor]
    batches: Batches
    scaler: Scaler | None = None

    @cached_property
    def takes_target(self) -> bool:
        """Whether the function has a second argument that must be given."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):
            return True
        needed = [each for each in parameters if each.default is each.empty and each.kind in (0, 1)]
        return len(needed) > 1 or any(each.kind == each.VAR_POSITIONAL for each in parameters)

    def divided(self, batch: Any) -> tuple[Any, Any]:
        """A batch's inputs and its target.

        Raises:
            InputError: it should be a pair, and is none.
        """
        if not self.takes_target:
            return batch, None
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InputError(
                "loss_fn takes an output and a target, so a batch is a pair (inputs, target); this one is a "
                f"{type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
            )
        return batch[0], batch[1]

    def __call__(self, results: Any, number: torch.Tensor) -> torch.Tensor:
        """The part of one microbatch in the loss.

        Raises:
            InputError: it is no scalar.
        """
        flat, _ = tree_flatten(results)
        output = self.batches.example.output(flat)
        target = self.batches.targets[int(number)]
        found = self.function(output, target) if self.takes_target else self.function(output)
        if not isinstance(found, torch.Tensor) or found.dim():
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
            raise InputError(f"loss_fn gave {what}; a scalar tensor is needed, the mean over the microbatch")
        part = found / self.batches.count
        return part if self.scaler is None else self.scaler.scale(part)
