"""What is reckoned of a problem once, whoever asks, and kept as long as the problem is.

Homes(problem)    certificate  5.0 s    no placement was found
Fit()(problem)    certificate  0.0 s    likewise
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from partitioner.ir.problem import Problem

T = TypeVar("T")


def once(reckon: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """``reckon``, asked once for each problem. What it gives must not hold the problem, and nobody may change it."""
    known: WeakKeyDictionary[Problem, T] = WeakKeyDictionary()

    def asked(problem: Problem) -> T:
        if problem not in known:
            known[problem] = reckon(problem)
        return known[problem]

    return wraps(reckon)(asked)
