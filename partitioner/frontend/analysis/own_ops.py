"""Ops that are not torch's: whether their schemas can be believed, and whether their kernels may draw random numbers.

A schema says which arguments an op writes; that it draws random numbers is said by a tag, which is easily forgotten. Lanes
would change the order of two ops that draw without saying so. A kernel of Python says itself what it uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

from partitioner.frontend.analysis.known_ops import RANDOM
from partitioner.model.functions import names_in, reached, used_globals, users_function

_TRUSTED = frozenset({"aten", "prims", "prim", "profiler", "quantized", "mkldnn", "torchvision", "torchaudio"})

_DRAWS = RANDOM | frozenset(
    """random manual_seed distributions sample rsample shuffle choice choices gauss gauss_ uniform standard_normal
    default_rng Dropout""".split()
)
"""Names of what draws random numbers, torch's, Python's and numpy's."""


def is_trusted(op: torch._ops.OpOverload) -> bool:
    """Whether an op's schema can be believed: torch's own, or made by `torch.library.custom_op`, which asks what it mutates.

    A schema written by hand is easily wrong, and nothing in torch compares it with what the kernel does.
    """
    return op.namespace in _TRUSTED or op._schema.name in OPDEFS


def may_draw(op: torch._ops.OpOverload) -> bool:
    """Whether an op that is not torch's may draw random numbers, for all that is known of its kernels.

    One that `torch.library.custom_op` made has kernels of Python: it may if they, or functions of the user's that they can
    reach, speak of what draws. One whose schema was written by hand may.
    """
    if op.namespace in _TRUSTED:
        return False
    definition: Any = OPDEFS.get(op._schema.name)
    if definition is None:
        return True
    functions = _reaching([definition._init_fn, *_registered(definition)])
    return any(not _DRAWS.isdisjoint(names_in(function.__code__)) for function in functions)


def _registered(definition: Any) -> Iterator[Any]:
    """Kernels for some kinds of devices; torch has wrapped them."""
    for kernel in definition._backend_fns.values():
        yield from (cell.cell_contents for cell in getattr(kernel, "__closure__", None) or ())


def _reaching(kernels: list[Any]) -> Iterator[FunctionType]:
    """Functions of the user's among some, and those that these can reach."""
    seen = set[int]()
    while kernels:
        function = users_function(kernels.pop())
        if function is not None and id(function) not in seen:
            seen.add(id(function))
            yield function
            kernels.extend(item for _, item in (*reached(function), *used_globals(function, ())))
