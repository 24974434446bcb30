"""Guards of Dynamo's that nothing here depends on. Each is memory that every call touches; ten of them take as long as an op.

- That no hook of a module wants keyword arguments is asked beside that it has no hooks. Without hooks none can want them.
- That no tensor has been marked since, as one whose sizes may change or may not: those say how the next program is to be
  made, and the one that there is stays right.

Nor does it depend on torch's log how long new guards take: torch empties the processor's caches to find out, 25 ms a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch._C._dynamo.guards import GuardManager
from torch._dynamo import guards
from torch._dynamo.guards import GuardBuilder

from partitioner.frontend.capture.amended import amended


@contextmanager
def needless_left_out() -> Iterator[None]:
    """While a frame is traced: its program has no such guards, and those that it has are not timed."""
    plain = GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT

    @wraps(plain)
    def no_hooks(builder: GuardBuilder, guard: Any) -> None:
        if not guard.name.endswith("_with_kwargs"):
            plain(builder, guard)

    marks = ["add_dimension_marking_guard"] if hasattr(GuardManager, "add_dimension_marking_guard") else []  # not in torch 2.11
    with (
        amended(GuardBuilder, EMPTY_NN_MODULE_HOOKS_DICT=no_hooks),
        amended(GuardManager, **dict.fromkeys(marks, lambda *_: None)),
        amended(guards, profile_guard_manager=lambda *_: 0.0),
    ):
        yield
