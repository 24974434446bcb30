"""What the hardware is: devices, the lanes on them, the links between them.

Discovered, or written down in a spec, so that a laptop can plan for eight GPUs. A *lane* is a FIFO on one device: a
CUDA stream or a CPU worker thread. Everything here is a number with a unit; nothing here touches a device.

    Machine
      gpu0  cuda:0  2 lanes  80.0 GiB   gpu0/0  gpu0/1
      gpu1  cuda:1  1 lane   80.0 GiB   gpu1/0
      link gpu0 -> gpu1  50.0 GB/s  10 us
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from partitioner.ir.words import few


@dataclass(frozen=True)
class Device:
    """One place with its own memory. The defaults are those assumed of one CPU core.

    Args:
        name: what specs and reports call it, for example ``gpu0``.
        torch_device: what torch calls it, for example ``cuda:0``. All CPU lanes live on ``cpu``.
        lanes: how many FIFOs run on it at once.
        memory: bytes that a plan may use; ``None`` for no cap.
        flops: FLOP/s that one lane (of a CPU: one core) reaches on large float32 matrix products.
        bandwidth: bytes/s that one lane reads and writes in memory-bound ops.
        overhead: seconds that the host spends to issue one op.
        cores: threads that the ops of all its lanes can use together, for a CPU; 1 for an accelerator.
        handoff: seconds from the end of an op on one lane to the start of an op on another lane that waited for it.
        assumed: which of these figures nobody has given.
        rates: FLOP/s of a lane by dtype, such as ``("bfloat16", 7e14)``, where that is known to differ from ``flops``.
    """

    name: str
    torch_device: str
    lanes: int = 1
    memory: int | None = None
    flops: float = 5e10
    bandwidth: float = 1e10
    overhead: float = 2e-6
    handoff: float = 2e-5
    cores: int = 1
    assumed: tuple[str, ...] = ()
    rates: tuple[tuple[str, float], ...] = ()

    def rate(self, dtype: str) -> float:
        """FLOP/s of one lane on large matrix products of a dtype."""
        return next((rate for name, rate in self.rates if name == dtype), self.flops)

    @property
    def kind(self) -> str:
        """The torch device type: ``cpu``, ``cuda``, ``xpu``, ..."""
        return self.torch_device.partition(":")[0]

    @property
    def threads_per_lane(self) -> int:
        """Threads that an op may use while every lane is busy."""
        return max(1, self.cores // self.lanes)


@dataclass(frozen=True)
class Link:
    """A one-way connection between two devices, by name: ``bandwidth`` in bytes/s, ``latency`` in seconds.

    ``assumed`` says which of the two nobody has given.
    """

    source: str
    target: str
    bandwidth: float = 1.2e10
    latency: float = 2e-5
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lane:
    """A FIFO on one device: a CUDA stream, a CPU worker. ``name`` is ``<device name>/<index>``."""

    name: str
    device_name: str
    torch_device: str

    @property
    def kind(self) -> str:
        """The torch device type of the lane's device."""
        return self.torch_device.partition(":")[0]


DEFAULT_LINK = Link("", "")


@dataclass(frozen=True)
class Machine:
    """Devices and links. Lane 0 is the caller's own: its current stream or its thread."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """Every lane, device by device."""
        return tuple(
            Lane(f"{device.name}/{index}", device.name, device.torch_device)
            for device in self.devices
            for index in range(device.lanes)
        )

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The torch devices, each once."""
        return tuple(dict.fromkeys(device.torch_device for device in self.devices))

    @property
    def on_cpus(self) -> bool:
        """Whether it has no accelerator."""
        return all(device.kind == "cpu" for device in self.devices)

    @cached_property
    def name_at(self) -> dict[str, str]:
        """Device name by torch device."""
        return {device.torch_device: device.name for device in self.devices}

    @cached_property
    def by_name(self) -> dict[str, Device]:
        """Device by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        return {(link.source, link.target): link for link in self.links}

    def device_of(self, lane: int) -> Device:
        """The device that lane number ``lane`` runs on."""
        return self.by_name[self.lanes[lane].device_name]

    @property
    def assumed(self) -> tuple[str, ...]:
        """The figures that times rest on and nobody has given, in words: which of them, of which devices and links."""
        owners: dict[tuple[str, ...], list[str]] = {}
        for device in self.devices:
            owners.setdefault(device.assumed, []).append(device.name)
        for link in self.links:
            owners.setdefault(link.assumed, []).append(f"{link.source} -> {link.target}")
        return tuple(f"{', '.join(figures)} of {few(names)}" for figures, names in owners.items() if figures)

    def link(self, source: str, target: str) -> Link:
        """The link from device ``source`` to device ``target``; a PCIe-like default where none was written down."""
        return self._links.get((source, target), DEFAULT_LINK)

    def __str__(self) -> str:
        lines = ["Machine"]
        offset = 0
        for device in self.devices:
            names = "  ".join(lane.name for lane in self.lanes[offset : offset + device.lanes])
            memory = "no cap" if device.memory is None else f"{device.memory / 2**30:.1f} GiB"
            plural = "lane " if device.lanes == 1 else "lanes"
            lines.append(f"  {device.name}  {device.torch_device}  {device.lanes} {plural}  {memory}   {names}")
            offset += device.lanes
        for link in self.links:
            bandwidth, latency = link.bandwidth / 1e9, link.latency * 1e6
            lines.append(f"  link {link.source} -> {link.target}  {bandwidth:.1f} GB/s  {latency:.0f} us")
        return "\n".join(lines)


def accelerators_first(machine: Machine) -> Machine:
    """Lane 0 is the caller's: its stream where there is an accelerator, for then the host never waits at the end."""
    ordered = sorted(machine.devices, key=lambda device: device.kind == "cpu")
    return Machine(tuple(ordered), machine.links)


def capped(machine: Machine, cap: Callable[[Device], int | None]) -> Machine:
    """The machine with other memory caps, of which each device is asked."""
    return replace(machine, devices=tuple(replace(device, memory=cap(device)) for device in machine.devices))


def with_less(machine: Machine, taken: Mapping[str, int]) -> Machine:
    """The machine with less memory under its caps: bytes by torch device."""
    return capped(machine, lambda one: None if one.memory is None else max(0, one.memory - taken.get(one.torch_device, 0)))


def caps(machine: Machine) -> dict[str, int]:
    """Memory cap in bytes of each torch device that has one."""
    return {device.torch_device: device.memory for device in machine.devices if device.memory is not None}
