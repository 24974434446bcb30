"""What it costs ranks to talk: seconds of collectives over a ring, and of one message, from bytes and a link.

With n ranks, B bytes, a link of b bytes/s after a latency of l seconds:

    all-reduce                    2 (n - 1) l  +  2 (n - 1) / n  B / b
    all-gather, reduce-scatter      (n - 1) l  +    (n - 1) / n  B / b
    broadcast                       (n - 1) l  +                 B / b
    message                                 l  +                 B / b

B is the whole: what every rank has after an all-gather, and before a reduce-scatter. The terms in B are the least that any
algorithm needs whose ranks send one message at a time; the terms in l are a ring's, and trees need fewer.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", International Journal of
High Performance Computing Applications 19(1), 2005.
"""

from __future__ import annotations

from partitioner.ir.machine import Link


def all_gather(size: float, ranks: int, link: Link) -> float:
    """Seconds until every rank has all ``size`` bytes, of which each had its part.

    >>> all_gather(8e9, 4, Link("", "", bandwidth=1e9, latency=0.0))
    6.0
    """
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


def reduce_scatter(size: float, ranks: int, link: Link) -> float:
    """Seconds until each rank has the sum of its part of ``size`` bytes that every rank had: an all-gather, backwards."""
    return all_gather(size, ranks, link)


def all_reduce(size: float, ranks: int, link: Link) -> float:
    """Seconds until every rank has the sum of ``size`` bytes: a reduce-scatter, then an all-gather.

    >>> all_reduce(8e9, 4, Link("", "", bandwidth=1e9, latency=0.0))
    12.0
    """
    return reduce_scatter(size, ranks, link) + all_gather(size, ranks, link)


def broadcast(size: float, ranks: int, link: Link) -> float:
    """Seconds until every rank has ``size`` bytes of one of them: in pieces that follow each other from rank to rank.

    >>> broadcast(8e9, 4, Link("", "", bandwidth=1e9, latency=0.5))
    9.5
    """
    return (ranks - 1) * link.latency + size / link.bandwidth


def message(size: float, link: Link) -> float:
    """Seconds until another rank has ``size`` bytes.

    >>> message(1e9, Link("", "", bandwidth=1e9, latency=0.5))
    1.5
    """
    return link.latency + size / link.bandwidth
