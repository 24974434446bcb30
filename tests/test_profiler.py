"""torch.profiler sees every lane, and each task as a named range; nobody pays for that who does not profile."""

from __future__ import annotations

import pytest
import torch
from lanes import Towers, assert_same, numbers, spread
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import profile

from partitioner import partition

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*Profiler clears events"),  # torch 2.11 says so, whatever it is asked for
]

X = numbers(4, 6)


@pytest.mark.parametrize("every_thread", [True, False])
@pytest.mark.parametrize("compile_tasks", [None, "torchscript"])
def test_each_task_is_a_range_of_its_lane(compile_tasks: str | None, every_thread: bool) -> None:
    """Also for a profiler that was not told to look at all threads, which lost what other lanes had done."""
    parallel = spread(Towers(), X, lanes=2, compile_tasks=compile_tasks)
    with profile(experimental_config=_ExperimentalConfig(profile_all_threads=every_thread)) as seen:
        found = parallel(X)
    assert_same(found, parallel(X))
    ranges = {event.name: event.thread for event in seen.events() if " on cpu/" in event.name}
    executable = parallel._partitioner_programs.shown.executable
    plan = parallel.plan if compile_tasks is None else executable.fused
    assert set(ranges) == {f"{task} on cpu/{lane}" for task, lane in plan.placement.lane.items()}
    threads = {lane: {thread for name, thread in ranges.items() if name.endswith(f"cpu/{lane}")} for lane in (0, 1)}
    assert len(threads[0]) == len(threads[1]) == 1 and threads[0] != threads[1]


def test_a_lane_is_not_left_waiting_for_a_thread_that_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = spread(Towers(), X, lanes=2)
    monkeypatch.setattr("partitioner.backends.watched._fork", lambda: lambda _: None)
    monkeypatch.setattr("partitioner.backends.watched._PATIENCE", 0.001)
    with profile():
        found = parallel(X)
    assert_same(found, parallel(X))


def test_one_lane_is_named_too_and_an_error_is_the_model_s() -> None:
    parallel = partition(nn.Linear(6, 6), ["cpu"], example_inputs=X)
    with profile() as seen:
        parallel(X)
    assert "t0 on cpu/0" in {event.name for event in seen.events()}
    with profile(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        parallel(numbers(4, 5))


def test_without_a_profiler_there_are_no_ranges() -> None:
    parallel = spread(Towers(), X, lanes=2)
    parallel(X)
    assert "record_function" not in parallel.code
    assert "profiled" not in vars(parallel._partitioner_programs.shown.executable), "that code is made when it is needed"
    assert not torch.autograd.profiler._is_profiler_enabled
