"""Device strings, as torch knows them: the words of a spec that only torch can judge."""

from __future__ import annotations

import os
import re

import torch

from partitioner.errors import SpecError
from partitioner.ir.units import quote

# privateuseone is torch's word for a device type that a plug-in brings; one that is loaded is known by its own name.
_ACCELERATORS = ("cuda", "xpu", "mps", "mtia", "hpu", "privateuseone")

_DEVICE = re.compile(r"([a-z][a-z0-9_]*)(?::(0|[1-9][0-9]{0,4}))?", re.ASCII)
_LAST_INDEX = 127  # torch keeps the index in a signed byte, and wraps larger ones round without an error


def parse_device(value: object) -> str:
    """The one spelling of a torch device: ``cuda`` is ``cuda:0``, and every ``cpu:<n>`` is ``cpu``.

    Args:
        value: a device string or a ``torch.device``. The device need not be present.

    Raises:
        SpecError: torch has no such device type, the index is none, or it is ``meta``, which computes nothing.

    >>> parse_device("cuda"), parse_device("cpu:1")
    ('cuda:0', 'cpu')
    """
    text = str(value) if isinstance(value, torch.device) else value
    found = _DEVICE.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in device_types():
        kinds = ", ".join(f"{kind}:0" for kind in device_types()[1:])
        raise SpecError(f"{quote(text)} is not a device; write cpu, or an accelerator with its index: {kinds}")
    kind, index = found[1], int(found[2] or 0)
    if index > _LAST_INDEX:
        raise SpecError(f"{quote(text)} is not a device; the index goes from 0 to {_LAST_INDEX}")
    return "cpu" if kind == "cpu" else f"{kind}:{index}"


def device_types() -> tuple[str, ...]:
    """The device types a spec may name: ``cpu`` first, then accelerators, this machine's own included."""
    here = torch.accelerator.current_accelerator()
    return tuple(dict.fromkeys(("cpu", *_ACCELERATORS, *([here.type] if here is not None else []))))


def cores() -> int:
    """The cores this process may use; where the system does not say, the threads torch chose for it.

    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, torch.get_num_threads())


def properties(place: str) -> object:
    """What an accelerator's backend tells of it: ``name``, ``total_memory``, ...; ``None`` where it tells nothing.

    >>> properties("cpu") is None
    True
    """
    device = torch.device(place)
    ask = None if device.type == "cpu" else getattr(torch.get_device_module(device), "get_device_properties", None)
    return None if ask is None else ask(device)


def present(place: str) -> bool:
    """Whether this process can use the torch device; counts devices and touches none.

    >>> present("cpu"), present("cuda:99")
    (True, False)
    """
    device, found = torch.device(place), torch.accelerator.current_accelerator()
    if device.type == "cpu":
        return True
    if found is None or found.type != device.type or not torch.accelerator.is_available():
        return False
    return (device.index or 0) < torch.accelerator.device_count()
