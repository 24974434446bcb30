"""Judges of answers, written from the definitions alone: they share no arithmetic with the planner.

`score` and `placement_faults` read a throughput workload's own file. `schedule_faults` and `load_faults` hold an answer against
its problem: what runs when and where is taken from the answer, and every rule is looked at on its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem

Document = Mapping[str, Any]
Placement = Mapping[int, str]
"""The device of each node of a file, by its id; a CPU core's name starts with ``cpu``."""

TICK = 1e-9
"""Seconds below which two times are the same; likewise the part of a known optimum."""


# Throughput -----------------------------------------------------------------------------------------------------------


def score(raw: Document, placement: Placement) -> float:
    """The largest load of a device, in the file's unit of time.

    An accelerator computes its nodes, sends once what a node of its own makes for others, and receives once what it reads of
    each other node. A CPU core only computes.

    >>> nodes = [{"id": 1, "cpuLatency": 9.0, "fpgaLatency": 2.0}, {"id": 2, "cpuLatency": 7.0, "fpgaLatency": 3.0}]
    >>> score({"nodes": nodes, "edges": [{"sourceId": 1, "destId": 2, "cost": 1.0}]}, {1: "fpga0", 2: "fpga1"})
    4.0
    """
    load: defaultdict[str, float] = defaultdict(float)
    for node in raw["nodes"]:
        device = placement[node["id"]]
        load[device] += node["cpuLatency"] if device.startswith("cpu") else node["fpgaLatency"]
    moved = {
        (edge["sourceId"], device): edge["cost"]
        for edge in raw["edges"]
        if placement[edge["sourceId"]] != placement[edge["destId"]]
        for device in (placement[edge["sourceId"]], placement[edge["destId"]])
    }
    for (_, device), cost in moved.items():
        if not device.startswith("cpu"):
            load[device] += cost
    return max(load.values(), default=0.0)


def placement_faults(raw: Document, placement: Placement, contiguous: bool) -> list[str]:
    """What is wrong with a placement: a device that is not there or cannot run a node, memory, colour classes, contiguity."""
    fpgas = {f"fpga{number}" for number in range(raw["maxFPGAs"])}
    cpus = {f"cpu{number}" for number in range(raw["maxCPUs"])}
    faults, used = [], defaultdict[str, float](float)
    colours: defaultdict[int, set[str]] = defaultdict(set)
    for node in raw["nodes"]:
        device = placement.get(node["id"], "nowhere")
        used[device] += node["size"]
        if device not in fpgas | cpus or (device in fpgas and not node["supportedOnFpga"]):
            faults.append(f"node {node['id']} cannot run on {device}")
        if node.get("colorClass") is not None:
            colours[node["colorClass"]].add(device)
    faults += [f"{device} holds too much" for device in fpgas if used[device] > raw["maxSizePerFPGA"]]
    faults += [f"class {colour} is on {len(devices)} devices" for colour, devices in colours.items() if len(devices) > 1]
    return faults + ([f"a path leaves {device} and comes back" for device in _left(raw, placement)] if contiguous else [])


def _left(raw: Document, placement: Placement) -> Iterable[str]:
    """The devices that some path of forward nodes leaves and enters again."""
    forward = {node["id"] for node in raw["nodes"] if not node["isBackwardNode"]}
    after: defaultdict[int, list[int]] = defaultdict(list)
    for edge in raw["edges"]:
        if edge["sourceId"] in forward and edge["destId"] in forward:
            after[edge["sourceId"]].append(edge["destId"])
    for device in sorted({placement[node] for node in forward}):
        own = [node for node in forward if placement[node] == device]
        stack = [target for node in own for target in after[node] if placement[target] != device]
        outside = set(stack)
        while stack:
            for target in after[stack.pop()]:
                if target not in outside:
                    outside.add(target)
                    stack.append(target)
        if any(placement[node] == device for node in outside):
            yield device


# Schedules ------------------------------------------------------------------------------------------------------------


def schedule_faults(problem: Problem, answer: Assignment) -> list[str]:
    """What is wrong with a schedule; empty if it can be carried out, and takes no longer than it says.

    Args:
        problem: with one thread to a lane; every rule of it is checked but contiguity.
        answer: starts, ends and lanes of all tasks.
    """
    faults = [*_times(problem, answer), *_lanes(problem, answer), *_edges(problem, answer), *_rules(problem, answer)]
    if not faults and not _carried(problem, answer):
        faults.append("the channels cannot bring every value to its readers in time")
    if max(answer.end, default=0.0) > answer.cost + TICK:
        faults.append(f"the last task ends at {max(answer.end)}, and the answer says {answer.cost}")
    return faults


def _times(problem: Problem, answer: Assignment) -> Iterable[str]:
    for task, (start, end, lane) in enumerate(zip(answer.start, answer.end, answer.lanes, strict=True)):
        kind = problem.kinds[problem.processors[problem.lanes[lane]].kind]
        if start < -TICK or abs(end - start - kind.seconds[1][task]) > TICK:
            yield f"task {task} takes {end - start}, and needs {kind.seconds[1][task]}"


def _lanes(problem: Problem, answer: Assignment) -> Iterable[str]:
    for lane in range(len(problem.lanes)):
        own = sorted(
            (answer.start[task], answer.end[task], task)
            for task, at in enumerate(answer.lanes)
            if at == lane and answer.end[task] > answer.start[task]
        )
        yield from (f"tasks {one[2]} and {two[2]} overlap" for one, two in pairwise(own) if two[0] < one[1] - TICK)


def _edges(problem: Problem, answer: Assignment) -> Iterable[str]:
    for source, target, _ in problem.edges:
        if answer.start[target] < answer.end[source] + _handoff(problem, answer, source, target) - TICK:
            yield f"task {target} starts before {source} has ended"


def _handoff(problem: Problem, answer: Assignment, source: int, target: int) -> float:
    other = answer.lanes[source] != answer.lanes[target]
    return problem.processors[problem.lanes[answer.lanes[target]]].handoff if other else 0.0


def _rules(problem: Problem, answer: Assignment) -> Iterable[str]:
    used: defaultdict[int, float] = defaultdict(float)
    homes: defaultdict[int, set[int]] = defaultdict(set)
    for task, lane in enumerate(answer.lanes):
        used[problem.lanes[lane]] += problem.memory[task] if problem.memory else 0.0
        homes[problem.group_of[task]].add(problem.lanes[lane])
    for number, each in enumerate(problem.processors):
        if used[number] > each.memory:
            yield f"{each.name} holds {used[number]} of {each.memory} bytes"
    for group, found in homes.items():
        if len(found) > 1 or (group in problem.pin and found != {problem.pin[group]}):
            yield f"group {group} is on processors {sorted(found)}"


def _carried(problem: Problem, answer: Assignment) -> bool:
    """Whether there is a way to move every value in time, one at a time on each channel: a constraint model looks for it."""
    from ortools.sat.python import cp_model

    model, intervals, starts = cp_model.CpModel(), defaultdict[int, list[Any]](list), dict[tuple[int, int], Any]()
    horizon = round(max(answer.end, default=0.0) / TICK)
    lengths: dict[tuple[int, int], int] = {}
    for source, target, value in problem.edges:
        here, there = problem.lanes[answer.lanes[source]], problem.lanes[answer.lanes[target]]
        ready: Any = round(answer.end[source] / TICK)
        for channel in problem.routes.get((here, there), ()) if value >= 0 else ():
            key = value, channel
            if key not in starts:
                lengths[key] = round(problem.channels[channel].seconds(problem.values[value][1]) / TICK)
                starts[key] = model.new_int_var(0, horizon, "")
                intervals[channel].append(model.new_fixed_size_interval_var(starts[key], lengths[key], ""))
            model.add(starts[key] >= ready)
            ready = starts[key] + lengths[key]
        if not isinstance(ready, int):
            model.add(ready <= round((answer.start[target] - _handoff(problem, answer, source, target)) / TICK) + 1)
    for each in intervals.values():
        model.add_no_overlap(each)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 10.0
    return bool(solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE))


# Loads ----------------------------------------------------------------------------------------------------------------


def load_faults(problem: Problem, answer: Assignment) -> list[str]:
    """What is wrong with an answer for throughput: rules, contiguity, or a largest load that is not what it says."""
    homes = [problem.lanes[lane] for lane in answer.lanes]
    faults = [*_rules(problem, answer), *(_returns(problem, homes) if problem.contiguous else ())]
    load = _largest_load(problem, homes)
    if abs(load - answer.cost) > TICK * answer.cost:
        faults.append(f"the load is {load}, and the answer says {answer.cost}")
    return faults


def _returns(problem: Problem, homes: Sequence[int]) -> Iterable[str]:
    left: list[set[int]] = [set() for _ in homes]  # the processors that some path to each task has been on, and left
    for task, home in enumerate(homes):
        for source, _ in problem.before[task]:
            left[task] |= left[source] | ({homes[source]} - {home})
        if home in left[task]:
            yield f"a path leaves {problem.processors[home].name} and comes back at task {task}"


def _largest_load(problem: Problem, homes: Sequence[int]) -> float:
    """Of computing, sending and receiving: together, or the longest of them where they overlap."""
    computes, sends, receives = ([0.0] * len(problem.processors) for _ in range(3))
    for task, home in enumerate(homes):
        computes[home] += problem.kinds[problem.processors[home].kind].seconds[1][task]
    passages = {
        (value, homes[source], homes[target], channel)
        for source, target, value in problem.edges
        for channel in (problem.routes.get((homes[source], homes[target]), ()) if value >= 0 else ())
    }
    for value, here, there, channel in passages:
        seconds = problem.channels[channel].seconds(problem.values[value][1])
        sends[here] += seconds
        receives[there] += seconds
    each = zip(computes, sends, receives, strict=True)
    return max(max(parts) if problem.overlap else sum(parts) for parts in each)


def known_faults(problem: Problem, optimum: float, answer: Assignment) -> list[str]:
    """What is wrong with an answer to a problem whose optimum is known: in itself, or beside that."""
    faults = (schedule_faults if problem.objective == "latency" else load_faults)(problem, answer)
    if answer.bound > optimum * (1 + TICK):
        faults.append(f"the bound {answer.bound} is above the optimum {optimum}")
    if answer.cost < optimum * (1 - TICK):
        faults.append(f"the answer {answer.cost} is below the optimum {optimum}")
    return faults
