"""A model's graph, run in double precision with a microbatch, with another one, and with both in the graph of twice the rows.

Draws are the same for all rows meanwhile, and batch norm takes its running statistics.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from partitioner.distributed.loss.doubled import Doubled, doubled
from partitioner.distributed.loss.level import Level
from partitioner.distributed.traced.example import Example
from partitioner.frontend.check.interpret import values_of
from partitioner.model.keep import state_kept
from partitioner.model.node import call_node
from partitioner.model.process import process_undo
from partitioner.model.quiet import quiet
from partitioner.model.state import lies_on_meta

MOST = 2**31
"""Floating-point operations of a microbatch beyond which nobody asks: it takes ten times as many."""

Values = Mapping[str, Any]


class Untold(Exception):
    """Values do not tell: there is too much to compute, an op is not known so, or what a model gives has no rows to compare.

    Args:
        apart: of what it gives, the values that do tell, and whose rows are by themselves.
    """

    def __init__(self, apart: Sequence[str] = ()) -> None:
        super().__init__(apart)
        self.apart = apart


def too_much(model: nn.Module, example: Example) -> bool:
    """Whether a model is not run so, for it has no numbers, or too many."""
    return lies_on_meta(model) or sum(op.flops or 0 for op in example.traced.graph.ops) > MOST


def apart_and_together(
    model: nn.Module, example: Example, more: Example, pairs: Sequence[tuple[str, str]]
) -> tuple[list[Values], Values]:
    """What two microbatches have by themselves, and what they have together.

    Args:
        model: what was traced; left as it is.
        example: a call with a microbatch.
        more: one with twice the rows.
        pairs: the values that are asked for, by their names in both graphs.

    Raises:
        Untold: the graph cannot be run so.
    """
    undo = process_undo()
    try:
        with quiet(), torch.no_grad(), torch._C._DisableAutocast(), state_kept(model):
            first, second = _microbatches(example)
            kept, larger = {one for one, _ in pairs}, {both for _, both in pairs}
            found = [_values(example, call, kept) for call in (first, second)]
            joined = (
                torch.cat(pair) if by_row else pair[0] for *pair, by_row in zip(first, second, example.by_rows, strict=True)
            )
            return found, _values(more, [*joined], larger)
    except Exception as error:  # an op is not known so, or takes what it is given by its values
        raise Untold from error
    finally:
        undo()


def _microbatches(example: Example) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The example's tensors, and those of another microbatch: its rows but the first, none in its place, one of them twice, and
    other numbers in them.

    Raises:
        Untold: its rows are alike, or too few for that.
    """
    first = [doubled(each.detach().clone()) for each in example.call.tensors]
    rows = torch.arange(example.rows).roll(-1)
    rows[-1:] = rows[:1]
    pairs = [*zip(first, example.by_rows, strict=True)]
    second = [_turned(each[rows.to(each.device)]) if by_row else each for each, by_row in pairs]
    numbers = any(by_row and (each.is_floating_point() or each.dim() > 1) for each, by_row in pairs)
    if not (numbers or example.rows > 2) or all(torch.equal(*pair) for pair in zip(first, second, strict=True)):
        raise Untold
    return first, second


def _turned(rows: torch.Tensor) -> torch.Tensor:
    """Rows with other numbers: not quite as large ones, or of indices those of the step before."""
    if rows.is_floating_point():
        return rows * 0.9
    return rows.roll(1, -1) if rows.dim() > 1 else rows


def _values(example: Example, tensors: Sequence[torch.Tensor], kept: Collection[str]) -> Values:
    """Some of the values that a graph makes of a call.

    Raises:
        KeyError: it is given something that is neither of the call nor the model's.
    """
    graph = example.traced.graph
    written = {each.resource for op in graph.ops for each in op.accesses if each.write}
    known = {name: each.clone() for name, each in example.arguments(tensors).items()}  # which may be written
    for name, key in graph.states.items():
        held = example.traced.state[key].detach()
        known[name] = doubled(held.clone()) if f"self.{key}" in written else held
    with Level(), Doubled():  # type: ignore[no-untyped-call]
        values = values_of(graph, [known[name] for name in graph.arguments], [op.name for op in graph.ops], kept, _by_itself)
        return {node.name: _first(each) for node, each in values.items() if node.name in kept}


def _first(value: Any) -> torch.Tensor:
    """Of several tensors, that of which a graph's metadata tell."""
    found: torch.Tensor = next(leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return found


def _by_itself(node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a node gives, in double precision, which some functions ask of all that they take; of batch norm, what it would with
    running statistics."""
    args, kwargs = doubled((args, kwargs))
    if node.target is not functional.batch_norm:
        return call_node(node, args, kwargs)
    given = inspect.signature(functional.batch_norm).bind(*args, **kwargs)
    given.apply_defaults()
    options, features = given.arguments, given.arguments["input"].shape[1]
    if options["running_mean"] is None:
        like = options["input"]
        options["running_mean"], options["running_var"] = like.new_zeros(features), like.new_ones(features)
    options["training"] = False
    return functional.batch_norm(**options)


def orders(whole: torch.Tensor, microbatches: Sequence[torch.Tensor], along: int, rows: int) -> list[int]:
    """In how many blocks a value may have the rows of others behind each other, in its dimension or in one that is part of it.

    Args:
        whole: the value of both microbatches together.
        microbatches: those of each.
        along: its dimension with rows.
        rows: of a microbatch.

    Example:
        >>> one, other = torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7, 8])
        >>> orders(torch.tensor([1, 2, 3, 4, 5, 6, 7, 8]), [one, other], 0, rows=2)
        [1]
        >>> orders(torch.tensor([1, 2, 5, 6, 3, 4, 7, 8]), [one, other], 0, rows=2)
        [2]
    """
    many = microbatches[0].shape[along] // rows
    numbers = [each for each in range(1, many + 1) if many % each == 0]
    return [blocks for blocks in numbers if _is_like(whole, put_together(microbatches, along, blocks))]


def put_together(parts: Sequence[torch.Tensor], along: int, blocks: int) -> torch.Tensor:
    """What microbatches give, as the whole batch would: each block of it has the rows of all.

    Example:
        >>> put_together([torch.tensor([1, 2]), torch.tensor([5, 6])], 0, 2)
        tensor([1, 5, 2, 6])
    """
    divided = [torch.unflatten(each, along, (blocks, -1)) for each in parts]
    return torch.cat(divided, along + 1).flatten(along, along + 1)


def _is_like(whole: torch.Tensor, both: torch.Tensor) -> bool:
    if not (both.dtype.is_floating_point or both.dtype.is_complex):
        return torch.equal(whole, both)
    scale = float(both.nan_to_num().abs().max()) if both.numel() else 0.0
    return torch.allclose(whole, both, rtol=1e-6, atol=1e-6 * scale, equal_nan=True)
