"""The command line: what it prints, where, and with which exit code, whatever it is given."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import partitioner
from partitioner.cli import commands, console
from partitioner.cli import main as cli

MODEL = """
import torch
from torch import nn

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(256, 256)
        self.left, self.right = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x):
        x = self.stem(x)
        return torch.cat([self.left(x), self.right(x)], dim=1)

print("a model may print what it likes")
model = Towers()
example_inputs = torch.zeros(64, 256)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model's file in a new working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    return "model.py"


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.app, list(args))


def assert_refused(result: Result, *words: str, code: int = 2) -> None:
    """One error on stderr, and nothing else anywhere."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("error: ") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_table(model: str) -> None:
    result = run("inspect", model, "--devices", "cuda:0,cuda:1")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Towers: 4 ops, 4 branches")
    assert "left" in result.stdout and "this plan" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stderr == "a model may print what it likes\n", "so that a pipe holds the report alone"


def test_json_holds_every_depth(model: str) -> None:
    result = run("inspect", model, "--format", "json", "--devices", "cuda:0, cuda:1")
    document = json.loads(result.stdout)
    assert [depth["depth"] for depth in document["depths"]] == [0, 1, 2]
    assert document["summary"]["model"] == "Towers"


@pytest.mark.parametrize(("text", "depths"), [("1:", [1, 2]), ("0:2", [0, 1]), (":", [0, 1, 2]), ("1", [1]), ("2:99", [2])])
def test_some_depths(model: str, text: str, depths: list[int]) -> None:
    document = json.loads(run("inspect", model, "--format", "json", "--depth", text).stdout)
    assert [depth["depth"] for depth in document["depths"]] == depths


@pytest.mark.parametrize(
    ("name", "start"), [("dot", "digraph "), ("mermaid", "flowchart TD"), ("json", "{"), ("table", "Towers")]
)
def test_formats_go_to_files(model: str, name: str, start: str) -> None:
    result = run("inspect", model, "--format", name, "--output", "report.out")
    assert (result.exit_code, result.stdout) == (0, "")
    assert Path("report.out").read_text().startswith(start)


def test_inputs_policy_and_spec(model: str) -> None:
    Path("spec.yaml").write_text("devices: [{device: cuda:0, name: gpu, lanes: 2}]\n")
    options = ("--spec", "spec.yaml", "--policy", "single", "--input", "float32[8,256]", "--format", "json")
    document = json.loads(run("inspect", f"{model}:Towers", *options).stdout)
    assert document["summary"]["policy"] == "single"
    assert document["depths"][0]["branches"][0]["output_bytes"] == 8 * 256 * 4
    assert [lane["name"] for lane in document["summary"]["devices"][0]["lanes"]] == ["gpu/0", "gpu/1"]


def test_without_inputs(model: str) -> None:
    Path(model).write_text(MODEL.replace("example_inputs", "something_else"))
    result = run("inspect", model)
    assert result.exit_code == 0 and "No shapes are known" in result.stdout


def test_ranks_in_json_alone(model: str) -> None:
    """Of a spec for ranks: what the model printed once stood in front of the report."""
    Path("spec.yaml").write_text("distributed: {mesh: {pipeline: 2}, microbatches: 2}\n")
    result = run("inspect", model, "--format", "json", "--spec", "spec.yaml")
    assert json.loads(result.stdout)["mesh"]["pipeline"] == 2
    assert result.stderr == "a model may print what it likes\n"


def test_version_and_help() -> None:
    assert run("--version").stdout == f"partitioner {partitioner.__version__}\n"
    for args in ([], ["--help"]):
        result = run(*args)
        assert result.exit_code == 0 and "inspect" in result.stdout and "verify" in result.stdout
    assert "--depth" in run("inspect", "--help").stdout


def test_help_names_every_format_and_policy() -> None:
    from partitioner.report import FORMATS

    shown = " ".join(run("inspect", "--help").stdout.split())
    assert all(name in shown for name in (*FORMATS, "by_level", "single"))


def test_help_imports_nothing_heavy() -> None:
    """At the top of these files, only typer and what they share may be imported."""
    for module in (cli, commands, console):
        body = ast.parse(Path(str(module.__file__)).read_text()).body
        names = {name for node in body if isinstance(node, ast.ImportFrom) for name in [node.module or ""]}
        names |= {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        outside = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
        assert outside <= {
            "typer",
            "typer.core",
            *(f"partitioner.cli.{name}" for name in ("console", "commands")),
            "partitioner.errors",
        }


# Verify ---------------------------------------------------------------------------------------------------------------

PROGRAM = """program P
lane 0 cpu/0 cpu
lane 1 cpu/1 cpu
value a cpu 4 a
value b cpu 4 b
output b
0 run t0 () -> (a) w:a
0 record e0
1 wait e0
1 run t1 (a) -> (b) r:a w:b
1 record e1
0 wait e1
0 free a
"""


def test_verify_a_program(tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(PROGRAM)
    result = run("verify", str(path))
    assert (result.exit_code, result.stdout) == (0, "no faults: 7 instructions on 2 lanes\n")


def test_verify_a_program_with_a_race(tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(PROGRAM.replace("1 wait e0\n", ""))
    result = run("verify", str(path))
    assert result.exit_code == 1 and result.stderr == ""
    assert "race" in result.stdout and "1 run t1 (a) -> (b)" in result.stdout


def test_verify_a_model(model: str) -> None:
    result = run("verify", model, "--devices", "cuda:0,cuda:1")
    assert result.exit_code == 0 and result.stdout.startswith("no faults: ")


def test_a_printed_plan_can_be_verified(model: str) -> None:
    from partitioner.cli.target import load_target
    from partitioner.plans import make_plan
    from partitioner.spec.discover import build_machine
    from partitioner.spec.spec import load_spec

    plan = make_plan(load_target(model).module, None, build_machine(load_spec(), ["cuda:0", "cuda:1"]), load_spec())
    Path("plan.txt").write_text(str(plan.program))
    assert run("verify", "plan.txt").exit_code == 0


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["inspect"], ["TARGET"]),
        (["nonsense"], ["nonsense"]),
        (["--nonsense"], ["--nonsense"]),
        (["inspect", "model.py", "--nonsense"], ["--nonsense"]),
        (["inspect", "model.py", "extra"], ["extra"]),
        (["inspect", "missing.py"], ["no such file: 'missing.py'"]),
        (["inspect", "."], ["is a directory"]),
        (["inspect", "model.py", "--devices", "cuda:0,foo"], ['devices[1]: "foo" is not a device']),
        (["inspect", "model.py", "--devices", ""], ["device"]),
        (["inspect", "model.py", "--policy", "best"], ['policy: "best" is not known', "by_level"]),
        (["inspect", "model.py", "--format", "svg"], ['format: "svg" is not known', "mermaid"]),
        (["inspect", "model.py", "--depth", "8:3"], ["'8:3' holds no depth"]),
        (["inspect", "model.py", "--depth", "some"], ["'some' is no range of depths"]),
        (["inspect", "model.py", "--depth", "30:40"], ["the depths are 0 to 2"]),
        (["inspect", "model.py", "--input", "float[2]"], ["'float[2]' is no input"]),
        (["inspect", "model.py", "--spec", "missing.yaml"], ["missing.yaml"]),
        (["inspect", "model.py", "--spec", "model.py"], ["model.py"]),
        (["inspect", "model.py", "--output", "missing/report"], ["cannot write to missing/report"]),
        (["inspect", "model.py", "--output", "."], ["cannot write to ."]),
        (["inspect", "model.py", "--output", ""], ["cannot write to ''"]),
        (["inspect", "model.py", "--save-plan", ""], ['"": cannot be written']),
        (["inspect", "model.py", "--spec", "ranks.json", "--policy", "list"], ["--policy is for one process"]),
        (["inspect", "model.py", "--spec", "ranks.json", "--save-plan", "plan.json"], ["--save-plan is for one process"]),
        (
            ["inspect", "model.py", "--spec", "ranks.json", "--format", "dot"],
            ['format: "dot" is not known; there are table, json'],
        ),
        (["verify", "model.py", "--spec", "ranks.json"], ["the section distributed is for the ranks of a job"]),
        (["verify", "missing.txt"], ["no such file or module: 'missing.txt'"]),
        (["verify", "notes.txt"], ["not a printed program"]),
    ],
)
def test_mistakes(model: str, args: list[str], words: list[str]) -> None:
    """One line each. What a spec for ranks has no use for was passed over without a word."""
    Path("notes.txt").write_text("hello")
    Path("ranks.json").write_text('{"distributed": {"mesh": {"data": 2}}}')
    Path(model).write_text(MODEL.replace("print", "str"))
    assert_refused(run(*args), *words)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def forward(self, x):\n        raise ValueError('not today')", "not today"),
        ("def forward(self, x):\n        raise SystemExit(3)", "sys.exit(3)"),
        ("def forward(self, x, y):\n        return x + y", "y"),
        ("pass", "Net"),
    ],
)
def test_models_that_cannot_be_traced(model: str, text: str, word: str) -> None:
    source = f"import torch\nclass Net(torch.nn.Module):\n    {text}\nmodel, example_inputs = Net(), torch.zeros(2)\n"
    Path(model).write_text(source)
    assert_refused(run("inspect", model), word)


def test_a_model_in_pieces(model: str) -> None:
    """The largest graph is shown, with a note that says where Python stands between graphs; over two devices it is refused."""
    source = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return x + 1 if torch.rand(1) > 2 else -x\n"
    Path(model).write_text(source + "model, example_inputs = Net(), torch.zeros(2)\n")
    result = run("inspect", model)
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"note: one of 2 graphs; Python goes on after: .*\(at .*model.py:3\)", result.stdout)
    refused = run("inspect", model, "--devices", "cuda:0,cuda:1")
    assert_refused(
        refused, "Net.forward cannot be one graph, as state on several devices or fullgraph=True asks for: ", "model.py:3)"
    )
    assert refused.stderr.count("\n") == 1


def test_a_model_of_which_nothing_can_be_traced(model: str) -> None:
    source = "import torch\nclass Net(torch.nn.Module):\n    @torch.compiler.disable\n    def forward(self, x): return x + 1\n"
    Path(model).write_text(source + "model, example_inputs = Net(), torch.zeros(2)\n")
    result = run("inspect", model)
    assert result.exit_code == 0 and "note: the tracer found no graph in the example call" in result.stdout


def test_the_model_is_run_to_be_compared(model: str) -> None:
    """What only values can tell, an index that is none for instance, is told then; without the check nothing runs."""
    source = "import torch\nmodel, example_inputs = torch.nn.Embedding(4, 2), torch.full((3,), 9)\n"
    Path(model).write_text(source)
    assert_refused(run("inspect", model), "Embedding fails on the example inputs. IndexError: index out of range")
    assert run("inspect", model, "--no-check").exit_code == 0


EACH_IN_TURN = """
from partitioner.cli.main import app
for options in ([], ["--devices", "cuda:0,cuda:1", "--no-check"]):
    try:
        app(["inspect", "model.py", "--input", "float32[3,255]", *options])
    except SystemExit as end:
        print(end.code)
"""


def test_a_wrong_input_is_one_line(model: str) -> None:
    """And no log of torch, in a process of its own, where torch's handlers are as they come."""
    Path(model).write_text(MODEL.replace("print", "str"))
    done = subprocess.run([sys.executable, "-c", EACH_IN_TURN], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "2\n2\n")
    for line in done.stderr.splitlines():
        assert line.startswith("error: Towers fails on the example inputs. RuntimeError: ")
    assert done.stderr.count("\n") == 2


def test_devices_may_be_repeated(model: str) -> None:
    one = run("inspect", model, "--format", "json", "--devices", "cuda:0,cuda:0", "--devices", "cpu", "--devices", "cuda:1")
    devices = json.loads(one.stdout)["summary"]["devices"]
    assert [(device["name"], len(device["lanes"])) for device in devices] == [("cuda:0", 2), ("cuda:1", 1), ("cpu", 1)]


def test_a_dict_is_keyword_arguments(model: str) -> None:
    """In a file as for `partition`; the one message says what else to write."""
    Path(model).write_text(MODEL.replace("torch.zeros(64, 256)", "{'x': torch.zeros(8, 256)}"))
    assert "depth 3" in run("inspect", model).stdout
    Path(model).write_text(MODEL.replace("torch.zeros(64, 256)", "{'y': torch.zeros(8, 256)}").replace("print", "str"))
    assert_refused(
        run("inspect", model), "do not fit Towers.forward", "one that is an argument itself goes into a tuple: ({...},)"
    )


def test_a_model_on_the_meta_device(model: str) -> None:
    """It can be planned for, whatever device its example inputs are on."""
    Path(model).write_text(MODEL.replace("model = Towers()", "with torch.device('meta'):\n    model = Towers()"))
    result = run("inspect", model, "--devices", "cuda:0,cuda:1")
    assert result.exit_code == 0 and "this plan" in result.stdout, result.output
    assert run("inspect", model, "--input", "float32[8,256]").exit_code == 0


def test_a_bad_spec_lists_its_faults(model: str) -> None:
    Path(model).write_text(MODEL.replace("print", "str"))
    Path("spec.yaml").write_text("polcy: by_level\ndevices: [{device: cuda:0, memory: 3XB}]\n")
    assert_refused(run("inspect", model, "--spec", "spec.yaml"), "2 faults", "polcy", "3XB")


def test_debug_shows_the_traceback(model: str) -> None:
    result = run("inspect", "missing.py", "--debug")
    assert result.exit_code == 2 and "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: no such file")


def _raise_key_error(*_: object) -> None:
    raise KeyError("gone")


def test_our_own_faults_say_so(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(model).write_text(MODEL.replace("print", "str"))
    monkeypatch.setattr("partitioner.report.inspect.simulate", _raise_key_error)
    assert_refused(run("inspect", model), "a fault of partitioner", "KeyError: 'gone'", "--debug", code=3)


# Pipes and processes --------------------------------------------------------------------------------------------------


def test_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    (tmp_path / "program.txt").write_text(PROGRAM)
    command = [sys.executable, "-m", "partitioner", "verify", str(tmp_path / "program.txt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def inspected(model: str, stdout: TextIO) -> None:
    """Like `run`, with a stream of the operating system's."""
    with contextlib.redirect_stdout(stdout), pytest.raises(SystemExit, match=r"^0$"):
        cli.app(["inspect", model, "--devices", "cuda:0,cuda:1"])


def test_a_pipe_gets_plain_lines_of_any_length(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with open("report.txt", "w", encoding="ascii") as file:
        inspected(model, file)
    out = Path("report.txt").read_text(encoding="ascii")
    assert "\x1b" not in out and "..." not in out
    (row,) = [line for line in out.splitlines() if line.startswith("0 ")]
    assert row.split()[1] == "stem"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error(model: str) -> None:
    Path(model).write_text(MODEL.replace("print", "str"))
    assert_refused(run("inspect", model, "--output", "/dev/full"), "cannot write to /dev/full")


def read_to_the_end(terminal: int) -> str:
    out = b""
    with contextlib.suppress(OSError):  # a terminal whose other side is gone ends with EIO
        while data := os.read(terminal, 65536):
            out += data
    os.close(terminal)
    return out.decode()


def test_a_terminal_gets_colours_in_its_width(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = pytest.importorskip("pty").openpty()
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with ThreadPoolExecutor(1) as reader:  # a terminal holds little that nobody has read
        text = reader.submit(read_to_the_end, outer)
        with open(inner, "w", encoding="utf-8") as terminal:
            inspected(model, terminal)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.result()).splitlines()
    assert "\x1b[36mcuda:0/0" in text.result() and "\u2500" * 40 in text.result() and max(map(len, lines)) <= 100


# Anything at all ------------------------------------------------------------------------------------------------------

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
WORDS = st.sampled_from(
    [
        *(
            "inspect",
            "verify",
            "model.py",
            "model.py:Towers",
            "spec.yaml",
            "program.txt",
            "--input",
            "float32[64,256]",
            "--devices",
        ),
        *(
            "cuda:0,cuda:0",
            "cpu:0,cpu:1",
            "--policy",
            "single",
            "--spec",
            "--depth",
            "1:2",
            "--format",
            "json",
            "--output",
            "--debug",
        ),
        *("--help", "--version", "--", "-", "", "torch.nn:ReLU", "torch:nn", "--input=", "--depth=1"),
    ]
)
LINES = st.one_of(
    st.sampled_from(PROGRAM.splitlines()),
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    *(
                        "program",
                        "lane",
                        "value",
                        "input",
                        "output",
                        "run",
                        "copy",
                        "record",
                        "wait",
                        "free",
                        "0",
                        "1",
                        "2",
                        "-1",
                    ),
                    *(
                        "e0",
                        "e1",
                        "e9",
                        "a",
                        "b",
                        "a@cuda:0",
                        "cuda:0",
                        "cpu",
                        "->",
                        "()",
                        "(a)",
                        "(a,",
                        "b)",
                        "r:a",
                        "w:b",
                        "w:*",
                        "''",
                    ),
                ]
            ),
            st.text(max_size=4),
        ),
        max_size=7,
    ).map(" ".join),
)


def assert_graceful(result: Result, *codes: int) -> None:
    assert result.exit_code in codes, result.output
    assert "Traceback" not in result.stderr
    assert result.exit_code in (0, 1) or result.stderr.startswith("error: ")


@pytest.fixture
def quiet(model: str) -> Iterator[None]:
    Path(model).write_text(MODEL.replace("print", "str"))
    Path("spec.yaml").write_text("{}")
    Path("program.txt").write_text(PROGRAM)
    yield


@FUZZ
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_model_file(quiet: None, data: bytes) -> None:
    Path("fuzzed.py").write_bytes(data)
    assert_graceful(run("inspect", "fuzzed.py"), 2)


@FUZZ
@given(st.binary(max_size=80), st.sampled_from(["yaml", "json", "toml"]))
def test_any_spec(quiet: None, data: bytes, suffix: str) -> None:
    Path(f"fuzzed.{suffix}").write_bytes(data)
    assert_graceful(run("inspect", "model.py", "--spec", f"fuzzed.{suffix}"), 0, 2)


@FUZZ
@given(st.lists(LINES, max_size=12), st.booleans())
def test_any_program(quiet: None, lines: list[str], begun: bool) -> None:
    text = "\n".join([*(PROGRAM.splitlines()[:6] if begun else ()), *lines])
    Path("fuzzed.txt").write_bytes(text.encode(errors="replace"))
    assert_graceful(run("verify", "fuzzed.txt"), 0, 1, 2)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_as_a_program(quiet: None, data: bytes) -> None:
    Path("fuzzed.txt").write_bytes(data)
    assert_graceful(run("verify", "fuzzed.txt"), 2)


@FUZZ
@given(st.lists(st.one_of(WORDS, WORDS, WORDS, st.text(max_size=8)), max_size=6))
def test_any_arguments(quiet: None, args: list[str]) -> None:
    result = run(*args)
    assert result.exit_code in (0, 1, 2), result.output
    assert "--debug" in args or "Traceback" not in result.stderr
