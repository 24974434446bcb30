"""The smallest largest load that is found in a given time, and a proof of how small it could be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.planner.latency.homes import Homes
from partitioner.planner.latency.tries import tries_for
from partitioner.planner.throughput import model
from partitioner.planner.throughput.bound import bound_of
from partitioner.planner.throughput.branch import Branching, soon_searched
from partitioner.planner.throughput.cycles import cycled
from partitioner.planner.throughput.exchanges import exchanged
from partitioner.planner.throughput.first import by_size, sparings
from partitioner.planner.throughput.gather import gathered
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.levels import BLOCKS, PAIRS, Coarsening, clustered
from partitioner.planner.throughput.lns import Neighbourhoods
from partitioner.planner.throughput.openings import CLOSE, MOST_IDEALS, none_found, start
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.search import Annealing, moment
from partitioner.planner.throughput.settling import evenly
from partitioner.planner.throughput.staging import ORDERS, staged
from partitioner.planner.timing import largest_load

SOON_IDEALS = 300_000
"""Down-closed sets of units, times the tasks, up to which the best stages are found where there is no limit of time."""

ROUNDS = 4
"""Quick rounds of annealing before anything is proven."""

PROOF, SURE, SOON = 0.5, 0.8, 0.4
"""Parts of the time for a proof by CP-SAT: of any model, and of one that is small, of so many seconds to get somewhere, but
whose bound is far, for that comes at the end."""

TURNS = 4
"""Cycles in the time that is left when no proof was found, each followed by neighbourhoods."""

MOST_BRANCHED = 100
"""Units up to which branch and bound may come to an end."""

MOST_BOTH = 20_000
"""Tasks up to which they are placed both one by one and in stages; of more, in stages where processors are equal."""

FAR, LONG = 1.05, 0.75
"""A load over a bound beyond which no proof is near: it saves half of the time for one, and cycles that part of the rest."""

MOVES, MOST_MOVED = 1_500, 600
"""Moves of each quick round where there is no limit of time, and the most tasks of a problem that gets any."""

AGAIN, MOST_AGAIN = 0.99, 4
"""What a search may leave of a load for it to be worth as many quick rounds again, and how often there are any."""

NEARLY, NEAR = 2e-4, 0.2
"""A gain, relatively, for which a few moves are not made where there is no limit of time; and one for which nothing is joined
beforehand where processors are equal, which takes seconds."""


def balanced(
    problem: Problem, seconds: float = 10.0, seed: int = 0, known: Sequence[Sequence[int]] = ()
) -> tuple[list[int], float]:
    """The best placement found.

    Begins with the best contiguous stages (Tarnawski et al., NeurIPS 2020), then moves units between them, with CP-SAT where it
    is installed. Two processors may each lead to the other, so an answer may be better than all stages.

    Args:
        problem: what is placed; contiguous if it asks for that.
        seconds: of time.
        seed: of all that is left to chance.
        known: placements that others have found, by task.

    Returns:
        The processor of each task, and seconds that no such placement's largest load can be below.

    Raises:
        PlacementError: none was found that fits.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> cpu = Kind("cpu", {1: [3.0, 1.0, 2.0]})
    >>> balanced(Problem("chain", ("a", "b", "c"), (cpu,), (Processor("x", 0),) * 2, [(0, 1, -1), (1, 2, -1)]))[0]
    [0, 1, 1]
    """
    units = units_of(problem, contiguous=problem.contiguous)
    if not units.count:
        return [], 0.0
    began, park = monotonic(), park_of(units)
    until = began + seconds
    bound = bound_of(park)
    search = Annealing(park, start(park, began + seconds / 8, bound, until, [units.of_tasks(homes) for homes in known]), seed)
    _quickly(search, began + seconds / 2, max(400, min(200 * units.count, 20_000)), bound)
    if search.least > bound * (1 + CLOSE):
        prove = _proven if model.installed() and model.suits(park) and _has_time(park, until) else _branched
        bound = max(bound, prove(search, bound, until))
    return units.spread_over(search.best), min(bound, search.least)


def evenest(
    problem: Problem, homes: Homes, tries: int, in_line: bool, until: float = inf, parts: bool = True
) -> tuple[list[int], float]:
    """Of up to ``tries`` placements, the one whose largest load is smallest; the objective is ``throughput``.

    One by one, tasks go to the processors that suit them. In stages along a line (``in_line``) neighbours share a processor and
    little travels, but in one call each processor would wait for the one before it. Where both matter, tasks are joined first,
    which takes longer, and on equal processors is left out where other answers are near the bound; contiguous parts are then
    gathered, from clusters of their own, too, if ``parts``.

    Returns:
        The processor of each task, and seconds that no placement's largest load can be below.

    Raises:
        PlacementError: none was found.
    """
    count, large = tries_for(problem, tries), len(problem.tasks) > MOST_BOTH
    found, reason = list[tuple[float, list[int]]](), PlacementError("nothing was tried")
    park = park_of(units_of(problem, contiguous=False))
    bound = bound_of(park)
    makes: list[Callable[[], tuple[float, list[int]]]] = [
        *(partial(evenly, park, homes, each, bound, until) for each in sparings(park)[:count])
    ]
    enough, quick = 1 if large or (count == 1 and problem.contiguous) else 1 + len(makes), 0
    if (tries > 1 or large) and in_line:
        first = problem.contiguous or (large and not park.waste)
        makes.insert(
            0 if first else len(makes), lambda: _in_a_line(park, bound, until, min((each for each, _ in found), default=inf))
        )
        joined = _joining(park, homes, bound, until, parts) if not large else []
        quick = 0 if park.waste else enough
        makes, enough = [*makes[:quick], *joined, *makes[quick:]], enough + len(joined)
    for number, make in enumerate(makes, start=1):
        try:
            found.append(make())
        except PlacementError as error:
            reason = error
        near = NEAR if number == quick else NEARLY
        if found and (number >= enough or min(found)[0] <= bound * (1 + near) or monotonic() > until):
            break
    if not found:
        raise reason
    return min(found)[1], bound


def _joining(park: Park, homes: Homes, bound: float, until: float, parts: bool) -> list[Callable[[], tuple[float, list[int]]]]:
    """Ways that join tasks before they are placed, where prices alone do not say where each belongs."""
    problem = park.units.problem
    if problem.contiguous:
        if park.waste:
            return [partial(gathered, park, bound, until, parts=parts)]
        return [lambda: gathered(park, bound, moment(until, 2), parts=False)] if problem.travels else []
    if park.apart:
        return []
    ways = (BLOCKS, PAIRS) if park.waste else (BLOCKS,)

    def by(way: Coarsening) -> Callable[[], tuple[float, list[int]]]:
        return lambda: clustered(park, homes, bound, moment(until, 2), way)

    return [by(way) for way in ways]


def _in_a_line(park: Park, bound: float, until: float, least: float) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task, of stages along one order that are better than ``least``."""
    problem = park.units.problem
    line = staged(park, until, min(MOST_IDEALS, SOON_IDEALS // max(1, len(problem.tasks))), bound, 1, least)
    if line is None:
        raise PlacementError(none_found(park, "No stages were found"))
    found = park.units.spread_over(line)
    return largest_load(problem, found), found


def soon_balanced(
    problem: Problem, homes: list[int], bound: float, hidden: float = 0.0, until: float = inf
) -> tuple[list[int], float]:
    """A placement that is no worse than ``homes``, after as many moves as milliseconds allow, which are counted; and the bound.

    Of few tasks all placements are looked at. Nothing is moved where the largest load is nearly ``bound``, which is its least,
    or when it is ``until``, by the monotonic clock. ``hidden``: see `exchanged`.
    """
    if not 1 < len(problem.tasks) <= MOST_MOVED:
        return homes, bound
    units = units_of(problem, contiguous=problem.contiguous)
    given, near = units.of_tasks(homes), bound * (1 + NEARLY)
    if units.spread_over(given) != homes or not units.valid(given):
        return homes, bound
    park = park_of(units)
    known = search = Annealing(park, given)
    if known.least > near:
        found = soon_searched(park, known.least * (1 - CLOSE))
        known.take(found.homes or ())
        if found.complete:
            return units.spread_over(known.best), known.least * (1 - CLOSE)
    if (problem.crowded or not problem.travels) and not problem.contiguous and bound > 0:
        search = Annealing(park, exchanged(park, known.best, bound, hidden, until))
    _quickly(search, until, MOVES * (2 if problem.contiguous and park.waste else 1), near)
    search.take(known.best)
    return units.spread_over(search.best), bound


def _quickly(search: Annealing, until: float, moves: int, enough: float) -> None:
    """Quick rounds of annealing, and as many again while they gain much, as they do from a start that only fits."""
    for _ in range(MOST_AGAIN):
        before = search.least
        search.run(until, ROUNDS, moves, enough)
        if search.least > before * AGAIN:
            break


def _has_time(park: Park, until: float) -> bool:
    """Whether CP-SAT would have as much time as its model takes to be built, and as one of that size needs to get somewhere."""
    return monotonic() + max(2 * model.start_up(park), model.least_time(park)) < until


def stages(
    problem: Problem,
    most_orders: int = ORDERS,
    most_ideals: int = MOST_IDEALS,
    seconds: float = inf,
    near: float = CLOSE,
) -> tuple[list[int], float]:
    """The best contiguous stages along some orders of the units.

    Args:
        problem: what is placed.
        most_orders: orders of the units that are tried.
        most_ideals: of more down-closed sets of units than these, only orders are looked at.
        seconds: after which no further order is tried; infinite: the answer is the same on every machine.
        near: what an answer may be above the bound, relatively, for no further order to be tried.

    Returns:
        The processor of each task, no two of which lead to each other; seconds that no placement's largest load can be below.

    Raises:
        PlacementError: none was found that fits.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> cpu, edges = Kind("cpu", {1: [1.0, 3.0, 2.0]}), [(0, 1, -1), (1, 2, -1)]
    >>> stages(Problem("p", ("a", "b", "c"), (cpu,), (Processor("x", 0),) * 2, edges), 1)[0]
    [0, 0, 1]
    """
    units, until = units_of(problem, contiguous=True), monotonic() + seconds
    if not units.count:
        return [], 0.0
    park = park_of(units)
    bound = bound_of(park)
    homes = staged(park, until, most_ideals, bound, most_orders, near=near)
    if homes is None:
        raise PlacementError(none_found(park, "No stages were found"))
    found = units.spread_over(homes)
    return found, min(bound, largest_load(problem, found))


def _branched(search: Annealing, bound: float, until: float) -> float:
    """Search on by branch and bound, then by cycles for better answers; the bound that is proven."""
    if search.units.count <= MOST_BRANCHED:
        found = Branching(search.park, by_size(search.park)).search(until, search.least * (1 - CLOSE))
        search.take(found.homes or ())
        if found.complete:
            return search.least
    cycled(search, bound, until)
    return bound


def _proven(search: Annealing, bound: float, until: float) -> float:
    """Search on with CP-SAT over everything for a proof, then in turns for better answers; the bound that is proven.

    In coarse ticks first: where units take equally long, far fewer placements differ. In fine ones if that has come to an end.
    """
    for resolution in (model.COARSE, model.FINE):
        if search.least <= bound * (1 + CLOSE) or not _has_time(search.park, until):
            return bound
        whole = model.Model(search.park, search.least, bound, resolution=resolution)
        far, small = bound < search.least / FAR, model.least_time(search.park) <= SOON
        seconds = (SURE if far and small else PROOF) * (until - monotonic())
        nearer = search.least / FAR if far and not small else 0.0
        found = whole.solve(seconds, whole.canonical(search.best), nearer=nearer)
        search.take(found.homes)
        bound = max(bound, found.bound)
        if not found.done:
            if search.least > bound * FAR:
                cycled(search, bound, monotonic() + LONG * (until - monotonic()))
            _in_turns(search, bound, until)
            return bound
    return bound


def _in_turns(search: Annealing, bound: float, until: float) -> None:
    """Search on by cycles, which find their way to other answers, and by neighbourhoods, which make them the best near by."""
    if not _has_time(search.park, until):
        return cycled(search, bound, until, 1)
    near = Neighbourhoods(search, search.random.getrandbits(30))
    whole = model.Model(search.park, search.least, bound, apart=False)
    turn = (until - monotonic()) / (2 * TURNS)
    while monotonic() < until and search.least > bound * (1 + CLOSE):
        cycled(search, bound, min(until, monotonic() + turn), 1)
        if near.run(whole, min(until, monotonic() + turn)):
            return None
    return None
