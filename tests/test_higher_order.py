"""Ops that hold graphs of their own, on lanes: each is what it is in eager, gradients and random numbers included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lanes import assert_same, numbers, programs, spec, spread, used_lanes
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from partitioner import partition
from partitioner.testing import assert_equal_runs

X = numbers(4, 6)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # torch's own, as are those that follow
    pytest.mark.filterwarnings("ignore:.*torch.autograd.function.Function:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


class Branches(nn.Module):
    """Two branches, each with an op that holds a graph, and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 6)) for _ in "ab")
        self.scale = nn.Parameter(torch.ones(6) / 2)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        return self.inner(0, x) * self.inner(1, x)

    def inner(self, number: int, x: Tensor) -> Tensor:
        """One branch."""
        raise NotImplementedError


class Recomputed(Branches):
    """The newer kind of checkpoint."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        return checkpoint(self.bodies[number], x, use_reentrant=False)


class Reentrant(Branches):
    """The older kind, which asks its arguments whether to record."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        return checkpoint(self.bodies[number], x * self.scale, use_reentrant=True)


class Detached(Branches):
    """The older kind, of arguments that need no gradient: it records nothing, whatever its parameters need."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        return checkpoint(self.bodies[number], x, use_reentrant=True) + self.scale


class Nested(Branches):
    """A checkpoint inside a checkpoint, with dropout in both."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        def outer(h: Tensor) -> Tensor:
            return nn.functional.dropout(
                checkpoint(self.bodies[number], h * self.scale, use_reentrant=False), 0.5, self.training
            )

        return checkpoint(outer, x, use_reentrant=False)


class Mixed(Branches):
    """A checkpoint under autocast, without gradient beside it."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(number == 0):
            return checkpoint(self.bodies[number], x, use_reentrant=False).float()


class Unkept(Branches):
    """A checkpoint that does not keep the state of the generator: its recomputation draws other numbers, in eager too."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        return checkpoint(self.bodies[number], x, use_reentrant=False, preserve_rng_state=False)


def save_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Matrix products are kept, the rest is computed again."""
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(Branches):
    """A checkpoint that keeps some of its values."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        context = partial(create_selective_checkpoint_contexts, save_products)
        return checkpoint(self.bodies[number], x, use_reentrant=False, context_fn=context)


CHECKPOINTS = (Recomputed, Reentrant, Detached, Nested, Mixed, Unkept, Selective)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_a_checkpoint_on_lanes(kind: type[Branches], train: bool) -> None:
    """Values, the state of the generator after forward and after backward, and the gradients, which are computed from numbers
    that are drawn again."""
    model = kind().train(train)
    parallel = spread(model, X, lanes=2, copy=True)
    assert programs(parallel) == 1
    for seed in range(4):
        assert_equal_runs(model, parallel, (X.clone().requires_grad_(seed % 2 == 0),), train=train, seed=seed)
    with torch.no_grad():
        assert_equal_runs(model, parallel, (X,), train=train, gradients=False)


def test_a_checkpoint_throws_its_activations_away() -> None:
    """Nothing but its input is saved when forward has run, and backward computes the rest again."""
    model = Recomputed().eval()
    parallel = spread(model, X, lanes=2, copy=True)

    def saved(module: nn.Module) -> int:
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
            module(X)
        return len(kept)

    assert saved(parallel) == saved(model)


class Chosen(Branches):
    """One of two functions, which take what they need from around them."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        body = self.bodies[number]
        return torch.cond(x.sum() > 0, lambda h: body[0](h) * self.scale, lambda h: body[3](h) + 1, (x,))


class ChosenTwice(Branches):
    """A choice inside of a choice."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        body = self.bodies[number]

        def deeper(h: Tensor) -> Tensor:
            return torch.cond(h.abs().max() > 2, lambda g: body[0](g), lambda g: body[3](g).sin(), (h,))

        return torch.cond(x.sum() > 0, deeper, lambda h: h * self.scale, (x,))


@pytest.mark.parametrize("kind", [pytest.param(Chosen, marks=pytest.mark.slow), ChosenTwice])
def test_a_choice_on_lanes(kind: type[Branches]) -> None:
    """Both ways, with gradients for what either way uses: zeros where the other one was taken."""
    model = kind().eval()
    parallel = spread(model, X, lanes=2, copy=True)
    for x in (X, -X, X * 9):
        assert_equal_runs(model, parallel, (x.clone().requires_grad_(),), train=False, gradient_bitwise=False)
    assert programs(parallel) <= 2


class Repeated(Branches):
    """A loop as long as the data says, which takes what it needs from around it."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        limit = 10.0 * (number + 1)

        def small(count: Tensor, value: Tensor) -> Tensor:
            return (value.abs().sum() < limit) & (count < 8)

        def grow(count: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            return count + 1, value * 1.5 + self.scale.detach()

        return torch._higher_order_ops.while_loop(small, grow, (torch.zeros((), dtype=torch.long), x))[1]


def test_a_loop_on_lanes() -> None:
    """And none of the times."""
    model = Repeated()
    parallel = spread(model, X, lanes=2, copy=True)
    for scale in (1.0, 0.1, 10.0):
        assert_equal_runs(model, parallel, (X * scale,), train=True)
        with torch.no_grad():
            assert_same(model(X * scale), parallel(X * scale))
    assert programs(parallel) <= 3


class Straight(torch.autograd.Function):
    """Rounds, and pretends in backward that it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return (x * scale).round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, scale = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return gradient * scale * 3 if needs[0] else None, (gradient * x).sum(0) * 5 if needs[1] else None


class Halves(torch.autograd.Function):
    """Two results, one of which cannot be differentiated."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.argmax(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.factor = 7.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * ctx.factor


class Noisy(torch.autograd.Function):
    """Draws random numbers in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient + torch.rand_like(gradient)


class Functions(Branches):
    """Functions with a backward of their own. Whoever looks inside loses it."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def inner(self, number: int, x: Tensor) -> Tensor:
        return self.function(self.bodies[number](x), self.scale)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "saved": lambda h, scale: Straight.apply(h, scale),
    "two results": lambda h, scale: Halves.apply(h * scale)[0] + Halves.apply(h)[1][:, None],
    "random": lambda h, scale: Noisy.apply(h * scale),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_its_own_backward_on_lanes(name: str) -> None:
    model = Functions(FUNCTIONS[name])
    parallel = spread(model, X, lanes=2, copy=True)
    for train in (True, False):
        assert_equal_runs(model, parallel, (X.clone().requires_grad_(),), train=train)


class Less(torch.autograd.Function):
    """Takes any number of tensors, and looks at its context in backward alone."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, *others: Tensor) -> Tensor:
        return first - sum(others)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return gradient, -gradient


class Kept(torch.autograd.Function):
    """As many tensors, for the context of which another function looks."""

    @staticmethod
    def forward(first: Tensor, *others: Tensor) -> Tensor:
        return first * sum(others)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class Adds(torch.autograd.Function):
    """Writes to its argument, and gives that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(y)


WITHOUT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "any number": lambda h, scale: Less.apply(h, scale * 3, scale),
    "any number, kept": lambda h, scale: Kept.apply(h, scale, scale),
    "written": lambda h, scale: h * 2 if Adds.apply(h, scale) is h else h * 3,
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_function_without_gradients_is_one_graph(name: str) -> None:
    """Its first argument was taken for the context, so that other tensors were added up; what it writes ended the graph."""
    model = Functions(WITHOUT[name])
    with torch.no_grad():
        parallel = spread(model, X, lanes=2, copy=True, fullgraph=True, check=False)
        torch.manual_seed(0)
        expected = model(X)
        torch.manual_seed(0)
        assert_same(expected, parallel(X))


class Attending(Branches):
    """Attention with a bias and a mask, both given as functions."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        h = self.bodies[number][0](x)[None, None]

        def biased(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return score + self.scale[key % 6]

        mask = create_block_mask(lambda batch, head, query, key: query >= key, 1, 1, 4, 4, device="cpu")
        return flex_attention(h, h, h, score_mod=biased, block_mask=mask)[0, 0]


@pytest.mark.slow
def test_flex_attention_on_lanes() -> None:
    model = Attending().eval().requires_grad_(False)
    parallel = spread(model, X, lanes=2, copy=True)
    with torch.no_grad():  # on the CPU it has no backward
        assert_equal_runs(model, parallel, (X,), train=False, gradients=False)


def test_a_place_that_a_score_is_looked_up_at() -> None:
    """It stands for many, so no number may be asked of it, as is of other keys: the graph failed under `vmap`."""

    class Biased(Branches):
        def inner(self, number: int, x: Tensor) -> Tensor:
            h = self.bodies[number][0](x)[None, None]
            return flex_attention(h, h, h, score_mod=lambda score, *at: score + self.scale[at[3] % 6])[0, 0]  # type: ignore

    model = Biased().eval().requires_grad_(False)
    parallel = spread(model, X, lanes=2, copy=True)
    with torch.no_grad():
        assert_same(model(X), parallel(X))


class Mapped(Branches):
    """A function of each row, as an op."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        return torch._higher_order_ops.map(lambda row: self.bodies[number][0](row) * self.scale, x)


class Scanned(Branches):
    """A running sum, row by row, as an op."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        def step(carried: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            following = carried * self.scale.detach() + row
            return following, following.clone()

        return torch._higher_order_ops.scan(step, torch.zeros(6), x)[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [Mapped, Scanned])
def test_other_ops_that_hold_graphs(kind: type[Branches]) -> None:
    """They trace their bodies in each call, which only one thread can do at a time: nothing runs beside them."""
    model = kind().eval()
    parallel = partition(model, example_inputs=X, spec=spec(2), copy=True)
    ops = [op for op in parallel.graph.ops if op.target in ("map_impl", "scan")]
    assert len(ops) == 2 and all(any(access.resource == "*" for access in op.accesses) for op in ops)
    assert_equal_runs(model, parallel, (X.clone(),), train=False)


@torch.compiler.nested_compile_region
def region(x: Tensor, weight: Tensor) -> Tensor:
    """What compilers are to see once."""
    return nn.functional.linear(x, weight).tanh()


class Regions(Branches):
    """The same region twice."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        return region(x, self.bodies[number][0].weight)


class Written(torch.autograd.Function):
    """Writes its argument, and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 11


class Sequenced(Branches):
    """A sequence of checkpoints."""

    def inner(self, number: int, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.bodies[number], 2, x, use_reentrant=False)


def test_a_sequence_of_checkpoints() -> None:
    """The tracer does not look into the function, as it lies in torch's file; with state on several devices it was refused."""
    model = Sequenced()
    parallel = partition(model, example_inputs=X, spec=spec(2), copy=True, fullgraph=True)
    assert [op.target for op in parallel.graph.ops].count("recompute") == 2
    for train in (True, False):
        assert_equal_runs(model, parallel, (X.clone().requires_grad_(),), train=train)


def test_what_the_tracer_does_not_enter() -> None:
    """It runs as it is, between graphs."""
    model = Functions(lambda h, scale: Written.apply(h * scale) + 1)
    parallel = partition(model, example_inputs=X, spec=spec(2), copy=True)
    for train in (True, False):
        assert_equal_runs(model, parallel, (X.clone().requires_grad_(),), train=train)


def test_a_region_that_compilers_share() -> None:
    model = Regions().eval()
    parallel = spread(model, X, lanes=2, copy=True)
    assert_equal_runs(model, parallel, (X.clone().requires_grad_(),), train=False)


def test_bodies_say_what_they_touch() -> None:
    """A checkpoint with dropout draws; one without does not, and two of these may run at once."""
    drawing = spread(Recomputed(), X, lanes=2, check=False)
    silent = spread(Recomputed().eval(), X, lanes=2, check=False)
    for parallel, draws in ((drawing, True), (silent, False)):
        ops = [op for op in parallel.graph.ops if op.target == "recompute"]
        assert len(ops) == 2 and len(used_lanes(parallel)) == 2
        assert all(any(access.resource == "rng" for access in op.accesses) == draws for op in ops)
        assert all(op.flops for op in ops)
