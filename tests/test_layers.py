"""Who may import whom, row for row: the rooms of the package, in the order in which data passes, and what each may know.

A file's *room* is the folder or file directly under ``partitioner/`` that it lies in: ``planner/feasible.py`` belongs to
``planner``. Files of one room may import each other, but for two rooms whose parts have an order of their own. There are no
import circles, and late imports inside functions, and imports for types alone, count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

import partitioner

ROOMS: dict[str, set[str]] = {
    "ir": {"errors"},
    "model": {"errors"},
    "spec": {"ir", "errors"},
    "frontend": {"ir", "model", "errors"},
    "backends": {"ir", "model", "errors"},
    "profile": {"spec.devices", "ir", "model", "errors"},
    "planner": {"ir", "errors"},
    "lower": {"ir", "errors"},
    "runtime": {"backends", "ir", "model", "errors"},
    "report": {"planner.bounds", "planner.seconds", "planner.simulate", "planner.timing", "ir", "errors"},
    "compile": {"spec", "frontend", "profile", "planner", "lower", "backends", "runtime", "model", "ir", "errors"},
    "between": {"compile", "frontend", "planner.constraints", "spec", "model", "ir", "errors"},
    "plans": {"between", "compile", "frontend", "spec", "runtime.moving", "model", "ir", "errors"},
    "driver": {
        "compile",
        "plans",
        "tuning",
        "frontend",
        "lower.modes",
        "lower.planfile",
        "planner.policies",
        "planner.replay",
        "runtime",
        "spec",
        "model",
        "ir",
        "errors",
    },
    "tuning": {
        "backends.compiling.compiled",
        "backends.race",
        "backends.backward.training",
        "compile",
        "planner.policies",
        "profile",
        "runtime",
        "spec.spec",
        "model",
        "ir",
        "errors",
    },
    "planning": {"spec", "planner", "ir", "errors"},
    "distributed": {"compile", "spec", "frontend", "profile", "planner", "runtime", "model", "ir", "errors"},
    "torch_backend": {"compile", "driver", "frontend", "runtime", "spec.discover", "model", "ir", "errors"},
    "cli": {
        "driver",
        "planning",
        "profile.calibrate",
        "distributed.predicted.outlook",
        "report",
        "lower.verify",
        "lower.planfile",
        "spec",
        "ir",
        "errors",
        "__init__",
    },
    "testing": {"ir.words", "errors"},
    "errors": set(),
    "__main__": {"cli"},
    "__init__": {"driver", "planning", "runtime", "spec", "lower", "ir", "errors"},
}
"""What each room may import beside its own files: a whole room, or one file of it."""

PARTS: dict[str, set[str]] = {
    "frontend.capture": set(),
    "frontend.rewrite": set(),
    "frontend.analysis": {"frontend.capture", "frontend.rewrite"},
    "frontend.check": {"frontend.capture", "frontend.analysis"},
    "backends.compiling": {
        "backends.bodies",
        "backends.nodes",
        "backends.openmp",
        "backends.race",
        "backends.threads",
        "backends.workers",
    },
    "backends.backward": {
        "backends.codegen",
        "backends.nodes",
        "backends.reference",
        "backends.threads",
        "backends.workers",
    },
    "backends.cudagraphs": {"backends.bodies", "backends.executable", "backends.nodes", "backends.streams", "backends.workers"},
    "distributed.board": set(),
    "distributed.groups": set(),
    "distributed.ranks": {"distributed.board", "distributed.groups"},
    "distributed.planfile": set(),
    "distributed.traced": set(),
    "distributed.tensor": {"distributed.traced"},
    "distributed.pipeline": {"distributed.traced", "distributed.tensor"},
    "distributed.predicted": {"distributed.ranks", "distributed.traced", "distributed.tensor", "distributed.pipeline"},
    "distributed.batch": {"distributed.ranks", "distributed.traced"},
    "distributed.loss": {"distributed.ranks", "distributed.traced", "distributed.tensor", "distributed.batch"},
    "distributed.run": {
        "distributed.board",
        "distributed.ranks",
        "distributed.traced",
        "distributed.tensor",
        "distributed.pipeline",
        "distributed.batch",
        "distributed.loss",
    },
    "distributed.state": {
        "distributed.board",
        "distributed.ranks",
        "distributed.tensor",
        "distributed.pipeline",
        "distributed.run",
    },
    "planner.policies.by_level": {"planner.assigned", "planner.feasible", "planner.latency", "planner.timing"},
    "planner.policies.auto": {"planner.latency", "planner.policies"},
    "planner.policies.chain": {"planner.assigned", "planner.throughput"},
    "planner.policies.exact": {"planner.assigned", "planner.latency", "planner.throughput"},
    "planner.policies.list": {"planner.assigned", "planner.bounded", "planner.latency", "planner.throughput"},
    "planner.policies.search": {"planner.assigned", "planner.latency", "planner.throughput"},
    "planner.policies.fit": {"planner.assigned", "planner.bounded", "planner.feasible", "planner.throughput"},
    "planner.policies.spread": {"planner.assigned", "planner.latency"},
    "planner.policies.single": {"planner.assigned", "planner.feasible", "planner.latency"},
}
"""What a part of a room may import of its own room: tracing comes in steps, and no policy but ``auto`` knows another one."""

WITHOUT_TORCH = ("ir", "planner", "lower", "report")

MOST_LINES_IN_A_FILE = 320
MOST_LINES_IN_A_FUNCTION = 60

PACKAGE = Path(__file__).parent.parent / "partitioner"
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The module's dotted name without the package's: ``lower.runs``, ``ir`` for ``ir/__init__.py``, ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def within(module: str, place: str) -> bool:
    """Whether a module is ``place``, or lies in it."""
    return f"{module}.".startswith(f"{place}.")


def may_import(importer: str, target: str) -> bool:
    """Whether the tables allow an import."""
    room = importer.split(".")[0]
    part = next((part for part in PARTS if within(importer, part)), room)
    if within(target, part):
        return True
    allowed = PARTS[part] if part in PARTS and within(target, room) else ROOMS[room]
    return any(within(target, place) for place in allowed)


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


def test_rooms_import_what_their_rows_say() -> None:
    faults = [
        f"partitioner/{path.relative_to(PACKAGE)}:{line} imports {target}"
        for module, path in MODULES.items()
        for target, line in sorted(set(imports(path)))
        if not may_import(module, target)
    ]
    assert not faults, "imports that no row allows:\n" + "\n".join(faults)


def test_every_room_has_a_row_and_every_row_a_room() -> None:
    assert {module.split(".")[0] for module in MODULES} == ROOMS.keys()
    named = set().union(*ROOMS.values(), PARTS, *PARTS.values())
    gone = {place for place in named if not any(within(module, place) for module in MODULES)}
    assert not gone, f"the tables name what is gone: {gone}"
    policies = {module for module in MODULES if module.startswith("planner.policies.")}
    assert policies <= PARTS.keys(), "a policy without a row"


def test_what_plans_needs_no_torch() -> None:
    """So `partitioner verify program.txt` starts at once, and a policy can be written and tested without a model.

    And a name of the package is no file: when ``verify.py`` had been imported, ``from partitioner import verify`` gave that.
    """
    names = [f"partitioner.{module}" for module in MODULES if module.split(".")[0] in WITHOUT_TORCH]
    names += ["partitioner.planning", "partitioner.cli.commands"]
    code = f"import sys; [(__import__(name), 'torch' in sys.modules and print(name)) for name in {names}]; "
    code += "from partitioner import plan, verify; print('torch' in sys.modules, type(plan), type(verify))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=True)
    assert done.stdout.strip() == "False <class 'function'> <class 'function'>"


def test_no_public_name_is_a_file() -> None:
    """Whether `distributed.outlook` was a function or a file hung on what had been imported before."""
    assert not {module.split(".")[0] for module in MODULES} & set(partitioner.__all__)
    ranks = {module.split(".")[1] for module in MODULES if module.startswith("distributed.")}
    assert not ranks & set(partitioner.distributed.__all__)


def test_no_import_circles() -> None:
    graph = nx.DiGraph((module, target) for module, path in MODULES.items() for target, _ in imports(path))
    circles = [" -> ".join(sorted(circle)) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert not circles, "import circles: " + "; ".join(circles)


def _body_start(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The first line behind the docstring: what a function says about itself does not make it long."""
    documented = ast.get_docstring(node) is not None and len(node.body) > 1
    return node.body[1].lineno if documented else node.lineno


def _too_long(path: Path) -> Iterator[str]:
    """What is too long in a file: the file, or a function in it."""
    name, lines = path.relative_to(PACKAGE), len(path.read_text().splitlines())
    if lines > MOST_LINES_IN_A_FILE:
        yield f"partitioner/{name}: {lines} lines"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - _body_start(node) + 1
            if length > MOST_LINES_IN_A_FUNCTION:
                yield f"partitioner/{name}:{node.lineno} {node.name}: {length} lines"


def test_files_and_functions_are_short() -> None:
    faults = [fault for path in FILES for fault in _too_long(path)]
    assert not faults, "look for the idea that is trying to get out:\n" + "\n".join(faults)
