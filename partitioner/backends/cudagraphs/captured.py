"""One capture: a program that was issued once into a CUDA graph, on memory of its own, and is replayed since.

    forward    arguments --copy--> memory     replay     results   --copy--> the caller's own
    backward   gradients --copy--> asked      replay     gradients --copy--> the caller's own

A graph has addresses burnt in. State is read and written where it lies; arguments of a call are copied to where the graph reads
them, and results from where it writes them, so that the next call overwrites nothing that somebody holds.

`torch.cuda.make_graphed_callables` is not used, although it records forward and backward the same way. Its results lie in the
graph's memory; its warm-up runs the function and writes buffers; its backward gives zeros where eager gives ``None``; and of
two calls before a backward the second one overwrites what the first has kept. Here a call whose backward is still to come keeps
its capture for itself (`Use`), and nothing runs for warmth.

Source: CUDA graphs in torch, https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from partitioner.backends.cudagraphs.capturing import NEXT, CaptureError, Cuda, Pool, explained
from partitioner.backends.cudagraphs.copies import Copies
from partitioner.ir.plan import Plan
from partitioner.model.storage import is_dense, packed

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Issues a program."""

Pattern = tuple[bool, ...]
"""Which of the results that can have a gradient have one in a backward."""


class Capture:
    """A program on memory of its own.

    Args:
        cuda: who captures.
        run: issues the program.
        plan: of the program, whose lanes are on one device.
        arguments: of a call; what is captured is good for calls of the same kind.
        pool: where its memory comes from; one of its own, if gradients are recorded.
        grad: whether gradients are recorded.

    Raises:
        CaptureError: something in it cannot be captured.
    """

    def __init__(self, cuda: Cuda, run: Run, plan: Plan, arguments: Sequence[Any], pool: Pool, grad: bool) -> None:
        self.cuda, self.plan, self.pool, self.grad = cuda, plan, pool, grad
        self.device = plan.machine.lanes[0].torch_device
        self.state = state_positions(plan)
        state = set(self.state)
        self.inputs = [n for n, value in enumerate(arguments) if isinstance(value, Tensor) and n not in state]
        self.addresses = addresses(arguments, self.state)
        self.holder: weakref.ref[Use] | None = None
        with explained(plan), cuda.capture(self.device, pool.handle) as self.graph:
            with torch.inference_mode(False):
                self.memory = [cuda.room(arguments[position], self.device) for position in self.inputs]
            self.values = self._values(arguments)
            self.results = list(run(self.values))
        self.leaves = [n for n, value in enumerate(self.values) if grad and isinstance(value, Tensor) and value.requires_grad]
        self.roots = [n for n, value in enumerate(self.results) if grad and isinstance(value, Tensor) and value.requires_grad]
        self.parameters = [position for position in self.leaves if position in state]
        self.copies = Copies(
            plan, self.values, self.results, {n for n in self.inputs if str(arguments[n].device) != self.device}
        )
        if self.roots and self.copies.shares:
            raise CaptureError("results share memory with each other or with an argument, and gradients are recorded" + NEXT)
        self.backwards: dict[Pattern, Backward] = {}
        self.wanted: set[Pattern] = set()

    def _values(self, arguments: Sequence[Any]) -> list[Any]:
        """What the program is called with: the graph's memory, and state. With gradients: leaves of a graph of their own."""
        values = list(arguments)
        for position, tensor in zip(self.inputs, self.memory, strict=True):
            values[position] = tensor
        if self.grad:
            for position in (*self.inputs, *self.state):
                leaf = self.cuda.alias(values[position])
                values[position] = leaf.requires_grad_(arguments[position].requires_grad)
        return values

    @property
    def is_free(self) -> bool:
        """Whether no call that went through it can still have a backward."""
        use = None if self.holder is None else self.holder()
        return use is None or use.is_done

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Replay it on the arguments of a call of its kind; the results, which are the caller's."""
        for pattern in self.wanted - self.backwards.keys():
            self.backwards[pattern] = self._captured_backward(pattern)
        with self.pool.in_turn(), torch.no_grad():
            self.cuda.copy([packed(own) for own in self.memory], [packed(arguments[n]) for n in self.inputs])
            self.graph.replay()
            self._write_back(arguments)
            found = self.copies.own(self.cuda, arguments)
        return self._recorded(found, arguments) if self.roots else found

    def _write_back(self, arguments: Sequence[Any]) -> None:
        """Let the caller's tensors have what was written to them, and autograd know of what was written in place."""
        written = [arguments[position] for position in self.plan.graph.written_arguments]
        torch.autograd.graph.increment_version([tensor for tensor in written if not tensor.is_inference()])
        for position in self.plan.graph.written_arguments:
            if position in self.inputs:
                arguments[position].copy_(self.memory[self.inputs.index(position)])

    def _recorded(self, found: list[Any], arguments: Sequence[Any]) -> list[Any]:
        """The results, with a node of autograd that stands for the call."""
        use = Use(self, [arguments[position] for position in self.parameters])
        self.holder = weakref.ref(use)
        apply: Callable[..., Sequence[Tensor]] = _Replayed.apply
        outer = apply(use, [found[number] for number in self.roots], *(arguments[position] for position in self.leaves))
        for number, tensor in zip(self.roots, outer, strict=True):
            found[number] = tensor
        return found

    def gradients(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the leaves: replayed; where this pattern is new, by autograd over what the last replay has kept."""
        pattern = tuple(one is not None for one in given)
        asked = [one for one in given if one is not None]
        if pattern in self.backwards:
            return self.backwards[pattern](asked)
        self.wanted.add(pattern)
        with self.pool.in_turn():
            found = self.differentiated(pattern, asked)
            self.cuda.announce([gradient for gradient in found if gradient is not None], self.device)
        return found

    def _captured_backward(self, pattern: Pattern) -> Backward:
        """Capture a backward that has been seen. Gradients are made dense in it, so that few kernels copy them out."""
        roots = [self.results[number] for number, has in zip(self.roots, pattern, strict=True) if has]
        with explained(self.plan), self.cuda.capture(self.device, self.pool.handle) as graph:
            asked = [torch.empty_like(root.detach()) for root in roots]
            found = self.differentiated(pattern, asked)
            if any(gradient is not None and gradient.layout is not torch.strided for gradient in found):
                raise CaptureError("a parameter has sparse gradients, which have no fixed size" + NEXT)
            dense = [gradient if gradient is None or is_dense(gradient) else gradient.contiguous() for gradient in found]
        return Backward(self.cuda, self.pool, graph, asked, dense)

    def differentiated(self, pattern: Pattern, asked: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of the leaves, by autograd. The graph stays: it is gone through whenever a pattern is new."""
        roots = [self.results[number] for number, has in zip(self.roots, pattern, strict=True) if has]
        leaves = [self.values[position] for position in self.leaves]
        return list(torch.autograd.grad(roots, leaves, asked, retain_graph=True, allow_unused=True))


class Backward:
    """A capture's backward, for one pattern of results that have a gradient. It does not know its capture, which holds it.

    Args:
        graph: what is replayed.
        asked: where it reads gradients of results.
        found: where it writes gradients of leaves.
    """

    def __init__(self, cuda: Cuda, pool: Pool, graph: Any, asked: Sequence[Tensor], found: Sequence[Tensor | None]) -> None:
        self.cuda, self.pool, self.graph, self.asked, self.found = cuda, pool, graph, asked, found
        self.made = [gradient for gradient in found if gradient is not None]

    def __call__(self, asked: Sequence[Tensor]) -> list[Tensor | None]:
        """Replay it; gradients of the leaves, which are the caller's."""
        own = [None if gradient is None else torch.empty_like(gradient) for gradient in self.found]
        with self.pool.in_turn():
            self.cuda.copy(self.asked, asked)
            self.graph.replay()
            self.cuda.copy([gradient for gradient in own if gradient is not None], self.made)
        return own


class Use:
    """A call whose backward may still come. Until then, its capture is its own.

    Args:
        capture: that it went through.
        state: parameters, of which backward needs the values that forward saw.
    """

    def __init__(self, capture: Capture, state: Sequence[Tensor]) -> None:
        self.capture, self.state, self.is_done = capture, state, False
        self.versions = [tensor._version for tensor in state]

    def gradients(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the capture's leaves.

        Raises:
            CaptureError: the graph has no longer, or never had, what this backward needs.
        """
        if self.is_done:
            raise CaptureError(
                "backward went through this call before, and let go of it; pass retain_graph=True to the first one"
            )
        if torch.is_grad_enabled():
            raise CaptureError(
                "a gradient of a gradient is asked for (create_graph=True), and a CUDA graph records none" + NEXT
            )
        if self.versions != [tensor._version for tensor in self.state]:
            raise CaptureError("a parameter was written after forward and before its backward, which needs what it was")
        found = self.capture.gradients(given)
        self.is_done = not torch._C._autograd._get_current_graph_task_keep_graph()
        return found


class _Replayed(torch.autograd.Function):
    """Stands for a call in the caller's graph."""

    @staticmethod
    def forward(ctx: Any, use: Use, made: Sequence[Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.use = use
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.use.gradients(gradients))


def state_positions(plan: Plan) -> list[int]:
    """Positions of the arguments that are the model's and stay where they lie."""
    return [position for position, name in enumerate(plan.graph.arguments) if name in plan.graph.states]


def addresses(arguments: Sequence[Any], positions: Sequence[int]) -> list[int]:
    """Where some of the arguments lie."""
    return [arguments[position].data_ptr() for position in positions]
