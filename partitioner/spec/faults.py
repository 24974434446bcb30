"""What is wrong with a spec's document: names in it that disagree, and every fault as one line of text.

A line is the path in the document, what is there, and how to go on::

    devices[1].memory: "16GiBB" is not a size; write bytes or a number with B, kB, MB, ..., for example "16GiB"
    polcy: is no key here; did you mean "policy"?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from partitioner.errors import SpecError
from partitioner.ir.units import quote
from partitioner.ir.words import hint
from partitioner.spec.devices import parse_device
from partitioner.spec.entries import below, listed

Model = type[BaseModel]

# Between the fields ---------------------------------------------------------------------------------------------------


def disagreements(document: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    """Devices written twice; links and pins that name no device. Reads checked and unchecked documents alike.

    A device that is itself faulty could be the one that is meant, so then no name is called unknown.
    """
    devices = [_identity(entry) for entry in _entries(document, "devices")]
    yield from _written_twice(devices)
    known = {word: pair[0] for pair in devices if pair for word in reversed(pair)}
    complete = bool(devices) and None not in devices
    for key, ends in (("links", ("source", "target")), ("pins", ("device",))):
        for index, entry in enumerate(_entries(document, key)):
            for end in ends:
                text = _get(entry, end)
                if complete and isinstance(text, str) and _resolve(text, known) is None:
                    yield _fault((key, index, end), text, f"is no device of this spec{hint(text, known)}")
    yield from _bad_links(document, known)
    yield from _bad_caps(document, known if complete else {})


def _written_twice(devices: list[tuple[str, str] | None]) -> Iterator[InitErrorDetails]:
    """Two entries for one torch device would be two memories where there is one."""
    names: dict[str, int] = {}
    places: dict[str, int] = {}
    for index, pair in enumerate(devices):
        if pair is None:
            continue
        name, place = pair
        if places.setdefault(place, index) != index:
            text = f"is devices[{places[place]}] again; write one entry, with as many lanes as both"
            yield _fault(("devices", index, "device"), place, text)
        elif names.setdefault(name, index) != index:
            yield _fault(("devices", index, "name"), name, f"is the name of devices[{names[name]}]; choose another")
        elif _canonical(name) not in (None, place):
            yield _fault(("devices", index, "name"), name, f"is another torch device than its own, {place}; rename it")


def _bad_links(document: Mapping[str, object], known: Mapping[str, str]) -> Iterator[InitErrorDetails]:
    """A link from a device to itself, and a second link over the same way."""
    seen: Counter[tuple[str, str]] = Counter()
    for index, entry in enumerate(_entries(document, "links")):
        source, target = _get(entry, "source"), _get(entry, "target")
        if not isinstance(source, str) or not isinstance(target, str):
            continue
        way = (_resolve(source, known) or source, _resolve(target, known) or target)
        seen[way] += 1
        if way[0] == way[1]:
            yield _fault(("links", index, "target"), target, "is the link's source; a link joins two devices")
        elif seen[way] > 1:
            yield _fault(("links", index), f"{way[0]} -> {way[1]}", "is linked twice; remove one")


def _bad_caps(document: Mapping[str, object], known: Mapping[str, str]) -> Iterator[InitErrorDetails]:
    """A cap of no device, and a second cap of one device. Without devices, words are told apart as torch devices."""
    caps = document.get("max_memory")
    seen: dict[str, str] = {}
    for word in caps if isinstance(caps, Mapping) else ():
        device = _resolve(word, known) or _canonical(word) if isinstance(word, str) else None
        if isinstance(word, str) and known and _resolve(word, known) is None:
            yield _fault(("max_memory", word), word, f"is no device of this spec{hint(word, known)}")
        elif device is not None and seen.setdefault(device, word) != word:
            yield _fault(("max_memory", word), word, f"is {quote(seen[device])} again; keep one")


def _fault(path: tuple[str | int, ...], value: object, text: str) -> InitErrorDetails:
    kind = PydanticCustomError("disagreement", "{text}", {"text": f"{quote(value)} {text}"})
    return InitErrorDetails(type=kind, loc=path, input=value)


def _entries(document: Mapping[str, object], key: str) -> list[object]:
    entries = document.get(key)
    return list(entries) if isinstance(entries, list | tuple) else []


def _get(entry: object, key: str) -> object:
    if isinstance(entry, dict):
        return entry.get(key)
    return getattr(entry, key, None) if isinstance(entry, BaseModel) else None


def _identity(entry: object) -> tuple[str, str] | None:
    """Name and torch device of an entry of ``devices``; ``None`` where its faults hide them."""
    place = _canonical(_get(entry, "device"))
    name = _get(entry, "name") or place
    return (name, place) if place is not None and isinstance(name, str) else None


def _canonical(text: object) -> str | None:
    try:
        return parse_device(text)
    except SpecError:
        return None


def _resolve(text: str, known: Mapping[str, str]) -> str | None:
    return known.get(text) or known.get(_canonical(text) or "")


# As text --------------------------------------------------------------------------------------------------------------

_SHOULD = {
    "tuple_type": "should be a list",
    "mapping_type": "should be a mapping",
    "dict_type": "should be a mapping",
    "bool_type": "should be true or false",
    "model_type": "should be a mapping of keys to values",
    "string_type": "should be text; put it in quotes",
    "string_too_short": "should not be empty",
    "too_short": "should not be empty",
    "string_pattern_mismatch": "has letters that are not accepted",
    "string_too_long": "is too long",
    "invalid_key": "is no key; keys are text",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
}


def faults_of(
    where: str, error: ValidationError, document: Mapping[str, object], root: Model, models: Mapping[str, Model]
) -> SpecError:
    """Every fault as one line. The names are compared here too: pydantic stops before that when a field is wrong.

    Args:
        where: the document, as the error names it.
        error: what pydantic found.
        document: what it was found in.
        root: the model of the whole document.
        models: the model of each entry of a list in it, by the list's key.
    """
    found: list[Any] = list(error.errors(include_url=False))
    if all(fault["type"] != "disagreement" for fault in found):
        names = list(disagreements(document))
        found += ValidationError.from_exception_data("Spec", names).errors(include_url=False) if names else []
    lines = [_line(fault, root, models) for fault in found if fault["type"] != "default_factory_not_called"]
    return listed(where, list(dict.fromkeys(lines)))


def _line(fault: dict[str, Any], root: Model, models: Mapping[str, Model]) -> str:
    path: tuple[str | int, ...] = fault["loc"]
    model = models.get(str(path[0]), root) if len(path) > 2 else root
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    says = {name: str(field.description) for name, field in model.model_fields.items()}
    return f"{_path(path)}: {_text(fault, key, says)}"


def _text(fault: dict[str, Any], key: str, says: Mapping[str, str]) -> str:
    """What is wrong with ``key``, and how to go on; ``says`` is the description of each key beside it."""
    match fault["type"]:
        case "value_error":
            return str(fault["ctx"]["error"])
        case "disagreement":
            return str(fault["msg"])
        case "extra_forbidden":
            return f"is no key here{hint(key, says)}"
        case "missing":
            return f"is missing ({key}: {says[key]})"
        case kind:
            should = _SHOULD.get(kind, fault["msg"].removeprefix("Input "))
            return f"{quote(fault['input'])} {should}" + (f" ({key}: {says[key]})" if key in says else "")


def _path(path: tuple[str | int, ...]) -> str:
    """``devices[1].memory``."""
    text = ""
    for part in path:
        text = f"{text}[{part}]" if isinstance(part, int) else below(text, part)
    return text
