"""What a task of a model costs a lane, from the costs of its ops: seconds, what keeps the host busy, what lanes must share.

On a CPU a lane issues its own ops, one after the other, so an op's overhead is part of its time; it is mostly Python, which
one thread runs at a time. On an accelerator the host issues every lane's ops ahead, and a lane's time is that of its kernels.

    CPU          lane   |over|op|over|op|            share: what of that time holds the interpreter
    accelerator  host   |over|over|                  issue
                 lane       |op| |op|                share: what of the multiprocessors or of the bandwidth the ops take
"""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.cost import Costs
from partitioner.ir.machine import Device

HELD = 4e-6
"""Most seconds of an op's overhead on a CPU lane for which no other lane gets on: it holds Python's interpreter lock."""

FULL_BYTES = 4 * 2**20
"""Bytes that a kernel touches when it keeps a whole accelerator busy: more than what is on the way at any instant."""


def lane_seconds(costs: Costs, ops: Sequence[str], device: Device, threads: int) -> float:
    """Seconds of some ops on a lane of ``device``, one after the other; of a CPU, each with so many threads."""
    if device.kind == "cpu":
        return costs.time(ops, device, threads)
    return sum(_kernel(costs, op, device) for op in ops)


def issue_seconds(costs: Costs, ops: Sequence[str], device: Device) -> float:
    """Seconds for which the host is busy to issue some ops to an accelerator."""
    return sum(min(device.overhead, costs.op_time(op, device)) for op in ops)


def share(costs: Costs, ops: Sequence[str], device: Device) -> float:
    """Part of what the lanes of a device have in common that some ops take while they run, 0 to 1."""
    if device.kind == "cpu":
        held = sum(min(HELD, costs.op_time(op, device)) for op in ops)
        return min(1.0, held / max(costs.time(ops, device, device.threads_per_lane), 1e-12))
    seconds = [_kernel(costs, op, device) for op in ops]
    filled = (min(1.0, costs.ops[op].moved / FULL_BYTES) * time for op, time in zip(ops, seconds, strict=True))
    return sum(filled) / sum(seconds) if sum(seconds) else 0.0


def serial_seconds(costs: Costs, device: Device) -> float:
    """Seconds of all ops on one lane of ``device``; of a CPU, with all of its cores.

    What a plan is compared with. Memory caps are ignored: a model that does not fit there has this time all the same.
    """
    ops = tuple(costs.ops)
    seconds = lane_seconds(costs, ops, device, device.cores)
    return seconds if device.kind == "cpu" else max(seconds, issue_seconds(costs, ops, device))


def _kernel(costs: Costs, op: str, device: Device) -> float:
    return max(0.0, costs.op_time(op, device) - device.overhead)
