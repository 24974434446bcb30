"""What goes wrong, and what is left afterwards: errors in a lane, Ctrl-C, wrong arguments, threads, forks, garbage.

A lane that hangs would hang the test, so every one of them is also a test for deadlocks; the time limit of the suite ends it.
"""

from __future__ import annotations

import _thread
import copy
import gc
import linecache
import os
import random
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from lanes import (
    OLD_TORCH,
    NormedTowers,
    Tower,
    Towers,
    assert_same,
    assert_same_state,
    numbers,
    programs,
    spec,
    spread,
    spying,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from partitioner import partition
from partitioner.backends.workers import POOL
from partitioner.errors import InputError, PartitionerError, SpecError
from partitioner.frontend.capture import frames
from partitioner.frontend.capture.interrupts import held_back

X = numbers(4, 6)
LANES = range(3)

pytestmark = pytest.mark.usefixtures("one_thread")


def raiser(error: BaseException) -> Callable[[], None]:
    """A function that raises this very object."""

    def action() -> None:
        raise error

    return action


# -- errors in a lane ------------------------------------------------------------------------------------------------


class Unlucky(Exception):
    """Nobody else's exception."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    "error", [Unlucky("no"), MemoryError("no"), SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_an_error_in_a_lane_is_the_callers(lane: int, error: BaseException) -> None:
    """The object that was raised, not a copy, on the caller's thread; every lane has stopped, and the next call works."""
    model = Towers()
    parallel = spread(model, X)
    with spying(parallel.towers[lane][0], raiser(error)), pytest.raises(type(error)) as raised:
        parallel(X)
    assert raised.value is error
    assert_same(model(X), parallel(X))


class Lookups(nn.Module):
    """Three tables; an index that is too large is an error of its op, which nothing before it can notice."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 6)) for _ in LANES)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Maps three vectors of indices to a matrix."""
        first, second, third = (table(x) for table, x in zip(self.tables, (a, b, c), strict=True))
        return torch.cat([first, second, third], 1)


GOOD, BAD = torch.tensor([1, 2]), torch.tensor([1, 7])


def indices(bad: int | None = None) -> list[Tensor]:
    """Arguments for `Lookups`; one of them may be out of range."""
    return [BAD.clone() if number == bad else GOOD.clone() for number in LANES]


class Later(Lookups):
    """Python stands before its graph."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return super().forward(a, b, c)


@pytest.mark.parametrize("lane", LANES)
def test_an_error_says_where_it_comes_from(lane: int) -> None:
    """It is the model's own where the call begins with the graph; otherwise it names op, module path and the model's line."""
    line = Lookups.forward.__code__.co_firstlineno + 2
    for kind in (Lookups, Later):
        parallel = spread(kind(), *indices())
        with pytest.raises(IndexError, match="out of range") as raised:
            parallel(*indices(bad=lane))
        shown = "".join(traceback.format_exception(raised.value))
        if kind is Lookups:
            assert f'File "{__file__}", line {line}, in ' in shown and not hasattr(raised.value, "__notes__")
        else:
            (note,) = raised.value.__notes__
            assert f"tables_{lane}_0_embedding = embedding(...) in tables.{lane}.0 at {__file__}:{line}" in note
        assert parallel(*indices()).shape == (2, 18)


def test_an_error_says_so_on_one_lane_under_a_profiler_too() -> None:
    """Each task is a range there, in code of its own, and the op was looked for in the other one."""
    parallel = partition(Later(), ["cpu"], example_inputs=tuple(indices()), policy="single")
    with torch.profiler.profile(acc_events=True), pytest.raises(IndexError) as raised:
        parallel(*indices(bad=1))
    assert [note.partition(" = ")[0] for note in raised.value.__notes__] == ["in op tables_1_0_embedding"]


def test_errors_in_all_lanes_at_once() -> None:
    """One of them is raised; the others must neither hang nor kill a worker. Again and again, because that is a race."""
    parallel = spread(Lookups(), *indices())
    for _ in range(200):
        with pytest.raises(IndexError):
            parallel(BAD, BAD, BAD)
    assert parallel(*indices()).shape == (2, 18)


def test_an_error_in_backward() -> None:
    parallel = spread(Towers(), X)
    parallel.towers[1][0].register_full_backward_hook(lambda module, grads, outs: raiser(Unlucky("no"))())
    with pytest.raises(Unlucky):
        parallel(X.clone().requires_grad_()).sum().backward()
    parallel.towers[1][0]._backward_hooks.clear()
    parallel(X).sum().backward()


def test_out_of_memory() -> None:
    """An allocation that fails for real."""

    class Huge(Towers):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.repeat(int(x.shape[0] > 4) * 2**46 + 1, 1))

    parallel = spread(Huge(), X, check=False)
    with pytest.raises(RuntimeError, match=r"allocate|memory"):
        parallel(numbers(5, 6))
    assert parallel(X).shape == (4, 2)


@pytest.mark.parametrize("lane", LANES)
def test_an_error_keeps_no_tensor_alive(lane: int) -> None:
    """Once it is handled: its traceback holds frames, and those the call; an error that the call held would be a circle."""
    parallel = spread(Lookups(), *indices())
    arguments = indices(bad=lane)
    alive = [weakref.ref(tensor) for tensor in arguments]
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(IndexError) as raised:
            parallel(*arguments)
        del arguments, raised
        assert [reference() for reference in alive] == [None] * 3
    finally:
        gc.enable()


def test_a_call_keeps_no_tensor_alive() -> None:
    """When it is over: neither a worker nor the module holds inputs or results."""
    parallel = spread(Towers(), X)
    argument = X.clone()
    result = parallel(argument)
    alive = [weakref.ref(argument), weakref.ref(result)]
    del argument, result
    assert [reference() for reference in alive] == [None] * 2


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [1, 2])
def test_interrupting_a_call_whose_lanes_are_busy(lane: int) -> None:
    """The caller waits for a lane that takes long. It is told at once, and returns when the lane's op has ended."""
    model = Towers()
    parallel = spread(model, X)
    started = threading.Event()

    def dawdle() -> None:
        started.set()
        time.sleep(0.2)

    def interrupt() -> None:
        started.wait()
        time.sleep(0.05)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    with spying(parallel.towers[lane][0], dawdle):
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            parallel(X)
    thread.join()
    assert_same(model(X), parallel(X))


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_interrupting_anywhere() -> None:
    """Ctrl-C may come between any two lines. A call then raises KeyboardInterrupt, and the next one works.

    torch loses what is raised while it asks a guard that is a function of Python: one interrupt in ten never arrived.
    """
    model = Towers()
    parallel = spread(model, X)
    expected, draw, caller = model(X), random.Random(0), threading.get_ident()
    raised = interrupted = 0
    armed = threading.Event()

    def on_signal(number: int, frame: Any) -> None:
        # What is raised in hypothesis's callback, or in torch's guard on open sizes and aliases, nobody gets.
        if armed.is_set() and frame.f_code.co_name not in ("gc_callback", "guard"):
            nonlocal raised
            armed.clear()
            raised += 1
            raise KeyboardInterrupt

    def kill(delay: float) -> None:
        time.sleep(delay)
        signal.pthread_kill(caller, signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, on_signal)
    try:
        for _ in range(2000):
            if interrupted == 60:
                break
            thread = threading.Thread(target=kill, args=(draw.uniform(0, 8e-4),))
            thread.start()
            try:
                armed.set()
                result = parallel(X)
                armed.clear()
                assert_same(expected, result)
            except KeyboardInterrupt:
                interrupted += 1
            thread.join()
            assert_same(expected, parallel(X))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert interrupted == 60, f"the test wants to interrupt calls; {raised} handlers raised"
    assert raised == 60, "an interrupt was lost"
    assert_same(model.eval()(X), parallel.eval()(X))
    seen: set[int] = set()
    with ExitStack() as stack:
        for tower in parallel.towers:
            stack.enter_context(spying(tower[0], lambda: seen.add(threading.get_ident())))
        parallel(X)
    assert len(seen) == 3 and caller in seen, "a later call runs on lanes again"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_interrupting_while_a_program_is_made(error: type[BaseException]) -> None:
    """What a handler raises comes out of the call that is traced, once, and the next call is as any other.

    It was lost in guards and weak references, a timeout passed for a model that cannot be traced, and some ended the process.
    One of eight may be lost still: there is a microsecond, in torch's own guards, in which it is (README).
    """
    draw = random.Random(0)
    raised = caught = 0

    def on_signal(number: int, frame: Any) -> None:
        nonlocal raised
        raised += 1
        raise error("by a signal")

    previous = signal.signal(signal.SIGALRM, on_signal)
    try:
        for _ in range(100):
            if caught == 8:
                break
            parallel = partition(Towers(), ["cpu:0", "cpu:1", "cpu:2"])
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.15))
                parallel(X)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except error:
                caught += 1
            assert signal.getsignal(signal.SIGALRM) is on_signal
            assert_same(parallel.original(X), parallel(X))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert caught == 8 <= raised <= 9, "the test wants to interrupt the tracer, and no interrupt is lost"


def test_a_second_interrupt_does_not_wait() -> None:
    """Who presses Ctrl-C again, while a large model is traced, means it."""
    reached = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        reached.append("afterwards")
    assert reached == ["after the first"]


# -- arguments -------------------------------------------------------------------------------------------------------


class Cut(Towers):
    """Branches on a shape: a program for each side."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.shape[1] <= 6 else x[:, :6])


WRONG = {
    "dtype": ((X.double(),), {}),
    "shape": ((numbers(4, 5),), {}),
    "dimensions": ((numbers(2),), {}),
    "too many": ((X, X), {}),
    "too few": ((), {}),
    "unknown keyword": ((), {"y": X}),
    "no tensor": ((None,), {}),
    "structure": (([X],), {}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [Towers, Cut])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_what_eager_raises(name: str, kind: type[Towers]) -> None:
    """Type and text: a user looks for the mistake in the call, and not in a tracer. No such call makes a program each time."""
    args, kwargs = WRONG[name]
    model = kind()
    parallel = spread(model, X)
    with pytest.raises(Exception) as eager:  # whatever it is
        model(*args, **kwargs)
    for _ in range(2):
        with pytest.raises(eager.type) as ours:
            parallel(*args, **kwargs)
        assert str(ours.value) == str(eager.value)
    assert_same(model(X), parallel(X))
    assert programs(parallel) <= 2


@pytest.mark.parametrize("name", WRONG)
def test_wrong_examples_say_what_eager_says(name: str) -> None:
    """Or, where they do not fit forward at all, just that."""
    args, kwargs = WRONG[name]
    model = Towers()
    with pytest.raises(Exception) as eager:  # whatever it is
        model(*args, **kwargs)
    with pytest.raises(PartitionerError) as ours:
        partition(model, example_inputs=args, example_kwargs=kwargs, spec=spec())
    assert str(eager.value) in str(ours.value) or "do not fit Towers.forward: " in str(ours.value)


class Refuses(Towers):
    """Raises in eager."""

    def forward(self, x: Tensor) -> Tensor:
        raise Unlucky("not today")


def test_a_model_that_raises_in_eager() -> None:
    with pytest.raises(InputError, match=r"Refuses fails on the example inputs\. Unlucky: not today") as raised:
        partition(Refuses(), example_inputs=X, spec=spec())
    assert isinstance(raised.value.__cause__, Unlucky)


@pytest.mark.parametrize(
    "options",
    [
        {"example_inputs": numbers(4, 7)},
        {"example_inputs": (X, X)},
        {"example_inputs": X, "policy": "unknown"},
        {"example_inputs": X, "backend": "unknown"},
        {"example_inputs": X, "backend": "streams"},
        {"example_inputs": X, "devices": ["nowhere:0"]},
        {"example_inputs": X, "devices": ["xpu:7", "cpu"]},
        {"example_inputs": X, "spec": {"devices": [{"device": "cpu", "memory": 8}]}},
    ],
    ids=lambda options: " ".join(f"{key}" for key in options if key != "example_inputs") or "inputs",
)
def test_a_failing_partition_leaves_the_model_alone(options: dict[str, Any]) -> None:
    """Devices, attributes, modes, hooks, gradients and random state are as they were."""
    model = NormedTowers()
    model.towers[1].eval()
    model.towers[0].register_forward_hook(lambda module, args, output: None)
    model(X).sum().backward()
    kept, gradients = copy.deepcopy(model), [parameter.grad.clone() for parameter in model.parameters()]
    attributes = [{name: id(value) for name, value in module.__dict__.items()} for module in model.modules()]
    generator = torch.get_rng_state()
    with pytest.raises((PartitionerError, RuntimeError, TypeError)):
        partition(model, **options)
    assert torch.equal(generator, torch.get_rng_state())
    assert attributes == [{name: id(value) for name, value in module.__dict__.items()} for module in model.modules()]
    assert [module.training for module in model.modules()] == [module.training for module in kept.modules()]
    assert_same_state(kept, model)
    assert_same(gradients, [parameter.grad for parameter in model.parameters()])
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_a_backend_that_does_not_fit() -> None:
    with pytest.raises(SpecError, match=r"backend 'streams' is for accelerators.*the plan is for cpu"):
        spread(Towers(), X, backend="streams")


# -- threads ---------------------------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], Any], seconds: float = 60) -> list[Any]:
    """The results of ``work(0)``, ``work(1)``, ... on as many threads."""
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(work, number) for number in range(count)]
        return [future.result(timeout=seconds) for future in futures]


def test_calls_from_several_threads() -> None:
    """Eight threads, fifty calls each: every one gets its own result, whatever the others do on the same lanes."""
    model = Towers().eval()
    parallel = spread(model, X)
    inputs = [numbers(4, 6, seed=number) for number in range(8)]
    wanted = [model(x) for x in inputs]

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(50):
            assert_same(wanted[number], parallel(inputs[number]))

    in_threads(8, work)


def test_threads_under_modes_of_their_own() -> None:
    """What a worker takes over is the caller's, not the last one's."""
    parallel = spread(Towers(), X)
    modes = [torch.no_grad, torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]

    def work(number: int) -> None:
        for _ in range(30):
            with modes[number]():
                result = parallel(X)
            assert result.requires_grad == (number in (1, 3))
            assert result.is_inference() == (number == 2)
            assert result.dtype == (torch.bfloat16 if number == 3 else torch.float32)

    in_threads(4, work)


@pytest.mark.parametrize("kind", [Towers, Cut])
def test_a_thread_that_needs_a_new_program(kind: type[Towers]) -> None:
    """Nothing of a trace is seen by calls on other threads, of this module, of another one, and of an ordinary one."""
    model, other = kind().eval(), Towers()
    parallel, unrelated = spread(model, X), spread(other, X)
    wanted, aside, ready = model(X), other(X), threading.Barrier(3)
    shapes = [(4 + number, 6) if kind is Towers else (4 + number, 7 + number) for number in range(12)]
    fresh = [(numbers(*shape), model(numbers(*shape))) for shape in shapes]
    done = threading.Event()

    def work(number: int) -> None:
        torch.set_num_threads(1)
        ready.wait()
        if number == 2:
            for x, result in fresh:
                assert_same(result, parallel(x))
            parallel.towers[0].train()
            assert_same(wanted, parallel(X))
            done.set()
        while not done.is_set():
            assert_same(wanted, parallel(X))
            assert_same(aside, unrelated(X))
            assert_same(aside, other(X))

    in_threads(3, work)


def test_threads_that_need_new_programs() -> None:
    """One traces at a time, and each gets what it needs."""
    model = Cut()
    parallel = spread(model, X)
    shapes = [(4, 6), (4, 7), (5, 8), (3, 6), (6, 9), (2, 6)]
    wanted = [model(numbers(*shape)) for shape in shapes]

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for turn in range(len(shapes)):
            which = (turn + number) % len(shapes)
            assert_same(wanted[which], parallel(numbers(*shapes[which])))

    in_threads(4, work)


def test_threads_that_partition() -> None:
    """Each its own model, at once."""

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(3):
            model = Towers()
            assert_same(model(X), spread(model, X)(X))

    in_threads(4, work)


def test_an_error_in_one_thread_is_not_anothers() -> None:
    parallel = spread(Lookups(), *indices())
    wanted = parallel(*indices())

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(40):
            if number % 2:
                with pytest.raises(IndexError):
                    parallel(*indices(bad=number % 3))
            else:
                assert_same(wanted, parallel(*indices()))

    in_threads(6, work)


class Calls(nn.Module):
    """Three branches, of which one calls another module as a whole."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList([Tower(), Tower()])
        self.inner = inner
        self.head = nn.Linear(14, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 2)."""
        return self.head(torch.cat([self.branches[0](x), self.inner(x), self.branches[1](x)], 1))


@pytest.mark.xfail(OLD_TORCH, reason="its tracer cannot enter the inner module, which keeps programs of its own")
def test_a_partitioned_module_inside_another() -> None:
    """The inner one becomes a part of the outer one's program, and its towers still run on three lanes."""
    plain = Calls(Towers())
    inner = spread(copy.deepcopy(plain.inner), X)
    model = Calls(inner)
    model.load_state_dict(plain.state_dict())
    parallel = partition(model, example_inputs=X, spec=spec())
    assert programs(parallel) == 1
    assert list(plain.state_dict()) == list(parallel.state_dict())
    seen: set[int] = set()
    with ExitStack() as stack:
        for tower in inner.towers:
            stack.enter_context(spying(tower[0], lambda: seen.add(threading.get_ident())))
        assert_same(plain(X), parallel(X))
    assert len(seen) == 3
    assert_same(plain(X[:2]), parallel(X[:2]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", ["stem", "towers.0.0", "towers.1.0", "towers.2.2", "head"])
def test_a_call_inside_a_call(layer: str) -> None:
    """A hook calls another partitioned module from a lane, whose workers are busy with the outer call and wait for it."""
    model, other = Towers(), Towers()
    parallel, inner = spread(model, X, copy=True), spread(other, X, copy=True)
    found: list[Tensor] = []
    with spying(parallel.get_submodule(layer), lambda: found.append(inner(X))):
        for _ in range(20):
            assert_same(model(X), parallel(X))
    assert_same([other(X)] * 20, found)


def test_a_call_of_itself_inside_a_call() -> None:
    """Re-entrant: a hook on a layer calls the whole module, once."""
    model = Towers()
    parallel = spread(model, X, copy=True)
    found: list[Tensor] = []

    def again() -> None:
        if not found:
            found.append(torch.empty(0))
            found.append(parallel(X * 2))

    with spying(parallel.towers[1][0], again):
        assert_same(model(X), parallel(X))
    assert_same(model(X * 2), found[1])


# -- processes -------------------------------------------------------------------------------------------------------

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@forks
def test_a_fork_has_workers_of_its_own() -> None:
    """The parent's worker threads do not exist in the child, and waiting for one would take forever."""
    model = Towers()
    parallel = spread(model, X)
    expected = model(X)
    assert_same(expected, parallel(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks in programs with threads
        child = os.fork()
    if not child:
        try:
            right = torch.equal(expected, parallel(X)) and any("lane" in thread.name for thread in threading.enumerate())
        except BaseException:
            right = False
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(wait_for(child)) == 0
    assert_same(expected, parallel(X))


def wait_for(child: int, seconds: float = 30) -> int:
    """The exit status of a process, which is killed if it takes longer."""
    for _ in range(int(seconds / 0.01)):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


@forks
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine of one core
def test_data_loader_workers_that_call_the_module() -> None:
    """Features made by a model in a loader's worker processes, while the parent uses the same module."""
    model = Towers().eval().requires_grad_(False)
    parallel = spread(model, X)
    rows = numbers(8, 6)

    def collate(examples: list[tuple[Tensor]]) -> Tensor:
        return parallel(torch.stack([row for (row,) in examples]))

    context = None if torch.multiprocessing.get_start_method(allow_none=True) in (None, "fork") else "fork"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loader = DataLoader(
            TensorDataset(rows), batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context=context
        )
        for number, batch in enumerate(loader):
            wanted = rows[4 * number : 4 * number + 4]
            assert_same(model(wanted), batch)
            assert_same(model(wanted), parallel(wanted))


# -- garbage ---------------------------------------------------------------------------------------------------------


def lines_known() -> int:
    """Generated sources that `linecache` holds."""
    return sum(name.startswith("<partitioner") for name in linecache.cache)


def make_and_drop(count: int) -> list[weakref.ref[Any]]:
    """Partition as many models, call each once, keep none."""
    dropped: list[weakref.ref[Any]] = []
    for _ in range(count):
        parallel = spread(Towers(), X, check=False)
        parallel(X)
        dropped += [weakref.ref(parallel), weakref.ref(parallel.stem.weight), weakref.ref(parallel.graph)]
    return dropped


@pytest.mark.parametrize("count", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_modules_that_are_dropped_leave_nothing_behind(count: int) -> None:
    """No module, weight, graph, thread or line of source."""
    make_and_drop(1)
    gc.collect()
    threads, lines = threading.active_count(), lines_known()
    dropped = make_and_drop(count)
    gc.collect()
    gc.collect()  # torch lets go of a program when the code that it stood for has gone
    assert not [reference for reference in dropped if reference() is not None]
    assert threading.active_count() == threads
    assert lines_known() <= lines


def test_copies_share_their_workers() -> None:
    """Threads belong to the process, as many as the widest plan needs, and are named."""
    parallel = spread(Towers(), X)
    parallel(X)
    before = len(POOL.workers)
    for twin in [copy.deepcopy(parallel) for _ in range(5)]:
        twin(X)
    assert len(POOL.workers) == before
    assert all(worker.thread.daemon and worker.thread.name.startswith("partitioner lane") for worker in POOL.workers)


def test_the_callers_threads_are_given_back() -> None:
    """Lanes take a share of the threads that an op may use; after the call, failed or not, the caller has them again."""
    torch.set_num_threads(4)
    parallel = spread(Lookups(), *indices())
    seen: list[int] = []
    with spying(parallel.tables[1][0], lambda: seen.append(torch.get_num_threads())):
        parallel(*indices())
    assert seen == [1] and torch.get_num_threads() == 4
    with pytest.raises(IndexError):
        parallel(*indices(bad=1))
    assert torch.get_num_threads() == 4


class Worded(Towers):
    """Its result depends on a number, and on a text."""

    def forward(self, x: Tensor, scale: float = 1.0, word: str = "") -> Tensor:
        """Maps (batch, 6) to (batch, 2)."""
        return super().forward(x) * scale * len(word)


def test_a_number_that_differs_in_every_call_makes_no_program_for_each() -> None:
    model = Worded()
    parallel = spread(model, X, check=False)
    for scale in range(20):
        assert_same(model(X, float(scale)), parallel(X, float(scale)))
    assert programs(parallel) <= 4


def test_the_number_of_programs_is_limited_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that differs in every call: when there are enough programs, further calls run as they are."""
    monkeypatch.setattr(frames, "MOST", 5)
    model = Worded()
    parallel = spread(model, X, check=False)
    for number in range(4):
        parallel(X, word="a" * number)
    with pytest.warns(RuntimeWarning, match=r"Worded.forward has 5 programs.*run as they are"):
        assert_same(model(X, word="aaaaa"), parallel(X, word="aaaaa"))
    assert_same(model(X, word="aaaaaa"), parallel(X, word="aaaaaa"))
    assert programs(parallel) == 5
    assert "runs as it is: Worded.forward has 5 programs" in str(parallel)
