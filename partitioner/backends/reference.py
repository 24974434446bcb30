"""The meaning of a program: one instruction at a time, in issue order, on the caller's thread.

Slow and plain. What every other backend does is right if it gives what this gives. It runs under any torch mode, so fake
tensors on devices that are not there can be sent through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from partitioner.backends.nodes import constants_for, move, results, retarget
from partitioner.ir.plan import Plan
from partitioner.ir.program import Copy, Free, Run
from partitioner.model.node import call_target, fill, load_state


class Reference:
    """Interprets a plan's program.

    Args:
        plan: what to run.
        stand_in: gives the torch device to use in the place of one of the plan's.
    """

    def __init__(self, plan: Plan, stand_in: Callable[[str], str] = str) -> None:
        self.plan, self.stand_in = plan, stand_in
        self.nodes = {node.name: node for node in plan.graph.fx.nodes}
        lane = plan.placement.lane
        self.device = {op: stand_in(plan.machine.lanes[lane[task]].torch_device) for op, task in plan.tasks.task_of.items()}
        self.constants = constants_for(plan.graph, self.device.__getitem__)

    @property
    def code(self) -> str:
        """The program; there is no other code."""
        return str(self.plan.program)

    def __call__(self, root: nn.Module, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Run the program on ``root``'s state; the graph's results."""
        program = self.plan.program
        values: dict[str, Any] = dict(zip(program.inputs, tensors, strict=True))
        for item in program.instructions:
            if isinstance(item, Run):
                values.update(self._run(item, root, values))
            elif isinstance(item, Copy):
                values[item.target] = move(values[item.source], self.stand_in(program.lanes[item.lane].torch_device))
            elif isinstance(item, Free):
                del values[item.value]
        nodes = results(self.plan.graph)
        return [values[node.name] if isinstance(node, torch.fx.Node) else node for node in nodes]

    def _run(self, item: Run, root: nn.Module, values: dict[str, Any]) -> dict[str, Any]:
        local = {name.partition("@")[0]: values[name] for name in item.reads}
        for op in self.plan.tasks.by_name[item.task].ops:
            local[op] = self._call(self.nodes[op], root, local)
        return {name: local[name] for name in item.writes}

    def _call(self, node: torch.fx.Node, root: nn.Module, local: dict[str, Any]) -> Any:
        def value(source: torch.fx.Node) -> Any:
            return local[source.name] if source.name in local else load_state(root, str(source.target), self.constants)

        if node.op == "get_attr":
            return load_state(root, str(node.target), self.constants)
        target, raw_args, raw_kwargs = retarget(node, self.device[node.name])
        args, kwargs = fill((raw_args, raw_kwargs), value)
        return call_target(root, node.op, target, args, kwargs)
