"""Each example runs as its docstring says, and learns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from jobs.torchrun import start

EXAMPLES = Path(__file__).parent.parent / "examples" / "distributed"
FILES = sorted(EXAMPLES.glob("*.py"))


def lines(path: Path) -> list[str]:
    """The torchrun lines of an example's docstring."""
    return re.findall(r"^ +torchrun (\S.*?)(?:  .*)?$", path.read_text(), re.MULTILINE)


def printed(line: str, folder: Path) -> str:
    """What an example prints when it is started by a line, in a folder of its own."""
    option, ranks, program, *arguments = shlex.split(line)
    assert option == "--nproc-per-node" and (EXAMPLES.parent.parent / program).is_file()
    return start(int(ranks), EXAMPLES / Path(program).name, *(folder / each if each.isalpha() else each for each in arguments))


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step +\d+ +loss ([\d.]+)$", text, re.MULTILINE)]


@pytest.mark.parametrize(
    "name", ["pipeline", *(pytest.param(name, marks=pytest.mark.slow) for name in ("branches", "data", "hybrid", "tensor"))]
)
def test_it_learns(name: str, tmp_path: Path) -> None:
    (line,) = lines(EXAMPLES / f"{name}.py")
    text = printed(line, tmp_path)
    found = losses(text)
    assert len(found) >= 3 and found[-1] < 0.8 * found[0], text
    if name == "pipeline":
        assert "words.weight is in stages 0 and 1" in text
    if name in ("hybrid", "tensor"):
        here, whole = map(int, re.findall(r"rank 0 holds (\d+) of (\d+) numbers", text)[0])
        assert here < whole / (3 if name == "hybrid" else 1.9)
    if name == "branches":
        assert "rank 0 holds left" in text and "rank 1 holds right" in text  # in one line, where both print at once


@pytest.mark.slow
def test_inference(tmp_path: Path) -> None:
    (line,) = lines(EXAMPLES / "inference.py")
    found = re.findall(r"holds (\d+) of (\d+) numbers, its output is (\S+) from", printed(line, tmp_path))
    assert len(found) == 2, "both ranks of the last stage have it"
    assert all(int(held) < int(whole) / 3 and float(apart) < 1e-4 for held, whole, apart in found)


@pytest.mark.slow
def test_resumed_is_undisturbed(tmp_path: Path) -> None:
    first, second = lines(EXAMPLES / "checkpoint_and_resume.py")
    before, after = losses(printed(first, tmp_path)), losses(printed(second, tmp_path))
    assert (len(before), len(after)) == (4, 2)
    undisturbed = losses(printed(second.replace("run ", "elsewhere "), tmp_path / "another"))
    assert before + after == undisturbed


def test_every_example_is_tested() -> None:
    assert [path.stem for path in FILES] == [
        "branches",
        "checkpoint_and_resume",
        "data",
        "hybrid",
        "inference",
        "pipeline",
        "tensor",
    ]
