"""Programs as CUDA graphs: a call is one launch, whatever the program issues on however many lanes.

first call of a kind       issued on streams, as without graphs: libraries make what they need, and what it does counts
second call of the kind    captured, and replayed                                                          (`captured`)
further calls              replayed; captured again where a tensor of the model has moved

What libraries make, such as handles and plans of convolutions, each thread has for itself, and a capture cannot make it. So
only a thread that has issued a call of the kind captures one. What there is, all threads replay.

The *kind* of a call is what a graph has burnt in besides addresses: sizes, strides and dtypes of its arguments, numbers among
them, and whether gradients are recorded, and of what. Nothing is left out in silence: what cannot be captured is refused, with
its reason, when the program is made or when the call comes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from partitioner.backends.cudagraphs.captured import Capture, addresses, state_positions
from partitioner.backends.cudagraphs.capturing import CUDA, NEXT, CaptureError, Cuda, Pool
from partitioner.backends.executable import Executable
from partitioner.backends.nodes import op_devices
from partitioner.backends.workers import has_hidden_modes
from partitioner.errors import SpecError
from partitioner.ir.access import ANY, LATER, SENT
from partitioner.ir.plan import Plan
from partitioner.model.call import sharing
from partitioner.model.storage import overlaps

MOST = 16
"""Captures of one program, and kinds of its calls: each capture has memory of its own."""

Kind = tuple[Any, ...]


class Graphed:
    """Runs a program as CUDA graphs, one for each kind of call.

    Args:
        plainly: issues a program on streams of one device.
        cuda: who captures; torch, if left out.

    Raises:
        SpecError: it is not on one CUDA device.
        CaptureError: something in it can never be captured.
    """

    def __init__(self, plainly: Executable, cuda: Cuda | None = None) -> None:
        self.plainly, self.plan, self.cuda = plainly, plainly.plan, cuda or CUDA
        plan = self.plan
        self.device = plan.machine.lanes[0].torch_device
        refuse_devices(plan.machine.places, self.cuda)
        for reason in _obstacles(plan):
            raise CaptureError(f"{plan.graph.name} cannot be captured as a CUDA graph: {reason}{NEXT}")
        self.state = state_positions(plan)
        self.inputs = [n for n, name in enumerate(plan.graph.arguments) if name not in plan.graph.states]
        self.kinds: dict[Kind, list[Capture]] = {}
        self.moves = 0
        self.here = threading.local()
        self.lock = threading.RLock()

    @property
    def code(self) -> str:
        """The generated source, which is what is captured."""
        return self.plainly.code

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the program; the graph's results.

        Raises:
            CaptureError: the call cannot be captured, or there are too many kinds of calls.
        """
        self._refuse_surroundings()
        kind = self._kind(arguments)
        with self.lock:
            captures = self.kinds.get(kind)
            capture = None if captures is None else self._ready(captures, arguments, kind in self._issued())
            if capture is not None:
                return capture(arguments)
        if captures is None:
            self._refuse_arguments(arguments)
        with self.cuda.watched() as waits:
            found = list(self.plainly(arguments))
        if waits:
            raise CaptureError(f"{self.plan.graph.name} waits for the device, which a CUDA graph cannot: {waits[0]}{NEXT}")
        with self.lock:
            self.kinds.setdefault(kind, [])
        self._issued().add(kind)
        return found

    def _issued(self) -> set[Kind]:
        """The kinds of calls that this thread has issued."""
        kinds: set[Kind] = self.here.__dict__.setdefault("kinds", set())
        return kinds

    def _refuse_surroundings(self) -> None:
        """Raise if the caller is in something that a capture does not go together with."""
        if self.cuda.is_capturing(self.device):
            raise CaptureError(
                "the call is being captured already, and cuda_graphs=True captures by itself; leave one of them out"
            )
        if has_hidden_modes():
            raise CaptureError(
                "the call is under a mode of Python's (a dispatch or function mode, such as torch.device as a context; a "
                "functorch transform; forward-mode differentiation; hooks on saved tensors), which a replay would not see. "
                "Leave cuda_graphs out, or call outside of it"
            )
        if self.cuda.keeps_casts():
            raise CaptureError(
                "autocast keeps weights that it has cast, and a graph would go on reading those of one call. "
                "Write torch.autocast(..., cache_enabled=False)"
            )

    def _kind(self, arguments: Sequence[Any]) -> Kind:
        """What a graph of this call has burnt in, besides addresses."""
        grad = torch.is_grad_enabled()
        kind: list[Any] = [grad, torch.is_inference_mode_enabled()]
        for position in self.inputs:
            value = arguments[position]
            if not isinstance(value, Tensor):
                kind.append(value if isinstance(value, int) else type(value))
            elif value.layout is torch.strided:
                kind.append((value.size(), value.stride(), value.dtype, value.device, grad and value.requires_grad))
        if grad:
            kind += [arguments[position].requires_grad for position in self.state]
        return tuple(kind)

    def _refuse_arguments(self, arguments: Sequence[Any]) -> None:
        """Raise if a call of a new kind cannot be captured."""
        if len(self.kinds) >= MOST:
            raise CaptureError(
                f"calls of {self.plan.graph.name} came in {MOST} kinds (sizes, strides, dtypes, numbers, gradients), each of "
                "which has a CUDA graph and memory of its own, and this is another one. Pad to a few sizes, or leave "
                "cuda_graphs out"
            )
        for name, value in zip(self.plan.graph.arguments, arguments, strict=True):
            fault = _fault(value, self.device if name in self.plan.graph.states else "")
            if fault:
                name = self.plan.graph.states.get(name, name)
                raise CaptureError(f"argument {name} of {self.plan.graph.name} {fault}{NEXT}")
        inputs, written = set(self.inputs), self.plan.graph.written_arguments
        if any(len(shared) > 1 and inputs & set(shared) for shared in sharing(arguments, written)):
            raise CaptureError(f"{self.plan.graph.name} writes to an argument that shares memory with another one{NEXT}")
        if any(isinstance(value, Tensor) and value.requires_grad for value in arguments) and torch.is_grad_enabled():
            for reason in _obstacles_to_backward(self.plan, inputs):
                raise CaptureError(f"{self.plan.graph.name} cannot be captured with its backward: {reason}{NEXT}")

    def _ready(self, captures: list[Capture], arguments: Sequence[Any], may_capture: bool) -> Capture | None:
        """A capture that a call may use: where state lies now, and whose last call needs nothing any more. Or a new one."""
        now = addresses(arguments, self.state)
        for capture in list(captures):
            if capture.is_free and capture.addresses != now:
                self._note_move(capture.addresses, now)
                captures.remove(capture)
            elif capture.is_free:
                return capture
        if not may_capture:
            return None
        everything = [capture for some in self.kinds.values() for capture in some]
        if len(everything) >= MOST:
            raise CaptureError(
                f"{self.plan.graph.name} has {MOST} captures, {sum(not one.is_free for one in everything)} of which wait for "
                "their backward. Call backward before the next calls, drop results that are not needed, or leave cuda_graphs "
                "out"
            )
        grad = torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in arguments)
        shared = None if grad else next((one.pool for one in everything if not one.grad), None)
        pool = shared or Pool(self.cuda, self.device)
        captures.append(Capture(self.cuda, self.plainly, self.plan, arguments, pool, grad))
        return captures[-1]

    def _note_move(self, before: Sequence[int], now: Sequence[int]) -> None:
        """Count captures that state has moved away from; raise if that goes on."""
        self.moves += 1
        if self.moves > MOST:
            names = [self.plan.graph.states[self.plan.graph.arguments[position]] for position in self.state]
            moved = next(name for name, old, new in zip(names, before, now, strict=True) if old != new)
            raise CaptureError(
                f"{moved} of {self.plan.graph.name} lies elsewhere again, and what was captured reads where it was: state has "
                f"moved {MOST} times. Write to it in place (copy_, add_) instead of replacing it, or leave cuda_graphs out"
            )


def refuse_devices(devices: Sequence[str], cuda: Cuda | None = None) -> None:
    """Raise if lanes are not all on one CUDA device.

    Args:
        devices: the torch device of each.
        cuda: who captures; torch, if left out.

    Raises:
        SpecError: they are elsewhere.

    Example:
        >>> refuse_devices(["cuda:0", "cuda:0"])
        >>> refuse_devices(["cuda:0", "cuda:1"])
        Traceback (most recent call last):
        ...
        partitioner.errors.SpecError: cuda_graphs=True captures programs of one CUDA device, and the devices are cuda:0, ...
    """
    kind, places = (cuda or CUDA).kind, list(dict.fromkeys(devices))
    on_cuda = [place for place in places if place.partition(":")[0] == kind]
    if len(places) == len(on_cuda) == 1:
        return
    todo = "Leave cuda_graphs out; CPU lanes have no launches to save"
    if on_cuda:
        todo = 'Name one, with its lanes: devices=["cuda:0", "cuda:0"]'
    raise SpecError(f"cuda_graphs=True captures programs of one CUDA device, and the devices are {', '.join(places)}. {todo}")


def _obstacles(plan: Plan) -> Iterator[str]:
    """Why a program can never be captured."""
    inputs = {name for name in plan.graph.arguments if name not in plan.graph.states}
    for op in plan.graph.ops:
        touched = {access.resource for access in op.accesses if access.write}
        if ANY in touched:
            yield f"what {op.shown} does besides is not known, and a replay runs no Python"
        if SENT in touched:
            yield f"{op.shown} sends to other ranks"
        if op.mode is not None and op.mode.cache and any(enabled for _, enabled, _ in op.mode.autocast):
            yield f"{op.shown} is under an autocast that keeps weights; write cache_enabled=False there"
        if "as_strided" in op.target and inputs & set(op.storages):
            yield f"{op.shown} looks at the memory around an argument, and a graph reads a copy of the argument alone"
    yield from _strangers(plan)


def _strangers(plan: Plan) -> Iterator[str]:
    """Ops that make tensors on another device: what a kernel takes from there is burnt in."""
    if op_devices(plan):
        return  # each is told to make them on its lane's
    here = plan.machine.lanes[0].torch_device
    for node in plan.graph.fx.nodes:
        op = plan.graph.by_name.get(node.name)
        made = tree_leaves(node.meta.get("example_value")) if op is not None else ()
        places = {str(leaf.device) for leaf in made if isinstance(leaf, Tensor)} - {here}
        if op is not None and places:
            yield f"{op.shown} makes a tensor on {', '.join(sorted(places))}, which a replay does not make anew"


def _obstacles_to_backward(plan: Plan, inputs: set[int]) -> Iterator[str]:
    """Why a program cannot be captured while gradients are recorded."""
    for op in plan.graph.ops:
        if any(access.resource == LATER for access in op.accesses):
            yield f"{op.shown} draws random numbers in its backward"
    for position in plan.graph.written_arguments:
        if position in inputs:
            yield f"it writes to its argument {plan.graph.arguments[position]}"


def _fault(value: Any, home: str) -> str:
    """What is wrong with an argument, as the end of a sentence; ``home`` is where it has to lie, ``""`` for anywhere."""
    if not isinstance(value, Tensor):
        return "" if isinstance(value, int) else f"is a {type(value).__name__}; a graph takes tensors and whole numbers"
    if is_traceable_wrapper_subclass(value) or value.layout is not torch.strided or value.is_nested or value.is_quantized:
        return "is no plain dense tensor"
    if home and str(value.device) != home:
        return f"lies on {value.device}, and the program runs on {home}"
    if not home and overlaps(value):
        return "has elements that lie at one address; pass a copy (.clone())"
    return ""
