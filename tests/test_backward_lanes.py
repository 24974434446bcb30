"""Backward on the lanes of the forward: gradients have eager's bits, each task's backward runs on its lane, and what cannot be
done like that is done by autograd, with the reason in the summary."""

from __future__ import annotations

import copy
import gc
import itertools
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import Tower, Towers, assert_same, assert_same_state, numbers, spread
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from partitioner import VerifyError, load_spec
from partitioner.backends.backward.recorded import Form
from partitioner.backends.backward.training import Training
from partitioner.backends.threads import Threads
from partitioner.errors import SpecError
from partitioner.ir.gradient import Backward, same_sum
from partitioner.ir.program import Program, Record, Run, Wait
from partitioner.ir.segment import segments
from partitioner.lower.verify import verify
from partitioner.runtime.module import Parallel
from partitioner.testing import KINDS, GeneratedModule, Recipe, Step, assert_equal_runs, build
from partitioner.testing.recipe import OUTPUTS

X = numbers(4, 6)

pytestmark = pytest.mark.usefixtures("one_thread")


def twins(model: nn.Module, *inputs: Any, lanes: int = 2) -> tuple[nn.Module, Parallel]:
    """A model, and a copy of it with its backward on lanes, which has seen the call that is watched."""
    parallel = spread(model, *(inputs or (X,)), lanes=lanes, copy=True, backward="lanes")
    return model, parallel


def training(parallel: Parallel) -> Training:
    """What runs the program that ran last."""
    executable = parallel._partitioner_programs.shown.executable
    assert isinstance(executable, Training)
    return executable


def on_lanes(parallel: Parallel) -> bool:
    """Whether the backward of the program that ran last is on lanes."""
    return training(parallel).reason == ""


def backwards_of(parallel: Parallel) -> Sequence[Backward]:
    """The backward of the program that ran last, section by section."""
    (form,) = training(parallel).forms.values()
    assert isinstance(form, Form), form
    return form.backwards


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same_steps(model: nn.Module, parallel: Parallel, *inputs: Tensor, steps: int = 3) -> None:
    """A few steps of gradient descent leave the same state, to the bit; all but the first have their backward on lanes."""
    for module in (model, parallel):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(steps):
            torch.manual_seed(step)
            optimizer.zero_grad()
            module(*(inputs or (X,))).square().sum().backward()
            optimizer.step()
    assert_same(gradients(model), gradients(parallel))
    assert_same_state(model, parallel)


# -- eager's bits ----------------------------------------------------------------------------------------------------

WRITES = frozenset(
    """add_ iadd mul_ relu_ copy_ setitem masked_fill_ view_write view_read transposed_write fork_write overwrite detach_write
    chunk_read out scratch counter average average_read history made recorder""".split()
)


def random_model(seed: int, kinds: Sequence[str]) -> GeneratedModule:
    draw = random.Random(seed)
    steps = (
        Step(draw.choice(kinds), (draw.randrange(8), draw.randrange(8)), draw.randrange(4)) for _ in range(draw.randint(4, 10))
    )
    return build(Recipe(tuple(steps), inputs=draw.randint(1, 3), image=draw.random() < 0.3, outputs=draw.choice(OUTPUTS)))


class Loss(nn.Module):
    """Gives one number for all results of a model."""

    def __init__(self, model: GeneratedModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Tensor:
        numbers = [one for one in tree_leaves(self.model(*inputs)) if isinstance(one, Tensor) and one.requires_grad]
        return sum((one.sum() for one in numbers), torch.zeros(()))


def has_eager_gradients(model: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Assert it, to the bit where backward is on lanes; whether it is."""
    try:
        parallel = spread(model, *inputs, lanes=2, copy=True, check=False, backward="lanes")
    except AssertionError:  # too little in it for two lanes
        return False
    assert_equal_runs(model, parallel, inputs, train=True, gradient_bitwise=False)
    if on_lanes(parallel):
        assert_equal_runs(model, parallel, inputs, train=True, gradient_bitwise=True)
    return on_lanes(parallel)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("writing", [True, False])
def test_random_models(writing: bool) -> None:
    """Where an op writes what others have read, autograd often has to do it; elsewhere a third and more have it on lanes.

    With a loss, that is; of results one is often made of another one, and of what that is made of.
    """
    kinds, found, others = [kind for kind in KINDS if writing or kind not in WRITES], 0, 0
    for seed in range(10):
        model = random_model(seed, kinds)
        found += has_eager_gradients(Loss(model), model.example_inputs(seed=0))
        others += has_eager_gradients(model, model.example_inputs(seed=0))
    assert (found, others) >= ((1, 0) if writing else (3, 2))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1400, 100))
def test_many_random_models(start: int) -> None:
    kinds, found = [kind for kind in KINDS if start % 200 or kind not in WRITES], 0
    for seed in range(start, start + 100):
        model = random_model(seed, kinds)
        found += has_eager_gradients(Loss(model), model.example_inputs(seed=0))
        has_eager_gradients(model, model.example_inputs(seed=0))
    assert found >= 8


class Web(nn.Module):
    """A random graph in which values and weights have many readers.

    Args:
        picks: for each node the values that it reads, counted back from the newest, and the number of its layer.
    """

    def __init__(self, picks: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.picks, self.layers = picks, nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for one, other, layer in self.picks:
            left, right = values[-1 - one % len(values)], values[-1 - other % len(values)]
            values.append(torch.tanh(self.layers[layer](left)) + right)
        return torch.stack(values).sum(0)


@given(picks=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2)), min_size=4, max_size=12))
@settings(max_examples=settings.default.max_examples // 3)
def test_sums_of_many_gradients(picks: list[tuple[int, int, int]]) -> None:
    """Each value has three readers and more, on all lanes; eager's order of summation shows in the bits."""
    model, x = Web(picks), numbers(4, 6).requires_grad_()
    try:
        parallel = spread(model, x, lanes=2, copy=True, check=False, backward="lanes")
    except AssertionError:
        return
    parallel(x)
    if on_lanes(parallel):
        assert_equal_runs(model, parallel, (x,), train=True, gradient_bitwise=True)


def test_a_wide_fan() -> None:
    """Four branches on three lanes read one value, whose gradient is a sum of four."""
    model, parallel = twins(Towers(4), lanes=3)
    assert on_lanes(parallel)
    assert_same_steps(model, parallel)


class Recurrent(nn.Module):
    """One weight that is used in each of four steps, in two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.other, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x, x
        for _ in range(4):
            left = torch.tanh(self.cell(left))
            right = torch.tanh(self.other(right) + self.cell.bias)
        return self.head(torch.cat([left, right], 1))


def test_a_weight_in_every_step_and_in_the_loss() -> None:
    """The caller's engine sums what ops add to an argument's gradient, after what the loss itself adds to it."""
    model, parallel = twins(Recurrent())
    assert on_lanes(parallel)
    for module in (model, parallel):
        for _ in range(2):
            (module(X).sum() + module.cell.weight.square().sum() + module.cell.bias.exp().sum()).backward()
    assert_same(gradients(model), gradients(parallel))


floats = st.floats(-1e3, 1e3, width=32)


@given(terms=st.lists(floats, min_size=1, max_size=5), data=st.data())
def test_same_sums_have_the_same_bits(terms: list[float], data: st.DataObject) -> None:
    order = list(range(len(terms)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(terms)), max_size=2)) | {0, len(terms)})
    groups = [order[start:end] for start, end in itertools.pairwise(cuts)]
    values = torch.tensor(terms)
    if same_sum(order, groups):
        assert torch.equal(_summed(values), _summed([_summed(values[group]) for group in groups]))


def _summed(values: Any) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


# -- lanes -----------------------------------------------------------------------------------------------------------

THREADS: dict[str, list[int]] = {}


class _Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ACTION(ctx.name)
        return gradient.clone(), None


def ACTION(name: str) -> None:
    """What the backward of `noting` does."""
    THREADS.setdefault(name, []).append(threading.get_ident())


@torch._dynamo.allow_in_graph
def noting(x: Tensor, name: str) -> Tensor:
    """Notes the thread of its forward and of its backward."""
    if type(x) is Tensor:
        THREADS.setdefault(f"{name} forward", []).append(threading.get_ident())
    return _Noting.apply(x, name)


class Noted(nn.Module):
    """Two branches that note their threads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(6, 6), Tower(), Tower()

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return noting(self.left(h), "left") * noting(self.right(h), "right")


def test_each_backward_is_on_the_lane_of_its_forward() -> None:
    model, parallel = twins(Noted())
    assert_same_steps(model, parallel)
    THREADS.clear()
    parallel(X).sum().backward()
    assert {name: len(found) for name, found in THREADS.items()} == dict.fromkeys(THREADS, 1)
    assert THREADS["left forward"] == THREADS["left"] and THREADS["right forward"] == THREADS["right"]
    assert THREADS["left"] != THREADS["right"]


def test_one_lane_is_left_alone() -> None:
    parallel = spread(Towers(), X, lanes=1, backward="lanes")
    assert type(parallel._partitioner_programs.shown.executable) is Threads


def test_without_the_option_nothing_changes() -> None:
    parallel = spread(Towers(), X, lanes=2)
    assert type(parallel._partitioner_programs.shown.executable) is Threads


@pytest.mark.parametrize("lanes", [2, 3])
def test_segments_and_their_backward(lanes: int) -> None:
    """Every task is in one segment; no two segments need each other; and the backward's program is none without its waits."""
    _, parallel = twins(Towers(5), lanes=lanes)
    plan, (backward,) = parallel.plan, backwards_of(parallel)
    assert backward.program is not None
    found = segments(plan.program)
    assert sorted(task for one in found for task in one.tasks) == sorted(task.name for task in plan.tasks.tasks)
    home = {task: number for number, one in enumerate(found) for task in one.tasks}
    assert all(home[one] <= home[other] for one, other in plan.tasks.edges)
    assert verify(backward.program) == backward.program
    assert {backward.steps[run.task].segment.lane for run in _runs(backward.program)} == set(range(lanes))
    for index, item in enumerate(backward.program.instructions):
        if isinstance(item, Wait | Record) and item.event != 0:  # which others know of, too
            rest = (*backward.program.instructions[:index], *backward.program.instructions[index + 1 :])
            with pytest.raises(VerifyError):
                verify(replace(backward.program, instructions=rest))


def _runs(program: Program) -> Iterator[Run]:
    return (item for item in program.instructions if isinstance(item, Run))


# -- what autograd is asked for --------------------------------------------------------------------------------------


class Two(nn.Module):
    """Two branches with a result each."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Tower(), Tower()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(self.left(x)), torch.exp(self.right(x))


def test_a_result_that_no_loss_reads() -> None:
    """Its branch gets no gradients, and not gradients of zeros."""
    model, parallel = twins(Two())
    for module in (model, parallel):
        for _ in range(2):
            module(X)[0].sum().backward()
    assert on_lanes(parallel) and parallel.right[0].weight.grad is None
    assert_same(gradients(model), gradients(parallel))


def test_gradients_of_inputs_alone() -> None:
    model, parallel = twins(Two(), X.clone().requires_grad_())
    found = []
    for module in (model, parallel):
        x = X.clone().requires_grad_()
        one, other = module(x)
        found.append(torch.autograd.grad(one.sum() + other.sum(), x))
        assert module.left[0].weight.grad is None
    assert on_lanes(parallel)
    assert_same(*found)


def test_an_input_with_a_history_and_hooks() -> None:
    """Hooks on what comes in and what goes out, and after accumulation, are called once, with eager's gradients."""
    model, parallel = twins(Two(), X.clone().requires_grad_())
    found = []
    for module in (model, parallel):
        seen: list[Any] = []
        module.left[0].weight.register_hook(lambda g, seen=seen: seen.append(("tensor", g.clone())))
        module.left[0].weight.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(("after", p.grad.clone())))
        x = (X.clone().requires_grad_() * 2).requires_grad_()
        x.register_hook(lambda g, seen=seen: seen.append(("input", g.clone())))
        one, other = module(x)
        one.register_hook(lambda g: g * 3)
        (one.sum() * other.sum()).backward()
        found.append(sorted(seen, key=lambda pair: pair[0]))
        assert len(seen) == 3
    assert on_lanes(parallel)
    assert_same(*found)


def test_a_backward_again_and_once_more() -> None:
    model, parallel = twins(Two())
    for module in (model, parallel):
        loss = sum(each.sum() for each in module(X))
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


def test_results_one_by_one() -> None:
    """A backward lets go of what is behind its own result. It took the graphs of all others with it."""

    def passes(module: nn.Module, *again: int) -> list[str]:
        results, told = module(X), []
        for number in again:
            try:
                results[number].sum().backward()
            except RuntimeError as error:
                told.append(str(error))
        return told

    model, parallel = twins(Two())
    told = [passes(module, 1, 0, 1, 0) for module in (model, parallel)]
    assert told[0] == told[1] and [len(each) for each in told] == [2, 2]
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


def test_a_hook_on_a_result_that_a_loss_does_not_read() -> None:
    """It is not called. It was, and had ``None`` for a gradient."""
    model, parallel = twins(Two())
    found = []
    for module in (model, parallel):
        one, other = module(X)
        one.register_hook(lambda gradient: gradient * 2)
        other.sum().backward(retain_graph=True)
        (one.sum() + other.sum()).backward()
        found.append(gradients(module))
    assert on_lanes(parallel)
    assert_same(*found)


class Pair(Two):
    """Two branches with an input each."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(self.left(x)), torch.exp(self.right(x if y is None else y))


class Zeros(torch.autograd.Function):
    """Its backward is given zeros where there is no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def test_nobody_hears_of_a_gradient_that_a_loss_does_not_make() -> None:
    """Hooks of weights behind the other result were called, with ``None``; what had made an argument was given zeros."""
    model, parallel = twins(Pair())
    found: list[Any] = []
    for module in (model, parallel):
        module.zero_grad()
        x, y, seen = X.clone().requires_grad_(), X.clone().requires_grad_(), []
        for _ in range(2):
            module(x, Zeros.apply(y))[0].sum().backward()
        hooks = [
            each.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.shape)) for each in module.parameters()
        ]
        hooks += [module.right[0].weight.register_hook(lambda gradient: gradient * 2)]
        for _ in range(2):
            module(x, y)[0].sum().backward()
        for hook in hooks:
            hook.remove()
        found.append((x.grad, y.grad, seen, gradients(module)))
    assert_same(*found)
    assert on_lanes(parallel) and backwards_of(parallel)[0].apart


def test_gradients_of_some_weights_and_then_of_others() -> None:
    """What leads to a weight that was not asked for is still there."""
    model, parallel = twins(Two())
    found = []
    for module in (model, parallel):
        one, other = module(X)
        loss = one.sum() + other.sum()
        left, right = ([each.weight for each in tower if isinstance(each, nn.Linear)] for tower in (module.left, module.right))
        sums = one.sum(), other.sum()
        found.append([*torch.autograd.grad(loss, left), *torch.autograd.grad(sums[1], right)])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(sums[0], left)
    assert on_lanes(parallel)
    assert_same(*found)


def test_some_gradients_have_the_bits_of_eager() -> None:
    """They came through the whole graph at once, summed in an order that depended on the threads that had recorded it."""
    model, parallel = twins(Towers(5), X.clone().requires_grad_())
    for seed in range(5):
        found = []
        for module in (model, parallel):
            module.zero_grad()
            x = numbers(4, 6, seed=seed).requires_grad_()
            (some,) = torch.autograd.grad(module(x).square().sum(), x)
            (recorded,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
            module(x).square().sum().backward(inputs=[module.stem.weight])
            found.append((some, recorded.detach(), gradients(module)))
        assert_same(*found)
    assert on_lanes(parallel)


def test_results_again_after_gradients_of_gradients() -> None:
    """The graph is kept for what was recorded on it, and a second backward that lets go is an error as ever."""
    model, parallel = twins(Two(), X.clone().requires_grad_())
    for module in (model, parallel):
        x = X.clone().requires_grad_()
        one, other = module(x)
        torch.autograd.grad(one.sum(), x, create_graph=True)[0].square().sum().backward(retain_graph=True)
        one.sum().backward()
        other.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            one.sum().backward()
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


def test_gradients_of_gradients() -> None:
    """They go through the whole graph at once, which is recorded as ever."""
    model, parallel = twins(Two(), X.clone().requires_grad_())
    found = []
    for module in (model, parallel):
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(sum(each.sum() for each in module(x)), x, create_graph=True)
        slope.square().sum().backward()
        found.append((slope.detach(), x.grad, gradients(module)))
    assert on_lanes(parallel)
    assert_same(*found)


def test_a_result_is_written_in_place() -> None:
    """As in eager, where a backward needs what was there it is an error, that of a lane; and the next step goes well."""
    model, parallel = twins(Two())
    for module in (model, parallel):
        one, other = module(X * 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            (one.sum() + other.add_(1).sum()).backward()
        module.zero_grad()
    assert any(note.startswith("in the backward of task t1 on cpu/1, from right_0_linear") for note in caught.value.__notes__)

    class Sums(Two):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.left(x), self.right(x)

    model, parallel = twins(Sums())
    for module in (model, parallel):
        one, other = module(X)
        (one.mul_(2) * other.add_(1)).sum().backward()
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


@pytest.mark.parametrize("branch", ["left", "right"])
def test_an_error_in_a_backward(branch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It surfaces with its op named whichever lane it comes from; no lane is left behind, and the next step goes well."""
    model, parallel = twins(Noted())

    def fail(name: str) -> None:
        if name == branch:
            raise ArithmeticError(f"no gradient for {name}")

    with monkeypatch.context() as patched:
        patched.setitem(globals(), "ACTION", fail)
        with pytest.raises(ArithmeticError, match=f"no gradient for {branch}") as caught:
            parallel(X).sum().backward()
    assert any("in the backward of task" in note for note in caught.value.__notes__)
    parallel.zero_grad()
    assert_same_steps(model, parallel)


def test_several_threads_train_at_once() -> None:
    _, parallel = twins(Towers(), X.clone().requires_grad_())
    wanted = {seed: _slope(parallel.original, seed) for seed in range(6)}
    found: dict[int, Tensor] = {}

    def train(seed: int) -> None:
        found[seed] = _slope(parallel, seed)

    workers = [threading.Thread(target=train, args=(seed,)) for seed in wanted]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert on_lanes(parallel)
    assert_same(wanted, dict(sorted(found.items())))


def _slope(module: nn.Module, seed: int) -> Tensor:
    x = numbers(4, 6, seed=seed).requires_grad_()
    return torch.autograd.grad(module(x).square().sum(), x)[0]


def test_a_graph_dies_with_its_results() -> None:
    """Nothing holds the tensors of a call when its results are gone, backward or not."""
    _, parallel = twins(Two())
    gc.collect()
    gc.disable()
    try:
        results = parallel(X)
        graph = weakref.ref(results[0].grad_fn)
        del results
        assert graph() is None
    finally:
        gc.enable()


def test_anomalies_are_found() -> None:
    _, parallel = twins(Two())
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        one, other = parallel(X)
        with pytest.raises(RuntimeError, match="returned nan values"):
            ((one - one).sqrt().sum() * 0 + other.sum()).backward()


# -- modes -----------------------------------------------------------------------------------------------------------


def test_calls_without_gradients_between_steps() -> None:
    model, parallel = twins(Towers())
    for module in (model, parallel):
        module(X).sum().backward()
        with torch.no_grad():
            assert not module(X).requires_grad
        with torch.inference_mode():
            module(X)
        module(X).sum().backward()
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


class Shielded(nn.Module):
    """One branch under no_grad, one that dropout draws in, one that is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Tower(), Tower(), Tower()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            first = self.first(x)
        second = nn.functional.dropout(self.second(x), 0.5, self.training)
        return first * second + checkpoint(self.third, x, use_reentrant=False)


def test_modes_inside() -> None:
    model, parallel = twins(Shielded(), lanes=3)
    assert on_lanes(parallel)
    assert_same_steps(model, parallel)
    assert parallel.first[0].weight.grad is None


def test_autocast() -> None:
    model, parallel = twins(Towers())
    for module in (model, parallel):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = module(X).float().square().sum()
            loss.backward()
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


def test_hooks_on_saved_tensors() -> None:
    """A worker cannot take them over: the caller runs that call, and the next one is on lanes again."""
    model, parallel = twins(Towers())
    for module in (model, parallel):
        packed: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, packed=packed: (packed.append(t), t)[1], lambda t: t):
            loss = module(X).sum()
        loss.backward()
        assert packed
        module(X).sum().backward()
    assert_same(gradients(model), gradients(parallel))


# -- results that are made of results -----------------------------------------------------------------------------------


class Explained(Two):
    """Gives what a score was made of beside the score; what has branches is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.stem(x).tanh()
        return features, self.left(features) * self.right(features)


class Supervised(Two):
    """Gives a loss beside the logits, and weighs it with a parameter that the logits know as well."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.left(x * self.weight) + self.right(x * self.weight)
        return logits, nn.functional.cross_entropy(logits, x.argmax(1), self.weight.detach()) + (logits * self.weight).mean()


class Encoded(Two):
    """Gives a reconstruction, the distribution that it was drawn from, and a loss of both."""

    def __init__(self) -> None:
        super().__init__()
        self.upper, self.lower = Tower(), Tower()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, spread = self.left(x), self.right(x)
        code = mean + spread.exp() * x.roll(1, 0)
        decoded = self.upper(code) * self.lower(code)
        return decoded, mean, spread, (decoded - x).square().mean() + (mean.square() + spread.exp() - spread).mean()


class Routed(Two):
    """Gives every step from the first to the last."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.left(x) * self.right(x)
        balance = hidden.softmax(1).mean(0).square().sum()
        pooled = hidden[:, 0].tanh()
        return {"loss": pooled.sum() + 0.1 * balance, "balance": balance, "pooled": pooled, "hidden": hidden}


class Monitored(Two):
    """Looks at what it has made of a result, and gives nothing of that."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.left(x) * self.right(x)
        score = hidden.tanh()
        nn.functional.layer_norm(score, (6,)).square()
        return score, hidden


class Matched(Two):
    """Gives similarities of two towers both ways, one of them a view of the other, and their loss: CLIP."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        left, right = nn.functional.normalize(self.left(x)), nn.functional.normalize(self.right(x))
        rows = left @ right.t()
        columns = rows.t()
        target = torch.arange(len(x))
        loss = nn.functional.cross_entropy(rows, target) + nn.functional.cross_entropy(columns, target)
        return loss / 2, rows, columns, columns.unsqueeze(0).transpose(0, 1)


SECTIONED = [Explained, Supervised, Encoded, Routed, Monitored, Matched]


def results_of(module: nn.Module, x: Tensor) -> list[Tensor]:
    found = module(x)
    return list(found.values()) if isinstance(found, dict) else list(found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", SECTIONED)
def test_results_of_results_are_on_lanes(make: Callable[[], nn.Module]) -> None:
    """Each result, alone and with others, has its gradients of eager; the caller may ask for those of the other results."""
    model, parallel = twins(make())
    count = len(results_of(model, X))
    for chosen in itertools.product([False, True], repeat=count):
        found = []
        for module in (model, parallel):
            module.zero_grad()
            x = X.clone().requires_grad_()
            results, seen = results_of(module, x), list[Tensor]()
            for number, result in enumerate(results):
                result.retain_grad()
                result.register_hook(
                    lambda gradient, number=number, seen=seen: seen.append(gradient) or gradient * (number + 2)
                )
            loss = sum(result.square().sum() for result, taken in zip(results, chosen, strict=True) if taken)
            if isinstance(loss, Tensor):
                slopes = torch.autograd.grad(loss, [*results, x], retain_graph=True, allow_unused=True)
                loss.backward(retain_graph=True)
                loss.backward()
                found.append((slopes, seen, [result.grad for result in results], x.grad, gradients(module)))
        if found:
            assert_same(*found)
    assert on_lanes(parallel), str(parallel)
    assert any(backward.program is not None for backward in backwards_of(parallel))


def test_a_section_has_its_own_lanes() -> None:
    """An encoder and a decoder have two branches each, the loss has none."""
    _, parallel = twins(Encoded())
    first, second, loss = backwards_of(parallel)
    assert first.program is not None and second.program is not None
    assert len(first.results) == 2 and len(second.results) == len(loss.results) == 1
    assert {name.split("/")[0] for name in second.terms} >= set(first.results)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", SECTIONED)
def test_gradients_of_gradients_through_sections(make: Callable[[], nn.Module]) -> None:
    model, parallel = twins(make())
    found = []
    for module in (model, parallel):
        x = X.clone().requires_grad_()
        results = results_of(module, x)
        loss = sum((result.square().sum() for result in results), torch.zeros(()))
        slopes = torch.autograd.grad(loss, [x, *results], create_graph=True)
        sum((slope.square().sum() for slope in slopes), torch.zeros(())).backward()
        found.append((slopes, x.grad, gradients(module)))
    assert on_lanes(parallel)
    torch.testing.assert_close(*found)


def test_logits_are_written_before_the_backward_of_their_loss() -> None:
    """As in eager, where it needs what was there it is an error; and a graph that was gone through is none any more."""
    model, parallel = twins(Supervised())
    for module in (model, parallel):
        logits, loss = module(X)
        logits.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        logits, loss = module(X)
        loss.backward(retain_graph=True)
        loss.backward()
        for result in (loss, logits.sum()):
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                result.backward()
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


def test_a_view_of_a_result_is_one_for_the_caller() -> None:
    """Whoever writes one of them in place changes the other, and its history."""
    model, parallel = twins(Matched())
    for module in (model, parallel):
        for _ in range(2):
            _, rows, columns, _ = module(X)
            assert columns._base is rows
            columns[0].mul_(3)
            rows.square().sum().backward()
    assert on_lanes(parallel)
    assert_same(gradients(model), gradients(parallel))


# -- what autograd does --------------------------------------------------------------------------------------------------


class Written(Two):
    """The left branch's result is written in place after the right branch has read it."""

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        right = self.right(x) + left
        left.mul_(2)
        return left + right


class Aliased(Two):
    """The results share memory."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = self.left(x) + self.right(x)
        return left[:2], left[2:]


class Deciding(Two):
    """Which ops there are depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        left = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.left(x),))
        return left * self.right(x)


class Counting(Two):
    """Trains a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Buffer(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        self.total.add_(left.sum(0))
        return left * self.right(x) * self.total


class Shared(nn.Module):
    """Two branches with one weight; autocast casts it once, and the gradients of both meet before they are cast back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.left, self.right = nn.Linear(6, 6), Tower(), Tower()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(self.left(x)) * self.layer(self.right(x))


class Tangled(Two):
    """A loss takes up a branch beside the logits, which are made of it, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = self.left(x)
        logits = left * self.right(x)
        return logits, logits.mean() + left.mean()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Tangled, "made of other results, and of what these are made of"),
        (Written, "which is written"),
        (Aliased, "may share memory with the result"),
        (Deciding, "decides in each call what it computes"),
        (Counting, "an argument with a gradient is written in place"),
        (Shared, "and no value passes between them"),
    ],
)
def test_what_is_left_to_autograd(make: Callable[[], nn.Module], reason: str) -> None:
    """Reasons stand in the summary; gradients are right all the same."""
    model = make()
    parallel = spread(model, X, lanes=2, copy=True, check=False, backward="lanes")
    found = []
    for module in (model, parallel):
        for _ in range(2):
            results = module(X)
            loss = sum(each.float().square().sum() for each in (results if isinstance(results, tuple) else (results,)))
            loss.backward(retain_graph=True)
            if make is Counting:
                module.total = torch.zeros(6)
        found.append(gradients(module))
    assert reason in str(parallel), str(parallel)
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


def test_the_summary_says_where_backward_runs() -> None:
    _, parallel = twins(Towers())
    assert "backward: on the lanes of the forward" in str(parallel)
    unseen = spread(copy.deepcopy(parallel.original), X, lanes=2, check=False, backward="lanes")
    assert "backward: on lanes, if the first call that records gradients shows that it can" in str(unseen)


def test_a_wrong_option() -> None:
    with pytest.raises(SpecError, match="backward"):
        load_spec({"backward": "lane"})
