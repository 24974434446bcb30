"""A graph of a call, run again and again without a trace: on stand-ins of its arguments, and with no code of the model's.

State and arguments are read where they lie. What the graph writes is written to a copy, made anew for each run. Gradients are
asked of leaves of their own, so that no hook of a tensor is called and nothing is added to ``grad``.

On several devices plans want state in different places. It stays where it lies, and copies stand where else it is wanted:

    cuda:0   w0, w1      read by plan 1, and w0 by plan 2
    cuda:1   w1'         a copy for plan 2, made once for all plans that want w1 there
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partitioner.backends.bodies import is_torchs
from partitioner.backends.executable import Executable
from partitioner.backends.race import go_back, stand_in, with_gradients
from partitioner.errors import PlacementError
from partitioner.ir.access import ANY
from partitioner.ir.footprint import footprints
from partitioner.ir.machine import caps
from partitioner.ir.plan import Plan, state_devices
from partitioner.runtime.pieces import Piece

COMPUTING = ("torchvision", "transformers", "torchaudio")
"""Libraries whose ops compute, and do nothing else."""

HARMLESS = frozenset([getattr, torch.tensor, torch.as_tensor, *(each for each in vars(math).values() if callable(each))])
"""What stands in graphs beside torch's ops and leaves no trace."""

HEARD = frozenset(["backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"])
"""Methods of a tensor that call hooks, or leave some."""


def can_be_repeated(piece: Piece, arguments: Sequence[Any], strangers: bool = False) -> bool:
    """Whether a graph can be run on stand-ins: what it does is known, and a copy can take the place of what it writes.

    Args:
        piece: the graph.
        arguments: of a call.
        strangers: whether it may call what is not torch's: a kernel of the user's may print, or count how often it runs.
    """
    graph = piece.plan.graph
    if any(access.resource == ANY for op in graph.ops for access in op.accesses):
        return False
    if not strangers and not all(_is_known(node) for node in graph.fx.nodes if node.op.startswith("call_")):
        return False
    if not all(map(_is_plain, arguments)) or any(len(positions) > 1 for positions in piece.shared):
        return False
    return not any(isinstance(arguments[position], Tensor) and arguments[position].requires_grad for position in piece.written)


def _is_known(node: torch.fx.Node) -> bool:
    """Whether what a node calls is torch's, a library's, or ours: of a kernel of the user's nobody knows what else it does."""
    if is_torchs(node) or node.target in HARMLESS:
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace in COMPUTING
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return node.target._qualified_op_name.partition("::")[0] in ("aten", *COMPUTING)
    return getattr(node.target, "__module__", "").startswith("partitioner.")


def is_silent(piece: Piece) -> bool:
    """Whether a graph may run once more where state is put back: it calls nothing of the user's, which might tell somebody."""
    calls = [node for node in piece.plan.graph.fx.nodes if node.op.startswith("call_")]
    return all(_is_known(node) or _home(node.target).partition(".")[0] == "torch" for node in calls)


def _home(target: Any) -> str:
    """The module where a function, or the class of a method, is at home; "" for kernels, which `_is_known` tells apart."""
    if isinstance(target, str):
        return "torch" if hasattr(Tensor, target) and target not in HEARD else ""
    named = target if getattr(target, "__module__", None) else getattr(target, "__objclass__", target)
    return "" if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket) else str(named.__module__)


def _is_plain(value: Any) -> bool:
    """Whether an argument is a tensor with values, in one piece of memory and of no class of the user's, or a number."""
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_meta
    return isinstance(value, int | float)


def repeatable(piece: Piece, executable: Executable, arguments: Sequence[Any], backward: bool) -> Callable[[], None]:
    """A run of a graph that leaves no trace.

    Args:
        piece: the graph.
        executable: what is to run it.
        arguments: of a call.
        backward: whether a backward from all results belongs to it.
    """
    leaves = [stand_in(value) for value in arguments]
    wanted = with_gradients(leaves) if backward else []

    def run() -> None:
        given = list(leaves)
        for position in piece.written:
            given[position] = _another(leaves[position])
        go_back(executable(given), wanted)

    return run


def _another(value: Any) -> Any:
    """What a run may write to."""
    return value.clone() if isinstance(value, Tensor) else value


class Spares:
    """The arguments of one graph for plans that want its state in different places.

    Args:
        arguments: of a call; its state lies where it lies, and stays there.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.arguments = arguments
        self.copies: dict[tuple[int, str], Tensor] = {}
        self.entered: list[Plan] = []

    def enter(self, plan: Plan) -> list[Any]:
        """The arguments for one plan more.

        Raises:
            PlacementError: it, or one before it, would not keep a memory cap beside the copies.
        """
        plans = [*self.entered, plan]
        if not all(self._fits(each, plans) for each in plans):
            raise PlacementError("there is no room for copies of state beside the plans that are there")
        self.entered = plans
        given = list(self.arguments)
        for position, device in self._wanted(plan):
            if str(given[position].device) != device:
                if (position, device) not in self.copies:
                    self.copies[position, device] = _copied(given[position], device)
                given[position] = self.copies[position, device]
        return given

    def leave(self, plan: Plan) -> None:
        """Give back the copies that this plan alone has wanted."""
        self.entered = [each for each in self.entered if each is not plan]
        wanted = {place for each in self.entered for place in self._wanted(each)}
        self.copies = {place: copy for place, copy in self.copies.items() if place in wanted}

    def _wanted(self, plan: Plan) -> Iterable[tuple[int, str]]:
        """The position of each argument that is state, and the torch device on which the plan reads it."""
        homes, names = state_devices(plan), plan.graph.states
        for position, name in enumerate(plan.graph.arguments):
            if names.get(name) in homes and isinstance(self.arguments[position], Tensor):
                yield position, homes[names[name]]

    def _fits(self, plan: Plan, plans: Sequence[Plan]) -> bool:
        """Whether a plan keeps the machine's caps beside state that lies on its devices for others."""
        limits = caps(plan.machine)
        if not limits or plan.memory is None:
            return True
        mine = {*self._wanted(plan)}
        lies = {(position, str(self.arguments[position].device)) for position, _ in mine}
        others = dict.fromkeys(limits, 0)
        for position, device in lies.union(*map(self._wanted, plans)) - mine:
            others[device] = others.get(device, 0) + self.arguments[position].nbytes
        takes = footprints(plan)
        return all(others[each] + (takes[each].total if each in takes else 0) <= cap for each, cap in limits.items())


def _copied(tensor: Tensor, device: str) -> Tensor:
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
