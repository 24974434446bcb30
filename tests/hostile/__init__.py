"""Small programs that try to tell a partitioned module from the plain one. `PROGRAMS` holds them by name.

A program is a model and a script: what a user might do with it. The script runs once with the plain model and once with the
partitioned one, and whatever can be seen afterwards has to be the same.
"""

from __future__ import annotations

from . import (  # noqa: F401  (each registers its programs)
    aliases,
    asked,
    begun,
    beneath,
    caches,
    classes,
    configs,
    containers,
    edited,
    errors,
    extremes,
    functions,
    generating,
    gradient_hooks,
    gradients,
    hooks,
    identity,
    idioms,
    interruptions,
    kinds,
    language,
    later,
    layers,
    layouts,
    left,
    loops,
    methods,
    modes,
    names,
    operators,
    outside,
    pieces,
    processes,
    randomness,
    regions,
    scalars,
    shapes,
    signatures,
    structure,
    threads,
    transforms,
    unknown_sizes,
    weights,
)
from .program import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
