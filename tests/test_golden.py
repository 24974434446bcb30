"""Four small models, each stage of their compilation as text: a change to any stage shows as a diff of ``tests/golden``.

    UPDATE_GOLDEN=1 python -m pytest tests/test_golden.py        writes the files anew; read the diff before you keep it

A refactor changes no golden file. What the text means is tested beside its form: each program is also run, and gives what
the model gives. Numbers follow from the shapes and from the machines below, paths and line numbers are left out.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_devices import elsewhere
from torch import Tensor, nn

from partitioner.backends.codegen import generate
from partitioner.backends.reference import Reference
from partitioner.ir.machine import Device, Link, Machine
from partitioner.ir.parse import parse
from partitioner.ir.plan import Plan
from partitioner.model.call import Call
from partitioner.model.state import attribute
from partitioner.plans import make_plan
from partitioner.spec.spec import Spec

GOLDEN = Path(__file__).parent / "golden"


def tower(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


class TwoTowers(nn.Module):
    """Two branches that meet at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.document = tower(64, 2), tower(64, 2)

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        return (self.query(query) * self.document(document)).sum(-1)


class Inception(nn.Module):
    """Three branches of one input, each with an in-place op, two of them with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Conv2d(8, 8, 1)
        self.wide = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1))
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        point = self.drop(torch.relu_(self.point(x)))
        return torch.cat([point, self.drop(self.wide(x)), self.pool(x).mul_(2)], 1)


class Decoder(nn.Module):
    """Asks the encoder's result for its size, and reads it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, memory: Tensor, target: Tensor) -> Tensor:
        scores = torch.softmax(target @ self.project(memory).transpose(1, 2), -1)
        return self.out(scores @ memory).reshape(memory.size(0), -1)


class EncoderDecoder(nn.Module):
    """The encoder on one device, the decoder on another: its input is copied, once."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = tower(32, 1), Decoder()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decoder(self.encoder(source), target)


class Hybrid(nn.Module):
    """A table too large for the accelerator stays on the CPU, with a running count of what was looked up."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense, self.head = nn.Embedding(1000, 16), tower(16, 2), nn.Linear(32, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        both = torch.cat([self.table(ids).mean(1), self.dense(features)], -1)
        return self.head(both), self.calls + 1


def cpu(lanes: int) -> Device:
    return Device("cpu", "cpu", lanes, flops=1e9, bandwidth=1e9, overhead=1e-6, handoff=1e-5, cores=lanes)


def gpu(index: int, lanes: int = 1) -> Device:
    return Device(f"gpu{index}", f"cuda:{index}", lanes, flops=2e9, bandwidth=2e9, overhead=1e-6, handoff=1e-5)


@dataclass(frozen=True)
class Example:
    """A model, its call, and where it should run."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    machine: Machine
    pins: tuple[tuple[str, str], ...] = ()

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.model()

    def plan(self, module: nn.Module) -> Plan:
        spec = Spec.model_validate({"pins": [{"match": match, "device": device} for match, device in self.pins]})
        return make_plan(module, Call.of(self.inputs(), {}), self.machine, spec)


EXAMPLES = {
    "two_towers": Example(TwoTowers, lambda: (torch.randn(32, 64), torch.randn(32, 64)), Machine((cpu(2),))),
    "inception": Example(Inception, lambda: (torch.randn(2, 8, 16, 16),), Machine((gpu(0, lanes=3),))),
    "encoder_decoder": Example(
        EncoderDecoder,
        lambda: (torch.randn(4, 8, 32), torch.randn(4, 8, 32)),
        Machine((gpu(0), gpu(1)), (Link("gpu0", "gpu1", 1e9, 1e-5),)),
        (("encoder", "gpu0"), ("decoder", "gpu1")),
    ),
    "hybrid": Example(
        Hybrid,
        lambda: (torch.randint(0, 1000, (8, 4)), torch.randn(8, 16)),
        Machine((gpu(0, lanes=2), cpu(1))),
        (("table", "cpu"), ("dense", "gpu0"), ("head", "gpu0")),
    ),
}


def text_of(plan: Plan) -> str:
    """Every stage, under a heading each. Where code comes from is told by file and line; only the file's name is kept."""
    parts = {
        "graph": plan.graph,
        "tasks": plan.tasks,
        "placement": plan.placement,
        "program": plan.program,
        "code": generate(plan).source,
    }
    text = "\n\n".join(f"== {name}\n{str(part).strip()}" for name, part in parts.items())
    text = re.sub(r"\S*?([^/\s]+\.py):\d+", r"\1", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_stage_prints_what_it_did(name: str) -> None:
    example, path = EXAMPLES[name], GOLDEN / f"{name}.txt"
    text = text_of(example.plan(example.module()))
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    expected = path.read_text()
    changes = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path.name), "now", lineterm="")
    assert text == expected, "\n".join(["UPDATE_GOLDEN=1 accepts this:", *changes])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_printed_program_gives_what_the_model_gives(name: str) -> None:
    """Instruction by instruction, with the CPU in the place of every device, and with the same random numbers."""
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs()
    ours, eagerly = example.module(), example.module()
    plan = example.plan(ours)
    program, given = Reference(elsewhere(plan, lambda _: "cpu")), iter(inputs)
    torch.manual_seed(1)
    results = program(
        [
            attribute(ours, plan.graph.states[name]) if name in plan.graph.states else next(given)
            for name in plan.graph.arguments
        ]
    )
    torch.manual_seed(1)
    expected: Any = eagerly(*inputs)
    for mine, eager in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_golden_program_reads_back(name: str) -> None:
    """What is on file is the program itself and not a picture of it."""
    example = EXAMPLES[name]
    text = (GOLDEN / f"{name}.txt").read_text()
    assert parse(text.partition("== program\n")[2].partition("\n\n")[0]) == example.plan(example.module()).program
