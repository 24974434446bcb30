"""Process groups that nobody needs any more. Each has sockets and threads, and torch keeps them to the end of the job.

    rank 0   parallelize    steps   part dropped     parallelize: mesh 0 is dropped here and there, and its groups are destroyed
    rank 1   parallelize    steps       part dropped parallelize

A job that makes parts again and again, for folds or settings, would run out of open files. A rank that is done with a part may
be ahead of one that waits for its last message, so groups go where all ranks meet next, once all have dropped them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Sequence

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

_OF_JOB: weakref.WeakKeyDictionary[dist.ProcessGroup, list[Groups]] = weakref.WeakKeyDictionary()
"""By the group of all ranks, those of each mesh, in the order in which all ranks make them; an empty one was given back."""

MANY = 8
"""Meshes with groups from which on Python looks for parts that only know themselves, which takes a tenth of a second."""


class Groups:
    """The process groups of a mesh.

    Args:
        mesh: of torch. Whoever has it, or a part of it, needs its groups.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.groups: list[dist.ProcessGroup] = []
        self.holders = 0
        for group in mesh.get_all_groups():
            self.add(group)
        self.needed_by(mesh)
        _known().append(self)

    def add(self, group: dist.ProcessGroup) -> None:
        """Count a group among those of the mesh, unless it has other ranks, or torch would give its name a second time.

        Those that torch names by a hash are named by how many there are, which is what it may have been once before.
        """
        ours = group not in (dist.GroupMember.NON_GROUP_MEMBER, dist.group.WORLD)
        if ours and group.group_name.isdigit():
            self.groups.append(group)

    def needed_by(self, *holders: object) -> None:
        """Keep the groups for as long as any of some objects is there."""
        for each in holders:
            self.holders += 1
            weakref.finalize(each, self._dropped).atexit = False

    def _dropped(self) -> None:
        self.holders -= 1


def give_back(told_by_all: Callable[[Collection[int]], Sequence[Collection[int]]]) -> None:
    """Destroy the groups of all meshes that no rank needs any more. All ranks call it at one point.

    Args:
        told_by_all: what each rank gives, by rank.
    """
    known = _known()
    if sum(bool(each.groups) for each in known) >= MANY:
        gc.collect()  # parts and stages know each other
    dropped = [number for number, each in enumerate(known) if each.groups and not each.holders]
    for number in sorted(set(dropped).intersection(*told_by_all(dropped))):
        while known[number].groups:
            dist.destroy_process_group(known[number].groups.pop())


def _known() -> list[Groups]:
    world = dist.group.WORLD
    assert world is not None
    return _OF_JOB.setdefault(world, [])
