"""Calls that no program makes faster than they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

import torch

from partitioner.backends.race import LONG, MATTERS, measured
from partitioner.ir.plan import Tried
from partitioner.model.call import Call
from partitioner.model.keep import state_kept
from partitioner.model.state import all_state
from partitioner.runtime.programs import Programs, elements
from partitioner.runtime.standins import is_silent

QUICK = 0.05
"""Seconds of a call up to which it is timed several times beside the model's own forward, and not once before that."""

LESS = 1.02
"""How many times as long its programs must take for a call to be made as it is: where both are alike, nothing is lost."""


def faster_alone(programs: Programs, call: Call, tried: Sequence[Tried]) -> int:
    """Elements in the arguments of a call up to which the model runs as it is; -1 where its programs are not slower.

    Guards take some 10 to 30 us, which nothing can win back for a model of that size, and as much for each frame where Python
    stands between graphs; and some models take a longer way while they are traced. So a call is timed beside the model's own
    forward: only on a CPU where the model lies, and where forward is made of torch's ops and of code that tells nobody, so that
    nothing in it prints or counts what cannot be put back. Both ways are timed from the call of the module on.
    """
    model, (args, kwargs), size = programs.original, call.fill(call.tensors), elements(call.leaves)
    if size == inf or min((each.measured for each in tried), default=0.0) > LONG:
        return -1
    lies_here = {tensor.device.type for tensor in all_state(model).values()} <= {"cpu"}
    if not lies_here or programs.machine.lanes[0].kind != "cpu" or not programs.forward.is_silent:
        return -1

    def called(alone: float) -> None:
        programs.alone = int(alone)
        programs("forward", args, kwargs)

    ways = {"as it is": partial(called, size), "programs": partial(called, -1)}
    with suppress(Exception), state_kept(model, args, kwargs), torch.random.fork_rng([]):  # a second call may fail on its own
        graphs = programs.graphs_of(args, kwargs)
        if not graphs:
            return int(size)
        if all(is_silent(piece) for piece, _ in graphs) and _may_be_faster(*ways.values()):
            found = measured(ways)
            return int(size) if found["as it is"] * LESS < found["programs"] else -1
    return -1


def _may_be_faster(one: Callable[[], object], other: Callable[[], object]) -> bool:
    """Whether the first may take less time: it did when both were called for the second time, or was over too soon."""
    found = []
    for call in (one, other, one, other):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
        if found[0] > LONG:
            return False
    return found[3] < QUICK or found[2] * MATTERS < found[3]
