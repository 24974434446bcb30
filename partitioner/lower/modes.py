"""Autocast follows an op to a device of another kind.

A call under ``torch.autocast("cuda")`` is traced as if all of it were on the GPU. An op that is placed on the CPU would be out
of that autocast's reach, and get half-precision values to go with its full-precision weights. Likewise the other way round.
"""

from __future__ import annotations

from dataclasses import replace

from partitioner.ir.graph import Op
from partitioner.ir.mode import Mode
from partitioner.ir.plan import Plan


def with_autocast(plan: Plan, entry: Mode) -> Plan:
    """``plan`` with each op under the autocast that holds on the device on which it was traced.

    Args:
        plan: of a graph that was traced on one device.
        entry: the modes under which its graph starts.
    """
    lanes, lane, task_of = plan.machine.lanes, plan.placement.lane, plan.tasks.task_of
    home = plan.graph.device.partition(":")[0] or lanes[0].kind
    ops = tuple(_moved(op, entry, home, lanes[lane[task_of[op.name]]].kind) for op in plan.graph.ops)
    return plan if ops == plan.graph.ops else replace(plan, graph=replace(plan.graph, ops=ops))


def _moved(op: Op, entry: Mode, home: str, kind: str) -> Op:
    mode = op.mode or entry
    known = {name: (enabled, dtype) for name, enabled, dtype in mode.autocast}
    mine, theirs = known.get(home), known.get(kind)
    if mine is None or theirs is None or mine == theirs or not (mine[0] or theirs[0]):
        return op
    known[kind] = mine
    return replace(op, mode=replace(mode, autocast=tuple((name, *setting) for name, setting in known.items())))
