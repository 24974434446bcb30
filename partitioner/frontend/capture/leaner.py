"""Guards of Dynamo's that nothing here depends on. Each is memory that every call touches; ten of them take as long as an op.

- That no hook of a module wants keyword arguments is asked beside that it has no hooks. Without hooks none can want them.
- That no tensor has been marked since, as one whose sizes may change or may not: those say how the next program is to be
  made, and the one that there is stays right.

Nor does it depend on torch's log how long new guards take: torch empties the processor's caches to find out, 25 ms a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo.guards import GuardManager
from torch._dynamo import guards
from torch._dynamo.guards import GuardBuilder

from partitioner.frontend.capture.amended import amends


@amends(GuardBuilder, "EMPTY_NN_MODULE_HOOKS_DICT")
def _no_hooks(plain: Callable[..., None], builder: GuardBuilder, guard: Any) -> None:
    if not guard.name.endswith("_with_kwargs"):
        plain(builder, guard)


@amends(guards, "profile_guard_manager")
def _takes_no_time(*_: Any) -> float:
    return 0.0


if hasattr(GuardManager, "add_dimension_marking_guard"):  # not in torch 2.11

    @amends(GuardManager, "add_dimension_marking_guard")
    def _no_mark(*_: Any) -> None:
        pass
