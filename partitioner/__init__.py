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

from partitioner.api import partition
from partitioner.errors import (
    DifferenceError,
    InputError,
    PartitionerError,
    PlacementError,
    SpecError,
    TraceError,
    VerifyError,
)
from partitioner.module import Parallel
from partitioner.spec import Spec, load_spec
from partitioner.verify import verify

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
    "__version__",
    "load_spec",
    "partition",
    "verify",
]
