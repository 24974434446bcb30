"""What the user asks for: devices, links, pins, a policy and a backend, read from a document or from Python.

This is the border of the package: past it, a spec is well-formed. Every fault of a document is reported at once, each
with its path in the document::

    "lab.yaml": 2 faults
      devices[1].memory: "16GiBB" is not a size; write bytes or a number with B, kB, MB, ..., for example "16GiB"
      polcy: is no key here; did you mean "policy"?

What a spec does not say is filled in by :mod:`partitioner.discover`.
"""

from __future__ import annotations

import difflib
import json
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from partitioner import units
from partitioner.errors import SpecError
from partitioner.units import quote

LARGEST_FILE = 2**20
MOST_VALUES = 2**20  # no file of this size holds more without aliases
MOST_FAULTS = 50


def _quantity(kind: units.Quantity, parse: Callable[[object], float], least: int) -> tuple[object, ...]:
    """The metadata of a field that reads numbers and texts alike, in Python and in the JSON Schema."""
    schema = {"anyOf": [{"type": "number", "minimum": least}, {"type": "string", "pattern": kind.pattern}]}
    return BeforeValidator(parse), Field(ge=least), WithJsonSchema({**schema, "examples": [kind.example]})


# A rate under one unit per second is a slip of the prefix, and would make a time that overflows.
Size = Annotated[int, *_quantity(units.SIZE, units.parse_size, 1)]
Bandwidth = Annotated[float, *_quantity(units.BANDWIDTH, units.parse_bandwidth, 1)]
Flops = Annotated[float, *_quantity(units.FLOPS, units.parse_flops, 1)]
Duration = Annotated[float, *_quantity(units.DURATION, units.parse_duration, 0)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Torch = Annotated[str, BeforeValidator(units.parse_device), WithJsonSchema({"type": "string", "pattern": "^[a-z]"})]
# Programs are printed and parsed again, so a name is one word of them; ``<name>/<index>`` is a lane.
Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$", max_length=64)]


class DeviceSpec(BaseModel, frozen=True, extra="forbid"):
    """One place with its own memory. What is left out is measured or assumed by :mod:`partitioner.discover`.

    >>> DeviceSpec(device="cuda", lanes=4).name
    'cuda:0'
    """

    device: Torch = Field(description="the torch device: cpu, cuda:0, xpu:1; it need not be present to plan for it")
    name: Name = Field(
        default_factory=lambda fields: fields["device"],
        description="what links, pins and reports call it: letters, digits and _.:- ; the torch device if left out",
    )
    lanes: int = Field(
        default=1, strict=True, ge=1, le=1024, description="streams or worker threads that run at once, 1 to 1024"
    )
    memory: Size | None = Field(
        default=None, description="bytes a plan may use, such as 16GiB; null for what is there (CPU: no cap)"
    )
    speed: float = Field(
        default=1.0,
        strict=True,
        ge=1e-6,
        le=1e6,
        allow_inf_nan=False,
        description="how fast it is next to its like: a factor on flops and bandwidth, 1 for average",
    )
    flops: Flops | None = Field(default=None, description="FLOP/s that one lane reaches, such as 10TFLOP/s")
    bandwidth: Bandwidth | None = Field(default=None, description="bytes/s that one lane reads and writes, such as 900GB/s")
    overhead: Duration | None = Field(default=None, description="seconds the host spends to issue one op, such as 3us")
    handoff: Duration | None = Field(
        default=None, description="seconds from an op on one lane to an op on another that waits for it, such as 10us"
    )


class LinkSpec(BaseModel, frozen=True, extra="forbid"):
    """A one-way connection; write two for both ways.

    >>> LinkSpec(source="cuda:0", target="cpu").latency is None
    True
    """

    source: Text = Field(description="the device it leaves, by name or as a torch device")
    target: Text = Field(description="the device it enters, by name or as a torch device")
    bandwidth: Bandwidth | None = Field(default=None, description="bytes/s it carries, such as 64GB/s")
    latency: Duration | None = Field(default=None, description="seconds a copy takes before its bytes, such as 10us")


class PinSpec(BaseModel, frozen=True, extra="forbid"):
    """Ops that must run on one device.

    >>> PinSpec(match="encoder.*", device="cuda:0").match
    'encoder.*'
    """

    match: Text = Field(description="a glob over module paths and op names, such as encoder.*")
    device: Text = Field(description="the device, by name or as a torch device")


class Spec(BaseModel, frozen=True, extra="forbid"):
    """Everything a user may ask for. Read one with :func:`load_spec`, whose errors are made for people.

    Raises:
        pydantic.ValidationError: a field is wrong, a device is written twice, or a link or pin names no device.

    >>> Spec().policy
    'by_level'
    """

    schema_version: int = Field(default=1, strict=True, ge=1, le=1, description="the version of this format; there is only 1")
    devices: tuple[DeviceSpec, ...] = Field(
        default=(), description="a list of the devices to plan for; empty for those that are found"
    )
    links: tuple[LinkSpec, ...] = Field(default=(), description="a list of the links that differ from the default")
    policy: Text = Field(
        default="by_level", description="who decides where ops run, a name in POLICIES; built in: by_level, single"
    )
    backend: Text = Field(
        default="auto",
        description="what runs the program, a name in BACKENDS; built in: auto, reference, threads, streams",
    )
    pins: tuple[PinSpec, ...] = Field(default=(), description="a list of the ops whose device is given")
    colocate: tuple[Annotated[tuple[Text, ...], Field(min_length=1)], ...] = Field(
        default=(), description="a list of lists of globs; the ops that match any glob of one list share a device"
    )
    grain: Duration | None = Field(
        default=None,
        description="seconds of the shortest task worth a launch of its own, such as 100us; null to derive it",
    )

    @model_validator(mode="after")
    def _names_agree(self) -> Spec:
        faults = list(_disagreements(dict(self)))
        if faults:
            raise ValidationError.from_exception_data("Spec", faults)
        return self


def json_schema() -> str:
    """The JSON Schema of :class:`Spec` as text, for editors: what ``specs/spec.schema.json`` holds.

    >>> '"devices"' in json_schema()
    True
    """
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Spec.model_json_schema()}
    for model in (schema, *schema["$defs"].values()):
        model["description"] = model["description"].split("\n")[0]  # an editor has no use for the doctests
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def load_spec(source: Spec | Mapping[str, object] | str | Path | None = None, **overrides: object) -> Spec:
    """The spec in ``source``, checked.

    Args:
        source: a spec; a mapping; the path of a ``.yaml``, ``.yml``, ``.json`` or ``.toml`` file; ``None``: defaults.
        overrides: fields of :class:`Spec` that replace those of ``source``; ``None`` leaves a field as it is.

    Raises:
        SpecError: the only error. It lists every fault with its path in the document.

    >>> load_spec({"devices": [{"device": "cuda:0", "memory": "16GiB"}]}, policy="single").devices[0].memory
    17179869184
    """
    if isinstance(source, str | Path):
        where, document = quote(str(source)), _read(source)
    elif isinstance(source, Spec):
        where, document = "the spec", {key: getattr(source, key) for key in source.model_fields_set}
    elif source is None or isinstance(source, Mapping):
        where, document = "the spec", dict(source or {})
    else:
        raise SpecError(f"{quote(source)} is not a spec; give a Spec, a mapping, the path of a file, or None")
    document |= {key: value for key, value in overrides.items() if value is not None}
    try:
        return Spec.model_validate(document)
    except ValidationError as error:
        faults = _faults(error, document)
    more = [f"... and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    title = f"{where}: {len(faults)} fault{'s' if len(faults) > 1 else ''}"
    raise SpecError("\n  ".join([title, *faults[:MOST_FAULTS], *more]))


# Between the fields ---------------------------------------------------------------------------------------------------


def _disagreements(document: Mapping[str, object]) -> Iterator[InitErrorDetails]:
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
                    yield _fault((key, index, end), text, f"is no device of this spec{_hint(text, known)}")
    yield from _bad_links(document, known)


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
        return units.parse_device(text)
    except SpecError:
        return None


def _resolve(text: str, known: Mapping[str, str]) -> str | None:
    return known.get(text) or known.get(_canonical(text) or "")


def _hint(word: str, words: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; there are {', '.join(words)}"


# Faults as text -------------------------------------------------------------------------------------------------------

_MODELS: Mapping[str, type[BaseModel]] = {"devices": DeviceSpec, "links": LinkSpec, "pins": PinSpec}
_SHOULD = {
    "tuple_type": "should be a list",
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


def _faults(error: ValidationError, document: Mapping[str, object]) -> list[str]:
    """One line per fault. The names are compared here too: pydantic stops before that when a field is wrong."""
    found: list[Any] = list(error.errors(include_url=False))
    if all(fault["type"] != "disagreement" for fault in found):
        names = list(_disagreements(document))
        found += ValidationError.from_exception_data("Spec", names).errors(include_url=False) if names else []
    lines = [_line(fault) for fault in found if fault["type"] != "default_factory_not_called"]
    return list(dict.fromkeys(lines))


def _line(fault: dict[str, Any]) -> str:
    path: tuple[str | int, ...] = fault["loc"]
    model = _MODELS.get(str(path[0]), Spec) if len(path) > 2 else Spec
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
            return f"is no key here{_hint(key, says)}"
        case "missing":
            return f"is missing ({key}: {says[key]})"
        case kind:
            should = _SHOULD.get(kind, fault["msg"].removeprefix("Input "))
            return f"{quote(fault['input'])} {should}" + (f" ({key}: {says[key]})" if key in says else "")


def _path(path: tuple[str | int, ...]) -> str:
    """``devices[1].memory``; keys that are no words are quoted, so that a fault stays one line."""
    parts = [f".{part}" if re.fullmatch(r"\w{1,60}", str(part)) else f"[{quote(part)}]" for part in path]
    indexed = [f"[{part}]" if isinstance(part, int) else text for part, text in zip(path, parts, strict=True)]
    return "".join(indexed).removeprefix(".")


# Files ----------------------------------------------------------------------------------------------------------------


def _read(source: str | Path) -> dict[str, object]:
    """The mapping in a file."""
    where, path = quote(str(source)), Path(source)
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise SpecError(f"{where}: not the path of a spec; it ends in one of {', '.join(_PARSERS)}")
    data = _bytes(path, where)
    try:
        document = parse(data.decode("utf-8-sig"))
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    except RecursionError:
        raise SpecError(f"{where}: the document is nested too deeply; a spec has four levels") from None
    except Exception as error:  # PyYAML leaks KeyError, AttributeError and more for tags such as `!!bool x`
        reason = f"{type(error).__name__}: {error}"[:500]
        raise SpecError(f"{where}: not valid {path.suffix[1:].upper()} in UTF-8; {reason}") from error
    if not isinstance(document, dict):
        raise SpecError(f"{where}: the document is {quote(document)}; a spec is a mapping, {{}} for all defaults")
    return document


def _bytes(path: Path, where: str) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe could block, and /dev/zero never ends
            raise OSError("it is a directory or a device")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise SpecError(f"{where}: cannot be read: {error}; give the path of a file that exists") from error
    if len(data) > LARGEST_FILE:
        raise SpecError(f"{where}: larger than {units.format_size(LARGEST_FILE)}, which no spec is; check the path")
    return data


def _parse_yaml(text: str) -> object:
    """What ``yaml.safe_load`` gives, once the nodes are known to be few: aliases of aliases can stand for billions."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        _count(root, {})
    return yaml.safe_load(text)


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Values below ``node``, an alias counted each time it is used; a key written twice is refused on the way."""
    if id(node) not in counts:
        counts[id(node)] = MOST_VALUES  # while it is open: an alias to itself has no end
        if isinstance(node, yaml.MappingNode):
            _refuse_doubles([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            children = [child for pair in node.value for child in pair]
        else:
            children = node.value if isinstance(node, yaml.SequenceNode) else []
        counts[id(node)] = 1 + sum(_count(child, counts) for child in children)
    if counts[id(node)] > MOST_VALUES:
        raise SpecError(f"the aliases stand for more than {MOST_VALUES} values, or for themselves; write values out")
    return counts[id(node)]


def _parse_json(text: str) -> object:
    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        _refuse_doubles([key for key, _ in pairs])
        return dict(pairs)

    return json.loads(text, object_pairs_hook=mapping)


def _refuse_doubles(keys: list[str]) -> None:
    """YAML and JSON readers keep the last of two equal keys without a word, which loses half a document."""
    for key, times in Counter(keys).items():
        if times > 1:
            raise SpecError(f"the key {quote(key)} is written {times} times in one mapping; keep one")


_PARSERS: Mapping[str, Callable[[str], object]] = {
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
    ".toml": tomllib.loads,
}
