"""Checkpoints that are damaged, newer, of other groups, or on a disk that is full: a clear error, and the model as it was."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from jobs.checkpoint_net import build, optimizer_of
from torch import nn

from partitioner.distributed import CheckpointError, latest, load, save

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def flipped(path: Path) -> None:
    """One bit of a tensor, in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[data.index(b"\x00\x00\xc0?" * 4)] ^= 1  # the buffer of 1.5
    path.write_bytes(data)


def altered(path: Path, one: bytes, other: bytes) -> None:
    data = path.read_bytes()
    assert one in data
    path.write_bytes(data.replace(one, other))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit": (lambda folder: flipped(folder / "__0_0.distcp"), r"damaged: __0_0\.distcp is not what was written"),
    "a file": (lambda folder: (folder / "__0_0.distcp").unlink(), "could not be read: .*No such file"),
    "steps gone": (lambda folder: (folder / "about.json").unlink(), r"damaged: about\.json, .* is gone. There is no other in"),
    "steps of nothing": (lambda folder: (folder / "about.json").write_text("[]"), r"damaged: about\.json"),
    "an index": (
        lambda folder: altered(folder / ".metadata", b"K\x10", b"K\x08"),
        r"damaged: \.metadata is not what was written",
    ),
    "another step": (
        lambda folder: altered(folder / "about.json", b'"step": 1', b'"step": 7'),
        r"damaged: about\.json is not what was written",
    ),
    "newer": (lambda folder: (folder / "about.json").write_text('{"format": 2, "step": 1}'), "has format 2, .* reads up to 1"),
}
"""What was loaded without a word, but for the file that is gone, or with an error of Python's."""


def test_what_is_damaged_or_newer_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    for name, (damage, says) in DAMAGED.items():
        trained, model = build(), build()
        with torch.no_grad():
            trained.norm.weight.fill_(2.0)
        folder = save(tmp_path / name, trained, step=1)
        damage(folder)
        with pytest.raises(CheckpointError, match=says):
            load(folder, model)
        assert (model.norm.weight == 1).all(), name


def test_what_was_never_finished_is_named_in_the_place_of_nothing(tmp_path: Path) -> None:
    """A job died between torch's index and the checkpoint's name: "others in its folder" sent the user there."""
    for step in (9, 10):
        folder = save(tmp_path, build(), step=step)
    shutil.copytree(folder, tmp_path / "step-11.unfinished")
    (folder / "about.json").unlink()
    with pytest.raises(CheckpointError, match=r"Others in its folder: step-9$"):
        load(folder, build())


def test_a_group_without_parameters_on_a_rank_has_its_options(tmp_path: Path) -> None:
    """Such as a stage without norms, where a scheduler that goes on missed the group's ``initial_lr``."""
    model = build()
    optimizer = optimizer_of(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    optimizer.param_groups[1]["lr"] = 0.5
    save(tmp_path, model, optimizer, 1)
    weights = [each for each in model.parameters() if each.dim() > 1]
    fewer = torch.optim.AdamW([{"params": weights}, {"params": []}])
    load(tmp_path / "step-1", model, fewer)
    assert (fewer.param_groups[1]["lr"], fewer.param_groups[1]["initial_lr"]) == (0.5, 1e-2)


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """Files cannot grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")  # Python 3.13 flushes again
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    model = build(width=64)
    save(tmp_path, model, step=1)
    with little_room(20_000), pytest.raises(CheckpointError, match=r"step-2 could not be written, .* free there. Rank 0: .*"):
        save(tmp_path, model, step=2)
    with (
        little_room(20_000),
        pytest.raises(CheckpointError, match=r"step-2 could not be written, .*: \[Errno 27\] File too large"),
    ):
        save(tmp_path, nn.Linear(2, 2), step=2, extra=[0] * 20_000)
    assert latest(tmp_path) == tmp_path / "step-1"
    save(tmp_path, model, step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-3"]
