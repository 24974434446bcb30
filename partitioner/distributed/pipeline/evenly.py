"""Where a row of ops is cut into parts that are as even as can be, and what passes each place of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf

import numpy as np
from numpy.typing import NDArray

from partitioner.errors import PlacementError
from partitioner.ir.graph import Graph, Op
from partitioner.planner.constraints import Constraints


def cuts_between(ops: Sequence[Op], rules: Constraints) -> list[int]:
    """After how many ops a row of them may be cut, so that no group is on both sides; before all and behind all included."""
    last = {group: place for place, group in enumerate(rules.group[op.name] for op in ops)}
    cuts, open_until = [0], 0
    for place, op in enumerate(ops):
        open_until = max(open_until, last[rules.group[op.name]])
        if open_until == place:
            cuts.append(place + 1)
    return cuts


def passing(graph: Graph) -> list[int]:
    """Bytes of what is made by the first ops and needed behind them, after each number of ops; results are, to the end."""
    made = {op.name: place for place, op in enumerate(graph.ops)}
    last = {name: place for place, op in enumerate(graph.ops) for name in op.inputs}
    last |= dict.fromkeys(graph.outputs, len(graph.ops))
    change = [0] * (len(graph.ops) + 2)
    for name in made.keys() & last.keys():
        change[made[name] + 1] += graph.by_name[name].bytes
        change[last[name] + 1] -= graph.by_name[name].bytes
    return list(accumulate(change[:-1]))


def evenly(
    graph: Graph, rules: Constraints, seconds: Mapping[str, float], count: int, at: Sequence[bool] | None = None
) -> list[int]:
    """After how many ops each stage ends, in program order and none of them empty: the longest as short as it can be.

    If it is said after how many ops may be cut, then only there.
    """
    cuts, sums = cuts_between(graph.ops, rules), [0.0]
    if at is not None:
        cuts = [cut for cut in cuts if at[cut] or cut in (0, len(graph.ops))]
    for op in graph.ops:
        sums.append(sums[-1] + seconds[op.name])
    if len(cuts) <= count:
        raise PlacementError(
            f"{graph.name} cannot be cut into {count} stages: there are {max(len(cuts) - 2, 0)} places for cuts between ops "
            "that must stay together. Ask for fewer stages."
        )
    return [cuts[end] for end in _even_ends([sums[cut] for cut in cuts], count)]


def _even_ends(sums: Sequence[float], count: int) -> list[int]:
    """Where each of ``count`` parts of a row ends, none of them empty: the longest as short as it can be.

    Dynamic programming over the parts. With more in front of the last part the rest gets longer and the last one shorter, so
    the best border between them is where they are equal: there, or one piece before.

    Args:
        sums: of what is in front of each place between two pieces, before the first and behind the last included.
        count: how many parts there are.

    Example:
        >>> _even_ends([0.0, 1.0, 2.0, 5.0, 6.0], 2)
        [2, 4]
    """
    row, places = np.asarray(sums, dtype=np.float64), np.arange(len(sums))
    before: list[NDArray[np.int64]] = []
    longest = row  # of the pieces in front of a place, in as many parts as there were rounds
    for least in range(1, count):  # pieces in front of the last part
        found = least + np.searchsorted(longest[least:] + row[least:], row)
        late, early = (np.clip(each, least, np.maximum(places - 1, least)) for each in (found, found - 1))
        after, ahead = (np.maximum(longest[each], row - row[each]) for each in (late, early))
        before.append(np.where(ahead <= after, early, late))
        longest = np.where(places > least, np.minimum(ahead, after), inf)
    ends = [len(sums) - 1]
    for chosen in reversed(before):
        ends.append(int(chosen[ends[-1]]))
    return ends[::-1]
