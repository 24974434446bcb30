"""The hosts of a job and the links between its ranks: which link an axis of the mesh has to go over.

    host 0   rank 0  rank 1  rank 2  rank 3        tensor 2: 0-1, 2-3         within a host
    host 1   rank 4  rank 5  rank 6  rank 7        pipeline 2: 0-2, 1-3       within a host
                                                   data 2: 0-4, 1-5           between hosts

Ranks are numbered host by host, and along the mesh with its last axis first, as `torch.distributed.init_device_mesh` does: axes
are data, pipeline, tensor, so ranks of one tensor group are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partitioner.ir.machine import Link
from partitioner.ir.units import format_count, format_duration


@dataclass(frozen=True)
class Cluster:
    """Ranks on equal hosts.

    Args:
        ranks: how many there are, one for each device.
        each: ranks of one host.
        within: what a rank has to any other rank of its host.
        between: what a rank has to a rank of another host: its own share of the host's network.

    Example:
        >>> pair = Cluster(8, 4, Link("rank", "same host", 1e11, 1e-6), Link("rank", "other host", 1e10, 1e-5))
        >>> pair.hosts, pair.ring(2, 2).bandwidth, pair.ring(2, 4).bandwidth, pair.ring(8, 1).bandwidth
        (2, 100000000000.0, 10000000000.0, 40000000000.0)
    """

    ranks: int
    each: int
    within: Link
    between: Link

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return -(-self.ranks // self.each)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The figures of links that nobody has given, in words; those between hosts only where there are several."""
        links = (self.within, self.between) if self.hosts > 1 else (self.within,)
        return tuple(f"{figure} of {link.source} -> {link.target}" for link in links for figure in link.assumed)

    def ring(self, size: int, stride: int) -> Link:
        """What each rank of a ring has to the next one, where ``size`` ranks that lie ``stride`` apart make a ring.

        A ring over several hosts enters and leaves each of them once. With k of its ranks on a host there may be k rings, each
        over another rank's share of the network, as NCCL makes them; so k shares carry what a rank sends, or the link within
        the host does if it is slower.
        """
        if self.each % (size * stride) == 0 or self.hosts == 1:
            return self.within
        shares = max(1, self.each // stride)
        return replace(self.between, bandwidth=min(self.within.bandwidth, shares * self.between.bandwidth))

    def next_stage(self, place: int, pipeline: int, inner: int) -> Link:
        """What the ranks at one place along the pipeline axis have to those at the next place: the slowest of all copies'.

        Args:
            place: along the axis; the last one leads to the first.
            pipeline: the size of the axis.
            inner: how many ranks hold one stage of one copy.

        Example:
            >>> pair = Cluster(8, 4, Link("rank", "same host"), Link("rank", "other host"))
            >>> [pair.next_stage(place, 4, 2).target for place in range(3)]
            ['same host', 'other host', 'same host']
        """
        block, after = pipeline * inner, (place + 1) % pipeline
        for copy in range(min(self.ranks // block, self.each)):  # then places within hosts repeat
            for one in range(inner):
                source, target = copy * block + place * inner + one, copy * block + after * inner + one
                if source // self.each != target // self.each:
                    return self.between
        return self.within

    def __str__(self) -> str:
        text = f"{self.ranks} ranks on {self.hosts} host{'s' if self.hosts > 1 else ''}, {shown(self.within)} within a host"
        return f"{text}, {shown(self.between)} between hosts" if self.hosts > 1 else text


def shown(link: Link) -> str:
    """A link's figures.

    >>> shown(Link("a", "b", 5e10, 1e-5))
    '50 GB/s after 10 us'
    """
    return f"{format_count(link.bandwidth, 'B/s')} after {format_duration(link.latency)}"
