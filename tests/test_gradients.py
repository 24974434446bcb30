"""Forwards that ask autograd themselves: for forces, penalties, features that are trained. The graph ended there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hostile.program import Two, rand
from lanes import spread as on_lanes
from lanes import used_lanes
from pretend import TWO, World, spec, spread
from torch import Tensor, nn

from partitioner import TraceError, partition
from partitioner.frontend.rewrite.landing import land, landed
from partitioner.runtime.module import Parallel

LANES = partial(on_lanes, lanes=2, copy=True)
WAYS: dict[str, Callable[[nn.Module, Tensor], Parallel]] = {
    "lanes": LANES,
    "backward on lanes": lambda model, x: LANES(model, x, backward="lanes"),
    "devices": lambda model, x: spread(model, (x,), TWO, copy=True),
}

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


class Forces(Two):
    """Energies and forces, whoever calls; the gradient must be that of ``place`` and of no copy."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_(requires_grad=True)
            energy = self.left(place).sin() * self.right(place).cos()
            (force,) = torch.autograd.grad(energy.sum(), place, create_graph=self.training)
        return energy - force


class Penalty(Two):
    """Two losses of one graph, of which the first gradient must not take what the second needs."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.left(x) * self.right(x)
            first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
            second = torch.autograd.grad(y.square().sum(), inputs=[x], grad_outputs=None, create_graph=True)[0]
        return first.detach() + second.square()


class Features(Two):
    """What speech models do, so that checkpoints behind have something to train."""

    def forward(self, x: Tensor) -> Tensor:
        features = x.detach()[:, None]
        if self.training:
            features.requires_grad = True
        return (self.left(features) * self.right(features))[:, 0]


class Adapts(Two):
    """A step of learning inside of the model, which is learnt through."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            loss = nn.functional.linear(x, self.left.weight, self.left.bias).square().mean()
            steps = torch.autograd.grad(loss, list(self.left.parameters()), create_graph=self.training)
        adapted = (weight - 0.1 * step for weight, step in zip(self.left.parameters(), steps, strict=True))
        return nn.functional.linear(x, *adapted) * self.right(x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [Forces, Penalty, Features, Adapts])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "training"])
def test_it_is_one_graph(kind: type[Two], way: str, train: bool, world: World) -> None:
    model, x = kind().train(train), rand()
    parallel = WAYS[way](model, x)
    assert len(used_lanes(parallel)) == 2
    for rows in (3, 3, 5):
        given = rand(rows, 4, seed=rows)
        one, other = model(given), parallel(given)
        torch.testing.assert_close(other, one, check_device=False)
        assert one.requires_grad == other.requires_grad
        if train:
            one.sum().backward(), other.sum().backward()
            mine, theirs = (dict(each.named_parameters()) for each in (model, parallel))
            for name, parameter in mine.items():
                torch.testing.assert_close(theirs[name].grad, parameter.grad, check_device=False)
    assert not any(piece.reason for piece in parallel._partitioner_programs.pieces)


class Late(Two):
    """By now there may be copies that want no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach() * 2
        y = self.left(x) * self.right(x)
        x.requires_grad_()
        return torch.autograd.grad((self.left(x) * self.right(x)).sum(), x)[0] + y.detach()


class OfArgument(Two):
    """It may be a parameter, of another model's."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x) * self.right(x)
        return torch.autograd.grad(y.sum(), x)[0] if x.requires_grad else y


SCALE = torch.linspace(1, 2, 4).requires_grad_()


class OfGlobal(Two):
    def forward(self, x: Tensor) -> Tensor:
        return torch.autograd.grad((self.left(x * SCALE) * self.right(x * SCALE)).sum(), SCALE)[0]


class Energies(Two):
    """The wish for a gradient is the model's, and stays with the argument."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x.requires_grad_()
            energy = self.left(x).sin() * self.right(x).cos() + x
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return energy - force


class Frozen(Two):
    """A wish that is taken back, or set as an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad = not self.training
        return self.left(x) * self.right(x)


OVER: dict[str, Callable[[nn.Module, Tensor], Parallel]] = {
    "devices": WAYS["devices"],
    "devices and Python": lambda model, x: spread(model, (x,), TWO, copy=True, fullgraph=False),
    "one graph": lambda model, x: LANES(model, x, fullgraph=True),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", OVER)
@pytest.mark.parametrize("kind", [OfArgument, OfGlobal, Energies, Frozen])
def test_a_gradient_of_an_argument(kind: type[Two], way: str, world: World) -> None:
    """It was refused on several devices. With Python between graphs it was that of the copy on one of them."""
    model = kind()
    parallel = OVER[way](model, nn.Parameter(rand()))
    for train, seed in ((True, 1), (False, 2), (True, 3)):
        found = []
        for module in (model.train(train), parallel.train(train)):
            x = rand(seed=seed, grad=seed == 1)
            result = module(x)
            if train and result.requires_grad:
                result.sum().backward()
            found.append((result.detach(), x.requires_grad, x.grad))
        torch.testing.assert_close(found[1][0], found[0][0], check_device=False)
        assert found[1][1] == found[0][1]
        torch.testing.assert_close(found[1][2], found[0][2], check_device=False)


class Leaves(Two):
    """Gives what it has made leaves; Python stands before the last one is used."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.left(x).detach().requires_grad_()
        second = self.right(x).detach().requires_grad_()
        y = self.right(first)
        torch._dynamo.graph_break()
        return first, second, y + self.left(second)


def test_leaves_that_are_results(world: World) -> None:
    """With Python between graphs a result lay where that goes on: a copy of the leaf, which got no gradient."""
    model, found = Leaves(), []
    parallel = spread(model, (rand(),), TWO, copy=True, fullgraph=False, policy="scatter")
    for module in (model, parallel):
        first, second, y = module(rand())
        assert first.is_leaf and second.is_leaf
        y.sum().backward()
        found.append((first.grad, second.grad))
    torch.testing.assert_close(found[1], found[0], check_device=False)


class Watched(Two):
    """Reads what it has computed, and watches its gradient after that; what it writes to stays as it is."""

    def forward(self, x: Tensor, seen: list[Tensor]) -> Tensor:
        h, k = self.left(x), self.right(x)
        z, first = h * 2, k[0]
        k.mul_(3)
        torch._dynamo.graph_break()
        h.register_hook(lambda grad: grad * 3)
        h.retain_grad()
        seen += [h, k, first]
        return h * self.right(z) + k


def test_the_gradient_of_a_result_is_whole() -> None:
    """What a graph read of it did not read what Python went on with, so that hooks on that saw a part of its gradient."""

    def copied(module: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        land(module)
        for node in module.graph.find_nodes(op="call_function", target=landed):
            node.target = torch.clone  # as if it lay elsewhere
        module.recompile()
        return module.forward

    model, found = Watched(), []
    for module in (model, torch.compile(model, backend=copied)):
        model.zero_grad()
        seen: list[Tensor] = []
        module(rand(), seen).sum().backward()
        assert seen[0].grad is not None
        found.append([seen[0].grad, *seen, *(each.grad for each in model.parameters())])
    torch.testing.assert_close(found[1], found[0])


class Buffers(Two):
    """Makes a buffer of what a branch has computed, in each call."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        self.seen = nn.Buffer(self.right(x).detach().mean(0))
        return y + self.seen


def test_buffers_that_are_results(world: World) -> None:
    """A copy of what forward has made a buffer is none, so that the module did not have it in its state."""
    model, there = Buffers(), {"pins": [{"match": "right", "device": "lazy:1"}]}
    parallel = partition(model, example_inputs=rand(), spec=spec(TWO) | there, copy=True, fullgraph=False)
    torch.testing.assert_close(parallel(rand()), model(rand()), check_device=False)
    assert parallel.state_dict().keys() == model.state_dict().keys()
    assert isinstance(parallel.seen, nn.Buffer) and parallel.seen.persistent


class OfWeight(Two):
    def forward(self, x: Tensor) -> Tensor:
        y = (self.left(x) * self.right(x)).sum()
        return y + torch.autograd.grad(y, self.left.weight, create_graph=True)[0].sum()


def test_a_weight_with_hooks() -> None:
    """A weight is never copied, and so it may have hooks; it was taken for an argument that has some."""
    model = OfWeight()
    model.left.weight.register_hook(lambda gradient: gradient * 2)
    parallel = LANES(model, rand(), fullgraph=True)
    parallel.left.weight.register_hook(lambda gradient: gradient * 2)
    torch.testing.assert_close(parallel(rand()), model(rand()))


def test_an_argument_with_hooks(world: World) -> None:
    """On lanes, too, it was refused where one graph was to be all of the call."""
    found = []
    for module in (OfArgument(), LANES(OfArgument(), rand(grad=True), fullgraph=True)):
        x = rand(grad=True)
        x.register_hook(lambda gradient: gradient * 2)
        module.load_state_dict({name: torch.full_like(one, 0.5) for name, one in module.state_dict().items()})
        found.append(module(x))
    torch.testing.assert_close(*found)
    x = rand(grad=True)
    parallel = spread(OfArgument(), (x,), TWO, copy=True)
    x.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(TraceError, match="an argument that has hooks"):
        parallel(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", OVER)
def test_what_may_have_been_copied_gets_no_gradient_on_several_devices(way: str, world: World) -> None:
    model, x = Late(), nn.Parameter(rand())
    torch.testing.assert_close(LANES(model, x)(x), model(x))
    if way == "devices and Python":
        torch.testing.assert_close(OVER[way](model, x)(x), model(x), check_device=False)
        return
    with pytest.raises(TraceError, match=r"is to have a gradient"):
        OVER[way](model, x)
