"""What no policy may break: pins, colocations, and the ops that must share a device to be right.

Ops share a device if they use the same parameter, buffer or constant (it lies in one place), or touch one storage up to its
last in-place write (a copy taken earlier would miss the write). After its last write a storage may be read anywhere,
through a copy. Results alone must lie in the memory that eager gives them, so views that lead to one stay where it was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from networkx.utils import UnionFind

from partitioner.errors import PlacementError
from partitioner.ir.access import is_storage
from partitioner.ir.graph import LANDED, Graph, Op, StateMeta


@dataclass(frozen=True)
class Constraints:
    """Groups of ops that share a device, and the devices that are fixed.

    Args:
        group: the group of each op; an op that is free is a group of its own.
        device: device name of each pinned group.
    """

    group: Mapping[str, str]
    device: Mapping[str, str]

    def pinned(self, op: str) -> str | None:
        """The device that ``op`` must run on, if it is pinned."""
        return self.device.get(self.group[op])


def constrain(
    graph: Graph,
    pins: Sequence[tuple[str, str]],
    colocate: Sequence[Sequence[str]],
    state: Mapping[str, StateMeta],
    fixed: Mapping[str, str],
    landed: Mapping[str, str] = MappingProxyType({}),
    layers: bool = False,
) -> Constraints:
    """Collect every constraint on ``graph``.

    Args:
        graph: what will be placed.
        pins: ``(pattern, device name)`` over module paths and op names.
        colocate: lists of patterns; the ops that match any pattern of one list share a device.
        state: parameters, buffers and constants, by qualified name; what is in one storage shares a device.
        fixed: device name of state that has been placed already, by qualified name.
        landed: device name of ops whose results Python goes on with there, as views of what others hold.
        layers: what layers hold whose parameters one op may take in another mode stays together, unless pins take it apart.

    Raises:
        PlacementError: a pattern matches nothing, or two pins contradict each other through a group.
    """
    groups: UnionFind[str] = UnionFind(op.name for op in graph.ops)
    for names in [*_sharing_state(graph, state), *_before_last_write(graph), *_in_one_memory(graph), *_held_twice(graph)]:
        groups.union(*names)
    for patterns in colocate:
        groups.union(*(op.name for pattern in patterns for op in _matching(graph, pattern)))
    wanted: dict[str, tuple[str, str]] = {}
    for pattern, device in pins:
        for op in _matching(graph, pattern):
            _pin(wanted, groups[op.name], device, f"pin {pattern!r} (op {op.name})")
    for op in graph.ops:
        for used in op.state:
            if used in fixed:
                _pin(wanted, groups[op.name], fixed[used], f"{used}, which lies there already")
        if op.name in landed:
            _pin(wanted, groups[op.name], landed[op.name], f"op {op.name}, whose result shares memory that is used after it")
    for names in _in_layers(graph) if layers else ():
        pinned = {group: wanted[group] for group in map(groups.__getitem__, names) if group in wanted}
        if len({device for device, _ in pinned.values()}) < 2:
            groups.union(*names)
            for group in pinned:
                wanted[groups[group]] = wanted.pop(group)
    return Constraints({op.name: groups[op.name] for op in graph.ops}, {group: name for group, (name, _) in wanted.items()})


def _in_layers(graph: Graph) -> Iterable[list[str]]:
    """For each layer whose parameters torch may take in one op: the ops that use them."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for op in graph.ops:
        if op.layer and op.state:
            found[op.layer].append(op.name)
    return found.values()


def _pin(wanted: dict[str, tuple[str, str]], group: str, device: str, why: str) -> None:
    other, reason = wanted.setdefault(group, (device, why))
    if other != device:
        raise PlacementError(
            f"ops that must share a device are pinned to two: {other} by {reason}, and {device} by {why}.\n"
            "They share a parameter, a buffer, memory that is written in place or that a result lies in, or a colocation. "
            "Pin them to one device."
        )


def matches(op: Op, pattern: str) -> bool:
    """Whether a glob pattern means an op: by its name, its module path, or a module around it.

    Example:
        >>> op = Op("linear_3", "linear", path="encoder.layer.0")
        >>> [matches(op, pattern) for pattern in ("encoder", "encoder.*", "linear_*", "decoder.*")]
        [True, True, True, False]
    """
    return fnmatchcase(op.name, pattern) or fnmatchcase(op.path, pattern) or fnmatchcase(op.path, f"{pattern}.*")


def _matching(graph: Graph, pattern: str) -> list[Op]:
    """The ops that a pattern places. A size or a dtype is asked where its tensor is, whoever asks.

    A layer is one op in a view without examples, and gives its name to the ops that the tracer finds in it.
    """
    found = [op for op in graph.ops if matches(op, pattern)]
    if not found and not graph.observed:
        found = [op for op in graph.ops if pattern.startswith(f"{op.name}_")]
    if not found:
        paths = sorted({op.path.split(".")[0] for op in graph.ops if op.path})
        raise PlacementError(
            f"pattern {pattern!r} matches no op. Patterns are globs over module paths and op names; "
            f"the top-level modules are: {', '.join(paths) or '(none)'}."
        )
    return [op for op in found if op.tensor and op.target != LANDED]


def _sharing_state(graph: Graph, state: Mapping[str, StateMeta]) -> Iterable[list[str]]:
    users: defaultdict[object, list[str]] = defaultdict(list)
    for op in graph.ops:
        for name in op.state:
            users[state[name].storage if name in state else name].append(op.name)
    return users.values()


def _before_last_write(graph: Graph) -> Iterable[list[str]]:
    """For each storage that is written after it was made: the ops that touch it up to the last write."""
    touching: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
    for op in graph.ops:
        for access in op.accesses:
            if is_storage(access.resource):
                touching[access.resource].append((op.name, access.write and access.resource != op.name))
    for uses in touching.values():
        last = max((index for index, (_, write) in enumerate(uses) if write), default=-1)
        if last >= 0:
            yield [name for name, _ in uses[: last + 1]]


def _held_twice(graph: Graph) -> Iterable[list[str]]:
    """For each argument that the model holds, too, as another tensor on its memory (``self.last = x[:]``): its readers."""
    readers: dict[str, dict[str, Op]] = {name: {} for name in graph.arguments if name not in graph.states}
    for op in graph.ops:
        for access in op.accesses:
            if access.resource in readers:
                readers[access.resource][op.name] = op
    for name, ops in readers.items():
        if any(op.state and not _is_given(graph, op, name) for op in ops.values()):
            yield [*ops]


def _is_given(graph: Graph, op: Op, storage: str) -> bool:
    """Whether a value that lies in a storage is an input of an op, which may then read a copy."""
    return any(name == storage or storage in getattr(graph.by_name.get(name), "storages", ()) for name in op.inputs)


VERSION = "prims._tensor_version.default"
"""What ``x._version`` is in a graph."""


def _in_one_memory(graph: Graph) -> Iterable[set[str]]:
    """For each storage that results lie in: the ops that took views of it to them, and write it. Views of a copy share nothing.

    Likewise for what is taken by strides, which a copy of a view has not, and for what is asked how often it was
    written. An argument lies where it is first read, so all that read one of which a result is a view are with that. What is
    brought together behind a graph comes from where it was made.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    waiting = [(op, storage) for op in graph.by_memory if op.target != LANDED for storage in op.storages]
    waiting += [(op, access.resource) for op in graph.ops if op.target == VERSION for access in op.accesses]
    for op, storage in waiting:
        if op.name not in found[storage]:
            found[storage].add(op.name)
            sources = (graph.by_name[name] for name in op.inputs if name in graph.by_name)
            waiting += [(source, storage) for source in sources if storage in source.storages]
    viewed = found.keys() & {*graph.arguments}
    for op in graph.ops:
        for access in op.accesses:
            if access.write and access.resource in found:
                found[access.resource].add(op.name)
        for name in viewed.intersection(op.inputs):
            found[name].add(op.name)
    return found.values()
