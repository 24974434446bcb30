"""Why a plan does not fit, in words: what takes the memory of each device, and which caps would do.

on cuda:0, most is taken at backward of layer3_0_conv1: parameters 102 MiB, gradients 61 MiB, saved 790 MiB
  the largest: layer1_0_conv1 98 MiB, layer1_0_bn1 98 MiB, ...
This plan takes 1.21 GiB on cuda:0 and 310 MiB on cuda:1. No plan fits where every device has less than 640 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.ir.batch import largest_batch
from partitioner.ir.footprint import Footprint, footprints, least_cap
from partitioner.ir.machine import caps
from partitioner.ir.plan import Plan
from partitioner.ir.units import format_size


def explained(plan: Plan) -> Iterator[str]:
    """What takes the memory of each device whose cap a plan breaks, and the caps that would do.

    Args:
        plan: one that does not fit.

    Returns:
        Lines; none where nobody knows what its ops take. The caps named are enough for this plan; under the bound at their end
        no plan of these ops fits.
    """
    found, limits = footprints(plan), caps(plan.machine)
    if not found:
        return
    for name, each in found.items():
        if each.total > limits.get(name, each.total):
            yield from _of_device(each)
    enough = [f"{each.total} B ({format_size(each.total)}) on {name}" for name, each in found.items()]
    bound = format_size(least_cap(plan))
    yield f"This plan takes {_listed(enough)}. No plan fits where every device has less than {bound}."
    if (most := largest_batch(plan)) is not None:
        yield f"The largest batch that this plan fits with is {most}." if most else "No batch is small enough for this plan."


def _of_device(each: Footprint) -> Iterator[str]:
    yield f"On {each.device}, most is taken at {each.at or 'the start'}: {each.purposes}."
    if each.largest:
        yield f"  the largest: {each.contributors}"


def _listed(items: list[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
