"""Events of CPU lanes: who waits looks for a while and then sleeps, and lets go of Python's lock for both."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from lanes import Towers, assert_same, numbers, spread
from torch.profiler import profile

from partitioner.backends import events
from partitioner.backends.events import Events

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11 says so, whatever it is asked for


@pytest.fixture(params=[True, False], ids=["looks", "sleeps"])
def waited_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Events:
    monkeypatch.setattr(events, "CORES", 2)
    made = Events(2, 2 if request.param else 3)
    assert (made.marks is not None) == request.param
    return made


def test_who_waits_goes_on_after_the_record(waited_for: Events) -> None:
    passed = []
    waiting = threading.Thread(target=lambda: (waited_for.wait(1), passed.append(1)))
    waiting.start()
    waited_for.record(0)
    waited_for.wait(0)
    waited_for.wait(0)  # several lanes may
    assert not passed
    waited_for.record(1)
    waited_for.record(1)
    waiting.join(10)
    assert passed


def test_a_long_wait_is_slept_through(waited_for: Events) -> None:
    spent = []

    def wait() -> None:
        start = time.thread_time()
        waited_for.wait(0)
        spent.append(time.thread_time() - start)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    waited_for.record(0)
    waiting.join(10)
    assert spent[0] < 0.05, "nothing is looked at for 0.2 s"


def test_python_goes_on_while_a_lane_looks_and_a_record_ends_that() -> None:
    """The lane that is waited for needs the lock to get there."""
    mark = torch.zeros(1, dtype=torch.int64)
    looking = threading.Thread(target=events._looking(), args=(mark, 10**9))  # for two minutes
    looking.start()
    begun = time.perf_counter()
    while time.perf_counter() < begun + 0.05:
        assert looking.is_alive()
    mark += 1
    looking.join(10)
    assert not looking.is_alive()


def test_lanes_look_for_each_other_but_not_where_a_profiler_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, looking = [], events._looking()

    def noted(mark: torch.Tensor, looks: int) -> None:
        seen.append(looks)
        looking(mark, looks)

    monkeypatch.setattr(events, "CORES", 2)
    x, parallel = numbers(4, 6), spread(Towers(), numbers(4, 6), lanes=2)
    with monkeypatch.context() as patch:
        patch.setattr(events, "_looking", lambda: noted)
        for _ in range(20):
            assert_same(parallel(x), parallel.original(x))
        assert set(seen) == {events.LOOKS}
        seen.clear()
        with profile():
            parallel(x)
        assert not seen
