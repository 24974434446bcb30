"""The machine of a task graph: devices, the links between them and their links to the host, as processors and channels.

    {"devices": [{"name": "cpu", "kind": "cpu"},
                 {"name": "gpu0", "kind": "gpu", "memory": "16GiB", "host_link": {"bandwidth": "12GB/s", "latency": "10us"}}],
     "links": [{"between": ["gpu0", "gpu1"], "bandwidth": "50GB/s"}],
     "overlap": true}

A link is one channel, used in both directions. Where two devices have no link, values go through the host: over the sender's
link to the host and then over the reader's; a device without one, such as the CPU itself, is at the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Any

from partitioner.errors import SpecError
from partitioner.ir.problem import Channel, Processor
from partitioner.ir.units import BANDWIDTH, DURATION, SIZE, quote
from partitioner.ir.words import hint
from partitioner.spec.document import read_document
from partitioner.spec.entries import Faults, below

LEAST_BANDWIDTH = 1e-6
"""bytes/s under which the largest size would take longer than a float can say."""

_MACHINE = {"devices": "a list of where tasks can run"}
_MACHINE_MORE = {"links": "a list of the links between two devices", "overlap": "whether devices compute while they send"}
_DEVICE = {"name": "text that no other device has", "kind": "what tasks give their seconds for, such as cpu or gpu"}
_DEVICE_MORE = {"memory": "bytes that its tasks may hold together", "host_link": "its bandwidth and latency to the host"}
_RATE, _RATE_MORE = {"bandwidth": "bytes/s it carries, such as 12GB/s"}, {"latency": "seconds before the bytes, such as 10us"}
_LINK = {"between": "a list of the names of two devices", **_RATE}


@dataclass(frozen=True)
class TaskMachine:
    """Where tasks can run: the half of a `Problem` that does not depend on them.

    Args:
        kinds: the names of the kinds of device.
        processors: the devices.
        channels: links, and links to the host.
        routes: by two devices' numbers, the channels from the first to the second.
        overlap: whether a device computes while it sends or receives.
    """

    kinds: tuple[str, ...]
    processors: tuple[Processor, ...]
    channels: tuple[Channel, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]]
    overlap: bool


def read_machine(source: Mapping[str, Any] | str | Path) -> TaskMachine:
    """The machine in a document.

    Args:
        source: a mapping, or the path of a ``.json``, ``.yaml``, ``.yml`` or ``.toml`` file.

    Raises:
        SpecError: it cannot be read, or is wrong. Lists every fault with its path.

    >>> machine = read_machine({"devices": [{"name": "a", "kind": "gpu"}, {"name": "b", "kind": "gpu"}],
    ...                         "links": [{"between": ["a", "b"], "bandwidth": "2GB/s"}]})
    >>> machine.channels[0].seconds(1e9), machine.routes[1, 0]
    (0.5, (0,))
    """
    if isinstance(source, str | Path):
        where, document = quote(str(source)), read_document(source, "machine")
    elif isinstance(source, Mapping):
        where, document = "the machine", dict(source)
    else:
        raise SpecError(f"the machine: {quote(source)} is no machine; give a mapping or the path of a file")
    faults = Faults(where)
    faults.fields("", document, _MACHINE, _MACHINE_MORE)
    devices = faults.entries("devices", document["devices"]) if "devices" in document else []
    if document.get("devices") in ([], ()):
        faults.add("devices", "should not be empty; tasks need a device")
    kinds, processors, hosts = _devices(devices, faults)
    known = {each.name: number for number, each in enumerate(processors)}
    links, overlap = document.get("links"), document.get("overlap")
    between = _links([] if links is None else links, known, 0 < len(known) == len(devices), faults)
    free = overlap is None or faults.flag("overlap", overlap)
    faults.check()
    channels = [*hosts.values(), *between]
    return TaskMachine(kinds, processors, tuple(channels), _routes(len(processors), channels), free)


def _devices(entries: list[object], faults: Faults) -> tuple[tuple[str, ...], tuple[Processor, ...], dict[int, Channel]]:
    """Kinds, devices, and by a device's number its link to the host."""
    kinds: dict[str, int] = {}
    found: dict[str, Processor] = {}
    hosts: dict[int, Channel] = {}
    for index, entry in enumerate(entries):
        path = f"devices[{index}]"
        if not faults.fields(path, entry, _DEVICE, _DEVICE_MORE):
            continue
        assert isinstance(entry, Mapping)
        name = faults.text(f"{path}.name", entry["name"], _DEVICE["name"]) if "name" in entry else None
        kind = faults.text(f"{path}.kind", entry["kind"], _DEVICE["kind"]) if "kind" in entry else None
        memory, host = entry.get("memory"), entry.get("host_link")
        cap = inf if memory is None else faults.read(f"{path}.memory", memory, SIZE.parse, inf)
        if name in found:
            faults.add(f"{path}.name", f"{quote(name)} is the name of another device; choose another")
        elif name is not None:
            found[name] = Processor(name, kinds.setdefault(kind or "", len(kinds)), memory=cap)
        if host is not None and faults.fields(f"{path}.host_link", host, _RATE, _RATE_MORE):
            number = len(found) - 1
            hosts[number] = _channel(f"{path}.host_link", host, f"{name} - host", (number,), faults)
    return tuple(kinds), tuple(found.values()), hosts


def _links(value: object, known: Mapping[str, int], complete: bool, faults: Faults) -> list[Channel]:
    found: dict[frozenset[int], Channel] = {}
    for index, entry in enumerate(faults.entries("links", value)):
        path = f"links[{index}]"
        if not faults.fields(path, entry, _LINK, _RATE_MORE):
            continue
        assert isinstance(entry, Mapping)
        ends = _ends(f"{path}.between", entry["between"], known, complete, faults) if "between" in entry else ()
        name = " - ".join(each for each in known if known[each] in ends)
        channel = _channel(path, entry, name, ends, faults)
        if found.setdefault(frozenset(ends), channel) is not channel and ends:
            faults.add(path, f"is a second link between {name}; a link is used in both directions, so keep one")
    return list(found.values())


def _ends(path: str, value: object, known: Mapping[str, int], complete: bool, faults: Faults) -> tuple[int, ...]:
    """The numbers of the two devices that a link joins; none if it does not.

    A device that is itself faulty could be the one that is meant, so where one is, no name is called unknown.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        faults.add(path, f"{quote(value)} should be a list of the names of two devices")
        return ()
    unknown = [(index, name) for index, name in enumerate(value) if not isinstance(name, str) or name not in known]
    for index, name in unknown if complete else ():
        faults.add(f"{path}[{index}]", f"{quote(name)} is no device{hint(name, known)}")
    if not unknown and value[0] == value[1]:
        faults.add(path, f"{quote(value[0])} is linked to itself; a link joins two devices")
    return () if unknown or value[0] == value[1] else (known[value[0]], known[value[1]])


def _channel(path: str, entry: Mapping[str, object], name: str, ends: tuple[int, ...], faults: Faults) -> Channel:
    """What carries values at the ``bandwidth`` and ``latency`` of an entry."""
    bandwidth, latency = entry.get("bandwidth", 1), entry.get("latency")  # one that is missing is a fault already
    rate = faults.read(below(path, "bandwidth"), bandwidth, _parse_rate, 1.0)
    before = 0.0 if latency is None else faults.read(below(path, "latency"), latency, DURATION.parse, 0.0)
    return Channel(name, rate, before, ends)


def _parse_rate(value: object) -> float:
    rate = BANDWIDTH.parse(value)
    if rate < LEAST_BANDWIDTH:
        raise SpecError(f"{quote(value)} carries nothing; a bandwidth is at least {LEAST_BANDWIDTH:g} bytes/s")
    return rate


def _routes(devices: int, channels: list[Channel]) -> dict[tuple[int, int], tuple[int, ...]]:
    """The direct link where there is one, otherwise through the host."""
    host = {channel.ends[0]: number for number, channel in enumerate(channels) if len(channel.ends) == 1}
    direct = {frozenset(channel.ends): number for number, channel in enumerate(channels) if len(channel.ends) == 2}
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for ends in permutations(range(devices), 2):
        link = direct.get(frozenset(ends))
        route = tuple(host[end] for end in ends if end in host) if link is None else (link,)
        if route:
            found[ends] = route
    return found
