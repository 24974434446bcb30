"""More of `scenes`: what a script changes in a model between two calls, and where it calls it from."""

from __future__ import annotations

import copy
import functools
import io
import os
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import torch
from hostile.program import Run, Steps, raised
from ingredients import Inputs
from scenes import call, learns, real, scene
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def floating(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.is_floating_point()]


def leaf_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers, by name, without those that a parametrization owns."""
    return [
        (name, part)
        for name, part in module.named_modules()
        if name and not list(part.children()) and "parametrizations" not in name
    ]


# -- state -----------------------------------------------------------------------------------------------------------------


@scene
def loads(run: Run, inputs: Inputs) -> Steps:
    """Plain, assigned, in part, through a file."""
    yield call(run, inputs(3, 1))
    state = {name: value.clone() for name, value in run.module.state_dict().items()}
    changed = {name: value * 0.5 if real(value) else value for name, value in state.items()}
    yield str(raised(lambda: run.module.load_state_dict(changed))), call(run, inputs(3, 1))
    part = dict(list(state.items())[::2])
    yield str(raised(lambda: run.module.load_state_dict(part, strict=False))), call(run, inputs(3, 1))
    yield str(raised(lambda: run.module.load_state_dict(changed, assign=True))), learns(run, inputs(3, 1))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    yield str(raised(lambda: run.module.load_state_dict(torch.load(file)))), call(run, inputs(3, 1))


@scene
def copies(run: Run, inputs: Inputs) -> Steps:
    call(run, inputs(3, 1))
    other = raised(lambda: copy.deepcopy(run.module))
    yield isinstance(other, nn.Module)
    if isinstance(other, nn.Module):
        yield raised(lambda: other(*inputs(3, 2)))
        with torch.no_grad():
            for parameter in floating(run.module):
                parameter.add_(0.1)
        yield call(run, inputs(3, 2)), raised(lambda: other(*inputs(3, 2))), list(other.state_dict())


@scene
def other_precision(run: Run, inputs: Inputs) -> Steps:
    run.module.zero_grad()
    run.module.double()
    yield learns(run, doubled(inputs(3, 1)))
    run.module.zero_grad()
    run.module.float()
    yield learns(run, inputs(3, 1))


def doubled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return pytree.tree_map(lambda leaf: leaf.double() if real(leaf) else leaf, args)


@scene
def half_frozen(run: Run, inputs: Inputs) -> Steps:
    for parameter in floating(run.module)[::2]:
        raised(lambda parameter=parameter: parameter.requires_grad_(False))
    yield learns(run, inputs(3, 1))
    for parameter in floating(run.module)[::2]:
        parameter.requires_grad_(True)
    run.module.zero_grad()
    yield learns(run, inputs(3, 1))
    run.module.requires_grad_(False)
    yield learns(run, inputs(3, 1))
    run.module.requires_grad_(True)


@scene
def zeroed(run: Run, inputs: Inputs) -> Steps:
    yield call(run, inputs(3, 1))
    with torch.no_grad():
        for parameter in floating(run.module)[:2]:
            parameter.zero_()
    yield call(run, inputs(3, 1))
    for parameter in floating(run.module)[-1:]:
        parameter.data = torch.ones_like(parameter)
    yield call(run, inputs(3, 1))


@scene
def ties(run: Run, inputs: Inputs) -> Steps:
    """The first layer's weight becomes that of another one of its shape."""
    yield call(run, inputs(3, 1))
    owners = [part for _, part in leaf_modules(run.module) if isinstance(part._parameters.get("weight"), Tensor)]
    for other in owners[1:]:
        if other.weight.shape == owners[0].weight.shape and other.weight is not owners[0].weight:
            other.weight = owners[0].weight
            break
    yield learns(run, inputs(3, 1)), [name for name, _ in run.module.named_parameters()]
    run.module.zero_grad()


# -- structure -------------------------------------------------------------------------------------------------------------


class Doubled(nn.Module):
    """Stands where a layer stood."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.tensor(2.0))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = self.inner(*args, **kwargs)
        return result * self.scale if isinstance(result, Tensor) else result


@scene
def replaced(run: Run, inputs: Inputs) -> Steps:
    yield call(run, inputs(3, 1))
    for name, part in leaf_modules(run.module)[:1]:
        run.module.set_submodule(name, Doubled(part))
    yield learns(run, inputs(3, 1)), list(run.module.state_dict())


@scene
def hooked(run: Run, inputs: Inputs) -> Steps:
    seen: list[object] = []
    yield call(run, inputs(3, 1))
    handles = [part.register_forward_hook(lambda *_: seen.append("called")) for _, part in leaf_modules(run.module)[:2]]
    yield call(run, inputs(3, 1)), list(seen)
    handles[0].remove()
    scaled = run.module.register_forward_hook(lambda _, args, result: result * 2 if isinstance(result, Tensor) else None)
    first = run.module.register_forward_pre_hook(lambda _, args: tuple(a * 0.5 if real(a) else a for a in args))
    yield learns(run, inputs(3, 1)), list(seen)
    scaled.remove(), first.remove(), [handle.remove() for handle in handles]
    yield call(run, inputs(3, 1)), list(seen)


@scene
def hooked_gradients(run: Run, inputs: Inputs) -> Steps:
    """What hooks of parameters saw, by parameter: their order among each other is the graph's."""
    seen: dict[object, Tensor] = {}
    handles = []
    for name, one in run.module.named_parameters():
        if one.is_floating_point() and one.requires_grad:
            handles.append(one.register_hook(lambda gradient, key=name: seen.update({key: whole(gradient)})))
            after = lambda one, key=(name, "after"): seen.update({key: whole(one.grad)})  # noqa: E731
            handles.append(one.register_post_accumulate_grad_hook(after))
    yield learns(run, inputs(3, 1)), {str(key): seen[key] for key in sorted(seen, key=str)}
    for handle in handles:
        handle.remove()
    run.module.zero_grad()


def whole(gradient: Tensor) -> Tensor:
    return gradient.detach().to_dense() if gradient.is_sparse else gradient.detach().clone()


NUMBERS = ("p", "eps", "scale", "keep", "momentum", "negative_slope", "dropout")


@scene
def other_numbers(run: Run, inputs: Inputs) -> Steps:
    """Options of layers, and plain numbers of any module, become others."""
    yield call(run, inputs(3, 1))
    for part in run.module.modules():
        for name in NUMBERS:
            if isinstance(part.__dict__.get(name), float):
                setattr(part, name, part.__dict__[name] * 0.5)
    yield learns(run, inputs(3, 1))
    run.module.zero_grad()


def negative(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return pytree.tree_map(lambda leaf: -leaf if real(leaf) else leaf, plain(*args, **kwargs))


@scene
def patched_forward(run: Run, inputs: Inputs) -> Steps:
    yield call(run, inputs(3, 1))
    for _, part in leaf_modules(run.module)[:1]:
        part.forward = functools.partial(negative, part.forward)
        yield call(run, inputs(3, 1))
        del part.forward
    yield call(run, inputs(3, 1))


@scene
def dressed(run: Run, inputs: Inputs) -> Steps:
    """A norm for a weight, after the first call."""
    yield call(run, inputs(3, 1))
    for _, part in leaf_modules(run.module):
        if type(part) is nn.Linear:
            raised(lambda part=part: nn.utils.parametrizations.weight_norm(part))
            break
    yield learns(run, inputs(3, 1)), list(run.module.state_dict())


# -- where calls come from -------------------------------------------------------------------------------------------------


@scene
def threads(run: Run, inputs: Inputs) -> Steps:
    """Two threads in turns, then without order where nothing is drawn or written."""
    results: list[object] = []
    for seed in (1, 2):
        thread = threading.Thread(target=lambda seed=seed: results.append(raised(lambda: run.module(*inputs(3, seed)))))
        thread.start()
        thread.join(50)
    yield results


@scene
def fork(run: Run, inputs: Inputs) -> Steps:
    yield call(run, inputs(3, 1))
    yield from_child(lambda: described(call(run, inputs(3, 1)))), from_child(lambda: described(call(run, inputs(2, 1))))


def described(value: object) -> list[float]:
    found = [leaf.detach() for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return [round(float(torch.view_as_real(leaf).sum() if leaf.is_complex() else leaf.double().sum()), 3) for leaf in found]


def from_child(compute: Callable[[], object]) -> object:
    """What a forked process computes."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writer, "wb") as end:
            random.seed(1)  # which a fork has done by the clock
            pickle.dump(raised(compute), end)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as end:
        told = end.read()
    os.waitpid(child, 0)
    return pickle.loads(told)


@scene
def under_transforms(run: Run, inputs: Inputs) -> Steps:
    """`functional_call` with other weights, and a gradient taken by `torch.func`."""
    state = {name: value * 0.5 for name, value in run.module.named_parameters() if value.is_floating_point()}
    yield raised(lambda: torch.func.functional_call(run.module, state, inputs(3, 1)))
    yield call(run, inputs(3, 1))


@scene
def default_dtype(run: Run, inputs: Inputs) -> Steps:
    torch.set_default_dtype(torch.float64)
    try:
        run.module.double()
        yield call(run, doubled(inputs(3, 1)))
    finally:
        torch.set_default_dtype(torch.float32)
        run.module.float()
    yield call(run, inputs(3, 1))
