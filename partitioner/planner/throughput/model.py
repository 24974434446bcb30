"""The placement as a model for CP-SAT, an optional package: the best answers for hundreds of units, and proofs.

    x[u, p]     unit u is on processor p
    send[f, p]  flow f is made on p and read elsewhere       }  where a passage concerns one processor
    take[f, p]  flow f is read on p and made elsewhere       }
    pass[f, h, c]  flow f is made on h and passes channel c     where links join two processors

Seconds are rounded down to whole ticks, so what no placement of the model beats no real one does either. Where all of them are
multiples of a round unit, that is a tick: nothing lies between two loads then, and proofs come soon.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from math import floor, inf, isfinite
from threading import Timer
from typing import Any

from partitioner.ir.problem import ROUNDING
from partitioner.planner.caps import in_whole
from partitioner.planner.latency.model import loading
from partitioner.planner.latency.schedule_model import unit_of
from partitioner.planner.throughput.prices import Park

FINE, COARSE = 1 << 40, 30_000
"""Ticks of the largest load: so many that rounding does not matter, and so few that many units take equally long."""

MOST_LITERALS = 400_000
"""Size of a model that CP-SAT still gets somewhere with in a minute."""

PACE = 5_000
"""Literals of a model with which CP-SAT gets somewhere in a second; about."""

BUILDING = 1e-5
"""Seconds to build a model, for each literal; about."""

BETTER = 1e-6
"""By how much an answer must be better than another one to be asked for, relatively."""

RANKED = 40
"""The heaviest units, by which processors that are alike are told apart."""


def installed() -> bool:
    """Whether CP-SAT can be used."""
    return find_spec("ortools") is not None


def suits(park: Park) -> bool:
    """Whether a model of the problem is of a size worth building."""
    return _literals(park) <= MOST_LITERALS and not (park.units.contiguous and park.units.reach is None)


def start_up(park: Park) -> float:
    """Seconds that pass before the solver has its turn."""
    return BUILDING * _literals(park) + loading()


def least_time(park: Park) -> float:
    """Seconds that the solver needs to get somewhere."""
    return _literals(park) / PACE


def _literals(park: Park) -> int:
    units, wide = park.units, len(park.units.problem.processors)
    tasks = len(units.problem.tasks) if units.contiguous else 0
    read = sum(len(flow.readers) + 1 for flow in units.flows)
    return wide * (units.count + 2 * tasks + read * (1 if park.by_itself else wide))


@dataclass(frozen=True)
class Result:
    """What CP-SAT found: the processor of each unit, or nothing; seconds that no answer beats; whether it came to an end."""

    homes: list[int]
    bound: float
    impossible: bool
    done: bool


class Model:
    """The model of a problem, in ticks.

    Args:
        park: units and processors.
        most: seconds that an answer may take; infinite where any answer will do.
        least: seconds that no answer can beat; proven.
        apart: whether of answers that differ by the names of processors only one is looked at (`canonical`).
        resolution: ticks of ``most``; fewer make proofs quicker, and bounds lower by less than a tick for each unit and flow.
    """

    def __init__(self, park: Park, most: float, least: float = 0.0, apart: bool = True, resolution: int = FINE) -> None:
        from ortools.sat.python import cp_model

        self.park, self.units, self.problem = park, park.units, park.units.problem
        self.model: Any = cp_model.CpModel()
        terms = 2 + self.units.count + 2 * len(self.units.flows)
        top = most if isfinite(most) else self._worst()
        self.ticks, self.exact = min(resolution, terms * 1_000_000) / top if top > 0 else 1.0, False
        unit, exact = unit_of(self._times(), top)
        if exact and top <= resolution * unit:
            self.ticks, self.exact, terms = 1 / unit, True, 0
        self.high = floor(top * self.ticks) + 1
        self.x = self._places()
        self.slots: defaultdict[int, list[tuple[Any, int]]] = defaultdict(list)
        self._compute()
        for number in range(len(self.units.flows)):
            (self._hosted if park.by_itself else self._linked)(number)
        self.top = self.model.new_int_var(min(self.high, max(0, floor(least * self.ticks) - terms)), self.high, "load")
        for terms_of in self.slots.values():
            self.model.add(sum(literal * weight for literal, weight in terms_of) <= self.top)
        self._memory()
        if apart:
            self._tell_apart()
        if self.units.contiguous:
            self._convex()
        self.model.minimize(self.top)

    def _whole(self, seconds: float) -> int:
        """Seconds in whole ticks; no more than are too many anyway, for days in ticks of picoseconds are no 64-bit number."""
        return floor(min(seconds * self.ticks * (1 + ROUNDING if self.exact else 1), self.high + 1))

    def _times(self) -> Iterator[float]:
        """Every duration that a load is made of, and more."""
        yield from set(self.units.seconds[self.units.seconds < inf].tolist())
        for flow in self.units.flows:
            yield from (each.latency * flow.count + flow.size / each.bandwidth for each in self.problem.channels)

    def _worst(self) -> float:
        """Seconds that any answer stays below."""
        finite = self.units.seconds
        compute = float(finite[finite < inf].sum())
        prices = [
            each * flow.count + byte * flow.size
            for flow in self.units.flows
            for home in range(len(self.problem.processors))
            for _, each, byte in self.park.prices.charges(home, (1 << len(self.problem.processors)) - 1)
        ]
        return compute + sum(prices)

    def _places(self) -> list[dict[int, Any]]:
        """A literal for each unit and processor that it may go to."""
        found = []
        for unit, able in enumerate(self.units.able):
            found.append({processor: self.model.new_bool_var(f"x{unit},{processor}") for processor in able})
            self.model.add_exactly_one(found[-1].values())
        return found

    def _compute(self) -> None:
        for unit, places in enumerate(self.x):
            for processor, literal in places.items():
                if ticks := self._whole(float(self.units.seconds[processor, unit])):
                    self.slots[3 * processor].append((literal, ticks))

    def _pay(self, home: int, there: int, number: int, side: int) -> list[tuple[int, int]]:
        """``(slot, ticks)`` that a flow from ``home`` to ``there`` costs at ``side``."""
        flow, found = self.units.flows[number], []
        for slot, each, byte in self.park.prices.charges(home, 1 << there):
            ticks = self._whole(each * flow.count + byte * flow.size)
            if slot // 3 == side and ticks:
                found.append((slot, ticks))
        return found

    def _hosted(self, number: int) -> None:
        """A flow's passages where what moving costs at a processor is a matter of that processor."""
        flow, count = self.units.flows[number], len(self.problem.processors)
        for here in range(count):
            other = (here + 1) % count
            made = self.x[flow.maker].get(here)
            if made is not None and (paid := self._pay(here, other, number, here)):
                sent = self.model.new_bool_var(f"send{number},{here}")
                for reader in flow.readers:
                    self._implies([made], self.x[reader].get(here), sent)
                self._add(sent, paid)
            if paid := self._pay(other, here, number, here):
                taken = self.model.new_bool_var(f"take{number},{here}")
                for reader in flow.readers:
                    if (read := self.x[reader].get(here)) is not None:
                        self._implies([read], made, taken)
                self._add(taken, paid)

    def _implies(self, causes: list[Any], unless: Any, effect: Any) -> None:
        clause = [cause.negated() for cause in causes] + [effect]
        self.model.add_bool_or(clause if unless is None else [*clause, unless])

    def _add(self, literal: Any, paid: list[tuple[int, int]]) -> None:
        for slot, ticks in paid:
            self.slots[slot].append((literal, ticks))

    def _linked(self, number: int) -> None:
        """A flow's passages, channel by channel."""
        flow, problem, overlap = self.units.flows[number], self.problem, self.problem.overlap
        for home, made in self.x[flow.maker].items():
            passes: dict[int, Any] = {}
            for reader in flow.readers:
                for there, read in self.x[reader].items():
                    for channel in problem.routes.get((home, there), ()) if there != home else ():
                        if channel not in passes:
                            passes[channel] = self.model.new_bool_var(f"pass{number},{home},{channel}")
                        self._implies([made, read], None, passes[channel])
            for channel, passed in passes.items():
                each = problem.channels[channel]
                ticks = self._whole(each.latency * flow.count + flow.size / each.bandwidth)
                for end in each.ends if ticks else ():
                    self.slots[3 * end + (0 if not overlap else 1 if end == home else 2)].append((passed, ticks))

    def _memory(self) -> None:
        """Caps, in units of which sums stay exact."""
        sizes, caps = in_whole(self.units.memory.tolist(), self.problem.caps)
        for processor, cap in enumerate(caps):
            if cap >= 0:
                here = [(places[processor], size) for size, places in zip(sizes, self.x, strict=True) if processor in places]
                self.model.add(sum(literal * size for literal, size in here if size) <= cap)

    @property
    def _ranked(self) -> list[int]:
        """The heaviest units first."""
        least = self.units.seconds.min(axis=0)
        return sorted(range(self.units.count), key=lambda unit: -least[unit])[:RANKED]

    def _tell_apart(self) -> None:
        """A processor gets its first of the heaviest units only after those before it that are alike have theirs."""
        for alike in self.park.interchangeable:
            for before, after in pairwise(alike):
                earlier: list[Any] = []
                for unit in self._ranked:
                    if after in self.x[unit]:
                        self.model.add_bool_or([*earlier, self.x[unit][after].negated()])
                        earlier.append(self.x[unit][before])

    def canonical(self, homes: Sequence[int]) -> list[int]:
        """An answer with processors that are alike renamed as the model wants them."""
        name: dict[int, int] = {}
        for alike in self.park.interchangeable:
            used = [homes[unit] for unit in self._ranked if homes[unit] in alike]
            name.update(zip(dict.fromkeys([*used, *alike]), alike, strict=True))
        return [name[home] for home in homes]

    def _convex(self) -> None:
        """No forward task outside a processor has both a task before it and a task after it that are inside."""
        problem, unit_of = self.problem, self.units.unit_of
        forward = [task for task in range(len(problem.tasks)) if task not in problem.backward]
        for processor in range(len(problem.processors)):
            begun = {task: self.model.new_bool_var("") for task in forward}
            ended = {task: self.model.new_bool_var("") for task in forward}
            for task in forward:
                inside = self.x[unit_of[task]].get(processor)
                self.model.add_bool_or([begun[task].negated(), ended[task].negated(), *([] if inside is None else [inside])])
                if inside is not None:
                    self.model.add_implication(inside, begun[task])
                    self.model.add_implication(inside, ended[task])
                for source in {source for source, _ in problem.before[task]} - problem.backward:
                    self.model.add_implication(begun[source], begun[task])
                    self.model.add_implication(ended[task], ended[source])

    def solve(
        self,
        seconds: float,
        homes: Sequence[int] = (),
        free: frozenset[int] | None = None,
        seed: int = 0,
        below: float = inf,
        nearer: float = 0.0,
    ) -> Result:
        """Search.

        Args:
            seconds: of time.
            homes: an answer to begin with; without one, the first answer will do.
            free: units that may move, all others staying; ``None``: every unit may.
            seed: of the search.
            below: seconds; only better answers are asked for.
            nearer: seconds that the bound must have reached after half of the time, or the other half is saved.
        """
        from ortools.sat.python import cp_model

        model = self.model if free is None and below == inf else self.model.clone()
        if below < inf:
            model.add(self.top <= floor(below * self.ticks * (1 - BETTER)))
        model.clear_hints()
        for unit, home in enumerate(homes):
            for processor, literal in self.x[unit].items():
                model.add_hint(literal, processor == home)
            if free is not None and unit not in free:
                model.add(self.x[unit][home] == 1)
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(seconds, 0.01)
        solver.parameters.random_seed = seed
        solver.parameters.num_workers = min(8, os.cpu_count() or 1)
        solver.parameters.stop_after_first_solution = not homes
        with _stopped_unless(solver, seconds / 2, nearer * self.ticks):
            status = solver.solve(model)
        found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        places = [next(p for p, literal in each.items() if solver.boolean_value(literal)) for each in self.x] if found else []
        bound = solver.best_objective_bound / self.ticks * (1 - 1e-12) if status != cp_model.INFEASIBLE else 0.0
        proven = max(0.0, bound) if free is None and below == inf else 0.0
        return Result(places, proven, status == cp_model.INFEASIBLE, status in (cp_model.OPTIMAL, cp_model.INFEASIBLE))


@contextmanager
def _stopped_unless(solver: Any, seconds: float, nearer: float) -> Iterator[None]:
    """Stop a solver after so many seconds if its bound is still below ``nearer``."""
    if not nearer:
        yield
        return
    bounds = [-inf]
    solver.best_bound_callback = bounds.append
    timer = Timer(max(0.0, seconds), lambda: bounds[-1] < nearer and solver.stop_search())
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
