"""Spec to machine: fills in what the spec does not say, from what is found here and from plain assumptions.

An absent device is never touched, so a laptop can plan for eight GPUs; :func:`missing_devices` says what cannot run
here. Assumed numbers only have to rank plans: measure, and write them in the spec, where more is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import permutations
from typing import Any

import torch

from partitioner.errors import PlacementError, SpecError
from partitioner.ir.machine import DEFAULT_LINK, Device, Link, Machine, accelerators_first, capped
from partitioner.ir.units import quote
from partitioner.spec.devices import cores, parse_device, present, properties
from partitioner.spec.hardware import HARDWARE, REACHED, Hardware, link_between
from partitioner.spec.spec import DeviceSpec, LinkSpec, Spec, load_spec

MOST_CPU_LANES = 8  # beyond that, lanes share caches and memory channels more than they add
USABLE_MEMORY = 0.9  # the rest is for torch's context, the allocator's gaps, and kernels' workspaces
CPU_CORE = Device("", "cpu")
ACCELERATOR = Device("", "cuda", flops=2e13, bandwidth=1e12, overhead=6e-6, handoff=1e-5)
PEER_LINK = Link("", "", bandwidth=5e10, latency=1e-5)
HOST_LINK = DEFAULT_LINK
_HOST = HARDWARE["CPU-core"]
FIGURES = ("flops", "bandwidth", "overhead", "handoff")
"""What a plan reckons with of a device, beside its lanes, cores and memory. A spec says it, or it is assumed."""


def discover() -> tuple[str, ...]:
    """The devices of this machine, one string per lane: every accelerator, else the CPU once per core, at most 8 times.

    >>> len(discover()) >= 1
    True
    """
    found = torch.accelerator.current_accelerator()
    if found is not None and torch.accelerator.is_available():
        return tuple(f"{found.type}:{index}" for index in range(torch.accelerator.device_count()))
    return tuple(f"cpu:{index}" for index in range(min(cores(), MOST_CPU_LANES)))


def asked_for(devices: Any, spec: Any = None, **fields: Any) -> tuple[Spec, Machine]:
    """What was asked for, and the machine that comes of it."""
    document = load_spec(spec, **fields)
    return document, accelerators_first(build_machine(document, devices))


def build_machine(spec: Spec, devices: Sequence[str | torch.device] | None = None) -> Machine:
    """The machine that ``spec`` describes, or the part of it that ``devices`` names.

    Args:
        spec: what is known of devices and links. With no devices in it, those that are found.
        devices: torch devices, or names of the spec's devices. One that is named n > 1 times gets n lanes; ``cpu:0``
            and ``cpu:1`` both name the CPU. Lane 0 is the first one's. What the spec says of a device still holds.

    Returns:
        A machine whose every ordered pair of devices has a link. Memory caps that the spec leaves out: 0.9 of what an
        accelerator has, if it is present; no cap for the CPU and for absent devices.

    Raises:
        SpecError: ``devices`` is empty or names no device; a pin or link of the spec is outside the machine.

    >>> print(build_machine(Spec(), ["cpu:0", "cpu:1"]))
    Machine
      cpu  cpu  2 lanes  no cap   cpu/0  cpu/1
    """
    found = list(spec.devices) if devices is None else []
    entries = found or _chosen(spec, discover() if devices is None else _listed(devices))
    bare = Machine(tuple(_device(entry) for entry in entries))
    _check_names(spec, bare)
    limits = {find_device(bare, word): limit for word, limit in spec.max_memory.items()}  # over what devices say themselves
    return replace(capped(bare, lambda one: limits.get(one, one.memory)), links=_links(spec, bare, entries))


def find_device(machine: Machine, text: str) -> Device | None:
    """The device that a pin or a link means by ``text``: by name, else as a torch device; ``None`` if there is none.

    >>> find_device(build_machine(Spec(), ["cuda:0"]), "cuda").name
    'cuda:0'
    """
    if text in machine.by_name:
        return machine.by_name[text]
    try:
        place = parse_device(text)
    except SpecError:
        return None
    return next((device for device in machine.devices if device.torch_device == place), None)


def pinned(machine: Machine, spec: Spec) -> list[tuple[str, str]]:
    """Pattern and device name of each pin.

    Raises:
        PlacementError: a pin names a device that the machine does not have.
    """
    found = []
    for pin in spec.pins:
        device = find_device(machine, pin.device)
        if device is None:
            known = ", ".join(machine.by_name)
            text = f"pin {pin.match!r} names device {pin.device!r}, which this machine does not have. It has: {known}."
            raise PlacementError(text)
        found.append((pin.match, device.name))
    return found


def missing_devices(machine: Machine) -> list[str]:
    """The torch devices of ``machine`` that this process cannot use: it can be planned for, but not run.

    >>> missing_devices(build_machine(Spec(), ["cpu"]))
    []
    """
    return [place for place in machine.places if not present(place)]


def _listed(devices: object) -> list[Any]:
    """What the argument ``devices`` lists. A set has no first device, and in a mapping numbers of lanes would be lost."""
    if isinstance(devices, str | torch.device):
        return [devices]
    if not isinstance(devices, Iterable) or isinstance(devices, Mapping | Set | bytes | torch.Tensor):
        raise SpecError(
            f"devices is {quote(devices)}; name them in a list, one mention for each lane, such as "
            '["cuda:0", "cuda:1"] or ["cpu:0", "cpu:1"]'
        )
    return list(devices)


def _chosen(spec: Spec, devices: Sequence[str | torch.device]) -> list[DeviceSpec]:
    """One entry for each device that ``devices`` names, in the order of the first mention."""
    by_word = {word: entry for entry in spec.devices for word in (entry.device, entry.name)}
    faults, mentions = [], Counter[str]()
    for index, word in enumerate(devices):
        try:
            named = by_word.get(word) if isinstance(word, str) else None
            mentions[named.device if named else parse_device(word)] += 1
        except SpecError as error:
            several = '; write a list: ["cuda:0", "cuda:1"]' if isinstance(word, str) and "," in word else ""
            faults.append(f"devices[{index}]: {error}{several}")
    if faults or not mentions:
        raise SpecError("\n".join(faults) or "devices is empty; name at least one, or leave it out for those found")
    entries = [by_word.get(place, DeviceSpec(device=place)) for place in mentions]
    return [
        entry.model_copy(update={"lanes": mentions[entry.device]}) if mentions[entry.device] > 1 else entry for entry in entries
    ]


def _device(entry: DeviceSpec) -> Device:
    """What an entry says, else the data sheet of hardware that is named, else what is assumed of its like.

    A CPU's lanes share its cores: as many as torch may use for one op in this process. And float32 runs on tensor cores only
    where this process allows it.
    """
    sheet = HARDWARE.get(entry.hardware or "")
    rates = sheet.reached(tf32=torch.get_float32_matmul_precision() != "highest") if sheet and entry.flops is None else {}
    named = {"flops": rates.get("float32"), "bandwidth": REACHED["bandwidth"] * sheet.bandwidth} if sheet else {}
    figures = {name: named.get(name) if getattr(entry, name) is None else getattr(entry, name) for name in FIGURES}
    known: dict[str, Any] = {name: figure for name, figure in figures.items() if figure is not None}
    base = replace(CPU_CORE, cores=torch.get_num_threads()) if entry.device == "cpu" else ACCELERATOR
    made = replace(
        base,
        name=entry.name,
        torch_device=entry.device,
        lanes=entry.lanes,
        memory=entry.memory if entry.memory is not None else _usable_memory(entry.device, sheet),
        assumed=tuple(name for name in FIGURES if name not in known),
        rates=tuple((dtype, rate * entry.speed) for dtype, rate in rates.items()),
        **known,
    )
    return replace(made, flops=made.flops * entry.speed, bandwidth=made.bandwidth * entry.speed)


def _links(spec: Spec, machine: Machine, entries: Sequence[DeviceSpec]) -> tuple[Link, ...]:
    written = {_ends(machine, link): link for link in spec.links}
    sheets = {entry.name: HARDWARE.get(entry.hardware or "") or (_HOST if entry.device == "cpu" else None) for entry in entries}
    links = []
    for source, target in permutations(machine.devices, 2):
        base = HOST_LINK if "cpu" in (source.kind, target.kind) else PEER_LINK
        said, sheet = written.get((source.name, target.name)), link_between(sheets[source.name], sheets[target.name])
        links.append(link_of(replace(base, source=source.name, target=target.name), said, sheet))
    return tuple(links)


def link_of(base: Link, said: object, sheet: float | None) -> Link:
    """A link with what a spec says of it, else the bandwidth of data sheets; the figures of ``base`` are assumed."""
    figures = {name: getattr(said, name, None) for name in ("bandwidth", "latency")}
    figures["bandwidth"] = figures["bandwidth"] or sheet
    known = {name: figure for name, figure in figures.items() if figure is not None}
    return replace(base, **known, assumed=tuple(name for name in figures if name not in known))


def _ends(machine: Machine, link: LinkSpec) -> tuple[str | None, str | None]:
    source, target = find_device(machine, link.source), find_device(machine, link.target)
    return source.name if source else None, target.name if target else None


def _check_names(spec: Spec, machine: Machine) -> None:
    """A spec without devices cannot check its own names, and one with devices may be narrowed to fewer than it pins to.

    A link of a device that was not chosen is no fault: it has nothing to carry.
    """
    words = [(f"pins[{index}].device", pin.device) for index, pin in enumerate(spec.pins)]
    words += [(f"max_memory[{quote(word)}]", word) for word in spec.max_memory]
    if not spec.devices:
        words += [(f"links[{index}].source", link.source) for index, link in enumerate(spec.links)]
        words += [(f"links[{index}].target", link.target) for index, link in enumerate(spec.links)]
    there = ", ".join(device.name for device in machine.devices)
    faults = [
        f"{path}: {quote(word)} is not in this machine, which has {there}; name one of these, or add it to devices"
        for path, word in words
        if find_device(machine, word) is None
    ]
    if faults:
        raise SpecError("\n".join(faults))


def _usable_memory(place: str, sheet: Hardware | None) -> int | None:
    """Bytes a plan may use on a present accelerator whose backend tells its memory, or on one that is named; else ``None``."""
    if place == "cpu" or not present(place):
        return int(sheet.memory * USABLE_MEMORY) if sheet and sheet.memory else None
    total = getattr(properties(place), "total_memory", None)
    return int(total * USABLE_MEMORY) if total is not None else None


def refuse_missing(machine: Machine) -> None:
    """Raise if a device of the plan cannot be used by this process."""
    missing = missing_devices(machine)
    if missing:
        raise PlacementError(
            f"{', '.join(missing)} cannot be used here: torch finds {torch.accelerator.device_count()} accelerators.\n"
            "The plan itself can be made and shown: `python -m partitioner inspect`. To run here, name devices that are there, "
            "such as 'cpu:0', 'cpu:1'."
        )
