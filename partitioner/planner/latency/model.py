"""Where groups go, for CP-SAT: one Boolean for each group and site, under pins, memory caps and contiguity.

    at[g, s]        group g is at site s; exactly one s for each g
    left[t, s]      some path of forward tasks to task t has left s: t is not at s

Needs ortools. Source of the solver: Perron and Didier, CP-SAT, https://developers.google.com/optimization.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from partitioner.errors import SpecError
from partitioner.ir.problem import Problem
from partitioner.planner.caps import in_whole
from partitioner.planner.latency.sites import Site

LOADING = 0.7
"""Seconds to import OR-tools for the first time, about."""


def solver_module() -> Any:
    """CP-SAT's Python module.

    Raises:
        SpecError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise SpecError(
            "policy exact needs the solver CP-SAT, which is not installed: pip install partitioner[exact]"
        ) from None
    return cp_model


def loading() -> float:
    """Seconds that pass until CP-SAT's module is there."""
    return 0.0 if "ortools.sat.python.cp_model" in sys.modules else LOADING


class Places:
    """The variables that say where groups are, with the rules for them.

    Args:
        problem: what is placed.
        sites: where groups can be.
    """

    def __init__(self, problem: Problem, sites: Sequence[Site]) -> None:
        self.problem, self.sites = problem, sites
        self.cp = solver_module().CpModel()
        self.at: dict[tuple[int, int], Any] = {}
        self.ways: dict[int, list[int]] = {}
        for group in problem.members:
            able = set(problem.able[group])
            self.ways[group] = [number for number, site in enumerate(sites) if able & set(site.processors)]
            for site in self.ways[group]:
                self.at[group, site] = self.cp.new_bool_var(f"group {group} at {site}")
            self.cp.add_exactly_one(self.at[group, site] for site in self.ways[group])
        self._memory()
        if problem.contiguous:
            self._contiguous()

    def where(self, task: int, site: int) -> Any:
        """Whether a task is at a site: a literal, or 0 where it cannot be."""
        return self.at.get((self.problem.group_of[task], site), 0)

    def _memory(self) -> None:
        """Caps, in units of which sums stay exact."""
        demand = self.problem.demand
        needs, caps = in_whole(list(demand.values()), [self.problem.caps[site.processors[0]] for site in self.sites])
        need_of = dict(zip(demand, needs, strict=True))
        for number, cap in enumerate(caps):
            if cap >= 0:
                here = [(need_of[group], var) for (group, at), var in self.at.items() if at == number]
                self.cp.add(sum(need * var for need, var in here if need) <= cap)

    def _contiguous(self) -> None:
        backward = self.problem.backward
        left = {
            (task, site): self.cp.new_bool_var(f"{task} left {site}")
            for task in range(len(self.problem.tasks))
            for site in range(len(self.sites))
            if task not in backward
        }
        for source, target in {(source, target) for source, target, _ in self.problem.edges}:
            if source in backward or target in backward:
                continue
            for site in range(len(self.sites)):
                self.cp.add_implication(left[source, site], left[target, site])
                before, here = self.where(source, site), self.where(target, site)
                self.cp.add(before - here <= left[target, site])
        for (task, site), gone in left.items():
            self.cp.add(self.where(task, site) + gone <= 1)
