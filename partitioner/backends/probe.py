"""Do copies between two devices arrive? On some hosts peer copies between GPUs give garbage without an error.

Each pair is probed once per process: a pattern is copied and must come back equal. A pair that fails is staged through the
host from then on, with a warning that names it. (pytorch#132397, #84803 and #13803 are such hosts.)
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import torch

from partitioner.model.quiet import Note

_LENGTH = 1 << 16  # long enough for more than one packet of the link

_works: dict[tuple[str, str], bool] = {}
_lock = threading.Lock()


def copy_pattern(source: str, target: str) -> bool:
    """Copy a pattern from one device to the other and read it back through the host."""
    pattern = torch.arange(_LENGTH, dtype=torch.int32)
    arrived = pattern.to(source).to(target)
    torch.accelerator.synchronize(torch.device(source))
    torch.accelerator.synchronize(torch.device(target))
    return torch.equal(arrived.cpu(), pattern)


def pair_works(source: str, target: str, probe: Callable[[str, str], bool] = copy_pattern) -> bool:
    """Whether copies from ``source`` to ``target`` arrive, as found out when first asked.

    Args:
        source: torch device.
        target: torch device.
        probe: copies something and tells whether it came back equal.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     pair_works("cuda:98", "cuda:99", probe=lambda source, target: False)
        False
    """
    with _lock:
        pair = (source, target)
        if pair not in _works:
            _works[pair] = probe(source, target)
            if not _works[pair]:
                message = (
                    f"copies from {source} to {target} do not arrive intact on this host; they go through its memory instead"
                )
                warnings.warn(message, Note, stacklevel=2)
        return _works[pair]
