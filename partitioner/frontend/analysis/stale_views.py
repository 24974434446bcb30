"""Reading a view whose base was written since is a write.

Autograd keeps a view's ``grad_fn`` until it is next asked for, and if the base was written in the meantime it makes a new one
then, under a lock of the view. Dropping the old one may need Python's interpreter lock, and an indexing op holds that lock
while it waits for the view's. Two threads that read one such view at the same time can therefore block each other for good
(`tests/test_bugs.py` has the story). So the first read after a write is ordered before every other access to the storage, as
the hidden write that it is.

    base, v = x * 1, base[:, :3]
    base.add_(1)                    now v is stale
    v * 2                           reads v, and writes its grad_fn
    v[:, 0]                         reads v
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from partitioner.frontend.analysis.static import Effect


def refreshes(nodes: Iterable[torch.fx.Node], effects: Mapping[str, Effect]) -> dict[str, frozenset[str]]:
    """The storages of the stale views that each op reads, by name of the op.

    Args:
        nodes: ops in program order.
        effects: what each touches.
    """
    versions: Counter[str] = Counter()
    seen: dict[str, dict[str, int]] = {}
    found: dict[str, frozenset[str]] = {}
    for node in nodes:
        stale: set[str] = set()
        for source in node.all_input_nodes:
            if source.name in seen:
                now = {storage: versions[storage] for storage in seen[source.name]}
                stale.update(storage for storage in now if now[storage] != seen[source.name][storage])
                seen[source.name] = now
        effect = effects[node.name]
        versions.update(effect.writes)
        if effect.storages - {node.name}:  # it may be a view
            seen[node.name] = {storage: versions[storage] for storage in effect.storages}
        for source in node.all_input_nodes:  # what it wrote through, it has refreshed
            if source.name in seen and effect.writes & effect.storages & seen[source.name].keys():
                seen[source.name] = {storage: versions[storage] for storage in seen[source.name]}
        found[node.name] = frozenset(stale)
    return found
