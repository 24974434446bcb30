"""An accelerator that is not there, for the streams backend: ``mtia:0`` to ``mtia:2``, whose streams are threads.

`ops.cpp` says what it is. It becomes this process's accelerator and cannot be taken back, so what uses it has a process of its
own (`test_simulated.py`).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import cpp_extension

MEMORY = 8 << 30
"""Bytes that each device says to have."""

HERE = Path(__file__).parent


def simulate() -> Any:
    """Make the simulated devices this process's accelerator. Built once for each version of torch, in a minute or two.

    Returns:
        A module with ``pause(microseconds)``, ``launched()``, ``at_once()`` and ``allocated()``.
    """
    version = torch.__version__.translate(str.maketrans(".+", "__"))
    name = f"partitioner_simulated_{version}"
    module = cpp_extension.load(name, [str(HERE / "ops.cpp")], extra_cflags=["-O1", "-std=c++20"])
    torch.mtia.get_device_properties = lambda *_: SimpleNamespace(total_memory=MEMORY)
    torch.set_num_threads(1)  # streams are threads already, and sums have the same order everywhere
    return module
