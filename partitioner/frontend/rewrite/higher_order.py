"""Ops that hold graphs of their own, as what eager runs for them.

Dynamo gives ``checkpoint``, ``cond`` and their like as higher-order ops, meant for compilers that trace on. Called as they lie
they lose something: a checkpoint's recomputation draws other random numbers, a branch is traced again in each call. Here each
becomes the plain call that it was in the user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from partitioner.frontend.rewrite.own_functions import own_function
from partitioner.model.hooks import Hooking, passing

Body = torch.fx.GraphModule
"""Its ``forward`` is called: as a module, it would print its code if an op in it fails."""


def recompute(body: Body, *args: Any, state: frozenset[int] = frozenset(), **kwargs: Any) -> Any:
    """Run ``body`` now and again in backward, as `torch.utils.checkpoint.checkpoint` does, with the same random numbers.

    Args:
        body: what is run.
        args: its arguments.
        state: the numbers of those that the user's function took from its model, and that were no arguments there. It
            matters to a checkpoint: it saves its arguments, and an older kind of it asks them alone whether to record.
        kwargs: options of the checkpoint.
    """
    context = getattr(body, "meta", {}).get("_checkpoint_context_fn")
    given = [arg for number, arg in enumerate(args) if number not in state]

    def run(*again: Any) -> Any:
        following = iter(again)
        return body.forward(*(arg if number in state else next(following) for number, arg in enumerate(args)))

    return checkpoint(run, *given, **kwargs, **({} if context is None else {"context_fn": context}))


def branch(condition: Any, on_true: Body, on_false: Body, operands: tuple[Any, ...] = ()) -> Any:
    """Run one of two bodies, as `torch.cond` does: what only the other one uses gets a gradient of zeros."""
    return _reaching(on_true.forward(*operands) if condition else on_false.forward(*operands), operands)


def _reaching(results: Any, operands: Collection[Any]) -> Any:
    """Results that need a gradient if any operand does, and give zeros to those that they do not depend on."""
    trained = [operand for operand in operands if isinstance(operand, torch.Tensor) and operand.requires_grad]
    if not trained or not torch.is_grad_enabled():
        return results
    leaves, spec = tree_flatten(results)
    made = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for number, tensor in zip(made, _Reaching.apply(len(made), *(leaves[number] for number in made), *trained), strict=True):  # type: ignore[no-untyped-call]
        leaves[number] = tensor
    return tree_unflatten(leaves, spec)


class _Reaching(torch.autograd.Function):
    """Gives its first tensors, and in backward zeros to the others."""

    @staticmethod
    def forward(ctx: Any, made: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.like = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors[made:]]
        return tuple([tensor.clone() for tensor in tensors[:made]])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return None, *gradients, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.like)


def loop(condition: Body, body: Body, carried: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Any:
    """Run ``body`` on what it gave as long as ``condition`` holds, as `torch.while_loop` does."""
    operands = (*carried, *others)
    while condition.forward(*carried, *others):
        carried = tuple(body.forward(*carried, *others))
    return _reaching(carried, operands)


def inline(body: Body, *args: Any, **_options: Any) -> Any:
    """Run ``body``."""
    return body.forward(*args)


def subgraph(body: Body, _name: str, *operands: Any) -> Any:
    """Run the body of a region that compilers share."""
    return body.forward(*operands)


PLAIN: dict[str, Callable[..., Any]] = {
    "tag_activation_checkpoint": recompute,
    "cond": branch,
    "while_loop": loop,
    "wrap": inline,
    "invoke_subgraph": subgraph,
    "autograd_function_apply": own_function,
}
"""What runs in the place of a higher-order op, by its name."""

BESIDE_OTHERS = frozenset({"flex_attention"})
"""Higher-order ops that run as they lie, and may on any lane. Others trace their bodies in each call, one at a time."""


def draws_in_backward(node: torch.fx.Node) -> bool:
    """Whether an op whose bodies draw random numbers draws others in backward."""
    if node.target is recompute:
        return not node.kwargs.get("preserve_rng_state", True)
    return node.target is own_function or isinstance(node.target, torch._ops.HigherOrderOperator)


def is_called_as_it_lies(node: torch.fx.Node) -> bool:
    """Whether the arguments of an op's only body are those of the op behind it, one by one."""
    return node.target in (recompute, inline)


def runs_alone(node: torch.fx.Node) -> bool:
    """Whether nothing may run beside an op: it may do anything, or uses or changes what autograd has recorded of others."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.target._name not in BESIDE_OTHERS
    return node.target in (torch.autograd.grad, passing, "requires_grad_", "retain_grad") or isinstance(node.target, Hooking)


def is_reentrant(node: torch.fx.Node) -> bool:
    """Whether a node is a checkpoint whose backward is one within a backward; torch takes ``None`` for ``True``."""
    return node.target is recompute and node.kwargs.get("use_reentrant") is not False


def tell_state(graph: torch.fx.Graph, states: Collection[str]) -> None:
    """Tell checkpoints which of their arguments are the model's, by the names of placeholders."""
    for node in graph.nodes:
        if node.target is recompute:
            taken = (number for number, arg in enumerate(node.args[1:]) if getattr(arg, "name", None) in states)
            node.kwargs = {**node.kwargs, "state": frozenset(taken)}


def as_plain_calls(module: torch.fx.GraphModule) -> None:
    """Replace higher-order ops in ``module`` and in the bodies that it holds, and drop calls that only count uses of torch."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if isinstance(node.target, torch._ops.HigherOrderOperator):
                    node.target = PLAIN.get(node.target._name, node.target)
                elif node.target is torch._C._log_api_usage_once:  # as of a slice of a ModuleList
                    part.graph.erase_node(node)
                elif node.target is torch.ops.aten.sym_stride.int:
                    _read_as_size(node)
            part.recompile()


def _read_as_size(node: torch.fx.Node) -> None:
    """Let a number that Dynamo reads off an argument's stride be read off its size.

    In a function's backward it takes gradients to be laid out as the results were. Those that come may be laid out otherwise:
    behind a sum all strides are 0.
    """
    tensor, wanted = node.args[0], _symbol(node.meta.get("example_value"))
    shape = tensor.meta["example_value"].shape if isinstance(tensor, torch.fx.Node) and tensor.op == "placeholder" else ()
    same = [number for number, size in enumerate(shape) if wanted is not None and _symbol(size) == wanted]
    if same:
        node.target, node.args = torch.ops.aten.sym_size.int, (tensor, same[0])


def _symbol(size: Any) -> Any:
    """What an open size is called; nothing for a number."""
    return size.node.expr if isinstance(size, torch.SymInt) else None
