"""The shape of the package: nouns below, verbs above, and no verb imports a verb.

      api  compile  module  cli ...                 DRIVERS    may import everything
       |      |        |     |
     trace  place  schedule  lower  backends        verbs      may import all that lies below, and no other verb
       |      |        |       |       |
                  plan  state                       LAYERS[2]  nouns that hold answers
                       |
                   analysis                         LAYERS[1]  questions; nothing here changes an IR
                       |
    errors  units  machine  spec  ir  inspection    LAYERS[0]  nouns, and what reads and checks a spec

A file's *unit* is the folder or file directly under ``partitioner/`` that it lies in: ``place/heft.py`` belongs to ``place``.
Files of one unit may import each other. There are no import circles, and late imports inside functions count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

LAYERS = (
    {"errors", "units", "machine", "document", "faults", "spec", "ir", "inspection"},
    {"analysis"},
    {"attributes", "hooks", "plan", "state"},
)
DRIVERS = {"__init__", "__main__", "api", "cli", "compile", "entry", "fake", "inspect", "module", "testing"}
# Every other unit is a verb.

MOST_LINES_IN_A_FILE = 300
MOST_LINES_IN_A_FUNCTION = 60

PACKAGE = Path(__file__).parent.parent / "partitioner"
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The module's dotted name without the package's: ``place.heft``, ``ir`` for ``ir/__init__.py``, ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def unit(module: str) -> str:
    return module.split(".")[0]


def may_import(importer: str) -> set[str]:
    """The units that ``importer`` may import beside its own."""
    if importer in DRIVERS:
        return {unit(module) for module in MODULES}
    layer = next((index for index, units in enumerate(LAYERS) if importer in units), len(LAYERS))
    return set().union(*LAYERS[: layer + 1])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """The dotted name that ``from <name> import ...`` refers to, dots in front resolved."""
    if not node.level:
        return node.module or ""
    package = ("partitioner", *path.relative_to(PACKAGE).parts[:-1])
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def imported_names(path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name that a file imports, with its line; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{absolute(node, path)}.{alias.name}", node.lineno) for alias in node.names)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """The modules of this package that a file imports, each with its line."""
    for name, line in imported_names(path):
        if name.split(".")[0] == "partitioner":
            inner = name.removeprefix("partitioner").removeprefix(".")
            while inner and inner not in MODULES:  # a name defined in a module, not a module
                inner = inner.rpartition(".")[0]
            yield inner or "__init__", line


def test_units_import_only_what_lies_below() -> None:
    faults = [
        f"partitioner/{path.relative_to(PACKAGE)}:{line} imports {target}"
        for module, path in MODULES.items()
        for target, line in sorted(set(imports(path)))
        if unit(target) not in may_import(unit(module)) | {unit(module)}
    ]
    assert not faults, "imports that point upwards or sideways:\n" + "\n".join(faults)


def test_no_import_circles() -> None:
    graph = nx.DiGraph((module, target) for module, path in MODULES.items() for target, _ in imports(path))
    circles = [" -> ".join(sorted(circle)) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert not circles, "import circles: " + "; ".join(circles)


def _body_start(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The first line behind the docstring: what a function says about itself does not make it long."""
    documented = ast.get_docstring(node) is not None and len(node.body) > 1
    return node.body[1].lineno if documented else node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES_IN_A_FILE, f"{lines} lines: look for the idea that is trying to get out"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - _body_start(node) + 1
            assert length <= MOST_LINES_IN_A_FUNCTION, f"{node.name}, line {node.lineno}: {length} lines"


def test_the_tables_name_what_exists() -> None:
    gone = set().union(*LAYERS) - {unit(module) for module in MODULES}
    assert not gone, f"LAYERS names units that are gone: {gone}"
