"""A program whose tasks are compiled, each by itself: lanes, events and copies stay as they are, outside.

first call       in program order on the caller's thread, each task compiled when its turn comes
further calls    on lanes, or as one function of all lanes (`joined.py`), whichever took less time at the first call

Where a call is under something that compiled tasks do not know of, such as a dispatch mode, its ops are called one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from partitioner.backends.bodies import LEAST_OPS, Compiler, Refused, bodies_of, uncompiled
from partitioner.backends.compiling.frozen import Frozen
from partitioner.backends.compiling.joined import Joined, joined
from partitioner.backends.race import is_faster
from partitioner.backends.threads import Threads
from partitioner.backends.workers import has_hidden_modes
from partitioner.ir.plan import Plan
from partitioner.model.modes import threads

Fuse = Callable[[Plan, Refused], Plan]
"""Makes few, long tasks of a plan's."""


class Compiled:
    """Runs a plan's program with compiled tasks.

    Args:
        plainly: runs the program, op by op.
        compiler: makes a function of a task's ops.
        fuse: makes few, long tasks of the plan's.

    Attributes:
        functions: of each task of which there can be one, by its name; ``bodies`` are those that lanes call.
        joined: what is called in the place of lanes, if that was faster.
    """

    def __init__(self, plainly: Threads, compiler: Compiler, fuse: Fuse) -> None:
        self.plainly, self.plan = plainly, plainly.plan
        refused = uncompiled(self.plan.graph, compiler)
        self.fused = fuse(self.plan, refused)
        self.functions = bodies_of(self.fused, refused, compiler.compile)
        self.bodies = {task: body for task, body in self.functions.items() if body.ops >= LEAST_OPS}
        self.lanes = plainly.with_tasks(self.fused, self.bodies)
        self.joined: Joined | None = None
        self.lock, self.is_first = threading.RLock(), True

    @property
    def code(self) -> str:
        """The generated source."""
        return self.lanes.code if self.joined is None else self.joined.source

    @property
    def reasons(self) -> list[str]:
        """Why some tasks are not compiled after all, as far as a call has shown."""
        return list(dict.fromkeys(body.reason for body in self.bodies.values() if body.reason))

    @property
    def compiled_ops(self) -> int:
        """How many ops are called in functions."""
        return sum(body.ops for body in self.bodies.values() if not body.reason)

    @property
    def laid(self) -> int:
        """How many functions have weights that are laid out for their kernels."""
        return sum(isinstance(body.run, Frozen) for body in self.bodies.values())

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the program; the graph's results."""
        if not self.bodies or has_hidden_modes():
            return self.plainly(arguments)
        if self.is_first:
            with self.lock:
                if self.is_first:
                    found = self._compiling(arguments)
                    self.is_first = False
                    return found
        if self.joined is not None and self.joined.is_allowed(arguments):
            with suppress(Exception):  # nothing has been changed, and lanes know whose fault it is
                return self.joined(arguments)
        return self.lanes(arguments)

    def _compiling(self, arguments: Sequence[Any]) -> list[Any]:
        """The first call, with the threads that ops will have on lanes: kernels are made for as many."""
        on_cpu = not self.lanes.accelerated and all(isinstance(each, Tensor | int) for each in arguments)
        every = self.plainly.with_tasks(self.fused, self.functions) if on_cpu and self.lanes.hosts > 1 else self.lanes
        with threads(max(1, torch.get_num_threads() // self.lanes.hosts)):
            found = every(arguments, in_order=True)
        if every is not self.lanes and not torch.are_deterministic_algorithms_enabled():
            with suppress(Exception):  # whatever TorchScript does not take: lanes are right
                self.joined = self._faster(joined(self.fused, self.functions), arguments)
        return found

    def _faster(self, one: Joined | None, arguments: Sequence[Any]) -> Joined | None:
        """All lanes as one function, if it takes less time on these values than lanes do."""
        if one is None or not one.is_allowed(arguments):
            return None
        return one if is_faster(lambda *each: one(each), lambda *each: self.lanes(each), arguments) else None
