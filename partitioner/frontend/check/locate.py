"""Where a traced graph first leaves its model: found by running both and comparing what their submodules give.

Eager has no ops to compare, but every submodule's result can be seen. The first submodule whose result no op of the program
computes is where the two part; the ops that were traced inside of it are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from partitioner.frontend.check.interpret import interpret
from partitioner.ir.graph import Graph, Op
from partitioner.model.call import Call
from partitioner.model.keep import state_kept

Result = tuple[str, torch.Tensor]


def locate_difference(graph: Graph, module: nn.Module, call: Call) -> str:
    """A sentence that names the first submodule whose result differs, with its ops; empty if none could be told.

    Args:
        graph: the traced graph, which is known to differ.
        module: the model.
        call: the example inputs.
    """
    try:
        wanted = _eager_results(module, call)
        computed = _program_values(graph, module, call)
    except Exception:  # one of the two fails half-way, and the difference says so already
        return ""
    for path, tensor in wanted:
        if not any(_close(tensor, value) for value in computed):
            return f"The first submodule whose result the program does not compute is {path}{_traced_in(graph, path)}."
    return ""


def _eager_results(module: nn.Module, call: Call) -> list[Result]:
    """The first tensor of each submodule's result, in the order in which they return."""
    found: list[Result] = []

    def hook(path: str) -> Any:
        def note(_module: nn.Module, _args: Any, result: Any) -> None:
            tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            found.extend((path, tensor.detach().clone()) for tensor in tensors[:1])

        return note

    with _alike(module), ExitStack() as stack:
        for path, child in module.named_modules():
            if path:
                stack.callback(child.register_forward_hook(hook(path)).remove)
        args, kwargs = call.fill([tensor.detach().clone() for tensor in call.tensors])
        module.forward(*args, **kwargs)
    return found


def _program_values(graph: Graph, module: nn.Module, call: Call) -> list[torch.Tensor]:
    values: list[torch.Tensor] = []

    def look(_node: torch.fx.Node, value: Any) -> None:
        values.extend(leaf.detach().clone() for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))

    with _alike(module):
        interpret(graph, module, [tensor.detach().clone() for tensor in call.tensors], look)
    return values


@contextmanager
def _alike(module: nn.Module) -> Iterator[None]:
    """The same random numbers for both runs, and the model's state put back after each."""
    with state_kept(module), torch.random.fork_rng(devices=[], device_type="cpu"), torch.no_grad():
        torch.manual_seed(0)
        yield


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _traced_in(graph: Graph, path: str) -> str:
    ops = [op for op in graph.ops if op.path == path or op.path.startswith(f"{path}.")]
    if not ops:
        return ", of which nothing was traced"
    last: Op = ops[-1]
    return f", traced as {', '.join(op.name for op in ops[:4])}{', ...' if len(ops) > 4 else ''} ({last.where})"
