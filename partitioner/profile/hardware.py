"""What a measured time depends on beside the op: the processor, its caches, torch and how it is set."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

from partitioner.spec.devices import cores, properties

VERSION = 1
"""Of the way in which ops are timed; seconds that were measured in another way are measured again."""

_LEAST = 128 << 10
"""Bytes of a cache that is larger than the first level, which a single op fills."""

_SECOND, _LAST = 1 << 20, 32 << 20
"""Bytes of the second and of the last level of caches where the system does not say."""


@cache
def title(place: str) -> str:
    """What the hardware behind a torch device calls itself.

    >>> title("cpu") != ""
    True
    """
    kind = torch.device(place).type
    return _processor() if kind == "cpu" else str(getattr(properties(place), "name", kind))


def environment(place: str) -> str:
    """All that times on a torch device depend on, but for the op itself, as one line of text."""
    backends = torch.backends
    words = [
        f"timing {VERSION}",
        title(place),
        f"{cores()} cores",
        f"torch {torch.__version__}",
        f"python {platform.python_version()}",
        f"precision {torch.get_float32_matmul_precision()}",
        f"mkldnn {backends.mkldnn.enabled}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
    ]
    if torch.device(place).type == "cpu":
        words.append(f"capability {backends.cpu.get_cpu_capability()}")
    else:
        cudnn = backends.cudnn
        words.append(f"cudnn {cudnn.enabled} {cudnn.benchmark} {cudnn.allow_tf32}")
    return "; ".join(words)


@cache
def caches(place: str) -> tuple[int, ...]:
    """Bytes of the caches between a device's arithmetic and its memory, rising, from the first that holds more than a few rows.

    >>> caches("cpu")[0] > 0
    True
    """
    if torch.device(place).type != "cpu":
        return (int(getattr(properties(place), "L2_cache_size", _LAST)),)
    found = set()
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
            found.add(int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1))
        except (OSError, ValueError):
            continue
    return tuple(sorted(size for size in found if size >= _LEAST)) or (_SECOND, _LAST)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = {key: next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "") for key in _KEYS}
    return " ".join(word for word in names.values() if word) or platform.processor() or platform.machine()


_KEYS = ("model name", "cpu family", "model\t", "stepping")
"""Of /proc/cpuinfo. A virtual machine's processor may call itself nothing but "AMD EPYC", so the family tells more."""
