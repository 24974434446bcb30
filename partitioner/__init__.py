"""partitioner: a declarative model-partitioning compiler for PyTorch.

A module goes in; it is traced into a graph of ops, the graph is placed on devices and lanes, the resulting program is proved
free of races, and an ordinary module comes out in which independent branches run at the same time.

>>> import torch
>>> from partitioner import partition
>>> class Towers(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.left, self.right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
...     def forward(self, x):
...         return self.left(x) + self.right(x)
>>> model, x = Towers(), torch.ones(2, 4)
>>> parallel = partition(model, devices=["cpu:0", "cpu:1"], example_inputs=(x,))
>>> torch.equal(parallel(x), model(x))
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partitioner.driver import partition
    from partitioner.errors import (
        DifferenceError,
        InputError,
        PartitionerError,
        PlacementError,
        SpecError,
        TraceError,
        VerifyError,
    )
    from partitioner.ir.parse import parse
    from partitioner.lower.planfile import save_plan
    from partitioner.lower.verify import verify
    from partitioner.planning import plan
    from partitioner.runtime.module import Parallel
    from partitioner.spec.spec import Spec, load_spec

__version__ = "0.1.0"

__all__ = [
    "DifferenceError",
    "InputError",
    "Parallel",
    "PartitionerError",
    "PlacementError",
    "Spec",
    "SpecError",
    "TraceError",
    "VerifyError",
    "load_spec",
    "parse",
    "partition",
    "plan",
    "save_plan",
    "verify",
]

_HOME = {
    "partition": "driver",
    "Parallel": "runtime.module",
    "Spec": "spec.spec",
    "load_spec": "spec.spec",
    "parse": "ir.parse",
    "plan": "planning",
    "save_plan": "lower.planfile",
    "verify": "lower.verify",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `python -m partitioner --help` needs no torch."""
    if name == "distributed":
        return import_module("partitioner.distributed")
    if name not in __all__:
        raise AttributeError(f"module 'partitioner' has no attribute {name!r}")
    value = getattr(import_module(f"partitioner.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
