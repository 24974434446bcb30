"""Other methods of the model: those that call it or its parts, are called by forward, or are what Python calls by itself."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, rand


class Trainable(Towers):
    def training_step(self, x: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(self(x), target)
        if self.training:
            loss.backward()
        return loss.detach()

    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.left(x)) + self.right(x)

    def predict(self, x: Tensor) -> Tensor:
        was = self.training
        self.eval()
        with torch.no_grad():
            result = self(x).argmax(1)
        self.train(was)
        return result

    @torch.no_grad()
    def generate(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            x = torch.cat([x, self.forward(x[-2:]).mean(0).repeat(2).unsqueeze(0)])
        return x

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @classmethod
    def made(cls) -> nn.Module:
        return cls()

    @staticmethod
    def twice(x: Tensor) -> Tensor:
        return x * 2


@program(Trainable)
def step_of_a_trainer(run: Run) -> Steps:
    optimizer = torch.optim.SGD(run.module.parameters(), lr=0.1)
    for seed in range(3):
        optimizer.zero_grad()
        yield run.module.training_step(rand(seed=seed), torch.ones(3, 2))
        optimizer.step()


@program(Trainable)
def parts_called_by_a_method(run: Run) -> Steps:
    yield run.module.encode(rand())
    yield run(rand())
    yield run.module.encode(rand(2, 4))


@program(Trainable)
def mode_flipped_by_a_method(run: Run) -> Steps:
    yield run.module.predict(rand()), run.module.training
    yield run.learn(rand())


@program(Trainable)
def forward_called_in_a_loop_of_a_method(run: Run) -> Steps:
    run.module.eval()
    yield run.module.generate(rand(), 4)


@program(Trainable)
def other_kinds_of_methods(run: Run) -> Steps:
    yield run.module.size, run.module.twice(rand()), type(run.module.made()).__name__


@program(Trainable)
def bound_methods_kept_from_before(run: Run) -> Steps:
    encode, forward = run.module.encode, run.module.forward
    yield encode(rand()), forward(rand())
    run.module.left.bias.data.fill_(2)
    yield encode(rand()), forward(rand()), functools.partial(run.module, rand())()


def _other_forward(self: nn.Module, x: Tensor) -> Tensor:
    return self.left(x) - self.right(x)


@program(Towers)
def forward_replaced(run: Run) -> Steps:
    yield run(rand())
    inner = run.module.left
    inner.forward = functools.partial(nn.functional.linear, weight=inner.weight)
    yield run(rand())
    inner.forward = lambda x: x * 2
    yield run(rand())
    del inner.forward
    yield run(rand())


def _with_bound_forward() -> nn.Module:
    model = Two()
    model.forward = _other_forward.__get__(model)
    return model


@program(_with_bound_forward)
def forward_bound_to_the_instance(run: Run) -> Steps:
    yield run.learn(rand())


def _with_partial_forward() -> nn.Module:
    model = Two()
    model.forward = functools.partial(_other_forward, model)
    return model


@program(_with_partial_forward)
def forward_is_a_partial(run: Run) -> Steps:
    yield run.learn(rand())


def doubled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs) * 2

    return inner


class DecoratedTwice(Two):
    @doubled
    @doubled
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.left(x) * scale + self.right(x)


@program(DecoratedTwice)
def forward_decorated(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), scale=2.0), str(inspect.signature(run.module.forward))


class Static(Two):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin() + x.cos()


@program(Static)
def forward_is_static(run: Run) -> Steps:
    yield run(rand())


@program(Towers)
def copied(run: Run) -> Steps:
    yield run.learn(rand())
    twin = copy.deepcopy(run.module)
    with torch.no_grad():
        twin.left.weight.fill_(1)
    yield twin(rand()), run(rand())
    yield twin.state_dict()


@program(Towers)
def copied_without_its_parts(run: Run) -> Steps:
    shallow = copy.copy(run.module)
    yield run(rand())
    shallow.left.bias.data.fill_(2)
    yield shallow(rand()), run(rand())


@program(Towers, refused=True)
def pickled(run: Run) -> Steps:
    """A partitioned module says no; eager can be pickled. Its state can be, either way."""
    yield pickle.loads(pickle.dumps(dict(run.module.state_dict())))
    yield pickle.loads(pickle.dumps(run.module))(rand())


@program(Towers)
def applied_and_listed(run: Run) -> Steps:
    names: list[str] = []
    run.module.apply(lambda part: names.append(type(part).__name__))
    yield names[:-1], [name for name, _ in run.module.named_modules()], [name for name, _ in run.module.named_children()]
    yield run.module.get_submodule("left").in_features, run.module.get_parameter("left.bias"), list(run.module._modules)
    yield isinstance(run.module, nn.Module), "left" in dir(run.module), len(list(run.module.parameters()))
