"""Costs that were measured where it matters: what `partition(..., profile=...)` plans with."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Literal

from partitioner.ir.cost import Costs, roofline
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device
from partitioner.profile.cache import Cache
from partitioner.profile.choose import matters
from partitioner.profile.clock import BUDGET
from partitioner.profile.hardware import environment
from partitioner.profile.measure import Found, measure, told
from partitioner.spec.devices import present

Mode = Literal["auto", "all"]


def profiled(
    graph: Graph, costs: Costs, mode: Mode | None = "auto", cache: Cache | None = None, budget: float = BUDGET
) -> Costs:
    """Costs with measured seconds, on every device of the machine that is there.

    Args:
        graph: traced with example inputs, and still with its fakes; without examples there is nothing to measure.
        costs: estimated, with the machine.
        mode: ``"auto"``: the ops that make up most of the time, and those near the critical path; ``"all"``: every op;
            ``None``: none.
        cache: of earlier measurements; ``None`` for the one on disk.
        budget: seconds to spend on each distinct op with each number of threads.

    Returns:
        ``costs`` with ``measured``, ``factors`` and ``notes``. Ops that could not be measured keep the roofline, and are told.

    Source: measuring each distinct op once and adding up goes back to Narayanan et al., "PipeDream", SOSP 2019, section 3.1.
    """
    if mode is None or not graph.observed or not graph.ops:
        return costs
    names = [op.name for op in graph.ops] if mode == "all" else matters(graph, costs)
    names = [name for name in names if not costs.ops[name].exchange]  # no rank can measure alone what passes between them
    cache = Cache.default() if cache is None else cache
    once: dict[tuple[str, int, int], Found] = {}
    measured, notes = dict(costs.measured), list(costs.notes)
    for device in costs.machine.devices:
        if not present(device.torch_device):
            notes.append(f"not measured: {device.name}, which is not on this machine")
            continue
        same = environment(device.torch_device), device.lanes, device.cores
        if same not in once:
            once[same] = measure(graph, names, device, cache, budget)
            notes += [line for line in told(once[same]) if line not in notes]
        measured |= {(op, device.name, width): seconds for (op, width), seconds in once[same].seconds.items()}
    found = replace(costs, measured=measured, notes=tuple(notes))
    return replace(
        found, factors={device.name: factor for device in costs.machine.devices if (factor := _factor(found, device))}
    )


def _factor(costs: Costs, device: Device) -> float | None:
    """How many times as long as by the roofline measured ops took: the median, which no single op decides."""
    width = costs.widths.get(device.name, (1,))[0]
    ratios = [
        seconds / roofline(costs.ops[op], device, width)
        for (op, name, threads), seconds in costs.measured.items()
        if name == device.name and threads == width and (costs.ops[op].flops or costs.ops[op].moved)
    ]
    return statistics.median(ratios) if ratios else None
