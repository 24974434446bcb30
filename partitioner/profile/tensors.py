"""Arguments for an op that is called on its own: real tensors of the shapes, dtypes and strides that tracing saw.

Values do no harm: numbers between a half and one and a half, which have a logarithm and a root and divide; indices that are
zero, or spread over an embedding's rows. They are drawn from a generator of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partitioner.model.fakes import bytes_of, layout_of, number_of, reach_of, tensors_in
from partitioner.model.node import fill, target_name
from partitioner.profile.signature import Unmeasurable, value_of

MOST_MEMORY = 0.25
"""Of the memory that is free, what the arguments of one op may take."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """What an op is called with.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        fresh: the tensors among them that the op before would just have made.
        state: the tensors among them that are parameters and buffers of the model.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    fresh: tuple[Tensor, ...]
    state: tuple[Tensor, ...]


def arguments(node: torch.fx.Node, states: Mapping[str, str], device: torch.device, grad: bool = True) -> Arguments:
    """Tensors like those that a node was traced with.

    Args:
        node: with a fake for each of its inputs.
        states: the placeholders that are state, by name.
        device: where to make them.
        grad: whether those that have a gradient in the model have one here.

    Raises:
        Unmeasurable: they would take too much memory, or are of a kind that cannot be made.
    """
    sources = node.all_input_nodes
    size = sum(bytes_of(leaf) for source in sources for leaf in tensors_in(value_of(source)))
    if size > MOST_MEMORY * free_memory(device):
        raise Unmeasurable(f"its arguments take {size / 2**30:.1f} GiB")
    generator = torch.Generator(device).manual_seed(0)
    rows = _rows(node)

    def like(leaf: Any) -> Any:
        return _tensor(leaf, device, generator, rows, grad) if isinstance(leaf, Tensor) else number_of(leaf)

    made = {source: tree_map(like, value_of(source)) for source in sources}
    args, kwargs = fill((node.args, node.kwargs), made.__getitem__)
    args, kwargs = tree_map(lambda leaf: device if isinstance(leaf, torch.device) else number_of(leaf), (args, kwargs))
    fresh = [tensor for source, value in made.items() if source.name not in states for tensor in tensors_in(value)]
    state = [tensor for source, value in made.items() if source.name in states for tensor in tensors_in(value)]
    return Arguments(args, kwargs, tuple(fresh), tuple(state))


def free_memory(device: torch.device) -> float:
    """Bytes that are free; infinite where nobody says."""
    if device.type == "cpu":
        try:
            return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, ValueError, OSError):  # not a Unix
            return math.inf
    about = getattr(torch.get_device_module(device), "mem_get_info", None)
    return float(about(device)[0]) if about is not None else math.inf


def _tensor(fake: Tensor, device: torch.device, generator: torch.Generator, rows: int, grad: bool) -> Tensor:
    span = reach_of(fake)
    if fake.dtype.is_floating_point or fake.dtype.is_complex:
        flat = torch.rand(span, generator=generator, device=device).add_(0.5).to(fake.dtype)
    elif fake.dtype is torch.bool:
        flat = torch.ones(span, dtype=fake.dtype, device=device)
    else:
        flat = torch.randint(rows, (span,), generator=generator, device=device).to(fake.dtype)
    return flat.as_strided(*layout_of(fake)).requires_grad_(grad and fake.requires_grad)


def _rows(node: torch.fx.Node) -> int:
    """Integers below this may be given to an op: the rows of an embedding's table, else zeros alone."""
    if not target_name(node).startswith("embedding"):
        return 1
    tables = [value_of(source) for source in node.all_input_nodes]
    sizes = [number_of(t.shape[0]) for t in tables if isinstance(t, Tensor) and t.dtype.is_floating_point and t.dim() == 2]
    return max(1, min(sizes, default=1))
