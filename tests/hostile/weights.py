"""Weights between calls: stepped, loaded, swapped, tied, frozen, cast, averaged, written."""

from __future__ import annotations

import copy
import io

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .program import Run, Steps, Towers, Two, program, raised, rand, two


@program(Towers)
def optimizer_made_afterwards(run: Run) -> Steps:
    optimizer = torch.optim.AdamW(run.module.parameters(), lr=0.1)
    for seed in range(4):
        optimizer.zero_grad()
        yield run.learn(rand(seed=seed))
        optimizer.step()


class WithOptimizer(Towers):
    """Its optimizer was made first and holds the parameters that it found."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


@program(WithOptimizer)
def optimizer_made_before(run: Run) -> Steps:
    for seed in range(3):
        run.module.optimizer.zero_grad()
        yield run.learn(rand(seed=seed))
        run.module.optimizer.step()


@program(Towers)
def gradients_that_add_up(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed))
    run.module.zero_grad(set_to_none=False)
    yield run.learn(rand())


@program(Towers)
def state_loaded_between_calls(run: Run) -> Steps:
    state = {key: value.clone() * 2 for key, value in run.module.state_dict().items()}
    yield run.learn(rand())
    yield run.module.load_state_dict(state)
    yield run.learn(rand())
    yield run.module.load_state_dict({"left.weight": torch.ones(4, 4)}, strict=False)
    yield raised(lambda: run.module.load_state_dict({"left.weight": torch.ones(4, 4)}))
    yield run.learn(rand())


@program(Towers)
def state_assigned_between_calls(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.load_state_dict({key: value.clone() * 2 for key, value in run.module.state_dict().items()}, assign=True)
    yield run.learn(rand())


@program(Towers)
def state_saved_and_loaded(run: Run) -> Steps:
    file = io.BytesIO()
    torch.save(run.module.state_dict(), file)
    yield run.learn(rand())
    with torch.no_grad():
        for parameter in run.module.parameters():
            parameter.zero_()
    yield run(rand())
    file.seek(0)
    run.module.load_state_dict(torch.load(file))
    yield run.learn(rand())


@program(Two)
def weight_replaced(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.left.weight = nn.Parameter(torch.ones(4, 4))
    yield run.learn(rand())
    run.module.left.bias = None
    yield run.learn(rand())


@program(Two)
def weight_of_another_shape(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.left.weight = nn.Parameter(torch.ones(1, 4))
    run.module.left.bias = nn.Parameter(torch.ones(1))
    yield run.learn(rand())


@program(Two)
def weights_tied_later_and_untied(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.left.weight = run.module.right.weight
    yield run.learn(rand())
    run.module.left.weight = nn.Parameter(run.module.right.weight.detach().clone())
    yield run.learn(rand())


class Tied(Two):
    def __init__(self) -> None:
        super().__init__()
        self.left.weight = self.right.weight
        self.again = self.right

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x) + self.again(x)


@program(Tied)
def tied_weights(run: Run) -> Steps:
    optimizer = torch.optim.SGD(run.module.parameters(), lr=0.1)
    for seed in range(2):
        yield run.learn(rand(seed=seed))
        optimizer.step()
    yield run.module.left.weight is run.module.right.weight, run.module.again is run.module.right


class TiedByView(nn.Module):
    """Two parameters that share one storage and are no ties."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(8, 4)
        self.upper, self.lower = nn.Parameter(whole[:5]), nn.Parameter(whole[3:])
        self.register_buffer("all", whole)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.upper.T).sum(1) + (x @ self.lower.T).sum(1) + (x @ self.all.T).sum(1)


@program(TiedByView)
def parameters_in_one_storage(run: Run) -> Steps:
    yield run.learn(rand())
    with torch.no_grad():
        run.module.all.add_(1)
    yield run.learn(rand())


@program(Two)
def frozen_and_thawed(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.left.requires_grad_(False)
    run.module.zero_grad()
    yield run.learn(rand())
    run.module.requires_grad_(False)
    yield run(rand())
    run.module.requires_grad_(True)
    yield run.learn(rand())


@program(Towers)
def cast_between_calls(run: Run) -> Steps:
    yield run.learn(rand())
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        run.module.zero_grad()
        run.module.to(dtype)
        yield run.learn(rand(dtype=dtype))


@program(Two)
def only_a_part_cast(run: Run) -> Steps:
    yield run(rand())
    run.module.left.half()
    yield raised(lambda: run(rand()))
    run.module.left.float()
    yield run(rand())


@program(Two)
def weights_written_in_place(run: Run) -> Steps:
    yield run.learn(rand())
    with torch.no_grad():
        run.module.left.weight.mul_(2)
    yield run.learn(rand())
    run.module.right.weight.data = torch.ones(4, 4)
    yield run.learn(rand())
    run.module.right.weight.data.fill_(3)
    nn.init.orthogonal_(run.module.left.weight)
    yield run.learn(rand())


@program(Towers)
def moving_average_of_weights(run: Run) -> Steps:
    average = torch.optim.swa_utils.AveragedModel(copy.deepcopy(run.model))
    optimizer = torch.optim.SGD(run.module.parameters(), lr=0.1)
    for seed in range(2):
        optimizer.zero_grad()
        yield run.learn(rand(seed=seed))
        optimizer.step()
        average.update_parameters(run.module)
    yield dict(average.module.state_dict())
    run.module.load_state_dict(average.module.state_dict())
    yield run.learn(rand())


@program(Towers)
def weights_as_one_vector(run: Run) -> Steps:
    yield run(rand())
    vector_to_parameters(parameters_to_vector(run.module.parameters()) * 0.5, run.module.parameters())
    yield run.learn(rand())


@program(Towers)
def gradients_clipped_and_scaled(run: Run) -> Steps:
    yield run.learn(rand())
    yield nn.utils.clip_grad_norm_(run.module.parameters(), 0.5)


@program(Two)
def gradient_set_by_hand(run: Run) -> Steps:
    run.module.left.weight.grad = torch.ones(4, 4)
    run.module.right.bias.grad = run.module.left.bias.detach().clone()
    yield run.learn(rand())


@program(two(lambda self, x: self.left(x) + (self.right(x) if self.scale is None else self.scale), scale=None))
def weight_added_later(run: Run) -> Steps:
    yield run.learn(rand())
    del run.module.scale
    run.module.scale = nn.Parameter(torch.ones(4))
    yield run.learn(rand())
    del run.module.scale
    run.module.register_buffer("scale", torch.full((4,), 2.0))
    yield run.learn(rand())


@program(Towers)
def fused_optimizer_with_closure(run: Run) -> Steps:
    optimizer = torch.optim.LBFGS(run.module.parameters(), lr=0.1, max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = run(rand()).square().mean()
        loss.backward()
        return loss

    yield optimizer.step(closure) if run.training else closure()


class Table(Two):
    """Its table is a `Buffer`, which it moves to where it is called, as some models do: mostly that does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.other = nn.Buffer(torch.ones(4)), nn.Buffer(torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, bool]:
        self.table, self.other = self.table.to(dtype=x.dtype), self.other.to(x.dtype)
        return self.left(x) * self.table + self.right(x) * self.other, isinstance(self.table, nn.Buffer)


@program(Table)
def buffer_that_moves_nowhere(run: Run) -> Steps:
    """What an op gave back was known for a `Buffer`, but not whether it is saved. As one graph it was refused."""
    yield run.learn(rand(grad=True)), list(run.module.state_dict())
    yield run.module.double()(rand(dtype=torch.float64)), list(run.module.state_dict())
