"""Models that are put together and taken apart between calls: containers, parametrizations, checkpoints, ops of the user's."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import swa_utils
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .program import Run, Steps, Towers, Two, program, rand


def constant(value: float) -> nn.Linear:
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, value / 4)
    nn.init.zeros_(layer.bias)
    return layer


class Held(Two):
    """Parts and parameters in containers of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.gains = nn.ParameterDict({"g": nn.Parameter(torch.ones(4)), "number": 3.0})
        self.shifts = nn.ParameterList([nn.Parameter(torch.ones(4))])

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        for name, head in self.heads.items():
            y = y + head(x) * len(name)
        for gain in self.gains.values():
            y = y * gain
        for shift in self.shifts:
            y = y + shift
        return y + self.right(x)


@program(Held, slow=True)
def containers_edited(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True))
    module.heads["bb"], module.gains["number"] = constant(2), 4.0
    yield run.learn(rand(grad=True))
    module.gains["z"] = nn.Parameter(torch.full((4,), 2.0))
    module.shifts.append(nn.Parameter(torch.full((4,), 3.0)))
    yield run.learn(rand(grad=True))
    module.heads.pop("a")
    module.shifts[0] = nn.Parameter(torch.zeros(4))
    yield run.learn(rand(grad=True)), list(module.state_dict())
    module.heads.clear()
    module.gains.clear()
    yield run.learn(rand(grad=True))


@program(lambda: nn.Sequential(constant(1), nn.ReLU(), constant(2)), slow=True)
def sequence_edited(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True))
    module.insert(1, nn.Tanh())
    module.append(constant(0.3))
    yield run.learn(rand(grad=True))
    del module[0]
    module[-1], module[0] = module[0], module[-1]
    yield run.learn(rand(grad=True)), list(module.state_dict())


class Symmetric(nn.Module):
    scale = 1.0

    def forward(self, weight: Tensor) -> Tensor:
        return (weight.triu() + weight.triu(1).T) * self.scale

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight.triu()


def parametrized() -> nn.Module:
    model = Towers()
    parametrize.register_parametrization(model.left, "weight", Symmetric())
    parametrizations.spectral_norm(model.right)
    parametrizations.weight_norm(model.head)
    return model


@program(parametrized, slow=True, timeout=120)
def parametrizations_edited(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True)), run.learn(rand(grad=True))
    module.left.parametrizations.weight[0].scale = 2.0
    yield run.learn(rand(grad=True))
    with parametrize.cached():
        yield run(rand()), run(rand())
    with torch.no_grad():
        module.left.weight = torch.eye(4)
    parametrize.remove_parametrizations(module.right, "weight")
    yield run.learn(rand(grad=True)), list(module.state_dict())
    parametrizations.orthogonal(module.right)
    yield run.learn(rand(grad=True))


@program(Towers, slow=True)
def pruned_and_grown_again(run: Run) -> Steps:
    module = run.module
    prune.l1_unstructured(module.left, "weight", 0.5)
    prune.random_structured(module.right, "weight", 0.25, dim=0)
    yield run.learn(rand(grad=True))
    prune.global_unstructured([(module.left, "weight"), (module.head, "weight")], prune.L1Unstructured, amount=0.3)
    yield run.learn(rand(grad=True))
    prune.remove(module.left, "weight")
    yield run.learn(rand(grad=True)), list(module.state_dict())


@program(Towers, slow=True)
def lazy_part_added_later(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    torch.manual_seed(2)
    run.module.left = nn.LazyLinear(4)
    yield run.learn(rand(grad=True)), type(run.module.left).__name__
    yield run.learn(rand(grad=True))


class Checkpointed(Two):
    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"use_reentrant": False}

    def part(self, x: Tensor, scale: float) -> Tensor:
        dropped = nn.functional.dropout(self.right(x), 0.5, self.training)
        return torch.relu(self.left(x)) * scale + dropped

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x, 2.0, **self.options)


def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saved = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


@program(Checkpointed, slow=True)
def checkpoints_of_every_option(run: Run) -> Steps:
    for options in (
        {"use_reentrant": True},
        {"use_reentrant": False, "determinism_check": "none"},
        {"use_reentrant": False, "early_stop": False},
        {"use_reentrant": False, "context_fn": functools.partial(create_selective_checkpoint_contexts, policy)},
    ):
        run.module.options = options
        yield run.learn(rand(grad=True))


@program(Towers, slow=True)
def optimizers_in_the_backward(run: Run) -> Steps:
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1, momentum=0.9) for weight in run.module.parameters()}

    def step(weight: Tensor) -> None:
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    handles = [weight.register_post_accumulate_grad_hook(step) for weight in optimizers]
    for _ in range(3):
        yield run.learn(rand(grad=True))
    for handle in handles:
        handle.remove()
    yield run.learn(rand(grad=True))


@program(Towers, slow=True)
def averages_of_weights(run: Run) -> Steps:
    optimizer = torch.optim.SGD(run.module.parameters(), lr=0.1)
    average = swa_utils.AveragedModel(run.module, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5), use_buffers=True)
    for _ in range(3):
        yield run.learn(rand(grad=True))
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(run.module)
    yield average.eval()(rand()), list(average.state_dict())
    swa_utils.update_bn([rand(), rand(seed=5)], average.train())
    yield average(rand())


@program(Towers, slow=True)
def closures_of_an_optimizer(run: Run) -> Steps:
    optimizer = torch.optim.LBFGS(run.module.parameters(), lr=0.1, max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss: Tensor = run.module(rand()).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        yield optimizer.step(closure).detach()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.batch = nn.GroupNorm(2, 4), nn.BatchNorm1d(4, momentum=None)
        self.instance = nn.InstanceNorm1d(4, track_running_stats=True, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x[None].repeat(2, 1, 1).transpose(1, 2)
        return self.group(y) + self.instance(y) + self.batch(y)


@program(Normed, slow=True)
def norms_toggled(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True)), run.learn(rand(grad=True)), module.batch.num_batches_tracked
    module.instance.track_running_stats, module.batch.momentum = False, 0.5
    yield run.learn(rand(grad=True))
    module.batch.eval()
    yield run.learn(rand(grad=True))
    module.batch.track_running_stats = False
    module.group.num_groups = 4
    yield run.learn(rand(grad=True))
    module.batch.running_mean = module.batch.running_var = None
    yield run.learn(rand(grad=True))


@program(Towers, slow=True)
def backward_hooks_that_come_and_go(run: Run) -> Steps:
    module, seen = run.module, list[Any]()
    yield run.learn(rand(grad=True))
    handles = [
        module.left.register_full_backward_hook(lambda part, given, taken: seen.extend(taken)),
        module.register_full_backward_pre_hook(lambda part, taken: (taken[0] * 2,)),
    ]
    yield run.learn(rand(grad=True)), list(seen)
    handles.pop().remove()
    yield run.learn(rand()), list(seen)
    handles.pop().remove()
    yield run.learn(rand(grad=True)), len(seen)


@program(Towers, slow=True)
def scaled_and_clipped(run: Run) -> Steps:
    module, scaler = run.module, torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for seed in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(rand(seed=seed)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        yield nn.utils.clip_grad_norm_(module.parameters(), 0.1), loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
