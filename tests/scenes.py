"""What a script does with any model, for `test_crossed.py`: each scene yields what is to be compared with eager.

A scene is given `run`, the module in its two forms, and ``inputs(rows, seed)``. It leaves the model as it likes, for another
scene may follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hostile.program import Run, Steps, raised
from hostile.running import backward
from ingredients import Inputs
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Scene = Callable[[Run, Inputs], Steps]

SCENES: dict[str, Scene] = {}


def scene(play: Scene) -> Scene:
    """Registers the decorated scene."""
    SCENES[play.__name__] = play
    return play


def call(run: Run, args: tuple[Any, ...]) -> object:
    """What the module gives for the arguments, or what it raises."""
    return raised(lambda: run(*args))


def wanting(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, those of floating point as leaves that want gradients."""
    return pytree.tree_map(lambda leaf: leaf.clone().requires_grad_() if real(leaf) else leaf, args)


def real(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def tensors(value: object) -> list[Tensor]:
    """Those of a result through which gradients go."""
    return [leaf for leaf in pytree.tree_leaves(value) if real(leaf) and leaf.requires_grad]


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def learns(run: Run, args: tuple[Any, ...]) -> object:
    """A call and its backward: the result, or what is raised, with gradients of arguments and parameters."""
    leaves = wanting(args)
    result = raised(lambda: run(*leaves))
    failed = raised(lambda: backward(result))
    return result, failed, [leaf.grad for leaf in pytree.tree_leaves(leaves) if real(leaf)], gradients(run.module)


# -- calls ---------------------------------------------------------------------------------------------------------------


@scene
def again(run: Run, inputs: Inputs) -> Steps:
    for seed in (1, 2, 1):
        yield call(run, inputs(3, seed))


@scene
def other_rows(run: Run, inputs: Inputs) -> Steps:
    for rows in (5, 1, 0, 2):
        yield call(run, inputs(rows, rows))


@scene
def trains_and_evaluates(run: Run, inputs: Inputs) -> Steps:
    for mode in (True, False, True):
        run.module.train(mode)
        yield learns(run, inputs(3, 4))
    run.module.train(run.training)


@scene
def part_in_eval(run: Run, inputs: Inputs) -> Steps:
    for number, part in enumerate(run.module.modules()):
        part.training = number % 2 == 0
    yield learns(run, inputs(3, 5))
    run.module.train(run.training)


@scene
def without_gradients(run: Run, inputs: Inputs) -> Steps:
    with torch.no_grad():
        yield call(run, wanting(inputs(3, 1)))
    yield learns(run, inputs(3, 1))


@scene
def inference(run: Run, inputs: Inputs) -> Steps:
    with torch.inference_mode():
        yield call(run, inputs(3, 2))
    yield call(run, inputs(3, 2))


@scene
def autocast(run: Run, inputs: Inputs) -> Steps:
    with torch.autocast("cpu", torch.bfloat16):
        yield call(run, inputs(3, 3))
        with torch.no_grad():
            yield call(run, inputs(3, 3))
    yield call(run, inputs(3, 3))


@scene
def seeded(run: Run, inputs: Inputs) -> Steps:
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        yield call(run, inputs(3, 1)), torch.rand(1)


@scene
def wrong_shape(run: Run, inputs: Inputs) -> Steps:
    right = inputs(3, 1)
    wrong = tuple(leaf[..., :-1] if real(leaf) and leaf.dim() > 1 else leaf for leaf in right)
    yield call(run, right), type(call(run, wrong)), call(run, right), type(call(run, wrong[:-1])), call(run, right)


@scene
def strides(run: Run, inputs: Inputs) -> Steps:
    args = inputs(4, 1)
    for other in (transposed, stepped, expanded):
        yield call(run, pytree.tree_map(lambda leaf, other=other: other(leaf) if isinstance(leaf, Tensor) else leaf, args))


def transposed(leaf: Tensor) -> Tensor:
    return leaf.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)


def stepped(leaf: Tensor) -> Tensor:
    return torch.stack([leaf, leaf], -1)[..., 0]


def expanded(leaf: Tensor) -> Tensor:
    return leaf[:1].expand(leaf.shape) if leaf.dim() else leaf


@scene
def views_of_one(run: Run, inputs: Inputs) -> Steps:
    """Arguments that are views of one tensor, and a leaf's."""
    args = inputs(6, 1)
    yield [call(run, tuple(leaf[first : first + 3] for leaf in args)) for first in (0, 2)], args
    leaves = wanting(args)
    result = call(run, tuple(leaf[1:4] for leaf in leaves))
    yield raised(lambda: backward(result)), [leaf.grad for leaf in leaves if real(leaf)]


@scene
def result_is_fed_back(run: Run, inputs: Inputs) -> Steps:
    args = inputs(3, 1)
    for _ in range(3):
        result = call(run, args)
        yield result
        fitting = [leaf for leaf in pytree.tree_leaves(result) if real(leaf) and real(args[0]) and leaf.shape == args[0].shape]
        args = (*fitting[:1], *args[len(fitting[:1]) :])


@scene
def results_are_written(run: Run, inputs: Inputs) -> Steps:
    args = inputs(3, 1)
    first = call(run, args)
    yield [raised(lambda leaf=leaf: leaf.mul_(2)) for leaf in pytree.tree_leaves(first) if real(leaf)]
    yield args, call(run, args), learns(run, args)
    with torch.no_grad():
        second = call(run, args)
        for leaf in pytree.tree_leaves(second):
            if real(leaf):
                raised(lambda leaf=leaf: leaf.zero_())
    yield args, call(run, args)


# -- gradients -----------------------------------------------------------------------------------------------------------


@scene
def backward_twice(run: Run, inputs: Inputs) -> Steps:
    leaves = wanting(inputs(3, 1))
    found = tensors(call(run, leaves))
    for keep in (True, False, False):
        total = sum((leaf.sum() for leaf in found), torch.zeros(()))
        yield type(raised(partial(total.backward, retain_graph=keep)))
        yield gradients(run.module), [leaf.grad for leaf in leaves if real(leaf)]
    run.module.zero_grad()


@scene
def gradient_of_gradient(run: Run, inputs: Inputs) -> Steps:
    leaves = wanting(inputs(3, 1))
    found, wanted = tensors(call(run, leaves)), [leaf for leaf in pytree.tree_leaves(leaves) if real(leaf)]
    if found and wanted:
        total = sum(((leaf * leaf).sum() for leaf in found), torch.zeros(()))
        first = raised(lambda: torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True))
        yield first
        second = sum(((leaf * leaf).sum() for leaf in tensors(first)), torch.zeros(()))
        yield raised(second.backward), gradients(run.module)
    run.module.zero_grad()


@scene
def two_calls_one_backward(run: Run, inputs: Inputs) -> Steps:
    found = [tensors(call(run, inputs(3, seed))) for seed in (1, 2)]
    total = sum((leaf.square().sum() for leaves in found for leaf in leaves), torch.zeros(()))
    yield raised(total.backward), gradients(run.module)
    run.module.zero_grad(set_to_none=False)
    yield learns(run, inputs(3, 3))


@scene
def optimizer(run: Run, inputs: Inputs) -> Steps:
    parameters = [parameter for parameter in run.module.parameters() if parameter.requires_grad]
    if parameters:
        steps = torch.optim.AdamW(parameters, lr=0.01)
        for seed in (1, 2):
            steps.zero_grad(set_to_none=seed == 1)
            yield learns(run, inputs(3, seed))
            steps.step()
        steps.zero_grad()
    yield call(run, inputs(3, 1))
