"""A program whose tasks are compiled, each by itself: lanes, events and copies stay as they are, outside.

first call       in program order on the caller's thread, each task compiled when its turn comes
further calls    on lanes

Where a call is under something that compiled tasks do not know of, such as a dispatch mode, its ops are called one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from partitioner.backends.bodies import Body, Compiler, Refused, bodies_of, uncompiled
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
    """

    def __init__(self, plainly: Threads, compiler: Compiler, fuse: Fuse) -> None:
        self.plainly, self.plan = plainly, plainly.plan
        refused = uncompiled(self.plan.graph, compiler)
        self.fused = fuse(self.plan, refused)
        self.bodies: Mapping[str, Body] = bodies_of(self.fused, refused, compiler.compile)
        self.lanes = plainly.with_tasks(self.fused, self.bodies)
        self.lock, self.is_first = threading.RLock(), True

    @property
    def code(self) -> str:
        """The generated source."""
        return self.lanes.code

    @property
    def reasons(self) -> list[str]:
        """Why some tasks are not compiled after all, as far as a call has shown."""
        return list(dict.fromkeys(body.reason for body in self.bodies.values() if body.reason))

    @property
    def compiled_ops(self) -> int:
        """How many ops are called in functions."""
        return sum(len(self.fused.tasks.by_name[task].ops) for task, body in self.bodies.items() if not body.reason)

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
        return self.lanes(arguments)

    def _compiling(self, arguments: Sequence[Any]) -> list[Any]:
        """The first call, with the threads that ops will have on lanes: kernels are made for as many."""
        with threads(max(1, torch.get_num_threads() // self.lanes.hosts)):
            return self.lanes(arguments, in_order=True)
