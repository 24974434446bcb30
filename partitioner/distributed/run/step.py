"""One training step of all ranks: a batch in, the loss out, gradients where the parameters are.

    batch       16 rows, 4 microbatches     rows 0-3 | 4-7 | 8-11 | 12-15
    schedule    torch.distributed.pipelining's, forwards and backwards
    ties        gradients of what several stages hold are summed
    loss        the mean over microbatches and over the data axis, on every rank; or over what counts in them

Whatever is not as the stages were made for is refused before anything is sent: the engine itself would not notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from partitioner.distributed.batch.alike import (
    refuse_other_batches,
    refuse_other_losses,
    refuse_other_parameters,
    refuse_untrained,
)
from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.counts import refuse_other_mean
from partitioner.distributed.loss.loss import Loss
from partitioner.distributed.ranks import Ranks, all_go_on, refuse, told
from partitioner.distributed.run.norms import scale_gradients, total_norm
from partitioner.distributed.run.reached import differentiable_results, doubtful
from partitioner.distributed.run.stale import train_begins
from partitioner.distributed.run.ties import Tie, gradients_summed
from partitioner.distributed.tensor.shards import Shards
from partitioner.errors import InputError

UNCOPIED = (
    "what runs one rank's stages belongs to its job, and is neither copied nor pickled: copy.deepcopy(part) has this rank's "
    "values, and save(folder, part) on every rank writes all; parallelize makes another"
)

WATCHED_STEPS = frozenset((0, *(2**power for power in range(9))))
"""Steps before which ranks compare what they have alike: also later ones, for an optimizer may step behind several."""


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
        part: what this rank holds.
        stages: how many the model has.
        last: the place along the pipeline axis of the rank that has the last stage.
        first_here: whether this rank has the first stage.
        sharded: whether parameters are sharded along the data axis.
        apart: parameters that DDP or FSDP2 leave alone.
        shards: which part of each parameter this rank has, if there is a tensor axis.
        alike: by axis, the parameters that ranks along it have alike.
        steps: how many there were.

    Attributes:
        parameters: this rank's, by key.
        modes: each layer of the part, and whether it was in train mode when the stages were made, by its name.
        frozen: the keys of the parameters that were not trained then.
        dtype: in which losses and norms are told: double precision if the model has any.
        results: places of the model's results that have a gradient.
        doubtful: parameters that not every one of these reaches, and the bits of those that do.
    """

    ranks: Ranks
    schedule: Any
    batches: Batches
    loss: Loss
    ties: Sequence[Tie]
    part: nn.Module
    stages: int
    last: int
    first_here: bool
    sharded: bool
    apart: Set[nn.Parameter]
    shards: Shards | None = None
    alike: Mapping[str, Sequence[nn.Parameter]] = field(default_factory=dict)
    steps: int = 0
    parameters: Mapping[str, nn.Parameter] = field(init=False)
    modes: Mapping[str, tuple[nn.Module, bool]] = field(init=False)
    frozen: Set[str] = field(init=False)
    dtype: torch.dtype = field(init=False)
    results: Sequence[int] = field(init=False)
    doubtful: Mapping[nn.Parameter, int] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters, self.modes = dict(self.part.named_parameters()), _modes(self.part)
        if not self.sharded and self.stages == 1 and not self.ranks.wide("branch", "tensor"):
            self.loss.own = [*self.parameters.values()]
        double = any(each.dtype in (torch.float64, torch.complex128) for each in self.batches.model.parameters())
        self.dtype = torch.float64 if double else torch.float32
        example = self.batches.example
        self.results = [place for place, _ in differentiable_results(example)]
        self.doubtful = {} if self.loss.own else doubtful(self.part, example)  # of these, DDP itself knows
        self.frozen = {key for key, each in self.parameters.items() if not each.requires_grad}

    def __call__(self, batch: Any) -> torch.Tensor:
        """Forward and backward of one batch.

        Returns:
            The loss: a detached scalar, the same on every rank.

        Raises:
            InputError: the batch, or what is trained, is not what the stages were made for.
            RanksError: another rank failed or is lost; names it and its cause.
        """
        with told(self.ranks, "reading a batch"):
            self._refuse_changes()
            inputs, target = self.loss.divided(batch)
            self._refuse_trained((inputs, target))
            self.batches.fill(inputs, target)
            train_begins(self.batches.model, self.part)
        with told(self.ranks, "in a training step"):
            watched, self.steps = self.steps in WATCHED_STEPS, self.steps + 1
            if watched:
                refuse_other_batches(self.batches, self.ranks)
                refuse_other_parameters(self.alike, self.ranks)
                refuse_untrained(self.parameters.values(), self.ranks)
            self.loss.begin(self.ranks, watched=watched, last=self.ranks.pipeline == self.last)
            if self.shards is not None:
                self.shards.start_step()
            without = [each for each in self.doubtful if each.grad is None]
            with gradients_summed(self.ties, self.ranks, self.parameters, self.apart):
                losses = self._run()
            loss, reached = self._shared(losses)
            if watched:
                refuse_other_losses(loss, self.ranks)
            if self.loss.watched is not None:
                refuse_other_mean(self.loss.watched, self.ranks, self.last)
            bits = _bits(reached) if without else 0  # waits for the device, if it is one
            for each in without:
                if not self.doubtful[each] & bits:
                    each.grad = None
        all_go_on()
        return loss

    def __reduce__(self) -> NoReturn:
        refuse(UNCOPIED, "copying a step")

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> torch.Tensor:
        """Scale the gradients of the whole model so that their norm is at most ``max_norm``; called on every rank.

        `torch.nn.utils.clip_grad_norm_` sees what one rank holds, and would scale the parts of a model differently.

        Args:
            max_norm, norm_type, error_if_nonfinite, foreach: as of torch's.

        Returns:
            The norm before, on every rank.

        Raises:
            RuntimeError: it is inf or nan, and ``error_if_nonfinite``; on every rank, and no gradient is changed.
            InputError: ``norm_type`` is 0.

        Example:
            loss = step((x, target))
            norm = step.clip_grad_norm_(1.0)
        """
        with told(self.ranks, "clipping gradients"):
            parts = self.shards.forms if self.shards is not None else ()
            norm = total_norm(self.ranks, self.ties, self.parameters, float(norm_type), self.sharded, parts, self.dtype)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"the norm of order {norm_type} of the model's gradients is {norm.item()}, so they cannot be clipped: skip the "
                "step, or set error_if_nonfinite=False"
            )
        scale_gradients(self.parameters, float(max_norm), norm, foreach=foreach is not False)
        return norm

    def _refuse_changes(self) -> None:
        """Refuse a step that is none, or of a model that is used otherwise than when its stages were made.

        Raises:
            InputError: names what has changed.
        """
        if not torch.is_grad_enabled():
            raise InputError(
                "a step has a backward, and gradients are off here: call it outside of torch.no_grad(); for outputs alone, "
                "make an inference of the model beside it"
            )
        self._refuse_modes()
        learnt = [key for key in self.frozen if self.parameters[key].requires_grad]
        if learnt:
            raise InputError(
                "more is to be trained than when the stages were made, and other ranks know nothing of it:\n"
                f"  {min(learnt)} requires a gradient now. Parallelize the model again, with all in it that will be trained; "
                "what is not to be trained yet, freeze after that"
            )

    def _refuse_trained(self, batch: Any) -> None:
        """Refuse tensors that want a gradient where ranks would each have another part of it, or microbatches one graph; and
        those that no backward may keep."""
        apart = self.ranks.wide("pipeline", "branch", "tensor")
        for leaf in (leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)):
            if leaf.is_inference():
                raise InputError(
                    f"the batch has a tensor of shape {tuple(leaf.shape)} that was made under torch.inference_mode(), and a "
                    "backward may not keep it: give its clone(), or make it under torch.no_grad()"
                )
            if not leaf.requires_grad:
                continue
            if apart or (not leaf.is_leaf and self.batches.count > 1):
                why = f"ranks along the {apart[0]} axis" if apart else "microbatches"
                raise InputError(
                    f"the batch has a tensor of shape {tuple(leaf.shape)} that requires a gradient, and {why} would each "
                    "make a part of it: detach() it, or let what is trained of it be a parameter or a layer of the model"
                )

    def _refuse_modes(self) -> None:
        for name, (layer, mode) in self.modes.items():
            if layer.training == mode:
                continue
            now, then = ("train" if each else "eval" for each in (layer.training, mode))
            if not name:
                raise InputError(
                    f"the model is in {now} mode, and its stages were made in {then} mode: call model.{then}() before the next "
                    "step; to evaluate, make an inference of the model in eval mode beside the step"
                )
            raise InputError(
                f"{name} is in {now} mode, and the stages were made with it in {then} mode: call "
                f"part.get_submodule({name!r}).{then}() before the next step, or switch it before parallelize"
            )

    def _run(self) -> list[torch.Tensor]:
        numbers = torch.arange(self.batches.count)
        losses: list[torch.Tensor] = []
        self.loss.reached.clear()
        given = (numbers,) if self.first_here else ()
        wanted = {"target": numbers, "losses": losses} if self.ranks.pipeline == self.last else {}
        self.schedule.step(*given, number=numbers, return_outputs=False, **wanted)
        return losses

    def _shared(self, losses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss, which the rank of the last stage tells the others; and of each result, if there are several, whether
        any copy's was made of it."""
        mean = torch.stack([each.detach() for each in losses]).sum() if losses else torch.zeros((), device=self.ranks.device)
        mean = mean.to(self.dtype) if self.loss.scaler is None else mean.to(self.dtype) / self.loss.scaler.get_scale()
        several = len(self.results) > 1 and not self.loss.own
        if several:
            reached = [float(place in self.loss.reached) for place in self.results]
            mean = torch.cat((mean.view(1), torch.tensor(reached, dtype=mean.dtype, device=mean.device)))
        mesh, copies = self.ranks.mesh, self.ranks.sizes["data"]
        if self.ranks.sizes["pipeline"] > 1:
            dist.broadcast(mean, group=mesh.get_group("pipeline"), group_src=self.last)
        if copies > 1:
            dist.all_reduce(mean, group=mesh.get_group("data"))
            mean /= copies
        return (mean[0].clone(), mean[1:]) if several else (mean, torch.ones(1))


def _bits(reached: torch.Tensor) -> int:
    """The results that a loss was made of."""
    return sum(1 << place for place, each in enumerate(reached.tolist()) if each > 0)


def _modes(part: nn.Module) -> dict[str, tuple[nn.Module, bool]]:
    """The layers of a part, and whether each is in train mode."""
    return {name: (module, module.training) for name, module in part.named_modules()}
