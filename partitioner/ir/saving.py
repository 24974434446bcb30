"""From plans to a document: graphs, lanes and reasons as plain text and numbers.

A value is written by name, dtype and shape; a call by its arguments, in which a device is only ``device``, for elsewhere it is
another one. So what is written of a graph is the same wherever it is traced:

    linear(x, p_left_weight, p_left_bias)   float32[s77, 4]        arange(0, s77, device=device)   int64[s77]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from partitioner.ir.assignment import Assignment
from partitioner.ir.graph import Graph, TensorMeta
from partitioner.ir.machine import Device, Machine
from partitioner.ir.plan import Plan
from partitioner.ir.saved import SavedDevice, SavedGraph, SavedLinks, SavedOp, SavedPlan, SavedProgram, SavedTask
from partitioner.ir.task import TaskGraph

LONGEST_CALL = 400
"""Characters after which the rest of a call, such as a list of a thousand numbers, is told from others by a hash only."""


def saved(plans: Iterable[Plan], model: str = "") -> SavedPlan:
    """The document of the plans of one model, which are all for one machine.

    Args:
        plans: at least one; of equal graphs the first is kept.
        model: the name of its class; the first graph's name if left out.
    """
    found = list(plans)
    programs: dict[str, SavedProgram] = {}
    for plan in found:
        program = saved_program(plan)
        programs.setdefault(program.fingerprint, program)
    machine = found[0].machine
    return SavedPlan(
        schema_version=1,
        model=model or found[0].graph.name,
        devices=tuple(map(saved_device, machine.devices)),
        links=link_rows(machine),
        programs=tuple(programs.values()),
    )


def saved_device(device: Device) -> SavedDevice:
    """A device as a row."""
    figures = {each.name: getattr(device, each.name) for each in fields(device) if each.name != "torch_device"}
    return SavedDevice(device=device.torch_device, **(figures | {"rates": dict(device.rates)}))


def link_rows(machine: Machine) -> tuple[SavedLinks, ...]:
    """Links as rows, those of one device that are alike in one of them."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for each in machine.links:
        alike.setdefault((each.source, each.bandwidth, each.latency, each.assumed), []).append(each.target)
    return tuple(
        SavedLinks(source=source, targets=tuple(targets), bandwidth=bandwidth, latency=latency, assumed=assumed)
        for (source, bandwidth, latency, assumed), targets in alike.items()
    )


def saved_program(plan: Plan) -> SavedProgram:
    """One plan as rows."""
    graph, placement = plan.graph, plan.placement
    traced = saved_graph(graph)
    return SavedProgram(
        **dict(traced),
        fingerprint=traced.digest(),
        policy=placement.policy,
        note=placement.note,
        makespan=plan.makespan,
        serial=plan.serial,
        objective=placement.objective,
        cost=placement.cost,
        bound=placement.bound,
        tasks=task_rows(plan.tasks, placement, plan.machine),
    )


def task_rows(tasks: TaskGraph, placement: Assignment, machine: Machine) -> tuple[SavedTask, ...]:
    """Tasks in the order in which they are issued."""
    lanes = machine.lanes
    return tuple(
        SavedTask(
            name=placement.tasks[number],
            lane=lanes[placement.lanes[number]].name,
            threads=int(placement.threads[number]) if len(placement.threads) else 0,
            start=float(placement.start[number]) if len(placement.start) else 0.0,
            end=float(placement.end[number]) if len(placement.end) else 0.0,
            ops=tasks.tasks[number].ops,
            reason=placement.reasons[number] if len(placement.reasons) else "",
        )
        for number in placement.order
    )


def saved_graph(graph: Graph) -> SavedGraph:
    """A graph as rows."""
    waits: dict[str, list[str]] = {op.name: [] for op in graph.ops}
    for (source, target), kind in graph.edges.items():
        if kind != "data":
            waits[target].append(source)
    return SavedGraph(
        inputs={name: " ".join(_given(graph.nodes.get(name), () if meta is None else (meta,))) for name, meta in graph.inputs},
        state=dict(sorted((key, " ".join(_given(graph.nodes.get(name), ()))) for name, key in graph.states.items())),
        ops=tuple(
            SavedOp(
                name=op.name,
                call=_call(graph.nodes.get(op.name), op.target),
                gives=_given(graph.nodes.get(op.name), op.outputs),
                after=tuple(waits[op.name]),
            )
            for op in graph.ops
        ),
        outputs=graph.outputs,
    )


def _given(node: Any, metas: Iterable[TensorMeta]) -> tuple[str, ...]:
    """Dtype and shape of the tensors that a node gives: open dimensions by the tracer's names for them, if it says."""
    value: Any = getattr(node, "meta", {}).get("example_value")
    values = value if isinstance(value, list | tuple) else [value]
    told = [each for each in values if hasattr(each, "dtype") and hasattr(each, "shape")]
    if not told or len(told) < len(values):
        return tuple(map(str, metas))
    return tuple(f"{str(each.dtype).removeprefix('torch.')}[{', '.join(map(str, each.shape))}]" for each in told)


def _call(node: Any, target: str) -> str:
    """What an op calls, and with what."""
    if node is None:
        return target
    words = [*map(_word, node.args), *(f"{name}={_word(value)}" for name, value in node.kwargs.items())]
    text = f"{target}({', '.join(words)})"
    if len(text) <= LONGEST_CALL:
        return text
    return f"{text[:LONGEST_CALL]}... {hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"


_DEVICE = re.compile(r"(cpu|cuda|meta|mps|xpu)|[a-z]+:[0-9]+", re.ASCII)


def _word(value: Any) -> str:
    """An argument of a call: the same text in every process and on every machine."""
    if isinstance(value, str) and _DEVICE.fullmatch(value):
        return "device"
    if value is None or isinstance(value, bool | int | float | complex | str | type(...)):
        return repr(value)
    if isinstance(value, slice):
        return ":".join("" if each is None else _word(each) for each in (value.start, value.stop, value.step))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_word(key)}: {_word(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    kind = type(value).__name__
    if kind == "Node":
        return str(value.name)
    return str(value) if kind in ("dtype", "layout", "memory_format", "SymInt", "SymFloat", "SymBool") else kind
