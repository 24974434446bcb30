"""Training as users write it: accumulation, scalers, averages, penalties, freezing, saved runs, loaders that fork."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler, swa_utils
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from .program import Run, Steps, Towers, Two, program, rand


def batches(count: int, rows: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
    return ((rand(rows, 4, seed=seed), rand(rows, 2, seed=seed + 50)) for seed in range(count))


def step(module: Any, optimizer: Any, x: Tensor, y: Tensor, **options: bool) -> Tensor:
    optimizer.zero_grad(**options)
    loss = F.mse_loss(module(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def optimized(name: str, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Registers steps of an optimizer, saved and loaded in the midst."""

    def script(run: Run) -> Steps:
        optimizer = make(run.module.parameters())
        for x, y in batches(3):
            yield step(run.module, optimizer, x, y, set_to_none=False)
        other = make(run.module.parameters())
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        yield step(run.module, other, *next(batches(1, 5))), other.state_dict()

    script.__module__, script.__name__ = __name__, f"optimizer_{name}"
    program(Towers, slow=True)(script)


optimized("foreach", lambda weights: torch.optim.Adam(weights, 0.1, foreach=True, amsgrad=True))
optimized("fused", lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, nesterov=True, fused=True))
optimized(
    "with_groups", lambda weights: torch.optim.Adam([{"params": [w], "lr": 0.1 / (n + 1)} for n, w in enumerate(weights)])
)
optimized("of_tensors", lambda weights: torch.optim.Adam(weights, lr=torch.tensor(0.1), foreach=False))


@program(Towers, slow=True)
def accumulated_and_clipped(run: Run) -> Steps:
    optimizer = torch.optim.SGD(run.module.parameters(), 0.1)
    for number, (x, y) in enumerate(batches(6)):
        loss = F.mse_loss(run.module(x), y) / 3
        loss.backward()
        if number % 3 == 2:
            yield clip_grad_norm_(run.module.parameters(), 0.1), clip_grad_value_(run.module.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        yield loss


@program(Towers, slow=True)
def scaled_losses(run: Run) -> Steps:
    """One is infinite, so the scaler leaves a step out."""
    optimizer, scaler = torch.optim.SGD(run.module.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = run.module(rand()).float().sum() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(run.module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield loss, scaler.get_scale(), run.module.left.weight


@program(Towers, slow=True)
def average_of_the_module(run: Run) -> Steps:
    average, optimizer = swa_utils.AveragedModel(run.module), torch.optim.SGD(run.module.parameters(), 0.1)
    for x, y in batches(3):
        yield step(run.module, optimizer, x, y)
        average.update_parameters(run.module)
    swa_utils.update_bn([x for x, _ in batches(2)], average)
    yield average(rand()), list(average.state_dict())


@program(Two)
def penalty_in_a_loop(run: Run) -> Steps:
    optimizer = torch.optim.Adam(run.module.parameters(), 0.1)
    for seed in range(3):
        x = rand(3 + seed, 4, seed=seed, grad=True)
        y = run.module(x).sum(1)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        loss = y.mean() + ((slope.norm(2, 1) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss, slope


@program(Towers)
def two_losses_of_one_call(run: Run) -> Steps:
    result, weights = run.module(rand()), list(run.module.parameters())
    yield torch.autograd.grad(result[:, 0].sum(), weights, retain_graph=True)
    result.sum().backward(retain_graph=True)
    result.square().sum().backward()
    yield [weight.grad for weight in weights]


@program(Towers, slow=True)
def optimizers_in_hooks(run: Run) -> Steps:
    each = {weight: torch.optim.SGD([weight], 0.1) for weight in run.module.parameters()}

    def take(weight: Tensor) -> None:
        each[weight].step()
        each[weight].zero_grad()

    handles = [weight.register_post_accumulate_grad_hook(take) for weight in run.module.parameters()]
    for x, y in batches(2):
        F.mse_loss(run.module(x), y).backward()
        yield [weight.grad for weight in run.module.parameters()]
    handles[0].remove()
    F.mse_loss(run.module(rand()), rand(3, 2)).backward()
    yield run.module.left.weight.grad


class Rerun(Two):
    """Runs its block again in backward, if it is told to."""

    again: bool | None = None

    def block(self, x: Tensor) -> Tensor:
        return F.dropout(self.left(x).relu(), 0.3, self.training) + self.right(x)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.block(x) if self.again is None else checkpoint(self.block, x, use_reentrant=self.again)
        return x


@program(Rerun, slow=True)
def checkpoints_toggled(run: Run) -> Steps:
    for run.module.again in (None, False, None, True, False):
        yield run.learn(rand(grad=True))


@program(Towers, slow=True)
def frozen_midway(run: Run) -> Steps:
    optimizer = torch.optim.AdamW(run.module.parameters(), 0.1, weight_decay=0.1)
    for number, (x, y) in enumerate(batches(4)):
        run.module.left.requires_grad_(number != 1)
        run.module.norm.train(number < 2)
        yield step(run.module, optimizer, x, y), run.module.left.weight.grad is None


class Generates(nn.Module):
    """A generator and what judges it, trained in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.judged = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, noise: Tensor) -> Tensor:
        return self.judged(self.made(noise))

    def loss_of_judge(self, real: Tensor, noise: Tensor) -> Tensor:
        return F.softplus(-self.judged(real)).mean() + F.softplus(self.judged(self.made(noise).detach())).mean()


@program(Generates, slow=True)
def trained_in_turns(run: Run) -> Steps:
    module = run.module
    makes, judges = (torch.optim.Adam(part.parameters(), 0.1) for part in (module.made, module.judged))
    for seed in range(2):
        for part, other, optimizer in ((module.judged, module.made, judges), (module.made, module.judged, makes)):
            part.requires_grad_(True)
            other.requires_grad_(False)
            noise = rand(seed=seed)
            loss = module.loss_of_judge(rand(seed=9), noise) if part is module.judged else F.softplus(-module(noise)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss


@program(Towers, slow=True)
def saved_in_the_midst(run: Run) -> Steps:
    optimizer = torch.optim.Adam(run.module.parameters(), 0.1)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=8)
    parts = {"module": run.module, "optimizer": optimizer, "schedule": schedule}
    for x, y in batches(2):
        yield step(run.module, optimizer, x, y)
        schedule.step()
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"numbers": torch.get_rng_state()}, file)
    for _ in range(2):
        yield [step(run.module, optimizer, x, y) for x, y in batches(2)], schedule.get_last_lr()
        file.seek(0)
        loaded = torch.load(file)
        for name, part in parts.items():
            part.load_state_dict(loaded[name])
        torch.set_rng_state(loaded["numbers"])


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return rand(4, seed=index), rand(2, seed=index + 30)


@program(Towers, slow=True, timeout=120)
def loaded_by_workers(run: Run) -> Steps:
    """They are forked while lanes are there, and the last batch is smaller."""
    optimizer = torch.optim.SGD(run.module.parameters(), 0.1)
    for workers in (1, 0):
        for x, y in DataLoader(Rows(), batch_size=3, num_workers=workers):
            yield step(run.module, optimizer, x, y), len(x)
