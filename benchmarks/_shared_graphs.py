"""Graphs that four equal processors can share in contiguous parts, all at work for nearly all of the time.

    towers      eight chains between a source and a sink
    in-tree     every task leads to one, two to each; out-tree: the other way round
    grid        each task leads to the next one and to the one below it

A value takes a hundredth of a second on its link, and tasks between half a second and two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from partitioner.ir.problem import Channel, Kind, Problem, Processor

Edges = list[tuple[int, int]]

PROCESSORS = 4


def towers(count: int) -> Edges:
    inner = range(1, count - 1)
    ends = [(0, task) for task in inner[:8]] + [(task, count - 1) for task in inner[-8:]]
    return ends + [(task, task + 8) for task in inner[:-8]]


def in_tree(count: int) -> Edges:
    return [(count - 1 - task, count - 1 - (task - 1) // 2) for task in range(1, count)]


def out_tree(count: int) -> Edges:
    return [((task - 1) // 2, task) for task in range(1, count)]


def grid(count: int) -> Edges:
    wide = int(count**0.5)
    along = [(task, task + 1) for task in range(count - 1) if (task + 1) % wide]
    return along + [(task, task + wide) for task in range(count - wide)]


SHAPES: Mapping[str, Callable[[int], Edges]] = {"towers": towers, "in-tree": in_tree, "out-tree": out_tree, "grid": grid}


def shared(shape: str, count: int, **more: Any) -> Problem:
    """A graph of so many tasks on four processors, of which each has a link to each; contiguous."""
    random, edges = Random(count), sorted(SHAPES[shape](count))
    value = {maker: number for number, maker in enumerate(dict.fromkeys(source for source, _ in edges))}
    pairs = [(one, other) for one in range(PROCESSORS) for other in range(PROCESSORS) if one != other]
    return Problem(
        shape,
        tuple(f"t{task}" for task in range(count)),
        (Kind("gpu", {1: [random.uniform(0.5, 2.0) for _ in range(count)]}),),
        tuple(Processor(f"gpu{number}", 0) for number in range(PROCESSORS)),
        [(source, target, value[source]) for source, target in edges],
        [(maker, 1.0) for maker in value],
        tuple(Channel(f"{pair}", 100.0, 0.0, pair) for pair in pairs),
        {pair: (number,) for number, pair in enumerate(pairs)},
        **{"contiguous": True, **more},
    )
