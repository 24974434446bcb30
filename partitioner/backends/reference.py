"""The meaning of a program: one instruction at a time, in issue order, on the caller's thread.

Slow and plain. What every other backend does is right if it gives what this gives. It runs under any torch mode, so fake
tensors on devices that are not there can be sent through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from partitioner.backends.nodes import bodies_for, move, op_devices, results, retarget
from partitioner.backends.returned import marked, write_back
from partitioner.ir.plan import Plan
from partitioner.ir.program import Copy, Free, Run, original
from partitioner.model.modes import casts_kept, in_mode
from partitioner.model.node import call_target, fill


class Reference:
    """Interprets a plan's program.

    Args:
        plan: what to run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.device = plan, op_devices(plan)
        self.bodies = bodies_for(plan.graph, self.device.get)

    @property
    def code(self) -> str:
        """The program; there is no other code."""
        return str(self.plan.program)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the program; the graph's results."""
        with casts_kept():
            return self._results(arguments)

    def _results(self, arguments: Sequence[Any]) -> list[Any]:
        program, graph = self.plan.program, self.plan.graph
        given = dict(zip(graph.arguments, arguments, strict=True))
        state = {name: given[name] for name in graph.states} | self.bodies
        inputs = {name: self._home(name, given[name]) for name in program.inputs}
        moved = [inputs.get(name, given[name]) for name in graph.arguments]
        marks = marked(arguments, moved, graph.written_arguments)
        values: dict[str, Any] = dict(inputs)
        for item in program.instructions:
            if isinstance(item, Run):
                values.update(self._run(item, state, values))
            elif isinstance(item, Copy):
                with in_mode(graph.recorded.get(original(item.source))):
                    values[item.target] = move(values[item.source], program.lanes[item.lane].torch_device)
            elif isinstance(item, Free):
                del values[item.value]
        write_back(arguments, moved, marks)
        return list(fill(results(graph), lambda node: values[node.name] if node.name in values else given[node.name]))

    def _home(self, name: str, value: Any) -> Any:
        device = self.plan.program.by_name[name].torch_device
        return move(value, device) if device else value

    def _run(self, item: Run, state: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        local = {**state, **{original(name): values[name] for name in item.reads}}
        for op in self.plan.tasks.by_name[item.task].ops:
            local[op] = self.call(self.plan.graph.nodes[op], local)
        return {name: local[name] for name in item.writes}

    def call(self, node: torch.fx.Node, local: Mapping[str, Any]) -> Any:
        """The result of one op.

        Args:
            node: the op.
            local: what it reads, by name.
        """
        target, raw_args, raw_kwargs = retarget(node, self.device.get(node.name))
        args, kwargs = fill(
            (raw_args, raw_kwargs), lambda source: local[str(source.target) if source.op == "get_attr" else source.name]
        )
        kind = "call_method" if isinstance(target, str) else "call_function"
        with in_mode(self.plan.graph.by_name[node.name].mode):
            return call_target(kind, target, args, kwargs)
