"""`partition(..., profile=...)`: plans rest on what ops take here, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from partitioner import SpecError, partition

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.ones(64, 256)


def towers() -> nn.Module:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
            self.right = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.left(x) + self.right(x)

    return Towers()


@pytest.mark.parametrize("grad", [True, False])
def test_a_profiled_plan_says_so_and_computes_the_same(grad: bool) -> None:
    model = towers()
    with torch.set_grad_enabled(grad):
        parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, profile="all")
        assert parallel.plan.costs.measured and "of it from measured ops" in str(parallel)
        assert torch.allclose(parallel(X), model(X))


def test_measurements_are_kept_for_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITIONER_CACHE", str(tmp_path))
    for _ in range(8):  # on a busy machine all may be unsteady, and none is kept
        first = partition(towers(), ["cpu:0", "cpu:1"], example_inputs=X, profile="all").plan.costs.measured
        again = partition(towers(), ["cpu:0", "cpu:1"], example_inputs=X, profile="all").plan.costs.measured
        kept = [key for key in first if again[key] == first[key]]
        if len(kept) > len(first) / 2:
            break
    assert list(tmp_path.iterdir()) and len(kept) > len(first) / 2, "unsteady ones are measured again"


def test_a_mode_that_is_not_known() -> None:
    with pytest.raises(SpecError, match='profile: "some" should be'):
        partition(towers(), ["cpu:0", "cpu:1"], example_inputs=X, profile="some")
