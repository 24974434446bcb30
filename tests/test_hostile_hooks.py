"""Hooks for backward where state lies on several devices: of modules, and those that forward gives to what it computes.

Each module is held against the plain one: what it computes, the gradients, and what its hooks saw, in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hostile.program import Two, rand
from lanes import assert_same, programs
from pretend import TWO, World, spread
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner import TraceError, partition

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


class Pair(NamedTuple):
    """What a module gives under names."""

    sum: Tensor
    product: Tensor


class Named(Two):
    """Takes what is no tensor, too, and gives several."""

    def forward(self, x: Tensor, scale: float, y: Tensor, *, more: Tensor) -> Pair:
        left, right = self.left(x) * scale, self.right(y)
        return Pair(left + more, left * right)


class Nest(Two):
    """Layers within a layer, behind two others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Named(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(self.left(x), 2.0, x, more=self.right(x))
        return self.head(found.sum * found.product)


def logging(log: list[Any], name: str) -> Callable[..., None]:
    """A hook that notes what it is given."""
    return lambda _module, *given: log.append((name, *given))


def steps(module: nn.Module, script: Callable[[nn.Module, list[Any]], Iterator[object]]) -> list[Any]:
    """What a script sees of a module, and the gradients of its weights."""
    log: list[Any] = []
    seen = list(script(module, log))
    return [seen, log, [parameter.grad for parameter in module.parameters()]]


def assert_hooked(kind: type[nn.Module], script: Callable[[nn.Module, list[Any]], Iterator[object]]) -> None:
    """A module on two devices does what the plain one does."""
    model = kind()
    parallel = spread(model, (rand(),), TWO, copy=True)
    expected, actual = steps(model, script), steps(parallel, script)
    for one, other in zip(tree_leaves(expected), tree_leaves(actual), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def learn(module: nn.Module, rows: int = 3, grad: bool = True) -> tuple[Tensor, Tensor | None]:
    """The result of a call, and its argument's gradient."""
    x = rand(rows, 4, grad=grad)
    result = module(x)
    result.sum().backward()
    return result.detach(), x.grad


def each_layer(module: nn.Module, log: list[Any]) -> Iterator[object]:
    for name, layer in list(module.named_modules())[1:]:
        layer.register_full_backward_hook(logging(log, name))
        layer.register_full_backward_pre_hook(logging(log, f"before {name}"))
    yield learn(module)
    yield learn(module, rows=5, grad=False)
    with torch.no_grad():
        yield module(rand())


def changed_by_hooks(module: nn.Module, log: list[Any]) -> Iterator[object]:
    inner: Any = module.inner
    handle = inner.left.register_full_backward_hook(lambda _module, given, _: (given[0] * 2,))
    other = inner.register_full_backward_pre_hook(lambda _module, given: tuple(each * 3 for each in given))
    yield learn(module)
    handle.remove()
    yield learn(module)
    result = module(rand())
    inner.right.register_full_backward_hook(logging(log, "after the call"))
    result.sum().backward()
    other.remove()
    yield learn(module)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("script", [each_layer, changed_by_hooks])
def test_hooks_of_modules(script: Callable[[nn.Module, list[Any]], Iterator[object]], world: World) -> None:
    """Captum, Grad-CAM and whoever logs gradients hook on to layers: with state on several devices that was refused."""
    assert_hooked(Nest, script)


def test_hooks_that_are_registered_anew_for_each_picture(world: World) -> None:
    """A registration has a number of its own, which was guarded: the 65th picture was refused, or ran as it is."""

    def pictures(module: nn.Module, log: list[Any]) -> Iterator[object]:
        layer: Any = module.left
        for _ in range(5):
            seen: list[Tensor] = []
            handles = [
                layer.register_forward_hook(lambda _module, _given, result, seen=seen: seen.append(result.detach())),
                layer.register_full_backward_hook(logging(log, "back")),
            ]
            yield learn(module), seen
            for handle in handles:
                handle.remove()

    assert_hooked(Nest, pictures)
    parallel = spread(Nest(), (rand(),), TWO)
    for _ in pictures(parallel, []):
        pass
    assert programs(parallel) <= 2  # with hooks, and without


def test_hooks_of_other_kinds_have_other_programs(world: World) -> None:
    """Hooks for forward are told apart by what they do and by their place, not by their numbers."""

    def script(module: nn.Module, log: list[Any]) -> Iterator[object]:
        layer: Any = module.left
        for first in (False, True):
            one = layer.register_forward_hook(lambda _module, _given, result: result * 3)
            other = layer.register_forward_hook(lambda _module, _given, result: result + 1, prepend=first)
            yield learn(module)
            one.remove()
            yield learn(module)
            other.remove()
            named = layer.register_forward_hook(
                lambda _module, _given, words, _result: log.append(sorted(words)), with_kwargs=True
            )
            yield learn(module)
            named.remove()
            yield learn(module)

    assert_hooked(Nest, script)


class Cam(Two):
    """Keeps the gradient of what it computes, as tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[Tensor] = []

    def keep(self, gradient: Tensor) -> Tensor:
        self.gradients.append(gradient)
        return gradient * 2

    def forward(self, x: Tensor) -> Tensor:
        middle = self.left(x)
        if middle.requires_grad:
            middle.register_hook(self.keep)
        return self.right(middle) + middle


def test_a_method_as_a_hook(world: World) -> None:
    """It is a method of the model's that writes to it: refused, as what it reads in backward is not what it was in forward."""

    def script(module: nn.Module, _log: list[Any]) -> Iterator[object]:
        for rows in (3, 5, 4):
            yield learn(module, rows), list(module.gradients)  # type: ignore[arg-type]

    assert_hooked(Cam, script)


def test_on_lanes_their_order_would_not_be_eagers(world: World) -> None:
    """Autograd numbers what each thread records: there Python goes on between graphs, or one whole graph is refused."""
    model = Nest()
    log: list[Any] = []
    for name, layer in model.named_children():
        layer.register_full_backward_hook(logging(log, name))
    parallel = partition(model, devices=["cpu:0", "cpu:1"], fullgraph=True, copy=True)
    with pytest.raises(TraceError, match="a module in it has backward hooks"):
        parallel(rand())
    assert_same(partition(model, devices=["cpu:0", "cpu:1"], copy=True)(rand()), model(rand()))
