"""Each example runs, small, and says that partitioned equals eager; each model that one defines can be inspected."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

from partitioner import Parallel, partition
from partitioner.cli.main import app
from partitioner.cli.target import load_target

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))

SMALL: dict[str, dict[str, int]] = {
    "two_towers": {"width": 16, "depth": 2, "batch": 2, "rounds": 2},
    "inception_block": {"channels": 8, "size": 8},
    "encoder_decoder_classifier": {"channels": 8, "size": 8},
    "hybrid_cpu_gpu": {"words": 100, "width": 8},
    "train_one_optimizer": {"width": 8, "steps": 5},
    "train_optimizer_per_part": {"width": 8, "steps": 5},
}
"""Arguments of each example's ``main`` that make it quick."""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    load(name).main(**SMALL[name])
    return capsys.readouterr().out


def differences(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"difference is ([\d.e+-]+\d)", text)]


def test_every_example_is_tested() -> None:
    assert [path.stem for path in FILES] == sorted(SMALL)


def test_two_towers(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("two_towers", capsys)
    assert "outputs: equal to the last bit" in text or max(differences(text)) < 1e-4
    assert len(re.findall(r"[\d.]+ ms$", text, re.MULTILINE)) == 3
    assert re.search(r"^parallel (is|and) .*x", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("speedup", "says"), [(1.4, "is 1.40x as fast"), (1.0, "equally fast"), (0.7, "slower here: 0.70x of")]
)
def test_two_towers_is_honest(speedup: float, says: str) -> None:
    assert says in load("two_towers").verdict(speedup)


def test_two_towers_overlap_at_the_size_that_is_shown() -> None:
    example = load("two_towers")
    parallel = partition(example.build(), ["cpu:0", "cpu:1"], example_inputs=example.example_inputs(), check=False, tune=False)
    assert set(parallel.placement.lane.values()) == {0, 1}


def test_inception_block(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("inception_block", capsys)
    assert [line.split()[0] for line in text.splitlines()[:5]] == ["one", "three", "five", "pool", "join"]
    assert max(differences(text)) < 1e-4
    assert "the same keys" in text


def test_encoder_decoder_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    found = differences(printed("encoder_decoder_classifier", capsys))
    assert len(found) == 3 and max(found) < 1e-4


def test_hybrid(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("hybrid_cpu_gpu", capsys)
    assert re.search(r"^preprocessor.embedding.weight +cpu$", text, re.MULTILINE)
    assert max(differences(text)) < 1e-4


@pytest.mark.parametrize("name", ["train_one_optimizer", "train_optimizer_per_part"])
def test_training(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(name, capsys)
    assert text.endswith("the losses are equal\n")
    assert text.count("step") == SMALL[name]["steps"]


@pytest.mark.parametrize("name", ["train_one_optimizer", "train_optimizer_per_part"])
def test_training_over_forced_lanes(name: str) -> None:
    """At these sizes a plan stays on one lane; here every op is a task and hand-offs are free."""
    example = load(name)
    data = example.batches(5)
    devices = [{"device": "cpu", "lanes": 2, "handoff": 0, "overhead": 1e-3}]
    parallel = partition(example.build(8), example_inputs=data[0][0], spec={"devices": devices, "grain": 1e-9})
    assert isinstance(parallel, Parallel) and set(parallel.placement.lane.values()) == {0, 1}
    wanted = example.train(example.build(8), data)
    assert example.train(parallel, data) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    "path", [path for path in FILES if "def example_inputs" in path.read_text()], ids=lambda path: path.stem
)
def test_models_can_be_inspected(path: Path) -> None:
    target = load_target(str(path))
    assert isinstance(target.module, torch.nn.Module) and target.inputs is not None


COMMANDS = [
    (path.stem, command)
    for path in FILES
    for command in re.findall(r"^ +python -m partitioner (\S.*?)(?:  .*)?$", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_the_commands_that_examples_name(name: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    result = CliRunner().invoke(app, [*command.split(), "--no-check"])
    assert result.exit_code == 0, result.output


def test_as_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "hybrid_cpu_gpu.py"), run_name="__main__")
    assert "the result lies on" in capsys.readouterr().out
