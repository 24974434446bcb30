"""Bugs that were found in what runs a plan: each test tells the story of one."""

from __future__ import annotations

import copy
import gc
import logging
import threading
import weakref
from typing import Any

import pytest
import torch
from lanes import OLD_TORCH, Towers, assert_same, numbers, programs, spec, spread, spying, threads_of
from torch import Tensor, nn

from partitioner import partition
from partitioner.backends.codegen import Code
from partitioner.backends.threads import Launch
from partitioner.errors import InputError, SpecError

X = numbers(4, 6)

pytestmark = pytest.mark.usefixtures("one_thread")


def empty_call(events: int) -> Launch:
    """A call of code that needs so many events."""
    return Launch(Code("", "", (), events, 0, {}, (), ()), 2)


class Contended:
    """A lock that somebody else opens between any two of our lines."""

    def acquire(self, blocking: bool = True) -> bool:
        return False

    def release(self) -> None:
        raise RuntimeError("release unlocked lock")


def test_two_lanes_that_fail_at_once() -> None:
    """Each opened every event's lock: tried to take it, then released it. Two lanes at it at once could both find a lock held
    and both release it; the second release raised, out of a worker's last line of defence. The worker was gone, and every
    later call waited for it for ever.
    """
    call = empty_call(2)
    call.events = [Contended(), Contended()]
    call.fail(ValueError("first"))
    call.fail(ValueError("second"))
    assert str(call.error) == "first"


def test_a_lane_that_goes_on_while_another_fails() -> None:
    """It records an event that the failing lane has opened already, and that raised: an error about a lock hid the real one."""
    call = empty_call(1)
    call.fail(ValueError("first"))
    call.record(0, 0)
    assert str(call.error) == "first"


def test_an_error_that_held_itself() -> None:
    """The call kept the error that it raised, the error its traceback, the traceback the frames, and these the call, with every
    tensor in it: memory that only a full garbage collection gave back, and after an out-of-memory error that is too late.
    """
    parallel = spread(Towers(), X)
    argument = X.clone()
    alive = weakref.ref(argument)
    gc.collect()
    gc.disable()
    try:
        with spying(parallel.head, lambda: 1 / 0), pytest.raises(ZeroDivisionError) as raised:
            parallel(argument)
        del argument, raised
        assert alive() is None
    finally:
        gc.enable()


def test_a_call_inside_a_lane_of_another() -> None:
    """The caller's own lane called another partitioned module, from inside a layer. Its jobs queued up behind those of the
    outer call, which waited for an event of this very lane: nobody could go on.
    """
    inner, parallel = spread(Towers(), X, copy=True), spread(Towers(), X, copy=True)
    found: list[Tensor] = []
    thread = threading.Thread(target=parallel, args=(X,), daemon=True)
    with spying(parallel.stem, lambda: found.append(inner(X))):
        thread.start()
        thread.join(timeout=30)
    assert not thread.is_alive() and len(found) == 1


def test_a_module_that_runs_while_another_is_traced() -> None:
    """torch.fx patches `nn.Module` for the whole process while it traces, so a model that another thread just called was sent
    to the tracer, which did not know it: `NameError: module is not installed as a submodule`.
    """
    other, tracing, called = nn.Linear(6, 6), threading.Event(), threading.Event()
    failures: list[BaseException] = []

    class Slow(Towers):
        def forward(self, x: Tensor) -> Tensor:
            if isinstance(x, torch.fx.Proxy):
                tracing.set()
                assert called.wait(timeout=30)
            return super().forward(x)

    def call() -> None:
        assert tracing.wait(timeout=30)
        try:
            other(X)
        except BaseException as error:
            failures.append(error)
        called.set()

    thread = threading.Thread(target=call)
    thread.start()
    partition(Slow(), spec=spec())  # without examples it is only looked at, by torch.fx
    thread.join()
    assert called.is_set() and failures == []


class Holder(nn.Module):
    """Holds a partitioned module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.side = inner, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.side(x)


@pytest.mark.xfail(OLD_TORCH, reason="its tracer cannot enter the inner module, which keeps programs of its own")
def test_a_partitioned_module_that_is_traced() -> None:
    """It took the tracer's proxies for constants, and made itself a program that burned them in. Then it broke the outer graph:
    its part ran on its own lanes, and beside nothing else. Now the tracer sees the model.
    """
    inner = spread(Towers(), X)
    plain = Holder(copy.deepcopy(inner.original))
    model = Holder(inner)
    plain.load_state_dict(model.state_dict())
    parallel = spread(model, X)
    assert {op.path.partition(".")[0] for op in parallel.graph.ops} == {"inner", "side", ""} and programs(inner) == 1
    assert_same(plain(X), parallel(X))


def test_compiled() -> None:
    """`torch.compile` took the module's ops for itself, and nobody said that they no longer ran on lanes. It leaves them."""
    model = Towers()
    parallel = spread(model, X, copy=True)
    compiled = torch.compile(parallel, backend="eager")
    with threads_of(*parallel.towers) as threads:
        with pytest.warns(UserWarning, match="torch.compile leaves a partitioned module as it is"):
            assert_same(model(X), compiled(X))
        assert_same(model(X), compiled(X))
    assert len(threads) == 3


def test_exported() -> None:
    """`torch.export` sees the model itself. That speaks for the whole process; calls on other threads stay with their lanes."""
    model = Towers()
    parallel = spread(model, X, copy=True)
    assert_same(model(X), torch.export.export(parallel, (X,)).module()(X))


def test_a_replaced_branch() -> None:
    """The program went on calling the layers by the names that they had, and never noticed those that were new."""
    model = Towers()
    parallel = spread(model, X, copy=True)
    new = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
    model.towers[1], parallel.towers[1] = new, copy.deepcopy(new)
    assert_same(model(X), parallel(X))


def test_a_training_flag_of_its_own() -> None:
    """The wrapper and the model each had one; whoever set only one of them got the other's program."""
    parallel = spread(nn.Sequential(nn.Linear(6, 6), nn.Dropout()), X, lanes=1)
    parallel.original.eval()
    assert not parallel.training
    parallel.training = True
    assert parallel.original.training


def test_examples_that_eager_does_not_take() -> None:
    """What the model raised on the examples was swallowed as if it came from the second draw, and a note said `equal`."""
    with pytest.raises(InputError, match="mat1 and mat2 shapes cannot be multiplied"):
        partition(Towers(), example_inputs=numbers(4, 7), spec=spec())


def test_tracing_in_the_middle_of_a_graph() -> None:
    """A module inside another one gets inputs that are no leaves, and reading such a tensor's `.grad` warns. With warnings as
    errors, a new program could not be made there.
    """
    parent = nn.Sequential(nn.Linear(6, 6), spread(Towers(), X))
    parent.eval()
    assert parent(X).shape == (4, 2)


def test_a_device_context_around_a_first_call() -> None:
    """Where a program was made inside of `with torch.device("meta")`, the second draw of inputs was shuffled on that device."""
    model = Towers()
    parallel = spread(model, X, copy=True)
    with torch.device("meta"):
        assert_same(model.eval()(X), parallel.eval()(X))


def test_a_plan_without_accelerators_on_the_streams_backend() -> None:
    """It failed deep inside of torch, at the first call: `Cannot access accelerator device when none is available`."""
    with pytest.raises(SpecError, match=r"backend 'streams' is for accelerators"):
        spread(Towers(), X, backend="streams")


def test_a_mutable_argument() -> None:
    """What has no hash was told apart by its address: changed in place, it still got the program made for what it was."""

    class Scaled(Towers):
        def forward(self, x: Tensor, options: Any) -> Tensor:
            return super().forward(x) * len(options)

    model = Scaled()
    parallel = spread(model, X, {1})
    options = {1}
    assert_same(model(X, options), parallel(X, options))
    options.add(2)
    assert_same(model(X, options), parallel(X, options))


def test_many_modules_that_are_compiled_as_one_graph() -> None:
    """All partitioned modules had one code object in front of their forwards. torch counts what it compiles by code objects, so
    the ninth one, of whatever class, was too many: a raw error where one graph is wanted.
    """
    for number in range(torch._dynamo.config.recompile_limit + 2):
        kind = type(f"Kind{number}", (nn.Linear,), {})
        parallel = partition(kind(6, 2), spec=spec())
        assert_same(parallel.original(X), torch.compile(parallel, backend="eager", fullgraph=True)(X))


@pytest.mark.usefixtures("scattering")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop], ids=["SGD", "RMSprop"])
def test_an_optimizers_step_behind_torch_compile(kind: type[torch.optim.Optimizer]) -> None:
    """Its graph holds parameters and momenta as attributes, of which it was not seen that they are what `mul_` gives: lanes
    stepped with momenta that were half of this step and half of the one before.
    """

    def stepped(compiled: bool) -> list[Tensor]:
        weights = [numbers(6, 6, seed=1).requires_grad_(), numbers(6, seed=2).requires_grad_()]
        optimizer: Any = kind(weights, lr=0.01, momentum=0.9)  # type: ignore[call-arg]
        options = {"devices": ["cpu:0", "cpu:1"], "policy": "scatter", "grain": 0}
        step = torch.compile(optimizer.step, backend="partitioner", options=options) if compiled else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            (X @ weights[0] + weights[1]).square().sum().backward()
            step()
        return [each.detach() for each in weights]

    torch.testing.assert_close(stepped(compiled=True), stepped(compiled=False))


class Cached(nn.Module):
    """Puts keys into a cache of the caller's, and reads it under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        filled = cache.mul_(0.5)
        filled[: len(x)] += self.left(x)
        return self.right(x) + cache.sum(0), cache * 2


@pytest.mark.usefixtures("scattering")
def test_a_cache_that_is_marked_to_stay_where_it_is() -> None:
    """It was held with the graph: each cache took a program of its own, and its other names were not known to be it."""
    model = Cached()
    parallel = partition(model, ["cpu:0", "cpu:1"], policy="scatter", grain=0, copy=True)
    with torch.no_grad():
        for _ in range(3):
            mine, theirs = torch.ones(8, 6), torch.ones(8, 6)
            for cache in (mine, theirs):
                torch._dynamo.mark_static_address(cache, guard=True)
            for seed in range(3):
                x = numbers(4, 6, seed=seed)
                assert_same(model(x, mine), parallel(x, theirs))
                assert_same(mine, theirs)
    assert programs(parallel) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_assertions_on_sizes_behind_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were called on other sizes while the graph was looked at, and pages of torch's errors were written to stderr."""

    def first(x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        rows = count.item()
        torch._check(rows >= 0)
        torch._check(rows <= x.shape[0])
        return x.narrow(0, 0, rows).sum(0), x[x > 0] * 2, x.nonzero().sum(0), torch.arange(rows)  # type: ignore[arg-type]

    told: list[Any] = []
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handle", told.append)
    settings: Any = torch._dynamo.config
    with settings.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(first, backend="partitioner", options={"devices": ["cpu:0", "cpu:1"]})
        for rows in (2, 1, 3):
            assert_same(first(X, torch.tensor(rows)), compiled(X, torch.tensor(rows)))
    assert not told


def test_an_argument_of_inference_mode_is_given_other_data() -> None:
    """Dynamo asks it how often it was written, which torch does not count there: a raw error."""

    class Exchanges(Towers):
        def forward(self, x: Tensor) -> Tensor:
            x.data = x.data * 2
            return super().forward(x)

    model = Exchanges()
    parallel = spread(model, X, copy=True)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            mine, theirs = X.clone(), X.clone()
            assert_same(model(mine), parallel(theirs))
            assert_same(mine, theirs)
            assert mine.is_inference() or mine._version == theirs._version
