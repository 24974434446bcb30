"""Hooks of all kinds, added and removed before and after: on the model, its parts, tensors, everywhere."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, rand, two


def _hooked_before(register: str, *hooks: Any) -> Any:
    """Builds a model with hooks that were there before it was partitioned, on itself and on a part."""

    def build() -> nn.Module:
        model = Towers()
        for part in (model, model.left):
            for hook in hooks:
                getattr(part, register)(hook)
        return model

    return build


def _double(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


def _shift(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] + 1,)


@program(_hooked_before("register_forward_hook", _double))
def forward_hooks_from_before(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    run.module.left._forward_hooks.clear()
    yield run.learn(rand(grad=True))


@program(_hooked_before("register_forward_pre_hook", _shift))
def pre_hooks_from_before(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    run.module._forward_pre_hooks.clear()
    yield run.learn(rand(grad=True))


@program(Towers)
def forward_hooks_that_come_and_go(run: Run) -> Steps:
    yield run.learn(rand())
    handles = [part.register_forward_hook(_double) for part in (run.module, run.module.left, run.module.norm)]
    yield run.learn(rand())
    handles[1].remove()
    yield run.learn(rand())
    for handle in handles:
        handle.remove()
    yield run.learn(rand())


@program(Towers)
def pre_hooks_that_come_and_go(run: Run) -> Steps:
    yield run.learn(rand())
    handles = [part.register_forward_pre_hook(_shift) for part in (run.module, run.module.left)]
    yield run.learn(rand())
    for handle in handles:
        handle.remove()
    yield run.learn(rand())


class WithOptions(Two):
    def __init__(self) -> None:
        super().__init__()
        self.inner = two(lambda self, x, *, scale=1.0: self.left(x) * scale + self.right(x))()

    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return self.inner(self.left(x), scale=scale)


def _with_kwargs(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**kwargs, "scale": 5.0}


@program(WithOptions)
def hooks_that_take_keywords(run: Run) -> Steps:
    seen: list[Any] = []
    yield run.learn(rand())
    run.module.inner.register_forward_pre_hook(_with_kwargs, with_kwargs=True)
    yield run.learn(rand())
    run.module.inner.register_forward_hook(lambda m, a, k, r: seen.append(k), with_kwargs=True)
    run.module.register_forward_pre_hook(_with_kwargs, with_kwargs=True)
    yield run.learn(rand(), scale=3.0), seen


@program(Towers)
def order_of_hooks(run: Run) -> Steps:
    seen: list[str] = []
    for name in ("left", "right", "norm", "head"):
        part = getattr(run.module, name)
        part.register_forward_pre_hook(lambda m, a, name=name: seen.append(f"before {name}"))
        part.register_forward_hook(lambda m, a, r, name=name: seen.append(f"after {name}"))
        part.register_forward_hook(lambda m, a, r, name=name: seen.append(f"first after {name}"), prepend=True)
    yield run(rand()), seen


@program(Towers)
def hooks_that_always_run(run: Run) -> Steps:
    seen: list[str] = []

    def fail(module: nn.Module, args: Any) -> None:
        raise OverflowError("in a hook")

    run.module.register_forward_hook(lambda m, a, r: seen.append("always"), always_call=True)
    yield run(rand()), list(seen)
    handle = run.module.left.register_forward_pre_hook(fail)
    try:
        run.module(rand())
    except OverflowError as error:
        yield error, list(seen)
    handle.remove()
    yield run(rand()), seen


@program(Towers)
def hooks_of_everything(run: Run) -> Steps:
    names: list[str] = []
    yield run(rand())
    forward = nn.modules.module.register_module_forward_hook(lambda m, a, r: names.append(type(m).__name__))
    before = nn.modules.module.register_module_forward_pre_hook(lambda m, a: None)
    try:
        yield run(rand()), [name for name in names if name not in ("Towers", "Parallel")]
    finally:
        forward.remove()
        before.remove()
    yield run(rand())


@program(Towers)
def hooks_of_everything_that_change_results(run: Run) -> Steps:
    yield run(rand())
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, r: r * 2 if isinstance(m, nn.Linear) else None)
    try:
        yield run(rand())
    finally:
        handle.remove()
    yield run(rand())


@program(Towers)
def hook_that_keeps_activations(run: Run) -> Steps:
    """How features are taken out of a model by those who did not write it."""
    kept: dict[str, Tensor] = {}
    for name, part in run.module.named_modules():
        if name:
            part.register_forward_hook(lambda m, a, r, name=name: kept.__setitem__(name, r))
    yield run(rand()), kept
    yield run(rand(seed=8)), kept


def _write(module: nn.Module, args: Any, result: Tensor) -> None:
    result.detach().mul_(2)


@program(Towers)
def hook_that_writes_its_result(run: Run) -> Steps:
    run.module.left.register_forward_hook(_write)
    with torch.no_grad():
        yield run(rand())
        run.module.norm.register_forward_hook(_write)
        yield run(rand())


@program(Towers)
def hook_on_a_part_that_is_replaced(run: Run) -> Steps:
    run.module.left.register_forward_hook(_double)
    yield run.learn(rand())
    run.module.left = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        run.module.left.weight.fill_(0.5)
    yield run.learn(rand())
    run.module.left.register_forward_hook(_double)
    yield run.learn(rand())


class Prefixed(Two):
    """Its state has other keys than its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self._register_state_dict_hook(self._rename)
        self.register_load_state_dict_pre_hook(self._restore)

    @staticmethod
    def _rename(module: nn.Module, state: dict[str, Any], prefix: str, meta: Any) -> None:
        for key in list(state):
            state["model." + key] = state.pop(key)

    @staticmethod
    def _restore(module: nn.Module, state: dict[str, Any], *rest: Any) -> None:
        for key in list(state):
            state[key.removeprefix("model.")] = state.pop(key)


@program(Prefixed)
def state_dict_hooks(run: Run) -> Steps:
    state = {key: value.clone() + 1 for key, value in run.module.state_dict().items()}
    yield run.learn(rand()), list(state)
    yield run.module.load_state_dict(state)
    yield run.learn(rand())


@program(Towers)
def copied_with_hooks(run: Run) -> Steps:
    run.module.left.register_forward_hook(_double)
    yield run(rand())
    twin = copy.deepcopy(run.module)
    twin.left._forward_hooks.clear()
    yield twin(rand()), run(rand())


@program(Towers)
def hook_that_removes_itself(run: Run) -> Steps:
    handles: list[Any] = []

    def once(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        handles.pop().remove()
        return result + 1

    handles.append(run.module.left.register_forward_hook(once))
    yield run(rand())
    yield run(rand())


@program(Towers)
def hook_in_the_dict_of_hooks(run: Run) -> Steps:
    """Put there by hand, past `register_forward_hook`."""
    yield run(rand())
    run.module.left._forward_hooks[12345] = _double
    yield run(rand())
    run.module.left._forward_hooks[12345] = lambda m, a, r: r * 7
    yield run(rand())
    del run.module.left._forward_hooks[12345]
    yield run(rand())
