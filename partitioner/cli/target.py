"""Finds the model that a command line names.

The file is the user's code and may do anything; whatever goes wrong in it comes out as one `LoadError` that says where.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from partitioner.cli.inputs import examples_of, parse_inputs
from partitioner.cli.user_code import LoadError, quoted, user_code

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_HOW = "write model.py, model.py:name, or package.module:name"


@dataclass(frozen=True)
class Target:
    """A model with the arguments of a typical call, as `partition` takes them; both ``None`` if there are none."""

    module: nn.Module
    inputs: Any
    kwargs: dict[str, Any] | None
    name: str


def load_target(text: str, inputs: Sequence[str] = ()) -> Target:
    """The model that ``text`` names.

    Args:
        text: a file, ``file:name`` or ``package.module:name``.
        inputs: example inputs such as ``float32[1,3,224,224]`` or, for a keyword argument, ``mask=bool[2,16]``. They take
            the place of ``example_inputs`` in the file.

    Raises:
        LoadError: the only error.
    """
    written = parse_inputs(inputs) if inputs else None
    place, name = _split(text)
    with user_code(f"loading {text}"), _search_path(place):
        namespace = _import(place)
        module = _find_model(namespace, name, text)
        args, kwargs = written or (examples_of(namespace), None)
    return Target(module, args, kwargs, type(module).__name__)


def _split(text: str) -> tuple[Path | str, str | None]:
    """A file or the name of a module, and the name in it."""
    if text.endswith(".py"):
        return _file(text), None
    place, colon, name = text.rpartition(":")
    if colon and place.endswith(".py"):
        return _file(place), name
    if colon and _MODULE.fullmatch(place) and not _mode(text):
        return place, name
    if not colon and _MODULE.fullmatch(text) and not _mode(text):
        return text, None
    return _file(text), None


def _mode(text: str) -> int:
    """The file mode, 0 if there is no such file."""
    try:
        return Path(text).stat().st_mode if text else 0
    except (OSError, ValueError):
        return 0


def _file(text: str) -> Path:
    mode = _mode(text)
    if not mode:
        raise LoadError(f"no such file: {quoted(text)}; {_HOW}")
    if stat.S_ISDIR(mode):
        raise LoadError(f"{quoted(text)} is a directory; {_HOW}")
    if not text.endswith(".py") or not stat.S_ISREG(mode):
        raise LoadError(f"{quoted(text)} is not a Python file; {_HOW}")
    return Path(text).resolve()


@contextmanager
def _search_path(place: Path | str) -> Iterator[None]:
    """Let the user's code import its neighbours, as if it were run from its directory."""
    directory = str(place.parent if isinstance(place, Path) else Path.cwd())
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        if directory in sys.path:  # the user's code may have taken it out
            sys.path.remove(directory)


def _import(place: Path | str) -> ModuleType:
    if isinstance(place, str):
        return _import_name(place)
    name = f"_target_{place.stem}"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    with user_code(f"importing {place.name}"):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    return module


def _import_name(name: str) -> ModuleType:
    with user_code(f"importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and f"{name}.".startswith(f"{error.name}."):
                raise LoadError(f"no such file or module: {quoted(name)}; {_HOW}") from error
            raise


def _find_model(namespace: ModuleType, name: str | None, text: str) -> nn.Module:
    names = [name] if name is not None else [usual for usual in ("model", "build") if hasattr(namespace, usual)][:1]
    names = names or _only_candidate(namespace, text)
    value: object = namespace
    for part in names[0].split("."):
        if not hasattr(value, part):
            there = ", ".join(_candidates(namespace)) or "no nn.Module at all"
            raise LoadError(f"{text} defines no {quoted(names[0])}; it has {there}")
        value = getattr(value, part)
    return _make_model(value, names[0])


def _only_candidate(namespace: ModuleType, text: str) -> list[str]:
    found = _candidates(namespace)
    made = [name for name in found if isinstance(getattr(namespace, name), nn.Module)]
    if len(made) == 1 or len(found) == 1:
        return made or found
    what = f"several models: {', '.join(found)}" if found else "no model, no build() and no nn.Module"
    how = f"{text}:{found[0]}" if found else "define `model = ...` or `def build(): ...` in it"
    raise LoadError(f"{text} has {what}; choose one, for example {how}" if found else f"{text} has {what}; {how}")


def _candidates(namespace: ModuleType) -> list[str]:
    """Names of the module instances, each once, and of the classes of modules that are defined here."""
    found: dict[int, str] = {}
    for name, value in vars(namespace).items():
        own = isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == namespace.__name__
        if isinstance(value, nn.Module) or own:
            found.setdefault(id(value), name)
    return list(found.values())


def _make_model(value: object, name: str) -> nn.Module:
    if isinstance(value, nn.Module):
        return value
    if not callable(value):
        raise LoadError(
            f"{name} is of type {type(value).__name__}; it should be an nn.Module, its class, or a function that makes one"
        )
    needed = ", ".join(_required(value))
    if needed:
        raise LoadError(f"{name} needs arguments: {needed}; define build() without arguments, which returns the model")
    with user_code(f"calling {name}()"):
        made = value()
    if not isinstance(made, nn.Module):
        raise LoadError(f"{name}() returned {type(made).__name__}, not an nn.Module")
    return made


def _required(value: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
