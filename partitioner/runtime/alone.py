"""Calls that no program makes faster than they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner.backends.race import LONG, MATTERS, go_back, measured, with_gradients
from partitioner.ir.plan import Tried
from partitioner.model.call import Call
from partitioner.model.keep import state_kept
from partitioner.model.state import all_parameters, all_state
from partitioner.runtime.programs import Programs, elements
from partitioner.runtime.standins import is_silent
from partitioner.runtime.summary import Alone

QUICK = 0.05
"""Seconds of a call up to which it is timed several times beside the model's own forward, and not once before that."""

TRAINED = 0.98
"""What programs may take of a step of training as it is, to be kept: a backward has driven the guards out of the caches."""

SHORT = 2e-3
"""Seconds of a call up to which guards take longer in training than calls without modules between them save."""


def faster_alone(programs: Programs, call: Call, tried: Sequence[Tried]) -> Alone:
    """Elements in the arguments of a call up to which the model runs as it is; -1 where its programs are not slower.

    Guards take some 10 to 30 us, which nothing can win back for a model of that size, and as much for each frame where Python
    stands between graphs; and some models take a longer way while they are traced. So a call is timed beside the model's own
    forward, in training with a backward: only on a CPU where the model lies, and where forward is made of torch's ops and of
    code that tells nobody, so that nothing in it prints or counts what cannot be put back. Both ways are timed from the call of
    the module on.

    What is measured in training holds for other calls, too. In training of which nothing is measured a short call on one lane
    runs as it is: calls without a backward make less of their guards.
    """
    model, (args, kwargs), size = programs.original, call.fill(call.tensors), elements(call.leaves)
    if size == inf or min((each.measured for each in tried), default=0.0) > LONG:
        return Alone()
    lies_here = {tensor.device.type for tensor in all_state(model).values()} <= {"cpu"}
    if not lies_here or programs.machine.lanes[0].kind != "cpu" or not programs.forward.is_silent:
        return Alone()
    everywhere = Alone(int(size), int(size))
    trained = model.training and torch.is_grad_enabled()
    wanted = with_gradients([*all_parameters(model).values(), *tree_leaves((args, kwargs))]) if trained else []

    def called(alone: Alone) -> None:
        programs.alone = alone
        go_back(programs("forward", args, kwargs), wanted)

    ways = {"as it is": partial(called, everywhere), "programs": partial(called, Alone())}
    with suppress(Exception), state_kept(model, args, kwargs), torch.random.fork_rng([]):  # a second call may fail on its own
        graphs = programs.graphs_of(args, kwargs)
        if not graphs:
            return everywhere
        if not all(is_silent(piece) for piece, _ in graphs) or (trained and _has_hooks(model, wanted)):
            return Alone()
        if _may_be_faster(*ways.values()):
            found = measured(ways)
            if found["as it is"] * (TRAINED if trained else 1.0) < found["programs"]:
                return everywhere
            on_one = all(len(set(piece.plan.placement.lanes)) == 1 for piece, _ in graphs)
            return Alone(-1, -1 if trained or not on_one or found["programs"] > SHORT else int(size))
    return Alone()


def _has_hooks(model: nn.Module, wanted: Iterable[Tensor]) -> bool:
    """Whether a backward calls what is the user's."""
    of_modules = any(module._backward_hooks or module._backward_pre_hooks for module in model.modules())
    return of_modules or any(tensor._backward_hooks for tensor in wanted)


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
