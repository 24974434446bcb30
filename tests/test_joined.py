"""All lanes as one TorchScript function: forks of torch's own in the place of hand-offs, with the values of eager.

Which of the two a call uses is a question of time; here it is always the one function.
"""

from __future__ import annotations

import gc
import os
import re
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import Towers, assert_same, numbers, spec, spread
from torch import Tensor, nn

from partitioner import partition
from partitioner.backends.compiling import compiled as module
from partitioner.backends.compiling.compiled import Compiled
from partitioner.runtime.module import Parallel
from partitioner.testing import assert_equal_runs

X = numbers(4, 6)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that can be one function is one, and all threads an op may have are one."""
    monkeypatch.setattr(module, "is_faster", lambda *_: True)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def executable(parallel: Parallel) -> Compiled:
    """What runs the program that ran last."""
    found = parallel._partitioner_programs.shown.executable
    assert isinstance(found, Compiled)
    return found


def scripted(model: nn.Module, *inputs: Any, lanes: int = 2, **options: Any) -> Parallel:
    """A model over lanes whose tasks are TorchScript's functions, called once."""
    parallel = spread(model, *inputs, lanes=lanes, copy=True, compile_tasks="torchscript", **options)
    parallel(*inputs)
    return parallel


class Net(nn.Module):
    """Ops of one or two earlier values each; what nobody reads is returned."""

    def __init__(self, picks: list[tuple[int, int]]) -> None:
        super().__init__()
        self.picks = picks
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in picks)

    def forward(self, x: Tensor) -> list[Tensor]:
        values, read = [x], {0}
        for layer, (first, second) in zip(self.layers, self.picks, strict=True):
            first, second = first % len(values), second % len(values)
            values.append(layer(values[first]).tanh() * values[second])
            read |= {first, second}
        return [value for number, value in enumerate(values) if number not in read]


@given(picks=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=2, max_size=8), lanes=st.integers(2, 4))
@settings(max_examples=settings.default.max_examples // 2)
def test_random_graphs_have_eager_s_bits(picks: list[tuple[int, int]], lanes: int) -> None:
    model = Net(picks)
    parallel = partition(model, example_inputs=X, spec=spec(lanes), copy=True, check=False, compile_tasks="torchscript")
    assert_equal_runs(model, parallel, (X,), train=True, gradient_bitwise=False)
    several = len(set(parallel.placement.lanes)) > 1
    assert not several or executable(parallel).joined is not None


def test_the_source_forks_each_branch_and_waits_for_it() -> None:
    parallel = scripted(Towers(), X)
    assert re.search(r"ends_\d = torch.jit.fork\(on_lane_\d, .*\n.* = t\d+\(.*\n.*torch.jit.wait", parallel.code), parallel.code
    assert executable(parallel).joined is not None and "one with all lanes in it" in str(parallel)
    assert_same(parallel(X), parallel.original(X))


class Exchanging(nn.Module):
    """Branches that read each other's values halfway: a fork waits for a fork, and for what the caller has made."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.ModuleList(nn.Linear(6, 6) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        results = [x, x, x]
        for layers in (self.first, self.second):
            mixed = [layer(each).tanh() for layer, each in zip(layers, results, strict=True)]
            results = [mixed[0] + mixed[1], mixed[1] * mixed[2], mixed[2] - mixed[0]]
        return tuple(results)


def test_branches_that_exchange_values_train_as_in_eager() -> None:
    model = Exchanging()
    parallel = scripted(model, X, lanes=3)
    found = executable(parallel).joined
    assert found is not None and re.search(r"def on_lane_\d+\(.*Future\[Tuple", found.source), "a fork waits for a fork"
    assert_equal_runs(model, parallel, (X,), train=True, gradient_bitwise=False, calls=3)


class Unheard(nn.Module):
    """A branch of constants, which reads nothing, beside one that does."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.cos() * x.sin()) @ torch.ones(6, 6).cumsum(0).tril()


def test_a_branch_that_reads_nothing_is_the_caller_s() -> None:
    """TorchScript knows no fork without arguments: `uses().size() == 1 INTERNAL ASSERT FAILED`."""
    assert_same(scripted(Unheard(), X)(X), Unheard()(X))


class Drops(nn.Module):
    """A branch that draws random numbers, which forks would do in any order."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x.cos(), 0.5) * nn.functional.dropout(x.sin(), 0.5)


class Counts(nn.Module):
    """Branches that write statistics: what fails halfway could not be called again."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x).tanh() * self.right(x).tanh()


@pytest.mark.parametrize("make", [Drops, Counts])
def test_what_draws_or_writes_stays_on_lanes(make: type[nn.Module]) -> None:
    model = make().train()
    parallel = scripted(model, X)
    assert executable(parallel).joined is None
    model.load_state_dict(parallel.state_dict())
    assert_equal_runs(model, parallel, (X,), train=True, gradient_bitwise=False)


class Lookups(nn.Module):
    """Two tables, one of which may be too short."""

    def __init__(self) -> None:
        super().__init__()
        self.long, self.short = nn.Embedding(40, 6), nn.Embedding(4, 6)

    def forward(self, index: Tensor) -> Tensor:
        return self.long(index).tanh().cos() * self.short(index).tanh().sin()


def test_what_fails_in_a_fork_fails_as_the_model_does() -> None:
    model = Lookups()
    parallel = scripted(model, torch.tensor([1, 2]))
    assert executable(parallel).joined is not None
    for _ in range(3):
        with pytest.raises(IndexError, match=r"^index out of range in self$"):
            parallel(torch.tensor([1, 9]))
        assert_same(parallel(torch.tensor([3, 0])), model(torch.tensor([3, 0])))


def test_threads_are_as_they_were() -> None:
    torch.set_num_threads(2)
    parallel = scripted(Towers(), X)
    parallel(X)
    assert torch.get_num_threads() == 2 and executable(parallel).joined is not None


def test_deterministic_algorithms_leave_it_to_lanes() -> None:
    """The choice is by time, and an op may round in another way with a lane's threads."""
    torch.use_deterministic_algorithms(True)
    try:
        assert executable(scripted(Towers(), X)).joined is None
    finally:
        torch.use_deterministic_algorithms(False)


class Tiny(nn.Module):
    """Numbers below the normal ones, in two branches."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 0.5).neg(), (x * 0.25).neg()


def test_tiny_numbers_are_zero_if_the_caller_s_thread_says_so() -> None:
    """A switch of the thread, which torch's own threads are not told of."""
    x = torch.full((4, 6), 1e-41)
    parallel = scripted(Tiny(), x)
    assert executable(parallel).joined is not None and all(each.count_nonzero() for each in parallel(x))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        assert_same(parallel(x), Tiny()(x))
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_the_child_of_a_fork_has_no_threads_of_torch_s_and_goes_on() -> None:
    """It would wait for good for a thread that is not there."""
    model = Towers()
    parallel = scripted(model, X)
    wanted = parallel(X)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"1" if torch.equal(parallel(X), wanted) else b"0")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    os.waitpid(child, 0)


def test_the_function_goes_with_the_module() -> None:
    parallel = scripted(Towers(), X)
    function = executable(parallel).joined
    assert function is not None
    watched = weakref.ref(function)
    del parallel, function
    gc.collect()
    gc.collect()  # torch lets go of a program when the code that it stood for has gone
    assert watched() is None
