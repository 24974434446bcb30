"""Whether rows of a batch meet in a model, asked by values: of sizes that do not show it, as of sort, cumsum, roll, softmax(0).

    f(a0 a1 b0 b1)  =  f(a0 a1), f(b0 b1)      each row by itself
                    =  something else          rows are sorted, summed up along the batch, compared, taken from each other

The graph is run, in double precision, with a microbatch, with another one, and with both in the graph of twice the rows. Draws
are the same for all rows meanwhile, and batch norm takes its running statistics. What is made by a detour, as rows that are put
in order for an expert and put back, is the same in the end; so what the model gives is compared, and where that differs, the
first op whose values do is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from partitioner.distributed.loss.doubled import Doubled, doubled
from partitioner.distributed.loss.level import Level
from partitioner.distributed.loss.within import Tail, of_batch, tails_of
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.rows import growing
from partitioner.frontend.check.interpret import values_of
from partitioner.ir.graph import Op
from partitioner.model.keep import state_kept
from partitioner.model.node import call_node
from partitioner.model.process import process_undo
from partitioner.model.quiet import quiet
from partitioner.model.state import lies_on_meta

MOST = 2**31
"""Floating-point operations of a microbatch beyond which nobody asks: it takes ten times as many."""

Values = Mapping[str, Any]


class Untold(Exception):
    """Values do not tell: there is too much to compute, an op is not known so, or what a model gives has no rows to compare."""


def meeting(model: nn.Module, example: Example, larger: Callable[[], Example | None]) -> Op | None:
    """The first op behind which rows are no longer by themselves, if what the model gives shows that.

    Args:
        model: what was traced; left as it is.
        example: a call with a microbatch.
        larger: gives one with twice the rows.

    Raises:
        Untold: nothing can be said.
    """
    graph = example.traced.graph
    if lies_on_meta(model) or sum(op.flops or 0 for op in graph.ops) > MOST:
        raise Untold
    if (more := larger()) is None:
        raise Untold
    given = [*_given(example, more)]
    shown = [pair for pair in given if _along(example, more, *pair) is not None]
    differs = _differing(model, example, more, shown) if shown else None
    if differs is None:
        if len(shown) < len(given):
            raise Untold
        return None
    alike = [(op.name, op.name) for op in graph.ops if op.name in more.traced.graph.by_name]
    every = [pair for pair in alike if _along(example, more, *pair) is not None]
    return graph.by_name.get(_differing(model, example, more, every) or differs)


def _given(example: Example, more: Example) -> Iterator[tuple[str, str]]:
    """Numbers of the batch that a model gives, in both graphs; of a loss that it makes, what comes of its last weights."""
    tails, behind = _tails(example), _tails(more)
    graph = example.traced.graph
    for one, both in zip(graph.outputs, more.traced.graph.outputs, strict=True):
        pairs = [(one, both)]
        if one in tails and both in behind:
            drawn = zip(tails[one].drawn, behind[both].drawn, strict=False)
            pairs = [(node.name, other.name) for node, other in drawn]
        for pair in pairs:
            meta = graph.metas.get(pair[0])
            if (meta is None or meta.dtype.is_floating_point) and of_batch(example, graph.nodes[pair[0]]):
                yield pair


def _tails(example: Example) -> dict[str, Tail]:
    return {tail.loss.name: tail for tail in tails_of(example)}


def _along(example: Example, more: Example, one: str, both: str) -> int | None:
    """In which dimension a value has rows, if in one, and is no tensor of whole numbers."""
    meta, larger = example.traced.graph.metas.get(one), more.traced.graph.metas.get(both)
    if meta is None or larger is None or len(meta.shape) != len(larger.shape) or not meta.dtype.is_floating_point:
        return None
    if not all(isinstance(size, int) for size in (*meta.shape, *larger.shape)):
        return None
    longer = growing(meta.shape, larger.shape)
    if len(longer) != 1 or larger.shape[longer[0]] != 2 * meta.shape[longer[0]] or meta.shape[longer[0]] % example.rows:
        return None
    return longer[0]


def _differing(model: nn.Module, example: Example, more: Example, pairs: Sequence[tuple[str, str]]) -> str | None:
    """The first of some values that both microbatches have by themselves otherwise than together.

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
            whole = _values(more, [*joined], larger)
    except Exception as error:  # an op is not known so, or takes what it is given by its values
        raise Untold from error
    finally:
        undo()
    for one, both in pairs:
        along = _along(example, more, one, both)
        assert along is not None
        if not _is_both(whole[both], found[0][one], found[1][one], along, example.rows):
            return one
    return None


def _microbatches(example: Example) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The example's tensors, and those of another microbatch: its rows but the first, none in its place, one of them twice, and
    not quite as large.

    Raises:
        Untold: its rows are alike, or too few for that.
    """
    first = [doubled(each.detach().clone()) for each in example.call.tensors]
    rows = torch.arange(example.rows).roll(-1)
    rows[-1:] = rows[:1]
    pairs = [*zip(first, example.by_rows, strict=True)]
    second = [_turned(each[rows.to(each.device)]) if by_row else each for each, by_row in pairs]
    numbers = any(by_row and each.is_floating_point() for each, by_row in pairs)
    if not (numbers or example.rows > 2) or all(torch.equal(*pair) for pair in zip(first, second, strict=True)):
        raise Untold
    return first, second


def _turned(rows: torch.Tensor) -> torch.Tensor:
    return rows * 0.9 if rows.is_floating_point() else rows


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


def _is_both(whole: Any, one: Any, other: Any, along: int, rows: int) -> bool:
    """Whether a value has the rows of two others, behind each other in its dimension or in one that is part of it."""
    many = one.shape[along] // rows
    for outer in (each for each in range(1, many + 1) if many % each == 0):
        parts = [each.unflatten(along, (outer, -1)) for each in (one, other)]
        both = torch.cat(parts, along + 1).flatten(along, along + 1)
        scale = float(both.nan_to_num().abs().max()) if both.numel() else 0.0
        if torch.allclose(whole, both, rtol=1e-6, atol=1e-6 * scale, equal_nan=True):
            return True
    return False
