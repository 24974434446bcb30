"""The user's mistakes as `LoadError`: what failed, at which line of the user's code, and with which error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partitioner.errors import PartitionerError

_HERE = str(Path(__file__).parent)
_LONGEST = 2000


class LoadError(PartitionerError):
    """The model that was asked for cannot be had. Names the file and line of the user's code where there is one."""


@contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Whatever the user's code raises, ``sys.exit`` included, as a `LoadError` that says what and where."""
    try:
        yield
    except (LoadError, KeyboardInterrupt):
        raise
    except BaseException as error:
        where = _where(error)
        raise LoadError(f"{doing} failed{where and f' at {where}'}: {type(error).__name__}: {_message(error)}") from error


def _where(error: BaseException) -> str:
    """``file:line`` of the innermost frame that is not Python's or this file's; of a syntax error, its own."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_HERE) and not frame.filename.startswith("<frozen")]
    near = [frame for frame in own if "site-packages" not in frame.filename and not frame.filename.startswith(sys.base_prefix)]
    return next((f"{frame.filename}:{frame.lineno}" for frame in reversed(near or own)), "")


def _message(error: BaseException) -> str:
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # a broken __str__ must not hide the error
        text = ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def quoted(text: str) -> str:
    """``text`` as an error shows it: on one line, and not too long."""
    return repr(text if len(text) <= 100 else f"{text[:97]}...")
