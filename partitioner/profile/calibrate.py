"""What a machine takes to compute, move, issue, record, wait and hand over: measured, and written as a spec.

Every figure of a `Device` and a `Link` that would otherwise be assumed is measured by doing the thing: large products and sums
of tensors, ops on a few numbers, threads that wake each other, copies. Of an accelerator, events say when it began and ended.
What the spec has no key for stands in the file as a comment.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from partitioner.ir.machine import Device, Link, Machine
from partitioner.model.modes import threads
from partitioner.profile.clock import DISTURBED, Disturbed, time_of
from partitioner.profile.handoff import Handoff, between_streams, between_threads
from partitioner.profile.hardware import title
from partitioner.profile.interference import waited
from partitioner.spec.devices import cores, present

_PRODUCTS = {True: (512, 1024), False: (2048, 4096)}
_SUMS = {True: (1 << 18, 1 << 21, 1 << 24), False: (1 << 24, 1 << 26)}
"""Sides of square matrices, and numbers in a tensor: on a CPU, and on an accelerator, which needs more to be busy."""

_LARGE_COPY = 1 << 26


@dataclass(frozen=True)
class DeviceFigures:
    """What was measured of one device.

    Args:
        device: the device, with its measured figures in the place of those that were assumed.
        title: what the hardware calls itself.
        rates: FLOP/s by what was computed, on one lane.
        bandwidths: bytes/s by the size of the tensors in bytes, on one lane.
        handoff: what it costs to record, to wait, and to go on elsewhere.
        speedups: how much faster all threads are than one, by what was computed; without what others did not allow to time.
    """

    device: Device
    title: str
    rates: dict[str, float]
    bandwidths: dict[int, float]
    handoff: Handoff
    speedups: dict[str, float]


@dataclass(frozen=True)
class Calibration:
    """What was measured of a machine; as text, a spec in YAML.

    Args:
        devices: in the machine's order.
        links: of each ordered pair of devices.
        disturbed: the part of the time that threads waited for a core, which others had.
    """

    devices: tuple[DeviceFigures, ...]
    links: tuple[Link, ...]
    disturbed: float = 0.0

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def calibrate(machine: Machine) -> Calibration:
    """Measure the devices of a machine that are there, and the ways between them.

    Args:
        machine: whose devices and numbers of lanes are kept. Those that are not there are left out.
    """
    there = [device for device in machine.devices if present(device.torch_device)]
    start, waiting = time.perf_counter(), waited(whole=True)
    devices = tuple(map(_device, there))
    links = tuple(_link(source, target) for source in there for target in there if source is not target)
    return Calibration(devices, links, max(0.0, waited(whole=True) - waiting) / (time.perf_counter() - start))


def _device(device: Device) -> DeviceFigures:
    place = device.torch_device
    with torch.inference_mode(), threads(1):
        rates = {name: flops / time_of(call, place).seconds for name, call, flops in _work(place)}
        bandwidths, overhead = _bandwidths(place), _overhead(place)
        handoff = between_threads() if device.kind == "cpu" else between_streams(torch.device(place))
    measured = replace(
        device,
        flops=statistics.geometric_mean(rates.values()),
        bandwidth=statistics.geometric_mean(bandwidths.values()),
        overhead=overhead,
        handoff=handoff.seconds,
        assumed=(),
    )
    speedups = _speedups(device.cores) if device.kind == "cpu" and device.cores > 1 else {}
    return DeviceFigures(measured, title(place), rates, bandwidths, handoff, speedups)


def _work(place: str) -> Iterator[tuple[str, Callable[[], object], int]]:
    """What is computed: its name, a call, its FLOPs."""
    here = torch.device(place).type == "cpu"
    for size in _PRODUCTS[here]:
        a, b = torch.rand(size, size, device=place), torch.rand(size, size, device=place)
        yield f"{size} x {size} matrix product", lambda a=a, b=b: a @ b, 2 * size**3  # type: ignore[misc]
    batch = 1 if here else 64
    image, weight = torch.rand(batch, 64, 56, 56, device=place), torch.rand(64, 64, 3, 3, device=place)
    flops = 2 * batch * 64 * 64 * 9 * 56 * 56
    yield f"3 x 3 convolution of {batch} x 64 x 56 x 56", lambda: torch.conv2d(image, weight, padding=1), flops


def _bandwidths(place: str) -> dict[int, float]:
    """Of sums of two tensors, which read two and write one."""
    found = {}
    for count in _SUMS[torch.device(place).type == "cpu"]:
        a, b = torch.rand(count, device=place), torch.rand(count, device=place)
        found[4 * count] = 3 * 4 * count / time_of(lambda a=a, b=b: a + b, place).seconds  # type: ignore[misc]
    return found


def _overhead(place: str) -> float:
    """Seconds in which the host issues an op: the geometric mean over a few kinds of ops on a few numbers."""
    x, weight, bias = torch.rand(4, 8, device=place), torch.rand(8, 8, device=place), torch.rand(8, device=place)
    calls: list[Callable[[], object]] = [
        lambda: x + x,
        lambda: torch.relu(x),
        lambda: torch.nn.functional.linear(x, weight, bias),
        lambda: torch.softmax(x, -1),
    ]
    return statistics.geometric_mean(_issued(call, place) for call in calls)


def _issued(call: Callable[[], object], place: str) -> float:
    """Seconds of the host for one call; the device may be behind, but not so far that the host has to wait for it."""
    found = []
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(100):
            call()
        found.append((time.perf_counter() - start) / 100)
        if torch.device(place).type != "cpu":
            torch.accelerator.synchronize(torch.device(place))
    return statistics.median(found)


def _speedups(most: int) -> dict[str, float]:
    """How much faster ``most`` threads are than one, from what is too small for two to what is wide."""
    cases: list[tuple[str, Callable[[], object]]] = [(name, call) for name, call, _ in _work("cpu")]
    for size in (64, 128, 256):
        a, b = torch.rand(size, size), torch.rand(size, size)
        cases.append((f"{size} x {size} matrix product", lambda a=a, b=b: a @ b))  # type: ignore[misc]
    for channels, side in ((16, 14), (16, 32), (32, 56)):
        image, weight = torch.rand(1, channels, side, side), torch.rand(channels, channels, 3, 3)
        name = f"3 x 3 convolution of 1 x {channels} x {side} x {side}"
        cases.append((name, lambda image=image, weight=weight: torch.conv2d(image, weight, padding=1)))  # type: ignore[misc]
    found = {}
    with torch.inference_mode():
        for name, call in cases:
            with threads(1):
                one = time_of(call).seconds
            with threads(most), suppress(Disturbed):  # others use the cores: then nothing is known of it
                found[name] = one / time_of(call).seconds
    return found


def _link(source: Device, target: Device) -> Link:
    """Copies as a program makes them: of ordinary memory, one at a time."""
    here, there = torch.device(source.torch_device), torch.device(target.torch_device)

    def settle() -> None:
        for place in (here, there):
            if place.type != "cpu":
                torch.accelerator.synchronize(place)

    def seconds(size: int) -> float:
        tensor, found = torch.ones(size, dtype=torch.uint8, device=here), []
        for _ in range(7):
            settle()
            start = time.perf_counter()
            tensor.to(there)
            settle()
            found.append(time.perf_counter() - start)
        return statistics.median(found[1:])

    latency = seconds(4)
    return Link(source.name, target.name, _LARGE_COPY / max(seconds(_LARGE_COPY) - latency, 1e-9), latency)


# As a spec ------------------------------------------------------------------------------------------------------------


def _lines(found: Calibration) -> Iterator[str]:
    yield "# What `python -m partitioner calibrate` measured. Every figure is of one lane."
    yield f"# python {platform.python_version()}, torch {torch.__version__}, {platform.system()}, {cores()} cores"
    if found.disturbed > DISTURBED:
        yield f"# WARNING: others had the cores for {found.disturbed:.0%} of the time; measure again when none do."
    yield "devices:"
    for figures in found.devices:
        yield from _device_lines(figures)
    if found.links:
        yield "links:"
    for link in found.links:
        yield f'  - {{source: "{link.source}", target: "{link.target}", bandwidth: {_unit(link.bandwidth, "B/s")}, '
        yield f"     latency: {_time(link.latency)}}}"


def _device_lines(figures: DeviceFigures) -> Iterator[str]:
    device = figures.device
    yield f"  # {figures.title}"
    yield f'  - device: "{device.torch_device}"'
    if device.name != device.torch_device:
        yield f'    name: "{device.name}"'
    yield f"    lanes: {device.lanes}"
    yield f"    flops: {_unit(device.flops, 'FLOP/s')}  # the geometric mean of:"
    yield from (f"    #   {_unit(rate, 'FLOP/s')} in a {name}" for name, rate in figures.rates.items())
    yield f"    bandwidth: {_unit(device.bandwidth, 'B/s')}  # the geometric mean of sums of two tensors:"
    yield from (f"    #   {_unit(rate, 'B/s')} with {_unit(size, 'B')} each" for size, rate in figures.bandwidths.items())
    yield f"    overhead: {_time(device.overhead)}"
    handoff = figures.handoff
    yield f"    handoff: {_time(device.handoff)}  # to record: {_time(handoff.record)}, to wait: {_time(handoff.wait)}"
    if figures.speedups:
        yield f"    # {device.cores} threads inside one op beside one:"
    yield from (f"    #   {speedup:.2f}x in a {name}" for name, speedup in figures.speedups.items())


def _unit(value: float, unit: str) -> str:
    """A number with a decimal prefix, to four digits."""
    power = min(max(int(math.log10(value) // 3), 0), 4) if value > 0 else 0
    return f"{value / 1000**power:.4g}{['', 'k', 'M', 'G', 'T'][power]}{unit}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}us"
