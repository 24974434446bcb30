"""Documents as files: written whole, read with a bound, and what pydantic finds wrong in one, told by its path there."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from partitioner.errors import SpecError
from partitioner.ir.units import quote
from partitioner.ir.words import first_lines

ROOM = 2**20
"""Bytes that are asked for at once of a file that says that it has fewer."""

_PLAINLY = {"missing": "is missing", "extra_forbidden": "is no key here"}
"""Faults in the words that errors of specs have for them."""


def write_whole(text: str, path: str | os.PathLike[str]) -> None:
    """Write ASCII to a file, which takes the place of another one only once it is whole.

    What is there and is no file, a link, a pipe or a device such as ``/dev/stdout``, is written to, and stays what it is.

    Raises:
        SpecError: it cannot be written.
    """
    part = None
    try:
        target = Path(path)
        if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
            target.write_text(text, encoding="ascii", newline="\n")
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        part.write_text(text, encoding="ascii", newline="\n")
        part.replace(target)
    except BaseException as error:
        with suppress(OSError, ValueError):
            if part is not None:
                part.unlink(missing_ok=True)
        if isinstance(error, OSError | TypeError | ValueError):
            raise SpecError(f"{json.dumps(str(path))}: cannot be written: {error}") from error
        raise


def read_bounded(path: Path, largest: int) -> bytes:
    """What a file of the ordinary kind holds; of one that is larger, a byte more than the bound.

    Raises:
        OSError, ValueError: it cannot be read, or is of another kind.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe could block, and /dev/zero never ends
        raise OSError("it is a directory or a device")
    with path.open("rb") as file:  # room for what is asked for is taken at once, so no more than there is
        return file.read(min(largest, max(status.st_size, ROOM)) + 1)


def why(error: Exception) -> str:
    """What the system says of a file that it cannot read, without the number of the error, and the path, which is told already.

    >>> why(FileNotFoundError(2, "No such file or directory", "plan.json"))
    'No such file or directory'
    """
    return str(getattr(error, "strerror", None) or error)


def parse_json(text: str) -> object:
    """What ``json.loads`` gives, of a document in which no key is written twice.

    Raises:
        SpecError: one is.
        ValueError, RecursionError: it is no JSON, or nested too deeply.
    """

    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            refuse_doubles([key for key, _ in pairs])
        return found

    return json.loads(text, object_pairs_hook=mapping)


def refuse_doubles(keys: Sequence[str]) -> None:
    """Raise if a key stands twice in one mapping: readers keep the last without a word, which loses half a document."""
    for key, times in Counter(keys).items():
        if times > 1:
            raise SpecError(f"the key {quote(key)} is written {times} times in one mapping; keep one")


def faults_of(error: ValidationError, *under: str) -> list[str]:
    """Each fault with its path in the document, or under another path there."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    places = [".".join(map(str, (*under, *each["loc"]))) or "the document" for each in found]
    texts = [_PLAINLY.get(each["type"], each["msg"]).removeprefix("Value error, ") for each in found]
    return [f"{quote(place)[1:-1]}: {text}" for place, text in zip(places, texts, strict=True)]


def refused(where: str, what: str, faults: Sequence[str]) -> SpecError:
    """The error of a file that is not what it should be, with the first of its faults.

    >>> print(refused('"plan.json"', "the plan of a job", ["model: is missing"]))
    "plan.json": not the plan of a job:
      model: is missing
    """
    return SpecError("\n  ".join([f"{where}: not {what}:", *first_lines(faults)]))
