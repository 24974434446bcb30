"""Forward and backward on lanes: a program whose calls are watched once, and then run with their backward on the same lanes.

first call that records gradients    in program order, as eager       -> gradients     (`gradients`)
`lower.backward`                     gradients -> the backward's Program, or a reason why autograd has to do it
further calls                        lanes; backward segment by segment                (`recorded`, `reversed`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from partitioner.backends.backward.gradients import Observer
from partitioner.backends.backward.recorded import Form, Recording
from partitioner.backends.threads import Threads
from partitioner.backends.workers import has_hidden_modes
from partitioner.ir.gradient import Backward, BackwardError, Gradient
from partitioner.ir.plan import Plan

Reverse = Callable[[Plan, Sequence[Gradient]], Sequence[Backward]]
"""Puts the backward of a plan on its lanes, or raises a BackwardError with the reason why that cannot be."""

Attached = tuple[bool, ...]
"""Which arguments have a gradient."""


class Training:
    """Runs a plan's program, and its backward on the same lanes where that can be done.

    What backward does depends on which arguments have a gradient, so the first call of each such kind is watched.

    Args:
        forward: runs the program.
        reverse: puts backward on lanes.
    """

    def __init__(self, forward: Threads, reverse: Reverse) -> None:
        self.forward, self.plan, self.reverse = forward, forward.plan, reverse
        self.forms: dict[Attached, Form | str] = {}

    @property
    def code(self) -> str:
        """The generated source; that of calls whose backward is on lanes, once there was one."""
        return next((form.code.source for form in list(self.forms.values()) if isinstance(form, Form)), self.forward.code)

    @property
    def reason(self) -> str | None:
        """Why backward runs on one thread; ``""`` if it is on lanes, ``None`` if no call has shown it yet."""
        forms = list(self.forms.values())
        return next((form for form in forms if isinstance(form, str)), "") if forms else None

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the program; the graph's results."""
        if not torch.is_grad_enabled() or has_hidden_modes():
            return self.forward(arguments)
        attached = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in arguments)
        if True not in attached:
            return self.forward(arguments)
        form = self.forms.get(attached)
        if form is None:
            return self._watched(attached, arguments)
        if isinstance(form, str) or form.is_watched(arguments):
            return self.forward(arguments)
        return self._on_lanes(form, attached, arguments)

    def _watched(self, attached: Attached, arguments: Sequence[Any]) -> list[Any]:
        """Run the graph in program order, and emit what its gradients ask for."""
        observer = Observer(self.plan)
        found = observer(arguments)
        try:
            if observer.notes.reason:
                raise BackwardError(observer.notes.reason)
            self.forms[attached] = Form(self.plan, self.reverse(self.plan, observer.notes.gradients))
        except BackwardError as error:
            self.forms[attached] = str(error)
        return found

    def _on_lanes(self, form: Form, attached: Attached, arguments: Sequence[Any]) -> list[Any]:
        """Run the program. The first graph that it records is held against its cuts; if they do not hold, autograd has it."""
        launch = Recording(form.code)
        found = self.forward.run(form.code, launch, arguments)
        try:
            return form.wrapped(launch.cuts, found, arguments)
        except BackwardError as error:
            self.forms[attached] = str(error)
            return found
