"""Device strings, as torch knows them: the words of a spec that only torch can judge."""

from __future__ import annotations

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
