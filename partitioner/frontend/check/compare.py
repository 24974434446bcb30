"""Does the traced graph compute what the model computes? Run both once and compare.

Tracers can be silently wrong: they burn in what a forward decided on the example, and drop what they do not see. So a traced
graph is interpreted beside eager, on the examples and then on a second draw of the same shapes: outputs, buffers afterwards
and, where gradients are enabled, gradients. Both start from one random state, and all state is put back.

The graph is interpreted node by node, where the model's state lies at the moment, before anything is placed. What placement
and emission do is proved by the verifier and needs no run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from partitioner.frontend.check.interpret import interpret
from partitioner.ir.graph import Graph
from partitioner.model.call import Call
from partitioner.model.keep import Assigned, state_kept


@dataclass(frozen=True)
class Outcome:
    """What one call gave: flat outputs, buffers afterwards, gradients of parameters and inputs (``None``: backward failed).

    ``attached`` says of each output and buffer whether it needs a gradient.
    """

    outputs: list[Any]
    attached: dict[str, bool]
    buffers: dict[str, torch.Tensor]
    gradients: list[torch.Tensor | None] | None


@dataclass(frozen=True)
class Outcomes:
    """What two calls gave, one after the other, and the attributes that they left changed."""

    calls: list[Outcome]
    assigned: list[Assigned]


@dataclass(frozen=True)
class Difference:
    """The first thing in which a program differs from its model."""

    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


@dataclass(frozen=True)
class Comparison:
    """The first difference, if there is one, and what else a user should know."""

    difference: Difference | None = None
    notes: tuple[str, ...] = ()


def compare(graph: Graph, module: nn.Module, call: Call) -> Comparison:
    """Compare the graph with the module on the call's inputs and then on a second draw of the same shapes.

    The second call follows on the first, so that state which a forward carries from call to call shows.

    Args:
        graph: the traced graph.
        module: the model; its state and the random generators are put back.
        call: the example inputs.

    Returns:
        The comparison. Costs two eager calls, and a backward where gradients are enabled.

    Raises:
        Exception: whatever the model raises on the call.
    """
    if _is_meta(module, call):
        return Comparison(notes=("not compared with eager, for there are no values on the meta device",))
    draws = [list(call.tensors), [redraw(tensor) for tensor in call.tensors]]
    written = written_state(graph)
    wanted = _calls(module, lambda inputs: _eager(module, call, inputs), draws, written)
    try:
        found = _calls(module, lambda inputs: interpret(graph, module, inputs), draws[: len(wanted.calls)], written)
    except Exception as error:  # any op may raise anything
        return Comparison(Difference("the program fails", f"{type(error).__name__}: {error}"))
    for mine, theirs in zip(wanted.calls, found.calls, strict=False):
        difference = differs(mine, theirs)
        if difference is not None:
            return Comparison(difference)
    return _compare_assigned(module, wanted, found)


def _compare_assigned(module: nn.Module, wanted: Outcomes, found: Outcomes) -> Comparison:
    """Attributes that the model's forward changes and the program does not. Buffers have been compared by value."""
    kept = {name for name, _ in module.named_buffers()} | {item.name for item in found.assigned}
    lost = [item for item in wanted.assigned if item.name not in kept]
    tensors = sorted(item.name for item in lost if item.tensor)
    if tensors:
        return Comparison(Difference("attributes", f"forward puts tensors into {', '.join(tensors[:3])}, the program does not"))
    return Comparison(notes=tuple(f"forward changes {item.name}; the program does not" for item in lost))


def written_state(graph: Graph) -> set[str]:
    """Qualified names of the parameters and buffers that the program writes."""
    accesses = (access for op in graph.ops for access in op.accesses if access.write)
    return {access.resource.removeprefix("self.") for access in accesses if access.resource.startswith("self.")}


def try_eager(module: nn.Module, call: Call) -> None:
    """Run the model once, and put its state back; on the meta device do nothing.

    Raises:
        Exception: whatever the model raises on the call.
    """
    if not _is_meta(module, call):
        _calls(module, lambda inputs: _eager(module, call, inputs), [list(call.tensors)])


def _is_meta(module: nn.Module, call: Call) -> bool:
    return any(tensor.is_meta for tensor in (*call.tensors, *module.parameters(), *module.buffers()))


def redraw(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same shape: floats are negated and shuffled, anything else is shuffled; a sparse one is negated.

    Shuffling keeps every value in the domain that the example had: indices stay valid, masks stay masks.
    """
    if tensor.layout is not torch.strided:
        return -tensor.detach() if tensor.is_floating_point() else tensor.detach().clone()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(tensor.numel(), generator=generator, device="cpu").to(tensor.device)
    shuffled = tensor.detach().reshape(-1)[order].reshape(tensor.shape)
    return -shuffled if tensor.is_floating_point() else shuffled


def _eager(module: nn.Module, call: Call, tensors: Sequence[torch.Tensor]) -> list[Any]:
    args, kwargs = call.fill(tensors)
    return tree_flatten(module.forward(*args, **kwargs))[0]


def _calls(
    module: nn.Module,
    function: Callable[[Sequence[torch.Tensor]], list[Any]],
    draws: Sequence[Sequence[torch.Tensor]],
    written: Collection[str] = (),
) -> Outcomes:
    """Call ``function`` on each draw, with gradients on the first; a later draw that is outside of its domain ends the list.

    Raises:
        Exception: whatever the first call raises.
    """
    calls: list[Outcome] = []
    with state_kept(module, written) as assigned, torch.random.fork_rng(devices=[], device_type="cpu"):
        torch.manual_seed(0)
        for tensors in draws:
            try:
                calls.append(_one_call(module, function, tensors, gradients=not calls))
            except Exception:
                if not calls:
                    raise
                break
    return Outcomes(calls, assigned)


def _one_call(
    module: nn.Module,
    function: Callable[[Sequence[torch.Tensor]], list[Any]],
    tensors: Sequence[torch.Tensor],
    gradients: bool,
) -> Outcome:
    inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
    outputs = function([tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in inputs])
    found = _gradients(module, inputs, outputs) if gradients and torch.is_grad_enabled() else []
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    named = [*((f"output {number}", leaf) for number, leaf in enumerate(outputs)), *module.named_buffers()]
    attached = {name: isinstance(leaf, torch.Tensor) and leaf.requires_grad for name, leaf in named}
    return Outcome(tree_map(_detached, outputs), attached, buffers, found)


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _gradients(module: nn.Module, inputs: list[torch.Tensor], outputs: list[Any]) -> list[torch.Tensor | None] | None:
    roots = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    wanted = [tensor for tensor in (*module.parameters(), *inputs) if tensor.requires_grad]
    if not roots or not wanted:
        return []
    # Weights that differ from entry to entry, so that swapped or transposed values do not cancel.
    weights = [torch.linspace(0.5, 1.5, root.numel(), device=root.device).to(root.dtype).reshape(root.shape) for root in roots]
    try:
        return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))
    except Exception:  # a backward of the user's own may raise anything, and a model in eval mode need not have one
        return None


def differs(wanted: Outcome, found: Outcome) -> Difference | None:
    """The first difference between two runs."""
    if len(wanted.outputs) != len(found.outputs):
        return Difference("outputs", f"{len(wanted.outputs)} in the model, {len(found.outputs)} in the program")
    named: list[tuple[str, Any, Any]] = [
        (f"output {number}", mine, theirs)
        for number, (mine, theirs) in enumerate(zip(wanted.outputs, found.outputs, strict=True))
    ]
    named += [(f"whether {name} needs a gradient", mine, found.attached.get(name)) for name, mine in wanted.attached.items()]
    named += _by_name("buffer", wanted.buffers, found.buffers)
    if wanted.gradients is not None:
        if found.gradients is None or len(found.gradients) != len(wanted.gradients):
            return Difference("gradients", "backward runs through the model, and not alike through the program")
        gradients = zip(wanted.gradients, found.gradients, strict=True)
        named += [(f"gradient {number}", mine, theirs) for number, (mine, theirs) in enumerate(gradients)]
    for what, mine, theirs in named:
        detail = _unlike(mine, theirs)
        if detail is not None:
            return Difference(what, detail)
    return None


def _by_name(kind: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(f"{kind} {name}", wanted.get(name), found.get(name)) for name in wanted.keys() | found.keys()]


def _unlike(mine: Any, theirs: Any) -> str | None:
    """How two values differ beyond rounding, or ``None``."""
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        alike = type(mine) is type(theirs) and (isinstance(mine, torch.Tensor) or _same(mine, theirs))
        return None if alike else f"{mine!r} in the model, {theirs!r} in the program"
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return f"{tuple(mine.shape)} {mine.dtype} in the model, {tuple(theirs.shape)} {theirs.dtype} in the program"
    try:
        torch.testing.assert_close(theirs, mine, rtol=tolerance(mine.dtype), atol=tolerance(mine.dtype), equal_nan=True)
    except AssertionError:
        gap = (theirs.to(torch.float64) - mine.to(torch.float64)).abs().max() if not mine.is_complex() else float("nan")
        return f"values differ by up to {float(gap):.3g}"
    return None


def tolerance(dtype: torch.dtype) -> float:
    """Rounding that is allowed: export calls other kernels than eager for a few ops, so bits may differ."""
    return {torch.float16: 1e-2, torch.bfloat16: 2e-2, torch.float64: 1e-8}.get(dtype, 1e-4)


def _same(mine: Any, theirs: Any) -> bool:
    try:
        return bool(mine == theirs)
    except Exception:  # a user's own type may compare as it likes
        return True
