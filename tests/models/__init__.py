"""Small models, each with one hazard that a partitioner can get wrong. `MODELS` holds them by name; `make(name)` builds one."""

from __future__ import annotations

from . import arguments, devices, flow, networks, opaque, rng, sharing, state, writes  # noqa: F401  (each registers its models)
from .base import MODELS, Model, make, numbers

__all__ = ["MODELS", "Model", "make", "numbers"]
