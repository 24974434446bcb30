"""The moves of local search: a task to another lane, to another place in the order, or both.

    order        a b c d         c before b
    lane         c to lane 1     where memory is full there, d goes elsewhere in exchange
    send         ~v before b     where processors stand still while values travel

Between lanes of one pool, which cannot be told apart, nothing is moved: the order decides.

Source: moves of critical tasks as in Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem",
Management Science 42(6), 1996.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from partitioner.planner.latency.cuts import Cuts
from partitioner.planner.latency.quick import Quick
from partitioner.planner.prices import waste

NEAR = 0.4
"""Part of the moves between processors that lead to a neighbour of the task, where values travel."""

DRAWN = (0, 0, 1, 2)
"""Groups that go back where a piece has come from and memory is full, one of these numbers at a time, beside one that makes it
fit: where there is next to no room, exchanges of one for one do not lead from one packing to the next."""

ALONE = 0.4
"""Part of the moves between processors with a task alone, where values travel."""

DRAWS = 11
"""Further processors that are drawn for a task of a contiguous part if it cannot go to the first one."""

SIZES = (2, 3, 4, 6, 8, 12, 16, 24)
"""Tasks that move together where values travel: neighbours, what comes of one, or what leads to it."""

CROSSED = 0.2
"""Part of the moves between processors, where values travel, in which two exchange all from a task on, or up to it: so
what is all on one of them is cut in time, which no move of neighbours does."""

SENT, AT_ONCE, SINGLY = 0.4, 0.3, 0.8
"""Part of the moves that send a value at another time, where orders say when; parts of these that send it at once, and to one
of several processors only, so that it need not go to the others then."""

EXCHANGED = 0.2
"""Part of the moves between processors that stand still while values travel for which others come back: loads stay even."""

PULLS, BOTH = 0.4, 0.7
"""Parts of the moves: up to the first, in the order; up to the second, to other lanes; the rest, both."""

THRIFTY = 0.7
"""Part of the moves between processors that look at two of them and take the one where less time is wasted."""


class Moves:
    """What may be changed in schedules of one problem.

    Args:
        look: times orders of the problem.
        random: all that is left to chance.
        bold: whether many tasks move along edges one way, to neighbours, and across a moment: few moves get further so.
    """

    def __init__(self, look: Quick, random: Random, bold: bool = True) -> None:
        self.bold = bold and look.problem.travels
        self.problem, self.random, self.pool_of, problem = look.problem, random, look.pool_of, look.problem
        self.orders_only = len(look.pools) == 1
        self.sources = [sorted({source for source, _ in before}) for before in problem.before]
        self.lanes_of = [
            list(range(first, first + each.lanes)) for first, each in zip(problem.first_lane, problem.processors, strict=True)
        ]
        self.near = [[*sources, *after] for sources, after in zip(self.sources, problem.after, strict=True)]
        self.standing, self.sends = look.standing, look.standing is not None
        if self.sends:  # of what is sent, counted from the end
            self.sources += [[maker] for maker, _ in reversed(problem.values)] * (1 + len(problem.processors))
        self.first_of = [(group, tasks[0]) for group, tasks in problem.members.items()]
        self.cuts = Cuts(problem, random) if problem.contiguous else None
        self.waste = None if problem.alike else waste(problem).tolist()

    def __call__(self, order: list[int], lanes: Sequence[int], task: int, ahead: int) -> tuple[list[int], list[int]] | None:
        """Another order and other lanes, which differ in one task and what must go with it; ``None`` if nothing came of it.

        Args:
            order: all tasks.
            lanes: the lane of each.
            task: what is moved.
            ahead: the task whose lane it waits for; -1 for none.
        """
        random, kind, moved = self.random, self.random.random(), list(lanes)
        if self.sends and random.random() < SENT:
            sent = self.sent(order, lanes, task)
            return (sent, moved) if sent else None
        if self.orders_only or kind < PULLS:
            before = ahead if ahead >= 0 and random.random() < 0.5 else self.other(order, lanes, task)
            pulled = self.pull(order, task, before)
            return (pulled, moved) if pulled else None
        if not self.move(order, moved, task):
            return None
        pulled = self.pull(order, task, self.other(order, moved, task)) if kind > BOTH else None
        return pulled or order, moved

    def sent(self, order: list[int], lanes: Sequence[int], task: int) -> list[int] | None:
        """What a task reads or makes is sent at once, or before one of the next tasks at its ends; ``None`` if none travels."""
        problem, home, random = self.problem, self.problem.lanes, self.random
        own = home[lanes[task]]
        values = [value for source, value in problem.before[task] if value >= 0 and home[lanes[source]] != own]
        values += [each for each in problem.made[task] if any(home[lanes[reader]] != own for reader in problem.readers[each])]
        if not values:
            return None
        value = random.choice(values)
        left, item, targets = self.without(order, lanes, value)
        maker = problem.values[value][0]
        place = left.index(maker) + 1
        if random.random() > AT_ONCE:
            ends = {home[lanes[maker]], *targets}
            near = range(place, min(len(left), place + max(4, len(order) // 4)))
            later = [at for at in near if left[at] >= 0 and home[lanes[left[at]]] in ends]
            place = random.choice(later) if later else place
        return [*left[:place], item, *left[place:]]

    def without(self, order: list[int], lanes: Sequence[int], value: int) -> tuple[list[int], int, list[int]]:
        """An order without what sends a value, to all or to one of several processors; what is left out, and to which."""
        assert self.standing is not None
        send, targets = self.standing.send, self.standing.targets(value, lanes)
        if len(targets) > 1 and self.random.random() < SINGLY:
            there, both = self.random.choice(targets), send(value)
            split = [send(value, each) for each in targets if each != there]
            if both in order:
                place = order.index(both)
                order = [*order[:place], *split, *order[place + 1 :]]
            return [each for each in order if each != send(value, there)], send(value, there), [there]
        return [each for each in order if each >= 0 or self.standing.sent(each)[0] != value], send(value), targets

    def other(self, order: list[int], lanes: Sequence[int], task: int) -> int:
        """A task near another one in the order, of the same pool if there is one."""
        place = order.index(task)
        reach = max(4, len(order) // 4)
        near = [each for each in order[max(0, place - reach) : place + reach] if each >= 0]
        pool_of, own = self.pool_of, self.pool_of[lanes[task]]
        return self.random.choice([each for each in near if pool_of[lanes[each]] == own] or near)

    def pull(self, order: list[int], task: int, ahead: int) -> list[int] | None:
        """``task`` just before ``ahead``, or the other way round if it is before it; with what it waits for in between.

        Returns:
            The order; ``None`` if one of the two waits for the other.
        """
        first, last = order.index(ahead), order.index(task)
        if first > last:
            first, last = last, first
        if first == last:
            return None
        needed, kept = {order[last]}, []
        early = []
        for each in reversed(order[first : last + 1]):
            if each in needed:
                early.append(each)
                needed.update(self.sources[each])
            else:
                kept.append(each)
        if order[first] in needed:
            return None
        return [*order[:first], *reversed(early), *reversed(kept), *order[last + 1 :]]

    def move(self, order: list[int], lanes: list[int], task: int) -> bool:
        """Give a task another lane, and its group, where it goes to another processor; there, perhaps, in exchange."""
        problem, home, random = self.problem, self.problem.lanes, self.random
        here, lane = home[lanes[task]], self.lane(lanes, task)
        if lane < 0:
            return False
        there = home[lane]
        if self.cuts and there != here:
            ways = (there if first else home[self.lane(lanes, task)] for first in (True, *(False,) * DRAWS))
            moved = self.cuts(lanes, task, ways)
            for each, to in moved.items():
                lanes[each] = random.choice(self.lanes_of[to])
            return bool(moved)
        if there != here and self.bold and random.random() < CROSSED:
            return self.crossed(order, lanes, task, there)
        if there != here:
            piece = self.piece(lanes, task)
            if any(there not in problem.able[each] for each in piece):
                return False
            if self.sends and random.random() < EXCHANGED:
                self.swap(lanes, there, here, len(piece))
            for each in piece:
                self.send(lanes, each, there)
            if problem.crowded and not self.emptied(lanes, here, there, piece):
                return False
        lanes[task] = lane
        return True

    def crossed(self, order: list[int], lanes: list[int], task: int, there: int) -> bool:
        """A task's processor and another one exchange all from the task on, or all up to it; whether they may have that."""
        problem, home, place = self.problem, self.problem.lanes, order.index(task)
        other = {home[lanes[task]]: there, there: home[lanes[task]]}
        part = order[place:] if self.random.random() < 0.5 else order[: place + 1]
        gone = {problem.group_of[each]: home[lanes[each]] for each in part if each >= 0 and home[lanes[each]] in other}
        if any(other[here] not in problem.able[group] for group, here in gone.items()):
            return False
        for group, here in gone.items():
            self.send(lanes, group, other[here])
        held = [0.0] * len(problem.processors)
        for group, each in self.first_of if problem.crowded else ():
            held[home[lanes[each]]] += problem.demand[group]
        return all(held[each] <= problem.caps[each] for each in other)

    def swap(self, lanes: list[int], there: int, here: int, most: int) -> None:
        """Send groups from there to here, if they may have that. Whether they fit is not asked."""
        away = [task for task, lane in enumerate(lanes) if self.problem.lanes[lane] == there]
        found = self.connected(lanes, self.random.choice(away), (self.problem.after, self.sources), most) if away else ()
        piece = {self.problem.group_of[each] for each in found}
        able = all(here in self.problem.able[each] for each in piece)
        for each in sorted(piece) if able else ():
            self.send(lanes, each, here)

    def lane(self, lanes: Sequence[int], task: int) -> int:
        """A lane of another pool for a task, rather where little time is wasted; -1 if there is none."""
        problem = self.problem
        able, pool_of, own = problem.able[problem.group_of[task]], self.pool_of, self.pool_of[lanes[task]]
        ways = [lane for processor in able for lane in self.lanes_of[processor] if pool_of[lane] != own]
        if problem.travels and (self.bold or problem.crowded) and self.random.random() < NEAR:
            near = {lanes[each] for each in self.near[task]}
            ways = [lane for lane in ways if lane in near] or ways
        if len(ways) < 2 or self.waste is None or self.random.random() > THRIFTY:
            return self.random.choice(ways) if ways else -1
        lost = self.waste[task]
        return min(self.random.choices(ways, k=2), key=lambda each: lost[problem.lanes[each]])

    def emptied(self, lanes: list[int], here: int, there: int, piece: Sequence[int]) -> bool:
        """Whether memory suffices ``there``, if need be when others have gone: some back ``here``, one to wherever it fits."""
        problem, home, random = self.problem, self.problem.lanes, self.random
        demand, room, left = problem.demand, list(problem.caps), list[int]()
        for group, task in self.first_of:
            at = home[lanes[task]]
            room[at] -= demand[group]
            if at == there and group not in piece:
                left.append(group)
        for group in random.sample(left, min(len(left), random.choice(DRAWN))) if room[there] < 0 else ():
            if here not in problem.able[group]:
                return False
            left.remove(group)
            self.send(lanes, group, here)
            room[there] += demand[group]
            room[here] -= demand[group]
        if room[there] >= 0:
            return room[here] >= 0
        big = [group for group in left if demand[group] >= -room[there]]
        ways = [(one, away) for one in big for away in problem.able[one] if away != there and demand[one] <= room[away]]
        if not ways or room[here] < 0:
            return False
        group, away = min(random.choices(ways, k=2), key=lambda way: self.lost(*way))
        self.send(lanes, group, away)
        return True

    def lost(self, group: int, processor: int) -> float:
        """What is wasted if a group runs on a processor."""
        return self.waste[self.problem.members[group][0]][processor] if self.waste is not None else 0.0

    def piece(self, lanes: Sequence[int], task: int) -> list[int]:
        """The groups that move with a task: its own and, half of the time where values travel, some that are connected with it.

        Each by itself would only add to what travels.
        """
        problem, random = self.problem, self.random
        if not problem.travels or random.random() < ALONE:
            return [problem.group_of[task]]
        both = problem.after, self.sources
        ways = random.choice((both, both[:1], both[1:])) if self.bold else both
        found = self.connected(lanes, task, ways, random.choice(SIZES))
        return sorted({problem.group_of[each] for each in found})

    def connected(self, lanes: Sequence[int], task: int, ways: Sequence[Sequence[Sequence[int]]], most: int) -> set[int]:
        """A task and, along edges, others of its processor; the nearest ``most`` of them."""
        home = self.problem.lanes
        found, edge = {task}, deque([task])
        while edge and len(found) < most:
            here = edge.popleft()
            near = [each for way in ways for each in way[here] if each not in found and home[lanes[each]] == home[lanes[here]]]
            new = list(dict.fromkeys(near))[: most - len(found)]
            found.update(new)
            edge.extend(new)
        return found

    def send(self, lanes: list[int], group: int, processor: int) -> None:
        """Send a group to a processor, each task to any of its lanes."""
        for member in self.problem.members[group]:
            lanes[member] = self.random.choice(self.lanes_of[processor])
