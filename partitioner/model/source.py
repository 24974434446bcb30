"""Lines of the user's code: what a node, or an exception, came from."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from sysconfig import get_path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent.parent)
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_GENERATED = ("<eval_with_key>", "<partitioner", "<frozen")


def is_user_code(file: str) -> bool:
    """Whether a source file is neither torch's nor ours. It may be a cell of a notebook, and no file at all."""
    return not file.startswith((_TORCH, _HERE, "torch/", *_GENERATED))


@lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Whether a source file is of a package that somebody installed: for all, for one user, or by the system.

    Example:
        >>> is_installed("/usr/lib/python3/dist-packages/einops/einops.py"), is_installed("/home/me/site-packages.py")
        (True, False)
    """
    return not _PACKAGES.isdisjoint(Path(file).parts)


def is_pythons(file: str) -> bool:
    """Whether a source file is of Python's own library."""
    return not is_installed(file) and Path(file).is_relative_to(get_path("stdlib"))


def model_line(frame: FrameType | None) -> str:
    """``file:line`` of the innermost frame that is neither torch's nor ours."""
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def user_line(error: BaseException) -> str:
    """``file:line`` of the user's code that an exception came from; ``""`` if it never was in any."""
    found = ""
    for frame, line in _walk(error):
        if is_user_code(frame.f_code.co_filename):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def _walk(error: BaseException) -> list[tuple[FrameType, int]]:
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames
