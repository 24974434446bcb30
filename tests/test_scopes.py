"""Models whose module is not the one that Python has under its name: loaded from a file, loaded twice, run, or executed."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from partitioner import partition

TEXT = """
import dataclasses, typing
import torch
from torch import nn

SCALE = {scale}
TABLE = {{"shift": {scale}}}
WEIGHT = torch.full((4,), {scale}, requires_grad=True)
LAYER = nn.Linear(4, 4)
SEEN = 0

@dataclasses.dataclass
class Both:
    one: torch.Tensor
    other: torch.Tensor

class Pair(typing.NamedTuple):
    one: torch.Tensor
    other: torch.Tensor

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * SCALE
    @staticmethod
    def backward(ctx, gradient):
        return gradient * SCALE

def scaled(x):
    global SEEN
    SEEN += 1
    return x * SCALE + TABLE["shift"] * WEIGHT + (lambda y: y * SCALE)(LAYER(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        found = Both(scaled(torch.relu(self.left(x))), Doubled.apply(self.right(x)))
        pair = Pair(found.one * SCALE, found.other)
        return pair.one + pair.other
"""


def _from_file(folder: Path, scale: float, name: str) -> Any:
    path = folder / f"{name}_{scale}.py"
    path.write_text(TEXT.format(scale=scale))
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


def _unknown(folder: Path, scale: float) -> Any:
    module = _from_file(folder, scale, "net_unknown")
    del sys.modules["net_unknown"]  # it was there for the dataclass alone, which looks it up
    return module


def _loaded_twice(folder: Path, scale: float) -> Any:
    module = _from_file(folder, scale, "net_of_two")
    _from_file(folder, scale + 1.0, "net_of_two")
    return module


def _loaded_anew(folder: Path, scale: float) -> Any:
    partition(_from_file(folder, scale + 1.0, "net_anew").Net(), ["cpu"], example_inputs=torch.ones(1, 4))
    return _from_file(folder, scale, "net_anew")


def _executed(folder: Path, scale: float) -> Any:
    names: dict[str, Any] = {"__name__": "builtins"}
    exec(compile(TEXT.format(scale=scale), str(folder / "net_executed.py"), "exec"), names)
    return SimpleNamespace(names=names, Net=names["Net"])


def _run(folder: Path, scale: float) -> Any:
    path = folder / "net_run.py"
    path.write_text(TEXT.format(scale=scale))
    names = runpy.run_path(str(path))["scaled"].__globals__
    return SimpleNamespace(names=names, Net=names["Net"])


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(sys.modules)
    yield
    for name in sys.modules.keys() - before.keys():
        if name.startswith("net_"):
            del sys.modules[name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("load", [_unknown, _loaded_twice, _loaded_anew, _executed, _run])
@pytest.mark.parametrize("options", [{"fullgraph": True}, {"check": False}], ids=["whole", "unchecked"])
def test_functions_read_and_write_their_own_globals(
    load: Callable[[Path, float], Any], options: dict[str, bool], tmp_path: Path
) -> None:
    """Dynamo said that there is no such module, or gave functions of one module the globals of another of its name."""
    torch.manual_seed(0)
    module, x = load(tmp_path, 2.0), torch.randn(3, 4)
    names = getattr(module, "names", None) or vars(module)
    model = module.Net()
    parallel = partition(model, ["cpu", "cpu"], example_inputs=x, **options)
    assert parallel.dag.number_of_nodes()
    for scale in (2.0, 2.0, 5.0):
        names["SCALE"] = names["TABLE"]["shift"] = scale
        with torch.no_grad():
            names["WEIGHT"].fill_(scale)
        names["SEEN"], names["WEIGHT"].grad = 7, None
        wanted = model(x)
        wanted.sum().backward()
        expected = names["WEIGHT"].grad.clone()
        assert names["SEEN"] == 8
        names["SEEN"], names["WEIGHT"].grad = 7, None
        found = parallel(x)
        found.sum().backward()
        assert torch.equal(found, wanted)
        assert torch.equal(names["WEIGHT"].grad, expected)
        assert names["SEEN"] == 8
