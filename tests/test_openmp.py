"""OpenMP's threads spin after an op, on the cores that lanes need: they can be sent home, and come back when asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch
from lanes import Tower, numbers
from torch import nn

from partitioner import partition
from partitioner.backends import openmp
from partitioner.planner.policies.by_level import ByLevel

pytestmark = pytest.mark.skipif(openmp._pause is None, reason="this torch does not use GNU's libgomp")

BIG = torch.ones(1000, 1000)
PATIENCE = 0.03


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def spinning() -> float:
    """Seconds of CPU time that this process uses while it sleeps."""
    before = time.process_time()
    time.sleep(PATIENCE)
    return time.process_time() - before


def spins(rest: bool) -> list[float]:
    """What a few ops on two threads leave spinning."""
    found = []
    for _ in range(5):
        BIG.relu()
        if rest:
            openmp.rest()
        found.append(spinning())
    return found


def test_threads_that_rest_use_no_time() -> None:
    """The least of a few tries, so that whatever else wakes up for a moment does not count."""
    assert min(spins(rest=True)) < 1e-3
    if max(spins(rest=False)) < 2e-3:
        pytest.skip("nothing spins here (OMP_WAIT_POLICY, or more threads than cores), so resting shows nothing")


def test_the_next_op_has_its_threads_again() -> None:
    wanted = BIG.relu().sum()
    for _ in range(50):
        openmp.rest()
        openmp.rest()
        assert torch.equal(BIG.relu().sum(), wanted)
    assert torch.get_num_threads() == 2


class Heads(nn.Module):
    """A trunk that may use all threads, and heads beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = Tower(512), Tower(512), Tower(512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.trunk(x)
        return self.left(x) * self.right(x)


def test_lanes_leave_nothing_spinning() -> None:
    torch.manual_seed(0)
    model, x = Heads(), numbers(1024, 512)
    spec = {"devices": [{"device": "cpu", "lanes": 2, "handoff": 0}], "grain": 1e-9}
    parallel = partition(model, example_inputs=x, spec=spec, policy=ByLevel(), copy=True)
    assert len(set(parallel.placement.lane.values())) == 2 and {*parallel.placement.threads} == {0, 2}
    with torch.no_grad():
        found = []
        for _ in range(5):
            parallel(x)
            found.append(spinning())
        assert min(found) < 1e-3
        torch.testing.assert_close(parallel(x), model(x))


def test_a_child_of_a_fork_does_not_wait_for_threads_that_it_does_not_have() -> None:
    BIG.relu()
    child = os.fork()
    if child == 0:
        openmp.rest()
        os._exit(7)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 7
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")
