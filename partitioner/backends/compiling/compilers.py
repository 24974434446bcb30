"""What can be made of a task's ops: a new compiler is a function and a line.

torchscript   the same kernels, called by TorchScript's interpreter: bit for bit the same, and no Python between two ops
batched       likewise, with equal ops of one level put together where that is measured to be faster; equal to rounding
frozen        likewise, on weights that are laid out for their kernels once, while nobody writes to them; equal to rounding
inductor      torch.compile's own: fused kernels, C++ on a CPU, Triton on a GPU; equal to rounding
max-autotune  likewise, as torch.compile's mode of that name: kernels are chosen by timing them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from partitioner.backends.bodies import Compiler
from partitioner.backends.compiling.batched import put_together
from partitioner.backends.compiling.frozen import frozen
from partitioner.backends.compiling.inductor import FALLBACKS, inductor
from partitioner.backends.compiling.scripted import torchscript
from partitioner.backends.race import is_faster


def batched(module: torch.fx.GraphModule, arguments: Sequence[Any], *others: Sequence[Any]) -> Callable[..., Any]:
    """What `torchscript` makes of a module, or of the same with equal ops put together, if that takes less time.

    At open sizes nothing is put together.
    """
    separate, merged = torchscript(module, arguments, *others), None if others else put_together(module, arguments)
    if merged is None:
        return separate
    together = torchscript(merged, arguments)
    return together if is_faster(together, separate, arguments) else separate


COMPILERS: Mapping[str, Compiler] = {
    "torchscript": Compiler(torchscript),
    "batched": Compiler(batched, frozenset()),
    "frozen": Compiler(frozen, frozenset()),
    "inductor": Compiler(inductor, FALLBACKS),
    "max-autotune": Compiler(partial(inductor, autotune=True), FALLBACKS),
}
"""By the name that a spec has for it."""
