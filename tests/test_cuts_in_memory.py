"""Stages that fit the memory of their ranks with what microbatches in flight keep, beside every cut that there is."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest
import torch
from torch import nn

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.evenly import cuts_between
from partitioner.distributed.predicted.bench import Bench
from partitioner.distributed.predicted.cuts import fitted, segments_in
from partitioner.distributed.predicted.loads import loads_of
from partitioner.distributed.predicted.outlook import Outlook, distributed_in, outlook
from partitioner.distributed.predicted.prediction import Loads, fullest
from partitioner.spec.cluster import build_cluster
from partitioner.spec.discover import build_machine

WIDTH = 64
FIELDS: list[dict[str, object]] = [{}, {"recompute": "segments"}, {"schedule": "interleaved_1f1b", "stages_per_rank": 2}]


def wide(layers: int = 32) -> nn.Module:
    """Layers that leave much more for their backward than their weights take."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_stages_have_room_for_the_microbatches_in_flight(fields: dict[str, object]) -> None:
    """The first rank of 1F1B keeps four of them and the last one: even stages were too full there, and half empty here."""
    x, section = torch.ones(4096, WIDTH), {"mesh": {"pipeline": 4}, "microbatches": 16, **fields}

    def within(cap: float) -> Outlook:
        device = {"device": "cuda:99", "hardware": "H100", "memory": round(cap)}
        return outlook(wide(), x, {"distributed": section, "devices": [device]})

    even = within(10**12)
    cap = 0.5 * max(even.memory) + 0.5 * sum(even.memory) / 4
    found = within(cap)
    assert not found.excess and max(even.memory) > cap
    assert even.step < found.step < 1.35 * even.step
    assert within(max(even.memory)).cut.stage == even.cut.stage, "where even stages fit, they stay"
    least = within(0.1 * cap)
    assert least.excess and least.cut.stage == even.cut.stage, "where none do, too"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "stage"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("seed", [1, 2, 23])
def test_the_longest_stage_is_the_shortest_there_is(seed: int, schedule: str, recompute: str) -> None:
    """Of all cuts in program order that have room. A stage that is run again keeps its border, which need not be the least."""
    draw = Random(seed)
    widths = [draw.choice((16, 32, 64, 128)) for _ in range(13)]
    model = nn.Sequential(*(nn.Sequential(nn.Linear(one, other), nn.GELU()) for one, other in pairwise(widths)))
    section = {"mesh": {"pipeline": 3}, "microbatches": 8, "schedule": schedule, "recompute": recompute}
    spec, asked = distributed_in({"distributed": section, "optimizer": "adamw"})
    device = build_machine(spec).devices[0]
    bench = Bench(model, torch.ones(512, widths[0]), None, spec, device, build_cluster(spec, asked, device))
    memory, ready, free = bench._memory(asked, 8), bench._uncut(asked, 8), bench._cut(asked, 8)

    def loads(cut: Cut) -> Loads:
        return loads_of(cut, memory, frozenset(), (), segments_in(cut, ready.rules, asked))

    def full(cut: Cut) -> int:
        return max(fullest(loads(cut), asked))

    ends = combinations(cuts_between(ready.graph.ops, ready.rules)[1:-1], 2)
    every = [(max(cut.seconds), full(cut)) for cut in (ready.at([*each, len(ready.graph.ops)], 0.0) for each in ends)]
    for part in (0.98, 0.9, 0.8):
        cap = int(part * full(free))
        best = min((seconds for seconds, size in every if size <= cap), default=None)
        found = fitted(free, loads(free), ready, memory, asked, cap)
        assert (full(found) <= cap) == (best is not None)
        assert best is None or max(found.seconds) <= best * (1.002 if recompute == "none" else 1.2)
