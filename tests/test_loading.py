"""Models as the command line names them: every way to write one, and every mistake as one readable error."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from textwrap import dedent

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from partitioner import PartitionerError, verify
from partitioner.cli.inputs import parse_inputs
from partitioner.cli.target import load_target
from partitioner.cli.user_code import LoadError
from partitioner.ir.parse import parse
from partitioner.lower.planfile import ProgramError, is_program, read_program
from partitioner.model.call import example_call
from programs import random_lowered

HEADER = "import torch\nfrom torch import nn\n"
OPEN = "class Net(nn.Module):\n    def forward(self, *args, **kwargs):\n        return args\n"
NET = "class Net(nn.Module):\n    def forward(self, x):\n        return x + 1\n"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file below a new working directory and gives its relative name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str, name: str = "model.py", header: str = HEADER) -> str:
        (tmp_path / name).write_text(header + dedent(text))
        return name

    return write_file


# What can be written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (NET + "model = Net()", ""),
        (NET + "def build(): return Net()", ""),
        (NET + "model = Net", ""),
        (NET + "model, other, build = Net(), nn.ReLU(), 3", ""),
        (NET, ""),
        (NET + "net = Net()", ""),
        (NET + "class Block(Net): pass\nnet = again = Net()", ""),
        (NET + "class Block(Net): pass", ":Net"),
        (NET + "class Box: net = Net()", ":Box.net"),
        (NET + "def make(width=3): return Net()", ":make"),
        (NET + "def make(*args, **kwargs): return Net()", ":make"),
    ],
)
def test_models_of_a_file(write: Write, text: str, name: str) -> None:
    target = load_target(write(text) + name)
    assert target.name == "Net" and isinstance(target.module, nn.Module)
    assert target.inputs is None and target.kwargs is None


def test_a_module_that_can_be_imported(write: Write) -> None:
    assert load_target("torch.nn:ReLU").name == "ReLU"
    write(NET + "model = Net()", "importable_model.py")
    assert load_target("importable_model").name == load_target("importable_model:Net").name == "Net"


def test_neighbours_can_be_imported_and_the_path_is_left_as_it_was(write: Write) -> None:
    write(NET, "neighbour_of_a_model.py")
    before = list(sys.path)
    assert load_target(write("from neighbour_of_a_model import Net\nmodel = Net()")).name == "Net"
    assert sys.path == before


def test_a_file_may_hold_what_looks_its_module_up(write: Write) -> None:
    text = "import dataclasses\n@dataclasses.dataclass\nclass Sizes:\n    width: 'int' = 4\n" + NET + "model = Net()"
    assert load_target(write(text, header="from __future__ import annotations\n" + HEADER)).name == "Net"


@pytest.mark.parametrize(
    ("text", "args", "keys"),
    [
        ("torch.zeros(2)", 1, []),
        ("(torch.zeros(2), 3)", 2, []),
        ("[torch.zeros(2), 3]", 2, []),
        ("{'x': torch.zeros(2)}", 0, ["x"]),
        ("({'x': torch.zeros(2)},)", 1, []),
        ("{1: torch.zeros(2)}", 1, []),
        ("lambda: torch.zeros(2)", 1, []),
        ("lambda: {'x': torch.zeros(2)}", 0, ["x"]),
        ("()", 0, []),
    ],
)
def test_example_inputs_of_a_file(write: Write, text: str, args: int, keys: list[str]) -> None:
    """They mean what they mean to `partition`: a dict is keyword arguments by name."""
    target = load_target(write(OPEN + f"example_inputs = {text}"))
    call = example_call(target.module, target.inputs, target.kwargs)
    assert call is not None
    positional, named = call.fill(call.tensors)
    assert len(positional) == args and list(named) == keys


def test_inputs_on_the_command_line_take_the_place_of_those_in_the_file(write: Write) -> None:
    target = load_target(write(NET + "example_inputs = 1/1"), ["float32[5]", "y=int64[]"])
    assert target.inputs[0].shape == (5,)
    assert target.kwargs is not None and target.kwargs["y"].shape == ()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64", "uint8", "int64", "bool"])
def test_inputs_have_their_dtype_and_are_the_same_each_time(dtype: str) -> None:
    (x,), _ = parse_inputs([f"{dtype}[2, 16]"])
    (y,), _ = parse_inputs([f"{dtype}[2,16]"])
    assert x.dtype == getattr(torch, dtype) and x.shape == (2, 16) and torch.equal(x, y)
    if not (x.is_floating_point() or x.is_complex()):
        assert set(x.long().unique().tolist()) <= {0, 1}


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing.py", "no such file: 'missing.py'"),
        ("missing.py:Net", "no such file"),
        ("some/missing/file", "no such file"),
        ("missing_module:Net", "no such file or module: 'missing_module'"),
        ("torch.missing:Net", "no such file or module: 'torch.missing'"),
        ("torch.nn:Missing", "defines no 'Missing'"),
        ("torch.nn:Linear", "Linear needs arguments: in_features, out_features"),
        ("torch:float32", "float32 is of type dtype"),
        (".", "is a directory"),
        ("folder.py", "is a directory"),
        ("notes.txt", "not a Python file"),
        ("", "no such file"),
        (":", "no such file"),
        ("a\0b.py", "no such file"),
        ("x" * 5000, "no such file or module"),
    ],
)
def test_targets_that_are_none(write: Write, tmp_path: Path, target: str, message: str) -> None:
    write("", "notes.txt")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(LoadError) as raised:
        load_target(target)
    assert message in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(:", "importing model.py failed at {file}:3: SyntaxError: invalid syntax"),
        ("x = 1\ny = 1 / 0", "importing model.py failed at {file}:4: ZeroDivisionError: division by zero"),
        ("import no_such_package", "importing model.py failed at {file}:3: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "importing model.py failed at {file}:3: SystemExit: 3"),
        ("import sys; sys.exit()", "importing model.py failed at {file}:3: SystemExit"),
        ("class Odd(BaseException): pass\nraise Odd('no')", "importing model.py failed at {file}:4: Odd: no"),
        ("torch.zeros(2) @ torch.zeros(3)", "importing model.py failed at {file}:3: RuntimeError: "),
        ("def build():\n    raise KeyError('x')", "calling build() failed at {file}:4: KeyError: 'x'"),
        ("class Bad(Exception):\n    def __str__(self): raise Bad\nraise Bad", "importing model.py failed at {file}:5: Bad: "),
        ("def build(): return 3", "build() returned int, not an nn.Module"),
        ("def build(width): return nn.ReLU()", "build needs arguments: width"),
        ("model = 'net'", "model is of type str; it should be an nn.Module"),
        ("", "has no model, no build() and no nn.Module; define"),
        (NET + "class Other(Net): pass", "has several models: Net, Other; choose one, for example model.py:Net"),
        ("a, b = nn.ReLU(), nn.ReLU()", "has several models: a, b; choose one"),
        ("class Net(nn.Module):\n    def __init__(self, width): pass", "Net needs arguments: width"),
        (NET + "def example_inputs(): return 1 / 0", "calling example_inputs() failed at {file}:6: ZeroDivisionError"),
        ("def __getattr__(name): raise OSError('broken')", "loading model.py failed at {file}:3: OSError: broken"),
    ],
)
def test_files_that_hold_no_model(write: Write, tmp_path: Path, text: str, message: str) -> None:
    before = list(sys.path)
    with pytest.raises(LoadError) as raised:
        load_target(write(text))
    assert message.format(file=tmp_path / "model.py") in str(raised.value)
    assert sys.path == before


def test_a_broken_neighbour_is_named(write: Write, tmp_path: Path) -> None:
    write("1 / 0", "broken_neighbour.py")
    with pytest.raises(LoadError, match=r"broken_neighbour\.py:3: ZeroDivisionError"):
        load_target(write("import broken_neighbour"))


def test_a_name_that_is_not_in_the_file(write: Write) -> None:
    with pytest.raises(LoadError, match="defines no 'Nat'; it has Net"):
        load_target(write(NET) + ":Nat")


def test_a_long_message_is_cut(write: Write) -> None:
    with pytest.raises(LoadError) as raised:
        load_target(write("raise ValueError('x' * 10**6)"))
    assert len(str(raised.value)) < 3000


@pytest.mark.parametrize("data", [b"\x00\x01\x02", b"\xff\xfe", b"model = (" * 500, b"\x89PNG\r\n", b"-" * 20_000 + b"1"])
def test_files_that_are_no_python(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(data)
    with pytest.raises(LoadError):
        load_target(str(path))


@pytest.mark.parametrize(
    "text",
    [
        *("", "float32", "float32[", "float32[1,]", "float32[-1]", "float32[a]", "[1,2]", "double[1]", "Tensor[1]"),
        *("float32[1]x", "qint8[1]", "float32[\u0663]", "1x=float32[1]", "float32[1.5]", f"float32[{'9' * 30}]"),
        *("float32[1000000,1000000]", "float32[0,999999999999999999,999999999999999999]"),
    ],
)
def test_inputs_that_are_none(text: str) -> None:
    with pytest.raises(LoadError):
        parse_inputs([text])


def test_an_input_given_twice() -> None:
    with pytest.raises(LoadError, match="twice: x, x"):
        parse_inputs(["x=bool[]", "x=bool[]"])


# Programs -------------------------------------------------------------------------------------------------------------

GOOD = "program P\nlane 0 cpu/0 cpu\nvalue a cpu 4 a\noutput a\n0 run t0 () -> (a) w:a\n"


def test_a_program(write: Write) -> None:
    name = write(GOOD, "program.txt", header="")
    assert is_program(name) and not is_program("model.py") and not is_program("missing.txt") and not is_program("a\0b")
    assert read_program(name) == parse(GOOD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a printed program"),
        ("hello", "not a printed program"),
        ("program P\n0 jump", "line 2 of the program is not understood"),
        ("program P", "declares no lane"),
        ("program P\nlane 0 a/0 Nowhere", "'Nowhere', which is no torch device"),
        ("program P\nlane 0 a/0 cpu\n1 record e0", "lane 1, which is not declared"),
        ("program P\nlane 0 a/0 cpu\n-1 record e0", "lane -1, which is not declared"),
        ("program P\nlane 0 a/0 cpu\n0 copy a -> b", "copies a, which is not declared"),
    ],
)
def test_texts_that_are_no_program(write: Write, text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=r"program\.txt: ") as raised:
        read_program(write(text, "program.txt", header=""))
    assert message in str(raised.value)


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\x00")
    for name in ("binary.txt", "missing.txt", "."):
        with pytest.raises(ProgramError, match="cannot be read"):
            read_program(str(tmp_path / name))


# Damaged programs -----------------------------------------------------------------------------------------------------

ODD = [*"-1 99 e0 e-1 cpu '' x -> ( () w: r:x % %41 0 1e9 \u0663 * rng w:* cuda:7 lane value \x00".split(), "9" * 400]


def damaged(text: str, rng: Random) -> str:
    """A program's text after one to four slips: lines and words that are lost, doubled, exchanged or misspelt."""
    lines = [line.split(" ") for line in text.splitlines()]
    for _ in range(rng.randint(1, 4)):
        line, other = rng.choice(lines), rng.choice(lines)
        place = rng.randrange(len(line))
        match rng.randrange(7):
            case 0 if len(lines) > 2:
                lines.remove(line)
            case 1:
                lines.insert(rng.randrange(len(lines)), list(other))
            case 2:
                line[:], other[:] = list(other), list(line)
            case 3 if len(line) > 1:
                del line[place]
            case 4:
                line[place] = rng.choice([*ODD, *other])
            case 5:
                line.insert(place, rng.choice(line))
            case _:
                cut = rng.randrange(len(line[place]) + 1)
                line[place] = line[place][:cut] + rng.choice(["", *"x0-:e()%, "]) + line[place][cut + rng.randrange(2) :]
    return "\n".join(" ".join(line) for line in lines)


@given(st.randoms(use_true_random=False))
def test_a_damaged_program_is_refused_or_right(rng: Random) -> None:
    """Whatever happened to its text: one error of our family, never a raw one."""
    text = damaged(str(random_lowered(rng).program), rng)
    try:
        program = verify(parse(text))
    except PartitionerError as error:
        assert str(error)
    else:
        assert verify(parse(str(program))) == program


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("program P\nlane 0 cpu/0 cpu\n1 record e0", "declaration: instruction 0 is on lane 1, which is not declared"),
        ("program P\nlane 0 cpu/0 cpu\n0 copy x -> y", "declaration: instruction 0 copies x, which is not declared"),
        ("program P\nlane 0 cpu/0 cpu\n0 run t0 (x) -> ()", "definition: x is read before it is made"),
        ("program P\nlane 0 cpu/0 cpu\n0 ran t0 () -> ()", "line 3 of the program is not understood: '0 ran t0"),
    ],
)
def test_what_is_damaged_is_named(text: str, says: str) -> None:
    with pytest.raises(PartitionerError, match=re.escape(says)):
        verify(parse(text))
