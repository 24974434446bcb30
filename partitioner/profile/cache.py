"""Measured seconds on disk, a JSON file for each environment: what was measured once is not measured again.

Files lie in ``$PARTITIONER_CACHE``, else in ``partitioner`` under ``$XDG_CACHE_HOME``, else in ``~/.cache/partitioner``. A file
is replaced as a whole, under a lock where the system has one, so that processes that measure at once keep each other's figures.
One that cannot be read is taken to be empty and is written anew; where nothing can be written, nothing is remembered.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from partitioner.errors import SpecError
from partitioner.ir.documents import write_whole

MOST_ENTRIES = 8192
MOST_FILES = 32


@dataclass(frozen=True)
class Cache:
    """Seconds by signature, for each environment.

    Args:
        folder: where its files lie; ``None`` to remember nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache = Cache(Path(folder))
        ...     cache.store("this machine", {"add": 1e-6})
        ...     cache.load("this machine"), cache.load("another")
        ({'add': 1e-06}, {})
    """

    folder: Path | None

    @staticmethod
    def default() -> Cache:
        """The one that the environment variables name."""
        named = os.environ.get("PARTITIONER_CACHE")
        if named is not None:
            return Cache(Path(named) if named else None)
        base = os.environ.get("XDG_CACHE_HOME", "")
        try:
            return Cache((Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "partitioner")
        except RuntimeError:  # nobody's home is known
            return Cache(None)

    def load(self, environment: str) -> dict[str, float]:
        """Seconds by signature; empty where there is no file, or it is damaged."""
        path = self._path(environment)
        if path is None:
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            right = found["environment"] == environment
            return {key: float(value) for key, value in found["seconds"].items() if _valid(value)} if right else {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}

    def store(self, environment: str, seconds: Mapping[str, float]) -> None:
        """Add seconds by signature; beyond the bound the oldest are forgotten."""
        path = self._path(environment)
        if path is None or self.folder is None or not seconds:
            return
        with suppress(OSError, SpecError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / "lock"):
                known = {key: value for key, value in self.load(environment).items() if key not in seconds}
                entries = list({**known, **seconds}.items())[-MOST_ENTRIES:]
                write_whole(json.dumps({"environment": environment, "seconds": dict(entries)}, indent=0), path)
                self._forget()

    def _path(self, environment: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{hashlib.sha256(environment.encode()).hexdigest()[:20]}.json"

    def _forget(self) -> None:
        """Remove the files that have not been written for longest."""
        assert self.folder is not None
        files = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)


def _valid(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Other processes that ask for the same lock wait; without such locks, the last of two that write at once wins."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
