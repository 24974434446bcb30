"""OpenMP's threads spin for milliseconds after every op that used them, on the very cores that lanes are about to use.

PyTorch's Linux builds carry GNU's libgomp, which keeps the threads of a parallel region busy-waiting for the next one: 7.6 ms
were measured on two cores. A lane that may use one thread only never asks for them again, and shares its core with them
meanwhile. `omp_pause_resource_all` of OpenMP 5.0 sends the calling thread's pool home (30 us where there is one, 0.2 us where
there is none); the next op that may use more threads starts it anew.

Source: OpenMP 5.0, section 3.2.44; libgomp's manual on GOMP_SPINCOUNT.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch

_SOFT = 1
"""`omp_pause_soft`: what threads have declared private to them is kept."""


def _find() -> Callable[[int], int] | None:
    """The function of the libgomp that this torch has loaded, if it is one that has it."""
    for path in Path(torch.__file__).parent.glob("lib/libgomp*"):
        try:
            function = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all
        except (OSError, AttributeError):  # not the one in use, or older than OpenMP 5.0
            continue
        function.argtypes, function.restype = [ctypes.c_int], ctypes.c_int
        return function
    return None


_pause = _find()


def rest() -> None:
    """Send the calling thread's idle OpenMP threads home; without libgomp do nothing."""
    if _pause is not None:
        _pause(_SOFT)


def _forget() -> None:
    """In the child of a fork the pool's threads do not exist, and sending them home would wait for them for good."""
    global _pause
    _pause = None


os.register_at_fork(after_in_child=_forget)
