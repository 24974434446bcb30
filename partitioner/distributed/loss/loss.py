"""A user's loss function as the schedules of a job call it: for one microbatch after the other, scaled if need be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.between import Between, between
from partitioner.distributed.loss.called import fits, parameters_of
from partitioner.distributed.loss.counts import Watched, counts_in, held_in, losses_in
from partitioner.distributed.loss.joined import Part
from partitioner.distributed.loss.mean import A_SUM
from partitioner.distributed.loss.weights import weighted, weights_of
from partitioner.distributed.loss.whole import Whole
from partitioner.distributed.ranks import Ranks
from partitioner.errors import InputError
from partitioner.model.storage import no_view


class Scaler(Protocol):
    """What scales a loss, so that small gradients do not vanish in half precision."""

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:
        """A loss, scaled."""

    def get_scale(self) -> float:
        """By how much."""


def _said(given: Any) -> str:
    if not isinstance(given, torch.Tensor):
        return f"a {type(given).__name__}"
    return f"a tensor of shape {tuple(given.shape)}, {given.dtype} on {given.device}"


@dataclass(eq=False)
class Loss:
    """A user's loss function, as schedules call it: with the results of the last stage and the number of the microbatch.

    What it gives is divided by the number of microbatches, so that their sum is the mean over all of them; or weighted by how
    much counts in each (`partitioner/distributed/loss/counts.py`).

    Args:
        function: of the model's output, and of a target if it takes two arguments.
        batches: which know the targets.
        count: of a microbatch's target, or of the model's arguments if there is none: of how many things it gives the mean.
        scaler: scales what the schedule gets, if there is one; see `partitioner/distributed/run/scaler.py`.
        own: parameters that the function may read beside the output: where each rank has all of them, and DDP averages.
        reached: places of the results of which losses were made since it was emptied.
        weights: of the microbatches of this step, if there is ``count``.
        watched: sees what the losses of this step are means of, if that is wanted.
    """

    function: Callable[..., torch.Tensor]
    batches: Batches
    count: Callable[..., Any] | None = None
    scaler: Scaler | None = None
    own: Iterable[torch.Tensor] = ()
    reached: set[int] = field(default_factory=set)
    weights: torch.Tensor | None = None
    watched: Watched | None = None

    @cached_property
    def takes_target(self) -> bool:
        """Whether the function has a second argument that must be given."""
        parameters = parameters_of(self.function)
        if parameters is None:
            return True
        needed = [each for each in parameters if each.default is each.empty and each.kind in (0, 1)]
        return len(needed) > 1 or any(each.kind == each.VAR_POSITIONAL for each in parameters)

    def divided(self, batch: Any) -> tuple[Any, Any]:
        """A batch's inputs and its target.

        Raises:
            InputError: it should be a pair, and is none.
        """
        if not self.takes_target:
            self._refuse_pair(batch)
            return batch, None
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InputError(
                "loss_fn takes an output and a target, so a batch is a pair (inputs, target); this one is a "
                f"{type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
            )
        return batch[0], batch[1]

    def _refuse_pair(self, batch: Any) -> None:
        """Refuse a target for a loss that takes none, where a model has no argument that it could be."""
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        forward = self.batches.model.forward
        if pair and not fits(forward, tuple(batch), {}) and fits(forward, tuple(batch[:1]), {}):
            raise InputError(
                "loss_fn needs no second argument, so a batch is what the model takes, and this one is a pair: leave the "
                "target out or, if loss_fn is to have it, give its second argument no default"
            )

    def begin(self, ranks: Ranks, *, watched: bool, last: bool = True) -> None:
        """Count what there is in the microbatches of a step or, if nobody says how, see what is counted.

        Args:
            ranks: this rank.
            watched: whether losses are looked at in this step.
            last: whether they are made here.

        Raises:
            InputError: ``count`` gave no number.
        """
        if self.count is not None:
            looked_at = watched or ranks.device.type == "cpu"
            self.weights = weights_of([self._count(number) for number in range(self.batches.count)], ranks, watched=looked_at)
        parts = self.batches.count * ranks.sizes["data"]
        self.watched = Watched(parts) if watched and self.count is None else None
        if self.watched is not None and parts > 1 and last:
            self._whole.begin()

    def _count(self, number: int) -> Any:
        assert self.count is not None
        args, kwargs = ((self.batches.targets[number],), {}) if self.takes_target else self.batches.call(number)
        try:
            return self.count(*args, **kwargs)
        except TypeError as error:
            if fits(self.count, args, kwargs):
                raise
            given = "a microbatch's target" if self.takes_target else "the model's arguments, as loss_fn takes no target"
            raise InputError(f"count_fn is called with {given}, and does not take that: {error}") from error

    @cached_property
    def _own_losses(self) -> tuple[list[tuple[torch.fx.Node, list[torch.fx.Node]]], dict[str, torch.Tensor]]:
        """Those of the model, and what it holds that tells of them."""
        held = held_in(self.batches.example)
        losses = losses_in(self.batches.example, held)
        needed = {node.name for _, nodes in losses for node in nodes}
        return losses, {name: each for name, each in held.items() if name in needed}

    def _own_counts(self, number: int) -> list[torch.Tensor]:
        losses, held = self._own_losses
        return counts_in(losses, {name: each.to(self.batches.device) for name, each in held.items()} | {**self.batches(number)})

    @cached_property
    def _whole(self) -> Whole:
        return Whole(self.batches, self.function, self._given)

    def _given(self, results: Sequence[torch.Tensor], inputs: Mapping[str, torch.Tensor], target: Any) -> tuple[Any, ...]:
        """What the user's function is called with."""
        output = self.batches.example.output(results, inputs)
        return (output, target) if self.takes_target else (output,)

    def _called(self, results: Sequence[torch.Tensor], number: int) -> Any:
        """What the user's function gives."""
        given = self._given(results, self.batches(number), self.batches.targets[number])
        if self.watched is None:
            return self.function(*given)
        self.watched.found.append(self._own_counts(number))
        with self.watched:
            return self.function(*given)

    def _see_what_it_is(self, part: Part, loss: torch.Tensor) -> None:
        """See whether the mean of microbatches' losses is that of the batch; said when the step is over, on all ranks."""
        assert self.watched is not None
        told = A_SUM if any(loss is each for each in self.watched.sums) else self._whole(part)
        self.watched.told = self.watched.told or told

    def _see_what_is_reached(self, made: Between) -> None:
        """Note which results a loss is made of. Parameters that it does not get from the model are refused: no other rank would
        know of their gradients.

        Raises:
            InputError: names one.
        """
        known = {id(each) for each in self.own}
        self.reached |= made.reached
        foreign = [each for each in made.leaves if id(each) not in known]
        if foreign:
            raise InputError(
                f"loss_fn reads a parameter of shape {tuple(foreign[0].shape)} by itself, not from the model's output, and "
                "other ranks would know nothing of it. Let the model's forward read it and return what the loss needs: a layer "
                "of the loss as one of the model, a penalty as an output; or take weight_decay of the optimizer"
            )

    def __call__(self, results: Any, number: torch.Tensor) -> torch.Tensor:
        """The part of one microbatch in the loss.

        Raises:
            InputError: it is no scalar, or has no gradient.
        """
        given = (results,) if isinstance(results, torch.Tensor) else results
        flat = tuple(map(no_view, given))  # which a loss may keep: torch's last stage detaches its own within a backward
        place, asks = int(number), self.watched is not None and self.watched.parts > 1
        kept = self._whole.kept(flat) if asks else []
        try:
            found = self._called(flat, place)
        except (AttributeError, TypeError) as error:
            if not self.takes_target or self.batches.targets[place] is not None:
                raise
            raise InputError(f"the batch's target is None, and loss_fn cannot be called with that: {error}") from error
        if not isinstance(found, torch.Tensor) or found.dim() or found.is_complex() or found.is_meta:
            raise InputError(
                f"loss_fn gave {_said(found)}; a real scalar tensor is needed, the mean over the microbatch. What else is "
                "wanted of a batch, let loss_fn put aside, detached"
            )
        if not found.requires_grad:
            raise InputError(
                "loss_fn gave a tensor without a gradient, and a step would train nothing: it does not depend on the model's "
                "output (detach(), argmax, item()), or nothing in the model requires a gradient"
            )
        made = between(found, flat)
        self._see_what_is_reached(made)
        if asks:
            self._see_what_it_is(Part(kept, self.batches(place), self.batches.targets[place], made.reached), found)
        part = found / self.batches.count if self.weights is None else weighted(found, self.weights[place])
        return part if self.scaler is None else self.scaler.scale(part)
