"""Small models, each with one hazard that a partitioner can get wrong. `MODELS` holds them by name; `make(name)` builds one."""

from __future__ import annotations

from . import arguments, devices, flow, networks, opaque, rng, sharing, state, writes  # noqa: F401  (each registers its models)
from .base import EXACT, KEYS, MODELS, OUTCOMES, REFUSED, WRONG, Model, Outcome, make, numbers

__all__ = ["EXACT", "KEYS", "MODELS", "OUTCOMES", "REFUSED", "WRONG", "Model", "Outcome", "make", "numbers"]
