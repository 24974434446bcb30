"""The module's parts: replaced, added, taken away, called twice, shared; very deep, very wide, very many."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from partitioner import partition

from .program import Run, Steps, Towers, Two, program, raised, rand, two


def filled(layer: nn.Module, number: float) -> nn.Module:
    """The layer, with all its weights set."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(number)
    return layer


@program(Two)
def part_replaced(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.left = filled(nn.Linear(4, 4), 0.5)
    yield run.learn(rand())
    run.module.left = nn.Sequential(filled(nn.Linear(4, 4), 0.25), nn.Tanh())
    yield run.learn(rand()), list(run.module.state_dict())
    run.module.left = nn.Identity()
    yield run.learn(rand())


@program(Two)
def part_replaced_by_another_class_of_equal_parts(run: Run) -> Steps:
    class Negative(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return -super().forward(x)

    yield run.learn(rand())
    run.module.left.__class__ = Negative
    yield run.learn(rand())
    run.module.left.__class__ = nn.Linear
    yield run.learn(rand())


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
        self.weights = nn.ParameterList(torch.ones(4) * n for n in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return sum(part(x) for part in self.named.values()) + sum(self.weights)


@program(Listed)
def lists_of_parts_changed(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.layers.append(filled(nn.Linear(4, 4), 0.5))
    yield run.learn(rand())
    del run.module.layers[0]
    yield run.learn(rand())
    run.module.named["c"] = nn.Sigmoid()
    run.module.named.pop("a")
    yield run.learn(rand())
    run.module.weights.append(torch.full((4,), 5.0))
    yield run.learn(rand()), list(run.module.state_dict())


@program(two(lambda self, x: sum(part(x) for part in self.children())))
def part_added_that_forward_finds(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.add_module("third", filled(nn.Linear(4, 4), 0.5))
    yield run.learn(rand())
    del run.module.left
    yield run.learn(rand())


@program(two(lambda self, x: sum(p.sum() for p in self.parameters()) * self.left(x) + len(self.state_dict())))
def parameters_that_forward_lists(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.extra = nn.Parameter(torch.ones(2))
    yield run.learn(rand())
    run.module.register_buffer("more", torch.ones(1))
    yield run.learn(rand())


@program(two(lambda self, x: x @ self.state_dict()["left.weight"].T + x @ dict(self.named_parameters())["right.weight"].T))
def weights_reached_by_name(run: Run) -> Steps:
    yield run.learn(rand())
    with torch.no_grad():
        run.module.left.weight.fill_(2)
    yield run.learn(rand())
    run.module.right.weight = nn.Parameter(torch.ones(4, 4))
    yield run.learn(rand())


@program(two(lambda self, x: self.left(torch.relu(self.left(x))) + self.right(self.left(x))))
def part_called_several_times(run: Run) -> Steps:
    yield run.learn(rand())


@program(Towers)
def only_a_part_in_another_mode(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.drop.train(not run.training)
    yield run.learn(rand())
    run.module.norm.train(not run.training)
    yield run.learn(rand())
    run.module.train(run.training)
    yield run.learn(rand())


@program(Towers)
def modes_flipped(run: Run) -> Steps:
    for mode in (True, False, True, False):
        run.module.train(mode)
        yield run.learn(rand())
        yield [part.training for part in run.module.modules()]


@program(two(lambda self, x: self.left(x) if self.training else self.right(x)))
def branch_on_the_mode(run: Run) -> Steps:
    for mode in (True, False, True):
        run.module.train(mode)
        yield run.learn(rand())
    run.module.training = 1
    yield run(rand())


@program(Two, slow=True)
def thirty_modules_of_one_class(run: Run) -> Steps:
    """Each has programs of its own: none takes another's, and none goes without."""
    modules = [run.module]
    for number in range(30):
        module = filled(Two(), number / 30).train(run.training)
        modules.append(partition(module, ["cpu:0", "cpu:1"], example_inputs=(rand(),), grain=0) if number % 3 == 0 else module)
    yield [module(rand()) for module in modules]
    yield run.learn(rand())


@program(Two)
def two_copies_that_part(run: Run) -> Steps:
    yield run(rand())
    twins = [copy.deepcopy(run.module) for _ in range(3)]
    for number, twin in enumerate(twins):
        filled(twin.left, number)
        twin.right = nn.Identity() if number == 1 else twin.right
    yield [twin(rand()) for twin in twins], run(rand())
    del run.module.left
    yield twins[0](rand()), raised(lambda: run(rand()))


@program(lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), nn.Softmax(-1)))
def sequential(run: Run) -> Steps:
    yield run.learn(rand())
    run.module[1][1] = filled(nn.Linear(4, 3), 0.5)
    yield run.learn(rand()), len(run.module), type(run.module[0]).__name__
    run.module.append(nn.Tanh())
    yield run.learn(rand())
    yield [type(part).__name__ for part in run.module]


class Abstract(nn.Module):
    """Has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)


@program(Abstract, refused=True)
def no_forward(run: Run) -> Steps:
    yield run(rand())


@program(Towers)
def buffers_that_come_and_go(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.register_buffer("late", torch.ones(4))
    run.module.register_parameter("none", None)
    run.module.norm.register_buffer("running_mean", torch.ones(4))
    yield run.learn(rand()), list(run.module.state_dict())
    run.module.norm.running_mean = None
    run.module.norm.running_var = None
    yield run.learn(rand())


@program(Two)
def parametrized_later(run: Run) -> Steps:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * 2

    yield run.learn(rand())
    nn.utils.parametrize.register_parametrization(run.module.left, "weight", Double())
    yield run.learn(rand()), list(run.module.state_dict())
    with nn.utils.parametrize.cached():
        yield run.learn(rand())
    nn.utils.parametrize.remove_parametrizations(run.module.left, "weight")
    yield run.learn(rand())


@program(Two)
def pruned(run: Run) -> Steps:
    yield run.learn(rand())
    prune.l1_unstructured(run.module.left, "weight", amount=0.5)
    yield run.learn(rand()), list(run.module.state_dict())
    prune.remove(run.module.left, "weight")
    yield run.learn(rand())
