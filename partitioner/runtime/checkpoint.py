"""What a checkpoint in safetensors files holds, read from their headers: which tensor, in which file, of which shape and dtype.

    model.safetensors.index.json  {"weight_map": {"embed.weight": "model-00001-of-00002.safetensors", ...}}

Source of the format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from partitioner.errors import SpecError

INDEX = ".safetensors.index.json"
LARGEST_INDEX = 2**28
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
"""Torch's name of each dtype of the format."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint: its name there, its file, and what the file's header says of it."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a checkpoint, by name."""

    path: Path
    tensors: dict[str, Stored]


def checkpoint_at(place: str | PathLike[str]) -> Checkpoint:
    """What is in a file, in the files of an index, or in a folder; only headers are read.

    Args:
        place: a ``.safetensors`` file, a ``.safetensors.index.json``, or a folder with one of those.

    Raises:
        SpecError: it is none of these, a file is missing or damaged, or safetensors is not installed.
    """
    path = Path(str(place))
    try:
        path = _in_folder(path) if path.is_dir() else path
        if path.name.endswith(INDEX):
            files = _indexed(path)
        elif path.suffix == ".safetensors":
            files = {path: None}
        else:
            raise ValueError(f"it is neither a folder, nor does its name end in .safetensors or {INDEX}")
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: no checkpoint: {error}") from error
    tensors: dict[str, Stored] = {}
    for file, names in files.items():
        for stored in _header(file):
            if names is None or stored.name in names:
                tensors[stored.name] = stored
        lacking = [name for name in names or () if name not in tensors]
        if lacking:
            raise SpecError(f"{path}: {lacking[0]} should be in {file.name}, and is not")
    return Checkpoint(path, tensors)


def _in_folder(folder: Path) -> Path:
    """The index in a folder, or else its only file."""
    found = sorted(folder.glob(f"*{INDEX}")) or sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found[:5])
        raise ValueError(
            f"several checkpoints are in this folder: {names}" if found else "no .safetensors file is in this folder"
        )
    return found[0]


def _indexed(path: Path) -> dict[Path, set[str] | None]:
    """The files that an index names, all beside it, with the tensors in each."""
    if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > LARGEST_INDEX:
        raise ValueError("it is no file, or too large for an index")
    document = json.loads(path.read_bytes())
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError("it has no weight_map, from names to files")
    files: dict[Path, set[str] | None] = {}
    for tensor, name in places.items():
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"{name!r} is not the name of a .safetensors file beside it")
        held = files.setdefault(path.with_name(name), set())
        assert held is not None
        held.add(tensor)
    return files


def _header(file: Path) -> list[Stored]:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise SpecError("weights are read with safetensors: pip install safetensors") from error
    try:
        with safe_open(file, framework="pt") as opened:
            slices = [(name, opened.get_slice(name)) for name in opened.keys()]  # noqa: SIM118  it is no mapping
            return [
                Stored(name, file, tuple(one.get_shape()), DTYPES.get(one.get_dtype(), one.get_dtype())) for name, one in slices
            ]
    except Exception as error:  # safetensors has errors of its own, and leaks those of the system
        raise SpecError(f"{file}: cannot be read as safetensors: {error}") from error
