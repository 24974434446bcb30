"""``mesh: auto``: every way in which ranks could work together, predicted, and the fastest that fits.

    8 ranks, batch of 64     data 8             x  microbatches 1, 2, 4, 8   x  ddp, fsdp2
                             data 4, pipeline 2 x  ...                       x  1f1b, gpipe, interleaved_1f1b, looped_bfs
                             ...                                             +  zero bubble where there is one copy
    each keeps all for its backward, or, where that does not fit, runs segments again

What the section of the spec says beside the mesh is kept. The batch is the whole job's, so that all ways do the same work.
A way is not looked at further if its proven bound is above the best step found so far, or if one with smaller microbatches
did not fit; nor is it cut, where a bound of whatever would come of that is above. A size of microbatches at which none can win
is left out: what two smaller ones took says what it takes at least. Two sizes are traced; larger ones are made of these
(`grown.py`), and traced only once one of their ways is predicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from partitioner.distributed.pipeline.schedules import SCHEDULES, kind_of
from partitioner.distributed.predicted.choice import Choice, Row, table
from partitioner.distributed.predicted.prediction import Outlook
from partitioner.errors import PlacementError, SpecError
from partitioner.ir.cluster import Cluster
from partitioner.ir.units import format_size
from partitioner.spec.distributed import DistributedSpec, MeshSpec

EACH = 2
"""Stages of each rank that are tried, for schedules with several. With more than three, FSDP2 gathers each anew many times."""

ROOMY = 2
"""A way has room to spare whose even share fits so many times."""


@dataclass(frozen=True)
class Prospects:
    """What the search asks of a model about a way to work together, cheapest first.

    Args:
        foreseen: seconds that a step takes at least, from what is known of smaller microbatches; 0 where that says nothing.
        room: bytes that the fullest rank takes at least.
        least: seconds at least, however stages are shared out along a tensor axis.
        closer: likewise, as they are.
        closer_room: bytes at least, as they are.
        before_cut: likewise, as they would be cut; 0 where that is not known before.
        cut: likewise, cut as they are.
        predict: what a step takes.
        cap: bytes that a rank may use.
    """

    foreseen: Callable[[DistributedSpec], float]
    room: Callable[[DistributedSpec], int]
    least: Callable[[DistributedSpec], float]
    closer: Callable[[DistributedSpec], float]
    closer_room: Callable[[DistributedSpec], int]
    before_cut: Callable[[DistributedSpec], float]
    cut: Callable[[DistributedSpec], float]
    predict: Callable[[DistributedSpec], Outlook]
    cap: int | None


def parts(asked: DistributedSpec) -> int:
    """Into how many microbatches the batch of a job is divided, those of all copies together."""
    return asked.microbatches * asked.mesh.data


def ways(asked: DistributedSpec, cluster: Cluster, rows: int) -> Iterator[DistributedSpec]:
    """Every way to work together; a tensor axis stays within a host.

    Args:
        asked: what the spec says; only what it leaves open is varied.
        cluster: the ranks, and their hosts.
        rows: of the batch of the whole job.

    Example:
        >>> from partitioner.ir.machine import DEFAULT_LINK
        >>> asked = DistributedSpec(mesh="auto", schedule="1f1b", wrap="ddp", recompute="none")
        >>> for way in ways(asked, Cluster(2, 2, DEFAULT_LINK, DEFAULT_LINK), 1):
        ...     print(way.mesh, "in", way.microbatches)
        data 1 x pipeline 1 x tensor 2 in 1
    """
    said, branch = asked.mesh.model_dump(include=asked.mesh.model_fields_set - {"auto"}), asked.mesh.branch
    ranks = cluster.ranks // branch if cluster.ranks % branch == 0 else 0
    for width in (each for each in _divisors(ranks) if cluster.each % (each * branch) == 0):
        for pipeline in _divisors(ranks // width):
            copies = ranks // width // pipeline
            mesh = MeshSpec(data=copies, pipeline=pipeline, branch=branch, tensor=width)
            if rows % copies == 0 and all(getattr(mesh, axis) == size for axis, size in said.items()):
                yield from _of_mesh(asked, mesh, rows // copies)


def _of_mesh(asked: DistributedSpec, mesh: MeshSpec, rows: int) -> Iterator[DistributedSpec]:
    """Every schedule, number of microbatches, wrapping and recomputation that goes with a mesh."""
    given = asked.model_fields_set
    names = [asked.schedule] if "schedule" in given else list(SCHEDULES) if mesh.pipeline > 1 else ["1f1b"]
    wraps = [asked.wrap] if "wrap" in given or mesh.data == 1 else ["ddp", "fsdp2"]
    counts = [asked.microbatches] if "microbatches" in given else _divisors(rows)
    agains = [asked.recompute] if "recompute" in given else ["none", "segments" if mesh.branch == 1 else "stage"]
    for name in sorted(names, key=lambda name: name != "1f1b"):  # of equals the first is taken
        each = asked.stages_per_rank if "stages_per_rank" in given else EACH if SCHEDULES[name].several else 1
        for count in (count for count in counts if rows % count == 0):
            for wrap, again in itertools.product(wraps, agains):
                fields = {"mesh": mesh, "schedule": name, "stages_per_rank": each, "microbatches": count, "wrap": wrap}
                way = asked.model_copy(update={**fields, "recompute": again})
                if _goes(way):
                    yield way


def _goes(way: DistributedSpec) -> bool:
    try:
        kind_of(way)
    except SpecError:
        return False
    return True


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


@dataclass
class _Search:
    """What has been found so far.

    Attributes:
        best: the fastest that fits.
        rows: the best way of each mesh, after whether it fits.
        full: ways that did not fit, but for their microbatches: larger ones would not, either.
        kept: ways that fit, all kept for the backward: nothing need be run again.
        hopeless: ways for which there is no room, after the bytes that they take at least.
        seen: ways that were looked at.
        fault: the first refusal.
    """

    prospects: Prospects
    best: Outlook | None = None
    rows: dict[MeshSpec, tuple[bool, Row]] = field(default_factory=dict)
    full: set[tuple[object, ...]] = field(default_factory=set)
    kept: set[DistributedSpec] = field(default_factory=set)
    hopeless: list[tuple[int, DistributedSpec]] = field(default_factory=list)
    seen: set[DistributedSpec] = field(default_factory=set)
    fault: Exception | None = None

    def may_win(self, way: DistributedSpec) -> bool:
        """Whether smaller microbatches have fitted so far, and do not say already that it is slower."""
        return _form(way) not in self.full and (self.best is None or not self._slower(way, self.prospects.foreseen(way)))

    def look(self, way: DistributedSpec, least: float) -> None:
        """Look at one way, which takes at least so many seconds."""
        if way in self.seen:
            return
        self.seen.add(way)
        if way.recompute != "none" and way.model_copy(update={"recompute": "none"}) in self.kept:
            return
        if self._too_full(way, least, self.prospects.room(way)) or self._slower(way, least):
            return
        least = self.prospects.closer(way)
        if not self._slower(way, least) and not self._too_full(way, least, self.prospects.closer_room(way)):
            self._predict(way)

    def _too_full(self, way: DistributedSpec, least: float, room: int) -> bool:
        """Whether a way takes more than there is, so many bytes at least."""
        cap = self.prospects.cap
        if cap is None or room <= cap:
            return False
        self.full.add(_form(way))
        self.hopeless.append((room, way))
        self._note(False, Row(way, least, None, room, f"does not fit: at least {_too_much(room - cap)}"))
        return True

    def begin(self, ordered: Sequence[tuple[float, DistributedSpec]]) -> None:
        """Find something that fits, for bounds to be held against, among the ways that keep little and have room to spare."""
        cap = self.prospects.cap
        for least, way in ordered:
            if self.best is not None or cap is None:
                return
            keeps_little = way.recompute != "none" and not kind_of(way).split  # between two halves of a backward all is kept
            if keeps_little and ROOMY * self.prospects.room(way) <= cap:
                self.look(way, least)

    def _slower(self, way: DistributedSpec, least: float) -> bool:
        """Whether a way cannot be faster than the best so far."""
        slower = self.best is not None and least >= self.best.step
        if slower:
            self._note(True, Row(way, least, None, 0, ""))
        return slower

    def _predict(self, way: DistributedSpec) -> None:
        try:
            if self.best is not None and any(
                self._slower(way, ask(way)) for ask in (self.prospects.before_cut, self.prospects.cut)
            ):
                return
            found = self.prospects.predict(way)
        except (PlacementError, SpecError) as error:
            self.fault = self.fault or error
            return
        why = f"does not fit: {_too_much(found.excess)}" if found.excess else ""
        self._note(not found.excess, Row(way, found.step, found.bubble, max(found.memory), why))
        if found.excess:
            self.full.add(_form(way))
            return
        self.kept.add(way)
        if self.best is None or found.step < self.best.step:
            self.best = found

    def closest(self) -> list[Row]:
        """Where nothing fits: the ways that were predicted, the smallest first, and it is the smallest of all."""
        for room, way in sorted(self.hopeless, key=lambda each: each[0]):
            if room < min((row.memory for _, row in self.rows.values() if row.bubble is not None), default=room + 1):
                self._predict(way)
        return sorted((row for _, row in self.rows.values() if row.bubble is not None), key=lambda row: row.memory)

    def _note(self, fits: bool, row: Row) -> None:
        """Keep the best of a mesh: one that fits before one that does not, then the fastest, or the smallest that is known."""
        now = self.rows.get(row.asked.mesh)
        if now is None or _rank(fits, row) < _rank(*now):
            self.rows[row.asked.mesh] = fits, row


def _form(way: DistributedSpec) -> tuple[object, ...]:
    return way.mesh, way.schedule, way.stages_per_rank, way.wrap, way.recompute


def _rank(fits: bool, row: Row) -> tuple[bool, float, float]:
    return (False, row.step, row.bubble is None) if fits else (True, row.bubble is None, row.memory)


def _too_much(size: int) -> str:
    return f"{format_size(size)} too much"


def choose(found: Sequence[DistributedSpec], ranks: int, prospects: Prospects) -> Outlook:
    """The fastest way that fits, with how it was chosen.

    Args:
        found: the ways to work together.
        ranks: how many ranks there are.
        prospects: what to ask of the model.

    Raises:
        PlacementError: none fits; says which comes closest, and by how much it does not.
        Exception: none was possible at all, for this reason.
    """
    search = _Search(prospects)
    for count in sorted({parts(way) for way in found}, reverse=True):  # the smallest microbatches first
        some = [way for way in found if parts(way) == count and search.may_win(way)]
        try:
            least = [prospects.least(way) for way in some]
        except Exception as error:  # the model cannot be called with so few rows, for one
            search.fault = search.fault or error
            continue
        soonest = sorted(zip(least, some, strict=True), key=lambda pair: pair[0])
        search.begin(soonest)
        for seconds, way in soonest:
            search.look(way, seconds)
    if search.best is None:
        raise _nothing(search.closest(), search.fault, ranks)
    ordered = sorted(search.rows.values(), key=lambda each: _rank(*each))
    return replace(search.best, choice=Choice(ranks, len(found), tuple(_judged(row, search.best) for _, row in ordered)))


def _judged(row: Row, best: Outlook) -> Row:
    """A row that says why it was taken, or was not."""
    if row.why:
        return row
    if row.asked == best.asked:
        return replace(row, why="taken")
    slower = row.step / best.step - 1
    words = "as fast" if not slower else f"{slower:.0%} slower"
    return replace(row, why=words if row.bubble is not None else f"at least {words}")


def _nothing(close: Sequence[Row], fault: Exception | None, ranks: int) -> Exception:
    """Why there is no way."""
    if not close:
        none = SpecError(
            f"there is no way for {ranks} ranks to work together on this batch: its rows have to divide among the copies, and "
            "among their microbatches. Change the batch, the ranks, or what the spec says beside mesh: auto"
        )
        return fault or none
    least, lines = close[0].why.removeprefix("does not fit: "), "\n".join(table(close[:5]))
    return PlacementError(
        f"the model fits {ranks} ranks in no way: {close[0].asked.mesh}, the closest, has {least}. Take more ranks, a smaller "
        f"batch, or an optimizer that keeps less.\n{lines}"
    )
