"""The folder of a checkpoint: it has its name once it is whole, and is read only if it is as it was written.

run/step-300.unfinished/    a job died while it wrote this; the next save removes it
run/step-200/               whole: what `latest` gives
    .metadata               torch's index of the tensors, and
    __0_0.distcp            each rank's tensors
    about.json              the rest: what `FORMAT` it has, step, options, and a checksum of each file and of itself
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from partitioner.errors import CheckpointError

ABOUT, INDEX, FORMAT = "about.json", ".metadata", 1

FILES, OWN = "files", "checksum"
"""Where the checksums of files are, and that of all else that is there."""

CHUNK = 1 << 24
"""Bytes of a file that are in memory at once for its checksum."""

About = Mapping[str, Any]
"""What a checkpoint holds that is no tensor; empty for one that torch wrote by itself."""


def path_of(folder: object) -> Path:
    """A folder that a user gave.

    Raises:
        CheckpointError: it is no path, such as what `latest` gives where there is no checkpoint.
    """
    if not isinstance(folder, str | PathLike):
        none = ", as latest(folder) gives where there is no whole checkpoint" if folder is None else ""
        raise CheckpointError(f"a folder is a path, and this is of type {type(folder).__name__}{none}")
    return Path(folder)


def latest(folder: str | Path) -> Path | None:
    """The whole checkpoint of the highest step in a run's folder; ``None`` if there is none.

    Example:
        >>> latest("no/such/folder") is None
        True
    """
    return next(reversed(_whole(path_of(folder))), None)


def _whole(folder: Path) -> list[Path]:
    """The whole checkpoints in a run's folder, by step."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    whole = [path for path in found if (path / INDEX).exists()]
    return sorted(whole, key=lambda path: int(path.name.removeprefix("step-")))


def prepare(final: Path, unfinished: Path, about: About) -> str:
    """Make the folder, and remove what was never finished.

    Returns:
        What `finish` writes, as it is now.

    Raises:
        CheckpointError: it is there already, or cannot be written.
    """
    if final.exists():
        raise CheckpointError(f"{final} is there already, and a checkpoint is never overwritten: choose another folder or step")
    try:
        text = json.dumps({"format": FORMAT, **about})
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"extra, or an option of the optimizer, is not JSON: {error}. Pass numbers, strings, lists and dicts"
        ) from error
    try:
        for left in final.parent.glob("step-*.unfinished"):
            shutil.rmtree(left)
        unfinished.mkdir(parents=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{unfinished} could not be written: {error}") from error
    return text


def checksums(unfinished: Path, rank: int) -> dict[str, int]:
    """Those of the files that a rank has written, by name."""
    return {path.name: _checksum(path) for path in sorted(unfinished.glob(f"__{rank}_*"))}


def finish(final: Path, unfinished: Path, text: str, files: Mapping[str, int]) -> None:
    """Give a checkpoint its name, so that it has it after a loss of power, too.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        about = {**json.loads(text), FILES: {**files, INDEX: _checksum(unfinished / INDEX)}}
        with open(unfinished / ABOUT, "w") as file:
            json.dump({**about, OWN: _own(about)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for path in (unfinished, final.parent):
            if path == final.parent:
                unfinished.rename(final)
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
    except OSError as error:
        raise CheckpointError(f"{final} could not be written, with {room(unfinished)}: {error}") from error


def read(folder: Path, ours: str) -> tuple[About, Metadata]:
    """What a checkpoint has besides tensors, and which tensors it has.

    Args:
        folder: the checkpoint.
        ours: how names of tensors begin that `save` alone writes.

    Raises:
        CheckpointError: it is not whole, damaged, or of a version that is newer than this one.
    """
    if not (folder / INDEX).exists():
        whole = latest(folder)
        raise CheckpointError(
            f"{folder} is no whole checkpoint" + (f"; do you mean {whole}?" if whole else f": it has no file {INDEX}")
        )
    try:
        about = json.loads((folder / ABOUT).read_text()) if (folder / ABOUT).exists() else {}
        about = about if isinstance(about, dict) else {}
        _refuse_others(folder, about)
        found = FileSystemReader(folder).read_metadata()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged index may raise anything
        raise CheckpointError(f"{folder} is damaged: {type(error).__name__}: {error}. {_earlier(folder)}") from error
    if "step" not in about and any(name.startswith(ours) for name in found.state_dict_metadata):
        raise CheckpointError(f"{folder} is damaged: {ABOUT}, which has its step and options, is gone. {_earlier(folder)}")
    return about, found


def _refuse_others(folder: Path, about: About) -> None:
    """Refuse what a newer version wrote, and an index, or what is beside it, that is not as it was written: places in files
    and numbers of the optimizer would be others, and an index is unpickled."""
    written = about.get("format", 0)  # versions that wrote none had the first
    if not isinstance(written, int) or written > FORMAT:
        raise CheckpointError(
            f"{folder} has format {written}, and this version reads up to {FORMAT}: install the one that wrote it"
        )
    if OWN in about and about[OWN] != _own(about):
        raise CheckpointError(f"{folder} is damaged: {ABOUT} is not what was written. {_earlier(folder)}")
    if OWN in about and (said := damage(folder, {INDEX: about[FILES][INDEX]}, 0, 1)):
        raise CheckpointError(said)


def room(folder: Path) -> str:
    """How much room there is, for torch says of a full disk that a position is unexpected."""
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.1f} MiB free there"
    except OSError as error:
        return f"its folder gone: {error}"


def damage(folder: Path, files: Mapping[str, int], rank: int, ranks: int) -> str:
    """A file that is not as it was written, if there is one: torch loads whatever bytes are there. Each rank looks at some."""
    for name in sorted(files)[rank::ranks]:
        try:
            if _checksum(folder / name) != files[name]:
                return f"{folder} is damaged: {name} is not what was written. {_earlier(folder)}"
        except OSError as error:
            return f"{folder} could not be read: {error}. {_earlier(folder)}"
    return ""


def _own(about: About) -> int:
    return zlib.crc32(json.dumps({name: value for name, value in about.items() if name != OWN}).encode())


def _checksum(path: Path) -> int:
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def _earlier(folder: Path) -> str:
    others = [path.name for path in _whole(folder.parent) if path != folder]
    return f"Others in its folder: {', '.join(others)}" if others else "There is no other in its folder"
