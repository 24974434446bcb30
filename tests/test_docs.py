"""What the documents show is run: Python blocks in order, file by file, and the commands of console blocks.

A fence says what happens to its block:

    ```python           run, in one namespace per file
    ```python no-run    compiled only
    ```console, ```sh   lines that begin with "$ ": `python -m partitioner ...` is run, `make ...` must be a target
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from partitioner.cli.main import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(path for path in (ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")) if path.exists())
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>\w[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the words after it, its text, and the line that the text starts on."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int


def blocks(document: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(document):
        language, *words = match["info"].split()
        line = document.count("\n", 0, match.start("body")) + 1
        found.append(Block(language, tuple(words), textwrap.dedent(match["body"]), line))
    return found


def commands(document: str) -> list[str]:
    shells = [block for block in blocks(document) if block.language in ("console", "sh")]
    text = "\n".join(block.text for block in shells).replace("\\\n", " ")
    return [line[2:].strip() for line in text.splitlines() if line.startswith("$ ")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the repository's root, where examples may leave files."""
    for path in ROOT.iterdir():
        if path.is_dir() and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"document_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where pickle and dataclasses look up what is defined
    for block in blocks(path.read_text()):
        if block.language == "python":
            # Blank lines in front make the line numbers of a traceback those of the document.
            code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
            if "no-run" not in block.words:
                exec(code, module.__dict__)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_work(path: Path, workplace: Path) -> None:
    for command in commands(path.read_text()):
        words = shlex.split(command, comments=True)
        if words[:3] == ["python", "-m", "partitioner"]:
            done = CliRunner().invoke(app, words[3:])
            assert done.exit_code == 0, f"$ {command}\n{done.output}"
        elif words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
            assert make_targets().issuperset(targets), f"$ {command}: the Makefile has no such target"


def test_blocks_are_found() -> None:
    document = "a\n```python no-run\nx = 1\n```\n```console\n$ make demo\nout\n$ python -m partitioner \\\n    --help\n```\n"
    assert blocks(document)[0] == Block("python", ("no-run",), "x = 1\n", 3)
    assert commands(document) == ["make demo", "python -m partitioner      --help"]
    assert "demo" in make_targets()
