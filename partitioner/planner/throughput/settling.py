"""Each unit where it, and what it moves, cost least at prices of the processors' seconds, which rise where there is too much.

    price     x 0.5   y 0.5      a, with all it is connected to on y, takes 3 s there and 2 s on x, and 4 s to move: it stays;
    load      x 9     y 5        x has too much, so
    price     x 0.6   y 0.4      b goes from x to y

Units that are placed in turn, each beside those before it, do not know yet what they will be connected to.

Sources: Besag, "On the statistical analysis of dirty pictures", Journal of the Royal Statistical Society B 48(3), 1986 (each in
turn where it costs least); Plotkin, Shmoys and Tardos, "Fast approximation algorithms for fractional packing and covering
problems", Mathematics of Operations Research 20(2), 1995 (prices that multiply).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from partitioner.planner.prices import owed
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park
from partitioner.planner.throughput.units import Floats

ROUNDS, LOOKS = 12, 300_000
"""Prices that are tried, and units that all rounds look at, each on every processor, about, at most."""

STEP = 0.5
"""By how much a price changes at first where a load is twice the mean."""


@dataclass(frozen=True)
class Settled:
    """A placement, its largest load and the prices at which it was found."""

    largest: float
    homes: list[int]
    price: Sequence[float]


def cheapest(park: Park) -> list[int]:
    """The processor on which each unit pays least, whatever travels."""
    price, rent = park.rents
    return np.argmin(owed(park.units.seconds, price, park.units.memory, rent), axis=0).tolist()  # type: ignore[no-any-return]


def settled(park: Park, homes: Sequence[int]) -> Settled:
    """The placement with the smallest largest load of those in which units settle, at one price after the other.

    Contiguity is not looked at. Memory is kept if ``homes`` keep it.

    Args:
        park: units and processors.
        homes: where units are at first.
    """
    loads, price, best = Loads(park, homes), park.rents[0], Settled(inf, list(homes), park.rents[0].tolist())
    for turn in range(max(1, min(ROUNDS, LOOKS // max(1, park.units.seconds.size)))):
        _settle(loads, price.tolist())
        load = np.array([loads.load(each) for each in range(len(price))])
        if loads.largest < best.largest:
            best = Settled(loads.largest, list(loads.home), price.tolist())
        price = _risen(price, load, STEP / (1 + turn / 4))
    return best


def _risen(price: Floats, load: Floats, step: float) -> Floats:
    """Prices that have risen where there is more than the mean to do, and add up to 1."""
    even = float(load @ price)
    raised: Floats = price * np.exp(step * np.clip(load / even - 1.0, -2.0, 2.0)) if even > 0.0 else price
    return raised / raised.sum()


def _settle(loads: Loads, price: Sequence[float]) -> None:
    """Move units to where they cost less, again whenever one that they are connected to has moved, until none does."""
    units, caps, rent = loads.park.units, loads.park.units.problem.caps, loads.park.rents[1].tolist()
    waiting, most = deque(range(units.count)), 4 * units.count
    inside = set(waiting)
    while waiting and most:
        inside.discard(unit := waiting.popleft())
        most -= 1
        here, held, least, best = loads.home[unit], loads.memory[unit], -1e-12, -1
        found: dict[int, float] = {}
        for there in units.able[unit]:
            if there != here and loads.used[there] + held <= caps[there]:
                deltas = loads.deltas(unit, there)
                paid = sum(price[slot // 3] * each for slot, each in deltas.items()) + held * (rent[there] - rent[here])
                if paid < least:
                    least, best, found = paid, there, deltas
        if best >= 0:
            loads.move(unit, best, found)
            more = [each for each in units.near[unit] if each not in inside]
            waiting.extend(more)
            inside.update(more)
