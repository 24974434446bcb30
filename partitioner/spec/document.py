"""Documents: the mapping in a YAML, JSON or TOML file, read safely into plain data.

Any bytes at all give either a mapping or one `SpecError` that says why not: no tag is constructed, no alias unfolds into
billions of values, and a key that is written twice, of which readers would keep the last, is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from partitioner.errors import SpecError
from partitioner.ir.documents import parse_json, read_bounded, refuse_doubles, why
from partitioner.ir.units import format_size, quote

LARGEST_FILE = 2**20
MOST_VALUES = 2**20  # no file of this size holds more without aliases


def read_document(source: str | Path, what: str = "spec", largest: int = LARGEST_FILE) -> dict[str, object]:
    """The mapping in a file.

    Args:
        source: path of a ``.yaml``, ``.yml``, ``.json`` or ``.toml`` file.
        what: what errors call it.
        largest: bytes that a JSON file may have; what people write by hand, the others, stays under `LARGEST_FILE`.

    Raises:
        SpecError: it cannot be read, is not valid, or holds no mapping.
    """
    where, path = quote(str(source)), Path(str(source))
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise SpecError(f"{where}: not the path of a {what}; it ends in one of {', '.join(_PARSERS)}")
    data = _bytes(path, where, what, largest if parse is parse_json else LARGEST_FILE)
    try:
        document = parse(data.decode("utf-8-sig"))
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    except RecursionError:
        raise SpecError(f"{where}: the document is nested too deeply; a {what} has four levels") from None
    except Exception as error:  # PyYAML leaks KeyError, AttributeError and more for tags such as `!!bool x`
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise SpecError(f"{where}: not valid {path.suffix[1:].upper()} in UTF-8; {reason}") from error
    if not isinstance(document, dict):
        defaults = ", {} for all defaults" if what == "spec" else ""
        raise SpecError(f"{where}: the document is {quote(document)}; a {what} is a mapping{defaults}")
    return document


def _bytes(path: Path, where: str, what: str, largest: int) -> bytes:
    try:
        data = read_bounded(path, largest)
    except (OSError, ValueError) as error:
        raise SpecError(f"{where}: cannot be read: {why(error)}; give the path of a file that exists") from error
    if len(data) > largest:
        larger = "" if what == "spec" or path.suffix.lower() == ".json" else ", or write JSON, which may be larger"
        raise SpecError(f"{where}: larger than {format_size(largest)}, which no {what} is; check the path{larger}")
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
            refuse_doubles([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            children = [child for pair in node.value for child in pair]
        else:
            children = node.value if isinstance(node, yaml.SequenceNode) else []
        counts[id(node)] = 1 + sum(_count(child, counts) for child in children)
    if counts[id(node)] > MOST_VALUES:
        raise SpecError(f"the aliases stand for more than {MOST_VALUES} values, or for themselves; write values out")
    return counts[id(node)]


_PARSERS: Mapping[str, Callable[[str], object]] = {
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": parse_json,
    ".toml": tomllib.loads,
}
