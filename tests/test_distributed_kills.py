"""Ranks that are killed, in a save or in a step: the last checkpoint is whole, and only the steps since then are made again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from jobs.checkpoint_net import build, optimizer_of
from jobs.torchrun import command, environment, start

from partitioner.distributed import latest, load

JOBS = Path(__file__).parent / "jobs"

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def killed(folder: Path, moment: float, how: str) -> None:
    """Start the job that saves without end, and kill both of its ranks in a save."""
    pids = folder / "pids"
    shutil.rmtree(pids, ignore_errors=True)
    pids.mkdir()
    job = subprocess.Popen(
        command(2, JOBS / "checkpoint_kill.py", folder / "run", pids, how),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until, before = time.monotonic() + 60, latest(folder / "run")
    try:
        while not (pids / "0").exists() or not (pids / "1").exists() or latest(folder / "run") == before:
            assert job.poll() is None and time.monotonic() < until, "the job saved nothing"
            time.sleep(0.005)
        while not list((folder / "run").glob("*.unfinished")):
            assert job.poll() is None and time.monotonic() < until, "no save began"
        time.sleep(moment)
        for rank in ("0", "1"):
            os.kill(int((pids / rank).read_text()), signal.SIGKILL)
        assert job.wait(60) != 0
    finally:
        job.terminate()  # torchrun then ends its ranks, or a test that fails would leave a job that fills the disk
        job.wait(60)


def seen_whole(folder: Path) -> int:
    """The step of the last checkpoint, each of whose numbers must be that step."""
    where = latest(folder)
    assert where is not None
    model = build(width=256)
    optimizer = optimizer_of(model)
    step, _ = load(where, model, optimizer)
    tensors = [tensor for state in optimizer.state.values() for tensor in state.values()]
    assert len(tensors) == 3 * len(list(model.parameters()))
    assert all((tensor == step).all() for tensor in (*model.parameters(), *tensors))
    return step


@pytest.mark.slow
def test_a_kill_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    """Written while the numbers become others."""
    killed(tmp_path, 0.005, "asynchronous")
    assert seen_whole(tmp_path / "run") >= 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["waiting", "asynchronous"])
def test_kills_at_many_moments_leave_the_last_checkpoint_whole(how: str, tmp_path: Path) -> None:
    last, torn = 0, 0
    for number in range(6):
        killed(tmp_path, 0.008 * number, how)
        torn += bool(list((tmp_path / "run").glob("*.unfinished")))
        now = seen_whole(tmp_path / "run")
        assert now > last
        last = now
    assert torn  # some kills were in the middle


def restarted(folder: Path, *deaths: str) -> None:
    """Without the variable, torch 2.13 gives restarted ranks the store that still has the addresses of the dead ones."""
    for name in ("calm", "killed"):
        (folder / name).mkdir()
    start(2, JOBS / "checkpoint_restart.py", folder / "calm")
    start(
        2,
        JOBS / "checkpoint_restart.py",
        folder / "killed",
        *deaths,
        options=("--max-restarts", "3"),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    calm, found = (json.loads((folder / name / "losses.json").read_text()) for name in ("calm", "killed"))
    assert calm["began"] == 0 and len(calm["losses"]) == 10
    assert found["began"] == int(deaths[-1].split(":")[0]) // 2 * 2
    assert found["losses"] == calm["losses"]
    assert len(list((folder / "killed").glob("died-*"))) == len(deaths)


@pytest.mark.slow
def test_a_rank_that_dies_costs_only_the_steps_since_the_last_checkpoint(tmp_path: Path) -> None:
    restarted(tmp_path, "5:1")


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [("3:0",), ("2:1", "7:0"), ("1:0", "4:1", "9:1")])
def test_ranks_that_die_again_and_again(deaths: tuple[str, ...], tmp_path: Path) -> None:
    restarted(tmp_path, *deaths)
