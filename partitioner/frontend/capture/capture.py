"""What every front end gives: a torch.fx graph over the tensors of a flattened call (`model.call`).

Both front ends trace ``forward`` of the model with its arguments already flattened: each tensor leaf is one graph input,
everything else (flags, ``None``, numbers, the structure itself) is burned in and becomes a guard of the program. So nested
inputs, keyword arguments and dataclass outputs need no handling anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from partitioner.ir.signature import Signature


@dataclass(frozen=True)
class Capture:
    """What a front end gives.

    Args:
        fx: placeholders, ``get_attr``, calls and one ``output`` whose argument is the flat list of results.
        signature: the calling convention.
        tracer: its name.
        constants: tensors and graph modules lifted out of the model, by ``get_attr`` target.
        sources: ``file:line`` of each node, by name.
        paths: module path of each node, by name.
        notes: what had to be given up.
    """

    fx: torch.fx.Graph
    signature: Signature
    tracer: str
    constants: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Refused(Exception):
    """A front end cannot trace this model. ``path`` is the submodule that was to blame, where that is known."""

    def __init__(self, reason: str, path: str = "", source: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path, self.source = reason, path, source
