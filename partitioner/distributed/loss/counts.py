"""What a loss is the mean of: of targets that are ignored, microbatches and copies of a model have different numbers.

    microbatch     targets   ignored   mean of the rest      weight of its mean
    0              8         1         2.0                   7 / 10
    1              8         5         3.0                   3 / 10        the batch's loss is 2.3, the mean of both 2.5

``count_fn`` says how many count; they are summed up over microbatches and copies before the first backward. Where nobody says,
the losses of a step are watched for what they are divided by: targets of a cross entropy, elements of a mean, a mask's sum.
If these numbers differ, the mean of means would be another loss, and is refused.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.functional import cross_entropy, nll_loss
from torch.overrides import TorchFunctionMode

from partitioner.distributed.loss.mean import Told, refuse_no_mean
from partitioner.distributed.ranks import Ranks
from partitioner.distributed.tensor.losses import cross_entropy_of_part
from partitioner.distributed.traced.example import Example
from partitioner.errors import InputError
from partitioner.ir.access import TOKENS
from partitioner.ir.graph import Graph
from partitioner.model.node import call_node, fill, made_of

MEANS: tuple[Callable[..., Any], ...] = (cross_entropy, nll_loss, cross_entropy_of_part)
"""What gives a mean over the targets that are not ignored."""

DIVISIONS: tuple[Any, ...] = (
    *(torch.div, torch.divide, torch.true_divide, operator.truediv, operator.itruediv),
    *("div", "divide", "true_divide", "div_"),
    *(torch.Tensor.div, torch.Tensor.divide, torch.Tensor.true_divide, torch.Tensor.__truediv__, torch.Tensor.div_),
)
"""What divides, as functions and as methods that a graph calls."""

SELECTIONS: tuple[Any, ...] = (operator.getitem, torch.masked_select, "masked_select")

MOST = 32
"""Means of a microbatch that are watched."""


class Watched(TorchFunctionMode):
    """Sees of how many targets the losses of a microbatch are means, and which are no means.

    What is compiled runs as it is meanwhile: of a compiled loss no function would be seen, and what torch.compile meets first
    under a mode of dispatch it leaves uncompiled for good, `torch.cond` among it.

    Args:
        parts: microbatches of all copies together.

    Attributes:
        found: by microbatch, of each loss.
        sums: losses that are sums over what they are of.
        told: of a loss that is no mean over microbatches, what it is of two of them.
    """

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.found: list[list[torch.Tensor]] = []
        self.sums: list[torch.Tensor] = []
        self.told: Told | None = None
        self._by_place: dict[Any, int] = {}
        self._uncompiled = ExitStack()

    def __enter__(self) -> Self:
        self._uncompiled.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._uncompiled.close()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        learns = isinstance(made, torch.Tensor) and made.requires_grad and not made.dim()  # else it is no loss
        if learns and (count := _counted(func, args, kwargs or {})) is not None:
            self._note(count)
        if getattr(func, "__module__", "") == functional.__name__ and (kwargs or {}).get("reduction") == "sum":
            self.sums.append(made)
        return made

    def _note(self, count: torch.Tensor) -> None:
        """Note what a loss is divided by; not where a loop does it again, for rows are then averaged that are each a mean."""
        row, place = self.found[-1], _caller()
        if not row:
            self._by_place.clear()
        if (before := self._by_place.setdefault(place, len(row))) < len(row):
            row[before] = count = torch.tensor(torch.nan)
        row.append(count)


def _caller(most: int = 12) -> tuple[Any, ...]:
    """Where the user's code is, with what has called it."""
    frame, found = sys._getframe(3), list[Any]()
    while frame is not None and len(found) < most:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def losses_in(example: Example, held: Iterable[str]) -> list[tuple[torch.fx.Node, list[torch.fx.Node]]]:
    """A model's own losses of which the batch, and what is held, alone tell of how many targets they are means; each with what
    tells it. In place of a mean over a selection stands its mask."""
    graph, found = example.traced.graph, list[tuple[torch.fx.Node, list[torch.fx.Node]]]()
    losses = [node for node in map(_telling, graph.fx.nodes) if node is not None]
    fixed = fixed_by(graph, example.places).union(held) if losses else set()
    for loss in losses:
        logits = loss.args[0] if loss.args else loss.kwargs.get("input")  # or what is divided
        needed = made_of([loss] if _is_mask(loss) else [node for node in loss.all_input_nodes if node is not logits])
        if {node.name for node in needed} <= fixed:
            found.append((loss, [node for node in graph.fx.nodes if node in needed]))
    return found


def held_in(example: Example) -> dict[str, torch.Tensor]:
    """What a model holds that is not trained and no op writes, by its name in the graph, such as weights of classes."""
    graph, state = example.traced.graph, example.traced.state
    written = {each.resource for op in graph.ops for each in op.accesses if each.write}
    kept = ((name, key, state.get(key)) for name, key in graph.states.items())
    return {
        name: each
        for name, key, each in kept
        if each is not None and not (each.requires_grad or each.is_meta or f"self.{key}" in written)
    }


def counts_in(
    losses: Iterable[tuple[torch.fx.Node, Sequence[torch.fx.Node]]], inputs: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """Of how many targets losses are means in one microbatch.

    Args:
        losses: as `losses_in` gives them.
        inputs: of the model's graph.
    """
    pairs = ((loss, _values(needed, inputs)) for loss, needed in losses)
    counts = (
        values[loss].sum() if loss in values else _counted(loss.target, *fill((loss.args, loss.kwargs), values.get))
        for loss, values in pairs
    )
    return [count for count in counts if count is not None]


def refuse_other_mean(watched: Watched, ranks: Ranks, last: int) -> None:
    """Refuse a mean of microbatches' losses that is not the loss of the batch.

    Args:
        watched: what the losses were seen to be; on the rank of the last stage.
        ranks: this rank.
        last: the place along the pipeline axis of the rank that has the last stage.

    Raises:
        InputError: on every rank; says which numbers differ, or what the loss is instead.
    """
    refuse_no_mean(watched.told, watched.parts, ranks, last)
    ends = torch.full((2, MOST), -torch.inf, dtype=torch.float64, device=ranks.device)  # the largest, minus the smallest
    if (found := _ends(watched.found)) is not None:
        ends[:, : found.shape[1]] = found.to(ranks.device)
    for axis in ranks.wide("pipeline", "data"):
        if axis == "pipeline":
            dist.broadcast(ends, group=ranks.mesh.get_group(axis), group_src=last)
        else:
            dist.all_reduce(ends, dist.ReduceOp.MAX, group=ranks.mesh.get_group(axis))
    uneven = _uneven(ends)
    if bool(uneven.any()):
        place = int(uneven.int().argmax())
        least, most = (-ends[1, place]).item(), ends[0, place].item()
        raise InputError(
            f"a loss is divided by {least:g} in one microbatch or copy and by {most:g} in another, as where "
            "targets are ignored, masked or weigh less, and the mean of such means is not that of the batch. Say what "
            "counts: parallelize(..., count_fn=lambda target: (target != -100).sum()), of a microbatch's target or, where "
            "loss_fn takes none, of the model's arguments; count_fn=lambda *_, **__: 1 takes the mean of means"
        )


def alike(found: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether microbatches' losses are means of as many, as far as that is seen."""
    ends = _ends(found)
    return ends is None or not bool(_uneven(ends).any())


def _ends(found: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor | None:
    """The largest count of each loss, and minus the smallest; ``None`` where microbatches do not have the same losses."""
    rows = [torch.stack([each.double() for each in row[:MOST]]) for row in found if row]
    if not rows or len({len(row) for row in rows}) > 1:
        return None
    counts = torch.stack(rows)
    return torch.stack([counts.amax(0), (-counts).amax(0)])


def _uneven(ends: torch.Tensor) -> torch.Tensor:
    most, least = ends[0], -ends[1]
    return torch.isfinite(most) & torch.isfinite(least) & (most - least > least.abs() * 1e-6)


def _telling(node: torch.fx.Node) -> torch.fx.Node | None:
    """The op whose inputs tell what a loss is divided by: the loss itself; or, of a mean over a selection, its mask."""
    value = node.meta.get("example_value")
    if node.target in MEANS:
        return node
    if not isinstance(value, torch.Tensor) or not value.requires_grad or value.dim():  # no single number that learns
        return None
    if node.target in DIVISIONS:
        return node if len(node.args) == 2 and isinstance(node.args[1], torch.fx.Node) else None
    of = node.all_input_nodes[0].meta.get("example_value") if _is_mean(node.target, node.args, node.kwargs) else None
    sizes = {str(size) for size in of.shape if isinstance(size, torch.SymInt)} if isinstance(of, torch.Tensor) else set()
    behind = made_of([node]) if sizes else set()
    chosen = (each for each in node.graph.nodes if each in behind and each.target in SELECTIONS and _sizes(each) & sizes)
    masks = (each.args[1] for each in chosen)
    return next((mask for mask in masks if isinstance(mask, torch.fx.Node) and _is_mask(mask)), None)


def _sizes(node: torch.fx.Node) -> set[str]:
    return {str(size) for size in getattr(node.meta.get("example_value"), "shape", ())}


def _is_mask(node: torch.fx.Node) -> bool:
    return getattr(node.meta.get("example_value"), "dtype", None) is torch.bool


def _is_mean(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is a mean over all elements, if it gives a single number."""
    if function in (torch.mean, torch.Tensor.mean, "mean"):
        return True
    return (
        getattr(function, "__module__", "") == functional.__name__
        and _options(function, args, kwargs).get("reduction") == "mean"
    )


def _counted(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Of how many things, or of what weight of them, a loss is the mean; ``None`` if it is none."""
    if function in MEANS and (count := _targets(function, args, kwargs)) is not None:
        return count
    if function in DIVISIONS:
        by = args[1] if len(args) > 1 else kwargs.get("other")
        single = isinstance(by, int | float) or (isinstance(by, torch.Tensor) and by.numel() == 1 and not by.requires_grad)
        return torch.as_tensor(by).detach().reshape(()) if single else None
    if _is_mean(function, args, kwargs):
        elements = args[0] if args else kwargs.get("input")
        return torch.ones_like(elements, dtype=torch.bool).sum() if isinstance(elements, torch.Tensor) else None  # by an op
    return None


def _options(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What each parameter of a function has in a call."""
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    return given.arguments


def _targets(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    options = _options(function, args, kwargs)
    target = options["target"]
    legacy = any(options.get(name) is not None for name in ("size_average", "reduce"))
    if options["reduction"] != "mean" or legacy or target.is_floating_point():
        return None
    kept, weight = target != options.get("ignore_index", options.get("ignored")), options.get("weight")
    count: torch.Tensor = kept.sum() if weight is None else weight.detach()[target.where(kept, 0)].where(kept, 0.0).sum()
    return count


def fixed_by(graph: Graph, inputs: Iterable[str]) -> set[str]:
    """The values that come of a batch alone: nothing is drawn for them, and nobody writes to what they are made of."""
    writers = Counter(each.resource for op in graph.ops for each in op.accesses if each.write)
    found = {name for name in inputs if not writers[name]}
    for op in graph.ops:
        fresh = {(op.name, True)} if writers[op.name] == 1 else set()
        others = {each.resource for each in op.accesses if (each.resource, each.write) not in fresh}
        if found.issuperset(op.inputs) and not op.state and not others & TOKENS and all(writers[each] <= 1 for each in others):
            found.add(op.name)
    return found


def _values(nodes: Iterable[torch.fx.Node], inputs: Mapping[str, torch.Tensor]) -> dict[torch.fx.Node, Any]:
    """What some nodes of a graph give, in its order."""
    values: dict[torch.fx.Node, Any] = {}
    for node in nodes:
        called = node.op != "placeholder"
        values[node] = call_node(node, *fill((node.args, node.kwargs), values.get)) if called else inputs[node.name]
    return values
