"""What every test starts from: the same seeds, the thread count that it found, a GPU or a reason to skip."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
from collections.abc import Iterator
from typing import Any

# Parallel test workers share the cores. This comes before torch is imported, because threads that a test starts take
# their OpenMP thread count from the environment and not from torch.set_num_threads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# What ops were measured to take is remembered for the next run of a user, and must not be for that of a test.
os.environ["PARTITIONER_CACHE"] = ""

import pytest
import torch
from hypothesis import HealthCheck, settings

# pytest gives its handlers to loggers that do not propagate, and this one then writes down each step of the tracer, on any
# thread: slow, and in the child of a fork the lock of pytest's log file is held for good.
logging.getLogger("torch.__trace").propagate = True

collect_ignore = ["jobs"]  # programs that ranks run

gc.disable()  # what is collected stays, so until the first test there is no garbage to look for

settings.register_profile(
    "quick", deadline=None, derandomize=True, max_examples=15, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", deadline=None, max_examples=200, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_to_the_slow(items)
    if not config.getoption("--slow") and "slow" not in config.getoption("-m"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _leave_to_the_slow(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is ``sampled`` so many are quick, spread evenly over all of them; the others are slow."""
    families: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and not item.get_closest_marker("slow"):
            families.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    for (_, most), cases in families.items():
        quick = {number * len(cases) // most for number in range(most)}
        for number, item in enumerate(cases):
            if number not in quick:
                item.add_marker("slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file that share what takes long go to one worker, or each would make it; others go where there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if "test_distributed" in file or "test_mutation" in file else nodeid

    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """The garbage collector need not look at all that tests leave behind, which took a tenth of their time."""
    gc.set_threshold(2_000, 20, 200)
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _left_by_others() -> None:
    """What has been imported, and what tests of other files leave behind, stays: nobody looks at millions of objects again.

    Measuring memory does, and so does torch's profiler: a test of a tenth of a second took three.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _through_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of tests are shorter than their guards, and what is tested are these: no call is short enough to run as it is.

    Tests share their machine, and do not ask which plan is the fastest: nor is a race any longer for the noise, nor are ops
    measured for it, and a compiler that is asked for wins.
    """
    from partitioner import driver
    from partitioner.backends import race
    from partitioner.runtime.summary import Alone
    from partitioner.tuning import candidates, trials, tuned

    monkeypatch.setattr(driver, "faster_alone", lambda *_: Alone())
    monkeypatch.setattr(tuned, "SHORT", 0.0)
    monkeypatch.setattr(candidates, "op_by_op", lambda _: {})
    monkeypatch.setattr(trials, "SHORT", 0.0)
    monkeypatch.setattr(trials, "LONG_ENOUGH", math.inf)
    monkeypatch.setattr(race, "PATIENCE", 0.0)


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Seeds before each test; torch's global state as it was after it."""
    torch.manual_seed(0)
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)


@pytest.fixture(scope="module")
def scattering() -> Iterator[None]:
    """A policy that throws ops on lanes. No sensible plan would spread small models, so lanes would never be tried."""
    from partitioner.planner.policies import POLICIES
    from scatter import scatter

    POLICIES["scatter"] = scatter
    yield
    POLICIES.pop("scatter", None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A world of accelerators for a test, in which nothing may go wrong (`pretend.World`)."""
    from pretend import pretending

    with pretending(monkeypatch) as made:
        yield made
        assert made.faults() == []


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy `list` searches a little: enough for schedules that no rank would make, too little to be good."""
    from partitioner.planner.latency import beams, improve

    monkeypatch.setattr(improve, "MOVED_IN_ALL", improve.MOVED_IN_ALL // 20)
    monkeypatch.setattr(beams, "LOOKS", beams.LOOKS // 20)


@pytest.fixture
def one_thread() -> None:
    """Kernels split their sums among threads, so that bits depend on how many there are; lanes get fewer than eager."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def interrupts_arrive() -> Iterator[None]:
    """A job that a shell started in the background ignores Ctrl-C, and the tests that send one would wait in vain."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
