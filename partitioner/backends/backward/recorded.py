"""The autograd graph of a call on lanes: whole, with cuts in it, and behind nodes that stand for it in the caller's graph.

    forward    lanes record as always; what another segment made is read through a view, whose node is a cut
    results    leave through `_OnLanes`; one that is made of others has a section of its own, behind theirs
    backward   each segment's graph, from what it handed over back to its cuts (`reversed`)

The views cut what is run, not what is recorded. A backward that is recorded for gradients of gradients (`through`), and one
under modes that no worker can take over, do the same on the caller's thread: autograd's own order depends on who recorded what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from partitioner.backends.backward.gradients import AccumulateGrad
from partitioner.backends.backward.reversed import Cuts, Reversed, reversed_code
from partitioner.backends.backward.through import Gradients, Slopes, engine, through
from partitioner.backends.codegen import Code, generate
from partitioner.backends.reference import Reference
from partitioner.backends.threads import Launch, issue
from partitioner.backends.workers import has_hidden_modes
from partitioner.ir.gradient import Backward, BackwardError
from partitioner.ir.plan import Plan


class Recording(Launch):
    """One call that keeps where its graph is cut."""

    def __init__(self, code: Code) -> None:
        super().__init__(code, len(code.hosts))
        self.cuts = Cuts({}, {})

    def part(self, term: str, value: Any, leaf: int | None = None) -> Any:
        """The value, with a view in the place of the tensor of which an op is about to be a reader in another segment.

        Args:
            term: what the op will add to that tensor's gradient.
            value: the tensor, or a structure that holds it.
            leaf: its number there.
        """
        if leaf is not None:
            leaves, structure = tree_flatten(value)
            leaves[leaf] = self.part(term, leaves[leaf])
            return tree_unflatten(leaves, structure)
        view = value.view_as(value)
        if view.grad_fn is not None:
            self.cuts.parts[term] = GradientEdge(view.grad_fn, 0, None)
        return view

    def made(self, name: str, value: Any, leaf: int | None = None) -> None:
        """Note a tensor that is handed over, from which the backward of its segment starts."""
        tensor = value if leaf is None else tree_leaves(value)[leaf]
        if tensor.requires_grad:
            self.cuts.ends[name] = get_gradient_edge(tensor)


class Form:
    """What is emitted for calls in which the same arguments have gradients.

    Args:
        plan: of the forward.
        backwards: those of its sections.
    """

    def __init__(self, plan: Plan, backwards: Sequence[Backward]) -> None:
        self.plan, self.backwards, self.checked = plan, backwards, False
        gradients = [gradient for backward in backwards for gradient in backward.gradients]
        self.code = generate(plan, gradients=gradients)
        self.reversed = [reversed_code(plan, one.program, one.steps) if one.program else None for one in backwards]
        position = {name: number for number, name in enumerate(plan.graph.arguments)}
        self.read = {gradient.term(part): gradient.value for gradient in gradients for part in gradient.parts}
        self.results = {number: gradient.name for gradient in gradients for number in gradient.results}
        self.apart = [position[name] for backward in backwards for name in backward.apart]

    @cached_property
    def reference(self) -> Reference:
        """What looks at results once more."""
        return Reference(self.plan)

    def is_watched(self, arguments: Sequence[Any]) -> bool:
        """Whether somebody would hear of it that an argument has no gradient from a loss: hooks, or functions that made it.

        In eager a backward does not go to what the loss is not made of. Here it goes from all results to all arguments.
        """
        return any(_has_hooks(arguments[position]) for position in self.apart)

    def wrapped(self, cuts: Cuts, found: list[Any], arguments: Sequence[Any]) -> list[Any]:
        """The results of a call, with nodes of autograd in front of its graph.

        Raises:
            BackwardError: the graph is not cut where it should be, as the first one shows.
        """
        if not self.checked:
            self._check(cuts)
            self.checked = True
        inner = {name: found[number] for number, name in self.results.items() if name in cuts.ends}
        outer = dict(zip(self.plan.graph.arguments, arguments, strict=True))
        for backward, code in zip(self.backwards, self.reversed, strict=True):
            given = {name: inner[name] for name in backward.results if name in inner}
            if given and backward.views:
                self._look(backward.views, outer)
            elif given:
                apply: Callable[..., Sequence[torch.Tensor]] = _OnLanes.apply
                graph = Recorded(self.plan, backward, code, cuts)
                made = apply(graph, given, *(outer.get(self.read[term]) for term in backward.terms))
                outer.update(zip(given, made if len(made) == 1 else map(_Apart.apply, made), strict=True))
        return [
            outer[self.results[number]] if self.results.get(number) in inner else value for number, value in enumerate(found)
        ]

    def _look(self, ops: Sequence[str], outer: dict[str, Any]) -> None:
        """Look at a result once more, as what stands for it in the caller's graph."""
        for op in ops:
            outer[op] = self.reference.call(self.plan.graph.nodes[op], outer)

    def _check(self, cuts: Cuts) -> None:
        """Walk the graph of each segment: it must end at its own cuts, before an argument or another segment."""
        visited: dict[Node, int] = {}
        pieces = [piece for backward in self.backwards for piece in _pieces(backward)]
        for number, (name, terms, tensors) in enumerate(pieces):
            views = {cuts.parts[term].node for term in terms if term in cuts.parts}
            waiting = [cuts.ends[tensor].node for tensor in tensors if tensor in cuts.ends]
            while waiting:
                node = waiting.pop()
                if node in views or visited.get(node) == number:
                    continue
                if node in visited or isinstance(node, AccumulateGrad):
                    raise BackwardError(f"the graph of {name} goes on past its cuts, into {type(node).__name__}")
                visited[node] = number
                waiting += (following for following, _ in node.next_functions if following is not None)


def _pieces(backward: Backward) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """What is run at once: its name, what it adds to gradients of others, and the tensors with whose gradients it begins."""
    for name, step in backward.steps.items():
        yield name, step.terms, [tensor for tensor, _ in step.sums]
    if backward.program is None and not backward.views:
        yield ", ".join(backward.results), backward.terms, backward.results


class Recorded:
    """The autograd graph of one call, or of a section of it.

    Args:
        plan: of the forward.
        backward: what is to be done.
        code: what lanes issue of it, if they do.
        cuts: where the graph is cut.

    Attributes:
        lasting: whether what backward itself recorded lies on this graph, so that no backward may free it.
        spent: results, by the tensor's name, behind which the graph would have been freed if it were not lasting.
    """

    def __init__(self, plan: Plan, backward: Backward, code: Code | None, cuts: Cuts) -> None:
        self.plan, self.backward, self.code, self.cuts = plan, backward, code, cuts
        self.lasting = False
        self.spent: set[str] = set()

    def gradients(
        self, given: Mapping[str, torch.Tensor], arguments: Sequence[torch.Tensor], wanted: Sequence[bool], keep: bool
    ) -> dict[str, Any]:
        """What ops add to the gradients of arguments, by the name of the term.

        Args:
            given: gradients of the results, by the tensor's name.
            arguments: the tensor that each term is of.
            wanted: whether its gradient is. If not, what leads to it alone stays there for another backward, as in eager.
            keep: whether there may be another backward through the graph.
        """
        self.lasting |= torch.is_grad_enabled()
        self.spent.update(given if self.lasting and not keep else ())
        keep = keep or self.lasting
        # Up to cuts alone: hooks of arguments are for the caller's engine to call.
        # If gradients are recorded, theirs are of all arguments, whichever are wanted now.
        asked = zip(self.backward.terms, arguments, [True] * len(wanted) if self.lasting else wanted, strict=True)
        read = {term: argument for term, argument, is_wanted in asked if is_wanted and term in self.cuts.parts}
        ends, parts = [self.cuts.ends[name] for name in given], [self.cuts.parts[term] for term in read]
        slopes = engine(ends, parts, keep) if self.code is None else self._by_segment(self.code, list(given), list(read), keep)
        return dict(zip(read, through(slopes, parts, list(given.values()), list(read.values())), strict=True))

    def _by_segment(self, code: Code, names: Sequence[str], read: Sequence[str], keep: bool) -> Slopes:
        """What finds terms segment by segment: on lanes, unless that is recorded or somebody watches the thread."""
        toward = self.backward.toward(read)

        def slopes(given: Sequence[torch.Tensor]) -> Gradients:
            values = dict(zip(names, given, strict=True))
            launch = Reversed(code, self.plan, self.backward, self.cuts, values, keep, toward)
            if torch.is_grad_enabled() or has_hidden_modes():
                launch.alone()
            else:
                issue(code, launch, ())
            return [launch.terms.pop(term, None) for term in read]

        return slopes


class _OnLanes(torch.autograd.Function):
    """Stands for a call, or for a section of it, in the caller's graph. Each argument is given once for each of its terms.

    So the caller's engine sums the terms, after what other readers of the argument add, as it would in eager.
    """

    @staticmethod
    def forward(ctx: Any, graph: Recorded, inner: Mapping[str, torch.Tensor], *arguments: Any) -> tuple[torch.Tensor, ...]:
        ctx.graph, ctx.names, ctx.arguments = graph, tuple(inner), arguments
        ctx.save_for_backward(torch.empty(0))
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in inner.values())  # shares its version counter, and is no view to autograd

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        graph: Recorded = ctx.graph
        given = {name: gradient for name, gradient in zip(ctx.names, gradients, strict=True) if gradient is not None}
        if graph.spent & given.keys():
            _ = ctx.saved_tensors  # raises, for the caller's engine has let go of it; otherwise the graph itself knows
        wanted = [node is None or _is_wanted(node) for node, _ in ctx.next_functions]
        terms = graph.gradients(given, ctx.arguments, wanted, torch._C._autograd._get_current_graph_task_keep_graph())
        # Taken out, for autograd keeps a gradient that nobody else has, and copies any other one.
        return (None, None, *(terms.pop(term, None) for term in graph.backward.terms))


class _Apart(torch.autograd.Function):
    """One of several results, with a node of its own: a node that is run calls the hooks of all its results."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor) -> torch.Tensor:
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def _has_hooks(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.grad_fn is not None or bool(value._backward_hooks or value._post_accumulate_grad_hooks)


def _is_wanted(node: Node) -> bool:
    """Whether the backward that is under way goes on to a node; `torch.autograd.grad` leaves out what it is not asked for."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch's word for a leaf that it was asked for
        return True
