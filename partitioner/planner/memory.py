"""What a task holds on its device for good, in bytes: what the memory of a problem's tasks means while a model is trained."""

from __future__ import annotations

from partitioner.ir.cost import Costs
from partitioner.ir.memory import Memory
from partitioner.ir.task import TaskGraph


def demands(tasks: TaskGraph, costs: Costs, memory: Memory | None = None) -> list[int]:
    """Bytes that each task holds for good; what several tasks use counts for the first of them, for they share a device.

    Args:
        tasks: what is placed.
        costs: bytes of state of each op.
        memory: what ops and state take while the model is trained: gradients and what the optimizer keeps come with parameters,
            and all of it is there when the optimizer steps. Without it, parameters and buffers alone.
    """
    if memory is None:
        return [sum(costs.ops[op].state for op in task.ops) for task in tasks.tasks]
    counted: set[int] = set()
    first: dict[str, int] = {}
    for op in tasks.graph.ops:
        fresh = {memory.state[name].storage: memory.state[name] for name in op.state if name in memory.state}
        first[op.name] = sum(each.total for storage, each in fresh.items() if storage not in counted)
        counted.update(fresh)
    return [sum(first[op] for op in task.ops) for task in tasks.tasks]
