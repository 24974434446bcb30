"""Lanes of short tasks do not share a core, and the caller's own mask is as it was, however a call ends."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from lanes import Towers, assert_same, numbers, spread
from torch import Tensor, nn

from partitioner.backends import affinity
from partitioner.backends.affinity import BYTES, keep_apart, let_go, own_mask
from partitioner.backends.workers import POOL

X = numbers(4, 6)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores of Linux"
    ),
]

seen: list[tuple[int, frozenset[int]]] = []


@torch.library.custom_op("partitioner_tests::where", mutates_args=())
def where(x: Tensor) -> Tensor:
    """Notes the thread that it runs on, and the cores that this may use."""
    seen.append((threading.get_native_id(), frozenset(os.sched_getaffinity(0))))
    return x * 2


where.register_fake(torch.empty_like)


class Asking(nn.Module):
    """Two branches that note where they run."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return where(self.left(x)) + where(self.right(x))


def test_the_caller_stays_and_workers_keep_off_its_core() -> None:
    allowed = os.sched_getaffinity(0)
    parallel = spread(Asking(), X, lanes=2)
    for _ in range(5):
        seen.clear()
        parallel(X)
        cores = dict(seen)
        mine = cores.pop(threading.get_native_id())
        (others,) = cores.values()
        assert len(mine) == 1 and mine <= allowed
        assert others == allowed - mine
        assert os.sched_getaffinity(0) == allowed


def test_a_mask_of_the_user_s_is_kept() -> None:
    allowed = os.sched_getaffinity(0)
    parallel = spread(Asking(), X, lanes=2)
    one = {min(allowed)}
    os.sched_setaffinity(0, one)
    try:
        seen.clear()
        parallel(X)
        assert os.sched_getaffinity(0) == one
        assert dict(seen)[threading.get_native_id()] == one
    finally:
        os.sched_setaffinity(0, allowed)


class Failing(nn.Module):
    """A branch that fails for some inputs, on the other lane."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.table = nn.Linear(6, 6), nn.Embedding(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.table(x[:, 0].abs().long())


def test_after_an_error_the_caller_is_free_again() -> None:
    allowed = os.sched_getaffinity(0)
    parallel = spread(Failing(), torch.zeros(4, 6), lanes=2)
    with pytest.raises(IndexError):
        parallel(torch.full((4, 6), 100.0))
    assert os.sched_getaffinity(0) == allowed
    assert_same(parallel(torch.zeros(4, 6)), parallel.original(torch.zeros(4, 6)))


def test_in_training_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward on lanes is kept apart as its forward is, and each is let go once."""
    from partitioner.backends import threads

    taken: list[bytes] = []
    monkeypatch.setattr(threads, "let_go", lambda mask: (taken.append(mask), let_go(mask)))
    allowed = os.sched_getaffinity(0)
    parallel = spread(Towers(), X, lanes=2, backward="lanes")
    parallel(X).sum().backward()
    taken.clear()
    parallel(X).sum().backward()
    assert len(taken) == 2 and os.sched_getaffinity(0) == allowed


def test_several_threads_inside_ops_leave_everybody_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP's threads would inherit the caller's one core for good, and a worker's: it was held since a call of short ops."""
    parallel = spread(Asking(), X, lanes=2)
    parallel(X)
    torch.set_num_threads(4)
    try:
        seen.clear()
        parallel(X)
    finally:
        torch.set_num_threads(1)
    allowed = frozenset(os.sched_getaffinity(0))
    assert len(dict(seen)) == 2 and set(dict(seen).values()) == {allowed}
    seen.clear()
    parallel(X)
    assert len(dict(seen)) == 2 and allowed not in dict(seen).values(), "and is held again where ops are short"


def test_where_the_system_cannot_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "_SYSTEM", None)
    assert own_mask() is None
    model = Towers()
    assert_same(spread(model, X, lanes=2, copy=True)(X), model(X))


def test_one_core_is_not_divided() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        mask = own_mask()
        assert mask is not None
        keep_apart(mask, POOL.first(1))
        assert os.sched_getaffinity(0) == {max(allowed)}
    finally:
        os.sched_setaffinity(0, allowed)
    mask = own_mask()
    assert mask is not None and len(mask) == BYTES
    keep_apart(mask, POOL.first(1))
    assert len(os.sched_getaffinity(0)) == 1
    let_go(mask)
    assert os.sched_getaffinity(0) == allowed


def test_who_is_interrupted_while_it_is_held_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    from partitioner.backends import threads

    def interrupted(mask: bytes, workers: object) -> None:
        keep_apart(mask, POOL.first(1))
        raise KeyboardInterrupt

    allowed = os.sched_getaffinity(0)
    parallel = spread(Towers(), X, lanes=2)
    parallel(X)
    monkeypatch.setattr(threads, "keep_apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parallel(X)
    assert os.sched_getaffinity(0) == allowed
    monkeypatch.undo()
    assert_same(parallel(X), parallel.original(X))
