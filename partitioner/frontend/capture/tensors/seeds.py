"""Seeds that forward sets, `torch.manual_seed`: an op of the graph over several devices, beside which nothing runs.

It seeds the generators of all devices when it is issued, behind all that draws before it and ahead of what draws after it.
Dynamo ends the graph there; on lanes Python then stands between two graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.variables import SkipFunctionVariable
from torch._dynamo.variables.base import VariableTracker

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE


@amends(SkipFunctionVariable, "call_function")
def _seed(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    given = [*args, *kwargs.values()]
    known = len(given) == 1 and given[0].is_python_constant() and tx.output.is_root_tracer()
    if self.value is not torch.manual_seed or not HERE.apart or not known:
        return plain(self, tx, args, kwargs)
    tx.output.create_proxy("call_function", seeds, (int(given[0].as_python_constant()),), {})
    return VariableTracker()  # nobody may ask for the generator


def seeds(seed: int) -> None:
    """Seed the generators of all devices."""
    torch.manual_seed(seed)
