"""A rank to which no parameter falls makes its optimizer in the same line as all others, and nothing else is different."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from jobs import idle
from jobs.nets import TRAININGS
from jobs.torchrun import start
from torch import nn
from torch.optim.swa_utils import AveragedModel

from partitioner.distributed import Cut, Ranked, load, save
from partitioner.distributed.state.kept import Kept
from partitioner.errors import CheckpointError


def alone() -> list[float]:
    """Losses of one process."""
    training = TRAININGS["tailed"]
    model = training.model()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for batch, target in training.batches()[: idle.STEPS]:
        loss = training.loss(model(**batch), target)
        loss.backward()
        losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def test_what_a_rank_without_parameters_saves_is_nothing(tmp_path: Path) -> None:
    """Its optimizer's options stay, for no parameter says others; and a plain model with a layer of that name is whole."""
    held = Ranked(Cut(None, {}, (0.0,), 0.0), (0,))
    optimizer = torch.optim.AdamW([{"params": [*held.parameters()], "lr": 0.3}])
    assert [*held.named_parameters()] == [] and [each.numel() for each in held.parameters()] == [0]
    held.zero_grad()
    optimizer.step()
    kept = Kept(held, optimizer)
    assert kept.tensors() == kept.states() == kept.said()["optimizer"] == {}
    assert load(save(tmp_path, held, optimizer, step=2), held, optimizer).step == 2
    assert optimizer.param_groups[0]["lr"] == 0.3
    plain = TRAININGS["tailed"].model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    assert {*Kept(plain, optimizer).said()["optimizer"]} == {"idle.weight", "idle.bias", "cut"}
    with pytest.raises(CheckpointError, match="the optimizer has 3 parameters that the model has not"):
        Kept(held, optimizer)


def test_what_a_rank_without_parameters_averages_is_nothing(tmp_path: Path) -> None:
    """torch's average asks for parameters by a way of its own, and its second update failed on a list of none."""
    held = Ranked(Cut(None, {}, (0.0,), 0.0), (0,))
    average = AveragedModel(held)
    for _ in range(3):
        average.update_parameters(held)
    assert [*average.state_dict()] == ["n_averaged"]
    again = AveragedModel(held)
    again.load_state_dict(average.state_dict())
    load(save(tmp_path, average), again)
    assert again.n_averaged == 3


@pytest.mark.slow
def test_a_rank_without_parameters_trains_with_the_others(tmp_path: Path) -> None:
    """With a gradient scaler and clipping; a checkpoint of one mesh goes on in the other, where another rank is without."""
    start(2, Path(idle.__file__), tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for name in idle.MESHES:
        assert sorted(key for rank in ranks for key in rank[name]["keys"]) == ["cut", "idle.bias", "idle.weight"]
        assert [0] in [rank[name]["given"] for rank in ranks], "no rank is without parameters"
        for rank in ranks:
            assert rank[name]["losses"] == pytest.approx(alone(), rel=1e-5)
