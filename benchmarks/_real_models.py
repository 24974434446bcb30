"""Real models on GPUs that need not be there: traced once on the meta device, posed for any machine, lowered and simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _corpus_models import zoo
from torch import Tensor, nn

from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.trace import graphs_of_call
from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.graph import StateMeta
from partitioner.ir.machine import Machine
from partitioner.ir.problem import Problem
from partitioner.ir.task import TaskGraph
from partitioner.lower import LOWERINGS
from partitioner.lower.runs import schedule
from partitioner.lower.verify import verify
from partitioner.model.call import Call
from partitioner.model.state import sizes
from partitioner.planner.coarsen import coarsen
from partitioner.planner.constraints import constrain
from partitioner.planner.cost import estimate
from partitioner.planner.pose import pose
from partitioner.planner.seconds import serial_seconds
from partitioner.planner.simulate import simulate
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec

LINKS = {"NVLink": ("300GB/s", "5us"), "PCIe": ("25GB/s", "10us")}
"""Bandwidth and latency between any two GPUs."""

GPU = "A100-40GB"

ROOM = 1.6
"""How many times as much state as a model has all GPUs together hold, so that no one of them can have it all."""

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Model:
    """A model and one call of it, both on the meta device."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def image_model(name: str, side: int = 224, batch: int = 16) -> Model:
    def build() -> nn.Module:
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        model: nn.Module = zoo.import_torchvision().models.get_model(name, weights=None, **options)
        return model

    return Model(build, lambda: {"x": torch.empty(batch, 3, side, side)})


def text_model(name: str, *, names: Sequence[str] = ("input_ids",), batch: int = 8, length: int = 128, **config: Any) -> Model:
    """A model of transformers with its usual sizes, but for ``config``."""

    def build() -> nn.Module:
        library = zoo.import_transformers()
        model: nn.Module = getattr(library, f"{name}Model")(getattr(library, f"{name}Config")(**config))
        return model

    return Model(build, lambda: {each: torch.zeros(batch, length, dtype=torch.long) for each in names})


def _clip_inputs() -> Inputs:
    return {"input_ids": torch.zeros(8, 77, dtype=torch.long), "pixel_values": torch.empty(8, 3, 224, 224)}


MODELS: dict[str, Model] = {
    "resnet50": image_model("resnet50"),
    "googlenet": image_model("googlenet"),
    "inception_v3": image_model("inception_v3", 299),
    "densenet121": image_model("densenet121"),
    "bert": text_model("Bert"),
    "t5": text_model("T5", names=("input_ids", "decoder_input_ids"), use_cache=False),
    "clip": Model(text_model("CLIP").build, _clip_inputs),
}


@dataclass(frozen=True)
class TracedModel:
    """A model and its graph."""

    model: nn.Module
    traced: Traced
    state: dict[str, StateMeta]


def traced_model(model: Model) -> TracedModel:
    """Build and trace; nothing is computed."""
    with torch.device("meta"):
        module, inputs = model.build().eval(), model.inputs()
    with torch.no_grad():
        found = graphs_of_call(module, Call.of((), inputs), whole=True, check=False)
    traced = found[0][0]
    return TracedModel(module, traced, {name: StateMeta(*sizes(tensor)) for name, tensor in traced.state.items()})


@dataclass(frozen=True)
class Posed:
    """A model's problem on one machine, and what it was made from."""

    machine: Machine
    costs: Costs
    tasks: TaskGraph
    problem: Problem

    @property
    def serial(self) -> float:
        """Seconds of one call on the first device alone, its memory cap ignored."""
        return serial_seconds(self.costs, self.machine.devices[0])

    @property
    def states(self) -> list[tuple[str, ...]]:
        """The parameters and buffers of each task."""
        ops = self.tasks.graph.by_name
        return [tuple(name for op in task.ops for name in ops[op].state) for task in self.tasks.tasks]

    def simulated(self, answer: Assignment) -> float:
        """Seconds of one call of the program that an answer is lowered to. The program is verified."""
        program = schedule(self.tasks, answer, self.machine)
        for lowering in LOWERINGS:
            program = lowering(program)
        verify(program, tasks=self.tasks)
        return simulate(program, self.costs, self.tasks, answer).makespan


def posed(found: TracedModel, machine: Machine) -> Posed:
    """The problem of placing a traced model on a machine."""
    graph = found.traced.graph
    costs = estimate(graph, machine, found.state)
    constraints = constrain(graph, [], [], found.state, {})
    tasks = coarsen(graph, costs, constraints)
    return Posed(machine, costs, tasks, pose(tasks, costs, machine, constraints))


def gpus(count: int, link: str, memory: int | None = None) -> Machine:
    """So many GPUs, each pair of them linked both ways."""
    bandwidth, latency = LINKS[link]
    names = [f"cuda:{number}" for number in range(count)]
    devices = [{"device": name, "hardware": GPU, **({} if memory is None else {"memory": memory})} for name in names]
    links = [
        {"source": one, "target": two, "bandwidth": bandwidth, "latency": latency}
        for one in names
        for two in names
        if one != two
    ]
    return build_machine(load_spec({"devices": devices, "links": links}))


def cap(found: TracedModel, count: int) -> int:
    """Bytes of each of ``count`` GPUs that hold the model together, with room to choose; never less than its largest tensor."""
    held = {meta.storage: meta.kept for meta in found.state.values()}
    return round(max(ROOM * sum(held.values()) / count, ROOM * max(held.values(), default=1), 1))
