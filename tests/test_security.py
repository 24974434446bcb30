"""What SECURITY.md says: which doors lead to code, and which never do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lanes import assert_same, numbers, spec
from torch import Tensor, nn
from typer.testing import CliRunner

from partitioner import PartitionerError, SpecError, load_spec, parse, partition, verify
from partitioner.cli import main as cli

MARKER = "executed"
CODE = f"__import__('pathlib').Path('{MARKER}').touch()"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of its own, where code that is executed leaves a file."""
    monkeypatch.chdir(tmp_path)


def executed() -> bool:
    """Whether `CODE` was."""
    return Path(MARKER).exists()


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_models_file_is_executed(command: str) -> None:
    Path("model.py").write_text(f"import torch\nmodel = torch.nn.Linear(2, 2)\n{CODE}\n")
    assert CliRunner().invoke(cli.app, [command, "model.py"]).exit_code == 0
    assert executed()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec.yaml", f'policy: !!python/object/apply:eval ["{CODE}"]\n'),
        ("spec.yaml", f'!!python/object/new:type {{args: ["x", !!python/tuple [], {{"y": !!python/name:{CODE}}}]}}\n'),
        ("spec.yaml", f'policy: "{CODE}"\n'),
        ("spec.json", f'{{"policy": "{CODE}"}}'),
        ("spec.toml", f'policy = "{CODE}"\nbackend = "{CODE}"\n'),
    ],
)
def test_a_spec_is_never_executed(name: str, text: str) -> None:
    Path(name).write_text(text)
    with pytest.raises(SpecError):
        partition(nn.Linear(2, 2), example_inputs=torch.ones(1, 2), spec=load_spec(name))
    assert not executed()


def test_a_program_is_never_executed() -> None:
    """Whatever its names are; and torch is not even imported."""
    word = CODE.replace("(", "%28").replace(")", "%29")
    text = f"program {word}\nlane 0 cpu/0 cpu\nvalue {word} cpu 4 {word}\noutput {word}\n0 run {word} () -> ({word}) w:{word}\n"
    program = verify(parse(text))
    assert program.name == CODE and parse(str(program)) == program
    Path("program.txt").write_text(text)
    script = "import sys; from partitioner.cli.main import app; app(['verify', 'program.txt'])"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("no faults")
    assert not any(line.split("|")[-1].strip() == "torch" for line in done.stderr.splitlines())
    assert not executed()


class Odd(nn.Module):
    """Its parts are named like code."""

    def __init__(self) -> None:
        super().__init__()
        names = [CODE.replace(".", "\u2024"), "a\n    import os", "lambda", "A", "S", "x) or (x", "#", "'", "\u2028"]
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})

    def forward(self, **tensors: Tensor) -> Tensor:
        """Adds up what each of them gives for all that it is given."""
        return sum(part(tensor) for part in self.parts.values() for tensor in tensors.values())  # type: ignore[return-value]


def test_names_of_a_model_are_never_code() -> None:
    """Of its modules, and of keyword arguments that no identifier could name."""
    model = Odd()
    inputs = {CODE: numbers(2, 4), "x": numbers(2, 4, seed=2), "del": numbers(2, 4, seed=3)}
    torch.set_num_threads(1)
    parallel = partition(model, example_kwargs=inputs, spec=spec(2), copy=True)
    assert_same(model(**inputs).detach(), parallel(**inputs).detach())
    compile(parallel.code, "generated", "exec")
    assert not executed()


def test_nothing_is_pickled() -> None:
    import pickle

    with pytest.raises(PartitionerError, match="is not pickled"):
        pickle.dumps(partition(nn.Linear(2, 2), ["cpu"]))
    words = ("import pickle", "torch.load(", "yaml.load(", "urlopen(", "import socket")
    package = Path(cli.__file__).parent.parent
    found = [(path.name, word) for path in package.rglob("*.py") for word in words if word in path.read_text()]
    assert not found
