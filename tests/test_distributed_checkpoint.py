"""Checkpoints: any layout of ranks reads what any other wrote, and goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs.checkpoint_net import build, momentum_of, optimizer_of, train
from jobs.torchrun import start
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.optim.swa_utils import AveragedModel

from partitioner.distributed import CheckpointError, latest, load, save

JOBS = Path(__file__).parent / "jobs"

CLOSE = 2e-4
"""How far losses of different layouts may be apart: they sum in different orders, and each step carries that on."""

TWO_STAGES, FOUR_STAGES, SHARED = {"pipeline": 2}, {"pipeline": 4}, {"tensor": 2}
SQUARE = {"pipeline": 2, "data": 2}


def layouts(ranks: int, folder: Path, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What `checkpoint_layouts.py` finds: losses by run."""
    asked, found = folder / f"runs{ranks}.json", folder / f"losses{ranks}.json"
    asked.write_text(json.dumps(runs, default=str))
    start(ranks, JOBS / "checkpoint_layouts.py", asked, found)
    losses: dict[str, Any] = json.loads(found.read_text())
    return losses


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float], nn.Module]:
    """Ten undisturbed steps in one process, saved at the fifth and the tenth."""
    folder = tmp_path_factory.mktemp("plain")
    model = build()
    optimizer = optimizer_of(model)
    losses = train(model, optimizer, range(5))
    save(folder, model, optimizer, 5, extra={"best": 0.5})
    losses += train(model, optimizer, range(5, 10))
    save(folder, model, optimizer, 10)
    return folder, losses, model


@pytest.fixture(scope="module")
def two(plain: tuple[Path, list[float], nn.Module], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What jobs of two ranks find and save."""
    folder, saved = tmp_path_factory.mktemp("two"), {"best": 0.5}
    torch_alone(plain[0] / "step-5", folder / "torch")
    runs = [
        {"name": "undisturbed", "mesh": TWO_STAGES, "end": 10, "save": [5, 10], "folder": folder / "run"},
        {"name": "again", "mesh": TWO_STAGES, "end": 10, "load": folder / "run/step-5", "extra": saved, "rate": 0.5},
        {"name": "data", "mesh": {"data": 2}, "microbatches": 1, "end": 10, "load": folder / "run/step-5", "extra": saved},
        {
            "name": "sharded",
            "mesh": {"data": 2},
            "microbatches": 2,
            "wrap": "fsdp2",
            "end": 10,
            "load": folder / "run/step-5",
            "extra": saved,
        },
        {
            "name": "shared out",
            "mesh": SHARED,
            "end": 10,
            "load": folder / "run/step-5",
            "extra": saved,
            "save": [5],
            "folder": folder / "parts",
        },
        {"name": "from parts", "mesh": TWO_STAGES, "end": 10, "load": folder / "parts/step-5", "extra": saved},
        {"name": "from plain", "mesh": TWO_STAGES, "microbatches": 8, "end": 10, "load": plain[0] / "step-5", "extra": saved},
        {"name": "from torch", "mesh": TWO_STAGES, "end": 10, "load": folder / "torch", "begin": 5},
        {"name": "drops", "mesh": TWO_STAGES, "dropout": 0.3, "end": 10, "save": [5], "folder": folder / "drops"},
        {"name": "drops on", "mesh": TWO_STAGES, "dropout": 0.3, "end": 10, "load": folder / "drops/step-5", "extra": saved},
        {"name": "twice", "mesh": TWO_STAGES, "end": 5, "save": [5], "folder": folder / "run", "fails": True},
    ]
    return folder, layouts(2, folder, runs)


def torch_alone(source: Path, target: Path) -> None:
    """Write with torch alone what `load` should read."""
    model = build()
    optimizer = optimizer_of(model)
    load(source, model, optimizer)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    content = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer, options=options)}
    state_dict_saver.save(content, checkpoint_id=target, no_dist=True)


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def equal_state(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[key], other[key]) for key in one)


def test_a_plain_model_goes_on_as_if_nothing_had_been(plain: tuple[Path, list[float], nn.Module]) -> None:
    folder, losses, trained = plain
    model = build()
    optimizer = optimizer_of(model, rate=0.5)  # the rate comes from the checkpoint
    assert load(folder / "step-5", model, optimizer) == (5, {"best": 0.5})
    assert train(model, optimizer, range(5, 10)) == losses[5:]
    assert equal_state(model.state_dict(), trained.state_dict())


def test_two_stages_go_on_bit_for_bit(two: tuple[Path, dict[str, Any]]) -> None:
    assert two[1]["again"] == two[1]["undisturbed"][5:]


def test_random_numbers_go_on(two: tuple[Path, dict[str, Any]]) -> None:
    assert two[1]["drops on"] == two[1]["drops"][5:]
    assert two[1]["drops"][1:] != two[1]["undisturbed"][1:]


@pytest.mark.parametrize("name", ["data", "sharded", "shared out", "from parts", "from plain", "from torch"])
def test_two_ranks_go_on_from_another_layout(name: str, two: tuple[Path, dict[str, Any]]) -> None:
    assert two[1][name] == pytest.approx(two[1]["undisturbed"][5:], abs=CLOSE)


def test_what_two_stages_wrote_goes_on_in_one_process(
    two: tuple[Path, dict[str, Any]], plain: tuple[Path, list[float], nn.Module]
) -> None:
    folder, losses = two
    model = build()
    optimizer = optimizer_of(model)
    assert load(folder / "run/step-5", model, optimizer).step == 5
    assert train(model, optimizer, range(5, 10)) == pytest.approx(losses["undisturbed"][5:], abs=CLOSE)
    assert losses["undisturbed"] == pytest.approx(plain[1], abs=CLOSE)


def test_torch_alone_reads_what_two_stages_wrote(two: tuple[Path, dict[str, Any]]) -> None:
    """Without this package: the names in a checkpoint are torch's."""
    folder, wanted = two[0] / "run/step-10", build()
    load(folder, wanted)
    model = build()
    content = {"model": get_model_state_dict(model)}
    assert not equal_state(model.state_dict(), wanted.state_dict())
    state_dict_loader.load(content, checkpoint_id=folder, no_dist=True)
    assert equal_state(model.state_dict(), wanted.state_dict())


def test_a_step_is_never_overwritten(two: tuple[Path, dict[str, Any]]) -> None:
    assert two[1]["twice"].startswith("CheckpointError") and "step-5 is there already" in two[1]["twice"]


@pytest.mark.slow
def test_four_ranks(two: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Four stages, 2 x 2 with shards and with copies, from two stages and from each other; then one process from them.

    A frozen tie is sharded in the stage that trains something, and whole in the other: no checkpoint could be written.
    """
    source, mid, extra = two[0] / "run/step-5", tmp_path / "shards/step-7", {"best": 0.5}
    torn = shutil.copytree(source, tmp_path / "torn")
    os.truncate(torn / "__1_0.distcp", 1000)
    narrow = build()
    narrow.layers[5] = nn.Linear(16, 8)
    save(tmp_path / "narrow", narrow, optimizer_of(narrow), 5)
    sharded = {"mesh": SQUARE, "wrap": "fsdp2", "end": 10, "extra": extra}
    frozen = {"frozen": True, "end": 4, "folder": tmp_path / "frozen"}
    runs = [
        {"name": "stages", "mesh": FOUR_STAGES, "end": 10, "load": source, "extra": extra},
        {**sharded, "name": "shards", "load": source, "save": [7], "folder": tmp_path / "shards"},
        {"name": "torn", "mesh": FOUR_STAGES, "end": 10, "load": torn, "fails": True},
        {"name": "narrow", "mesh": FOUR_STAGES, "end": 10, "load": tmp_path / "narrow/step-5", "fails": True},
        {"name": "copies", "mesh": SQUARE, "end": 10, "load": mid, "extra": extra},
        {**sharded, "name": "shards again", "load": mid},
        {**frozen, "name": "frozen", "mesh": SQUARE, "wrap": "fsdp2", "save": [2]},
        {**frozen, "name": "frozen stages", "mesh": FOUR_STAGES, "load": tmp_path / "frozen/step-2", "extra": extra},
    ]
    losses = layouts(4, tmp_path, runs)
    assert losses["frozen stages"] == pytest.approx(losses["frozen"][2:], abs=CLOSE)
    wanted = two[1]["undisturbed"]
    assert losses["stages"] == pytest.approx(wanted[5:], abs=CLOSE)
    assert losses["shards"] == pytest.approx(wanted[5:], abs=CLOSE)
    assert losses["copies"] == pytest.approx(wanted[7:], abs=CLOSE)
    assert losses["shards again"] == losses["shards"][2:]
    assert re.match(r"CheckpointError: .*torn is damaged: __1_0.distcp is not what was written", losses["torn"])
    assert "layers.5.weight has shape (8, 16), and the model's has (16, 16)" in losses["narrow"]  # rank 0 does not hold it
    model = build()
    optimizer = optimizer_of(model)
    assert load(mid, model, optimizer).step == 7
    assert train(model, optimizer, range(7, 10)) == pytest.approx(wanted[7:], abs=CLOSE)


@pytest.mark.slow
def test_momentum_and_averages_go_on_in_any_layout(tmp_path: Path) -> None:
    """From two stages to parts, from those to shards, from those to two stages and to one process.

    Of an average over parts, each rank's part was taken for the whole; and of an optimizer that knows names, groups of other
    names for other options.
    """
    sgd: dict[str, Any] = {"momentum": True, "end": 10, "folder": tmp_path}
    on = {**sgd, "extra": {"best": 0.5}, "average": tmp_path / "average"}
    runs = [
        {**sgd, "name": "stages", "mesh": TWO_STAGES, "save": [3]},
        {**on, "name": "parts", "mesh": SHARED, "load": tmp_path / "step-3", "save": [5]},
        {**on, "name": "shards", "mesh": {"data": 2}, "wrap": "fsdp2", "load": tmp_path / "step-5", "save": [7]},
        {**on, "name": "stages again", "mesh": TWO_STAGES, "load": tmp_path / "step-7", "save": [9]},
    ]
    losses = layouts(2, tmp_path, runs)
    model = build()
    optimizer = momentum_of(model)
    wanted, average = train(model, optimizer, range(3)), AveragedModel(model)
    for number in range(3, 10):
        wanted += train(model, optimizer, range(number, number + 1))
        average.update_parameters(model) if number < 9 else None
    assert losses["stages"] == pytest.approx(wanted, abs=CLOSE)
    for name, start_of in (("parts", 3), ("shards", 5), ("stages again", 7)):
        assert losses[name] == pytest.approx(wanted[start_of:], abs=CLOSE), name
    assert load(tmp_path / "step-7", model, optimizer).step == 7
    assert train(model, optimizer, range(7, 10)) == pytest.approx(wanted[7:], abs=CLOSE)
    found = AveragedModel(model)
    load(tmp_path / "average/step-9", found)
    torch.testing.assert_close(found.state_dict(), average.state_dict(), atol=CLOSE, rtol=0)


class Other(nn.Module):
    """Has a layer that `Net` has not, and not all of its."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 1)
        self.added = nn.Linear(2, 2)


def one_group(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return build()


@pytest.mark.parametrize(
    ("make", "optimizer", "says"),
    [
        (Other, None, r"added.weight is missing(.|\n)*embedding.weight is not in the model"),
        (on_meta, None, "embedding.weight of the model has no storage"),
        (build, one_group, "saved with different weight_decay: 0.1 and 0.0"),
        (build, momentum_of, "the optimizer that was saved is AdamW, and this one is SGD"),  # it failed in the next step
        (build, lambda model: torch.optim.SGD(nn.Linear(2, 2).parameters()), "2 parameters that the model has not"),
    ],
)
def test_what_does_not_fit_is_refused(
    make: Callable[[], nn.Module],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None,
    says: str,
    plain: tuple[Path, list[float], nn.Module],
) -> None:
    model = make()
    with pytest.raises(CheckpointError, match=says):
        load(plain[0] / "step-5", model, optimizer(model) if optimizer else None)


def test_what_is_no_folder_no_step_and_no_model_is_refused(tmp_path: Path) -> None:
    """`load(latest(run), ...)` once was pathlib's error; a step in text or below zero was saved, never to be found."""
    with pytest.raises(CheckpointError, match=r"of type NoneType, as latest\(folder\) gives where there is no whole"):
        load(latest(tmp_path), build())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"could not be written: .*embedded null"):
        save("\0", build())
    with pytest.raises(CheckpointError, match="an optimizer has parameters, and this is of type int: a step goes by step="):
        save(tmp_path, build(), 5)  # type: ignore[call-overload]
    with pytest.raises(CheckpointError, match=r"a model is a torch.nn.Module, .*, and this is of type tuple"):
        load(tmp_path, (build(), None))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="a folder is a path, and this is of type int"):
        save(3, build())  # type: ignore[call-overload]
    for step in ("last", -1, 2.0, True, None):
        with pytest.raises(CheckpointError, match="step is how many steps were made, an int that is not negative"):
            save(tmp_path, build(), step=step)  # type: ignore[call-overload]
    assert not [*tmp_path.iterdir()]


def test_what_is_no_checkpoint_is_refused(plain: tuple[Path, list[float], nn.Module], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no whole checkpoint; do you mean .*step-10\?"):
        load(plain[0], build())
    with pytest.raises(CheckpointError, match=r"it has no file \.metadata"):
        load(tmp_path / "step-1", build())
    save(tmp_path, build(), step=1)
    model = build()
    with pytest.raises(CheckpointError, match="no optimizer was saved"):
        load(tmp_path / "step-1", model, optimizer_of(model))
    os.truncate(tmp_path / "step-1" / ".metadata", 100)
    with pytest.raises(CheckpointError, match="step-1 is damaged"):
        load(tmp_path / "step-1", build())


def test_expanded_buffers_are_read(tmp_path: Path) -> None:
    """torch cannot write into them, and what was saved could not be read."""

    def made(value: float) -> nn.Module:
        model = nn.Linear(2, 2)
        model.register_buffer("table", torch.tensor([[value], [2 * value]]).expand(2, 3))
        return model

    other = made(0.0)
    load(save(tmp_path, made(1.5)), other)
    assert other.table.tolist() == [[1.5] * 3, [3.0] * 3]  # type: ignore[operator, union-attr]


def test_extra_is_of_what_json_can_say(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"extra, .* is not JSON: Object of type device"):
        save(tmp_path, build(), extra={"device": torch.device("cpu")})
    assert list(tmp_path.iterdir()) == []


def test_a_model_alone_leaves_random_numbers_alone(plain: tuple[Path, list[float], nn.Module]) -> None:
    model = build()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    load(plain[0] / "step-5", model)
    assert torch.equal(torch.get_rng_state(), before)
    load(plain[0] / "step-5", model, optimizer_of(model))
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "kind",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False, amsgrad=True),
        lambda parameters: torch.optim.Adafactor(parameters, lr=0.1),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
        lambda parameters: torch.optim.NAdam(parameters),
    ],
)
def test_optimizers(kind: Callable[..., torch.optim.Optimizer], tmp_path: Path) -> None:
    """Each keeps something else of a parameter: nothing, a number, a row and a column."""
    model = build()
    optimizer = kind(model.parameters())
    train(model, optimizer, range(3))
    save(tmp_path, model, optimizer, 3)
    losses = train(model, optimizer, range(3, 6))
    again = build()
    restored = kind(again.parameters())
    load(tmp_path / "step-3", again, restored)
    assert train(again, restored, range(3, 6)) == losses
    assert [set(group) for group in restored.param_groups] == [set(group) for group in optimizer.param_groups]
