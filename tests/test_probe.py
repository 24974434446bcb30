"""Device pairs are probed once, and one that fails is staged through the host with a warning that names it."""

from __future__ import annotations

import pytest

from partitioner.backends import probe


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_works", {})


def test_a_pair_is_probed_once_per_process_and_direction() -> None:
    asked: list[tuple[str, str]] = []

    def arrives(source: str, target: str) -> bool:
        asked.append((source, target))
        return True

    assert all(probe.pair_works("cuda:0", "cuda:1", arrives) for _ in range(3))
    assert probe.pair_works("cuda:1", "cuda:0", arrives)
    assert asked == [("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")]


def test_a_pair_that_fails_is_named() -> None:
    with pytest.warns(RuntimeWarning, match="from cuda:0 to cuda:1 do not arrive intact"):
        assert not probe.pair_works("cuda:0", "cuda:1", lambda source, target: False)
    assert not probe.pair_works("cuda:0", "cuda:1", lambda source, target: True)
