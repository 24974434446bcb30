"""Two sections of `planner.py` about real models: ours beside others in one simulator, and what policies promise beside it."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from _baselines import BASELINES, answer_of, by_map, fits
from _real_models import LINKS, MODELS, Posed, TracedModel, cap, gpus, posed, traced_model

from partitioner.ir.problem import Problem
from partitioner.planner.policies import Auto, List, decided
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec

NEEDS = {"METIS": "pymetis", "KaHyPar": "mtkahypar", "accelerate": "accelerate"}
OTHERS = ("accelerate", *BASELINES)
OURS: Mapping[str, Callable[[Problem], Any]] = {"list": List(), "auto": Auto(time_limit=4.0)}

Show = Callable[[Sequence[str], Sequence[Sequence[object]]], None]
Tried = Callable[[str, Callable[[], Sequence[object]]], Sequence[object]]


def installed(name: str) -> bool:
    """Whether a way can be tried here."""
    return name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None


def compared(quick: bool, show: Show, tried: Tried) -> None:
    """Simulated milliseconds of every way on every machine; the best of a row is marked."""
    ways = [name for name in OTHERS if installed(name)]
    missing = [name for name in OTHERS if name not in ways]
    if missing:
        print(f"left out, for they are not installed: {', '.join(missing)}\n")
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    rows: list[Sequence[object]] = []
    for name in ["googlenet"] if quick else MODELS:
        rows += _guarded(tried, name, partial(_rows, tried, name, ways, quick, ratios))
    show(["model", "tasks", "GPUs", "links", "one GPU", *ways, *(f"`{name}`" for name in OURS), "`auto` promised"], rows)
    print("\nMilliseconds of one call as simulated; *: the least. -: over a memory cap. One GPU: its memory cap ignored.\n")
    lines = [[name, len(each), *_summary(each)] for name, each in ratios.items()]
    show(["others", "that fit", "their time over `auto`'s (geometric mean)", "least", "most"], lines)


def _guarded(tried: Tried, name: str, rows: Callable[[TracedModel], Sequence[Sequence[object]]]) -> Sequence[Sequence[object]]:
    """The rows of a model; one row with a reason if it cannot be traced."""
    found: list[Sequence[object]] = []

    def trace() -> Sequence[object]:
        found.extend(rows(traced_model(MODELS[name])))
        return ()

    failed = tried(name, trace)
    return [*found, failed] if failed else found


def _rows(
    tried: Tried, name: str, ways: Sequence[str], quick: bool, ratios: defaultdict[str, list[float]], found: TracedModel
) -> list[Sequence[object]]:
    cases = [(count, link) for count in ((2,) if quick else (2, 4, 8)) for link in LINKS]
    return [tried(name, partial(_compare, name, found, count, link, ways, ratios)) for count, link in cases]


def _compare(
    name: str, found: TracedModel, count: int, link: str, ways: Sequence[str], ratios: defaultdict[str, list[float]]
) -> list[object]:
    memory = cap(found, count)
    case = posed(found, gpus(count, link, memory))
    times: dict[str, float] = {}
    for way in ways:
        homes = _accelerate(found, case, memory) if way == "accelerate" else BASELINES[way](case.problem)
        times[way] = case.simulated(answer_of(case.problem, way, homes)) if fits(case.problem, homes) else math.inf
    answers = {way: decided(case.problem, policy) for way, policy in OURS.items()}
    times |= {way: case.simulated(answer) for way, answer in answers.items()}
    for way in ways:
        if times[way] < math.inf:
            ratios[way].append(times[way] / times["auto"])
    least = min(times.values())
    cells = ["-" if each == math.inf else f"{each * 1e3:.3f}{'*' * (each <= least)}" for each in times.values()]
    return [name, len(case.tasks.tasks), count, link, f"{case.serial * 1e3:.3f}", *cells, f"{answers['auto'].cost * 1e3:.3f}"]


def _accelerate(found: TracedModel, case: Posed, memory: int) -> list[int]:
    """Its own map. It keeps room for its largest layer on the first GPU; where it then runs out of GPUs, it gets more there."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import accelerate

    logging.getLogger("accelerate").setLevel(logging.CRITICAL)
    whole = getattr(found.model, "_no_split_modules", None)
    homes: list[int] = []
    for tenths in range(10, 21):
        caps = dict.fromkeys(range(len(case.problem.processors)), memory) | {0: memory * tenths // 10}
        device_map = accelerate.infer_auto_device_map(found.model, max_memory=caps, no_split_module_classes=whole)
        homes = by_map(case.problem, device_map, case.states)
        if fits(case.problem, homes):
            break
    return homes


def _summary(values: Sequence[float]) -> list[str]:
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return [f"{each:.3f}" for each in (mean, min(values), max(values))]


# Promises -------------------------------------------------------------------------------------------------------------

PROMISING = ("single", "list", "by_level", "fit", "chain")


def promised(quick: bool, show: Show, tried: Tried, policies: Mapping[str, Callable[..., Any]]) -> None:
    """How much longer the simulator finds the lowered program than the policy promised."""
    machines = {
        "2 GPUs, NVLink": gpus(2, "NVLink"),
        "4 GPUs, PCIe": gpus(4, "PCIe"),
        "1 GPU, 4 lanes": build_machine(load_spec({"devices": [{"device": "cuda:0", "lanes": 4, "hardware": "A100-40GB"}]})),
        "4 CPU lanes": build_machine(load_spec({"devices": [{"device": "cpu", "lanes": 4}]})),
    }
    rows: list[Sequence[object]] = []

    def of(name: str, found: TracedModel) -> list[Sequence[object]]:
        return [tried(name, partial(line, name, found, machine)) for machine in machines]

    def line(name: str, found: TracedModel, machine: str) -> Sequence[object]:
        case = posed(found, machines[machine])
        cells = []
        for policy in PROMISING:
            answer = decided(case.problem, policies[policy]())
            gap = case.simulated(answer) / answer.cost - 1
            cells.append("0" if abs(gap) < 1e-9 else f"{gap:+.2%}")
        return [name, machine, *cells]

    for name in ["googlenet"] if quick else MODELS:
        rows += _guarded(tried, name, partial(of, name))
    show(["model", "machine", *(f"`{policy}`" for policy in PROMISING)], rows)
    print("\nThe simulated makespan of the lowered program over what the policy promised, less 1.")
