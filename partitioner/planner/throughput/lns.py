"""Large neighbourhood search: some units go where CP-SAT finds best, the others stay, again and again.

"Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems" (Shaw, 1998), for placements.
"""

from __future__ import annotations

import random
from time import monotonic

from partitioner.planner.throughput.model import Model
from partitioner.planner.throughput.search import Annealing

TURN = 2.0
"""Seconds that one neighbourhood may take."""


class Neighbourhoods:
    """Sets of units that may move together; larger ones after those that were searched through in their time.

    Args:
        search: the best placement, which gets better.
        seed: of all that is chosen at random.
    """

    def __init__(self, search: Annealing, seed: int = 0) -> None:
        self.search, self.units, self.random = search, search.park.units, random.Random(seed)
        self.size = min(self.units.count, 40)

    def run(self, model: Model, until: float) -> bool:
        """Search neighbourhoods until a moment, by the monotonic clock; whether everything has been searched through."""
        while (left := until - monotonic()) > 0.05:
            free = self._region() if self.random.random() < 0.5 else self._processors()
            result = model.solve(min(left, TURN), self.search.best, free, self.random.getrandbits(30), below=self.search.least)
            self.search.take(result.homes)
            if result.done and len(free) == self.units.count:
                return True
            self.size = (
                min(self.units.count, self.size + self.size // 4) if result.done else max(10, self.size - self.size // 4)
            )
        return False

    def _seed(self) -> int:
        """A unit of a processor with the largest load, more or less."""
        loads = self.search.loads
        busiest = max(range(len(loads.used)), key=lambda each: loads.load(each) * (0.98 + 0.02 * self.random.random()))
        inside = [unit for unit, home in enumerate(self.search.best) if home == busiest]
        return self.random.choice(inside or range(self.units.count))

    def _region(self) -> frozenset[int]:
        """Units near one another, by what flows between them."""
        first = self._seed()
        found, edge = {first}, [first]
        while edge and len(found) < self.size:
            unit = edge.pop(self.random.randrange(len(edge)))
            for number in self.units.touching[unit]:
                flow = self.units.flows[number]
                new = {flow.maker, *flow.readers} - found
                found |= new
                edge += sorted(new)
        return frozenset(found)

    def _processors(self) -> frozenset[int]:
        """Units of one processor after the other."""
        homes = self.search.best
        busiest = homes[self._seed()]
        sequence = [each for each in range(len(self.search.loads.used)) if each != busiest]
        self.random.shuffle(sequence)
        rank = {each: place for place, each in enumerate([busiest, *sequence])}
        noise = [self.random.random() for _ in homes]
        return frozenset(sorted(range(len(homes)), key=lambda unit: (rank[homes[unit]], noise[unit]))[: self.size])
