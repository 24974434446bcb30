"""Buffers that no checkpoint holds, such as the frequencies of rotary embeddings: the model computes them again.

A class says how in one of two ways: ``reset_parameters`` of the module that has the buffer, as in torch, or ``_init_weights``
of a module around it, which is given that module, as in transformers. A buffer counts as computed if two runs, over different
values that stood there before, leave the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn


def computed_buffers(model: nn.Module, devices: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The values of buffers on the meta device that the model can compute; the model is left as it was.

    Args:
        model: parameters that lie on the meta device stay there, so nothing is initialised but these buffers.
        devices: torch device of each buffer, by qualified name.
    """
    found: dict[str, torch.Tensor] = {}
    owners = dict.fromkeys(name.rpartition(".")[0] for name in devices)
    for path in owners:
        names = [name.rpartition(".")[2] for name in devices if name.rpartition(".")[0] == path]
        owner = model.get_submodule(path)
        for compute in _ways(model, path, owner):
            runs = [_after(owner, names, compute, filling) for filling in (0, 1)]
            for name in names:
                if torch.equal(runs[0][name], runs[1][name]):
                    full = f"{path}.{name}" if path else name
                    found.setdefault(full, runs[0][name].to(devices[full]))
    return found


def _ways(model: nn.Module, path: str, owner: nn.Module) -> list[Callable[[], object]]:
    ways: list[Callable[[], object]] = []
    if callable(reset := getattr(owner, "reset_parameters", None)):
        ways.append(reset)
    words = path.split(".") if path else []
    for length in range(len(words), -1, -1):
        around = model.get_submodule(".".join(words[:length]))
        if callable(initialise := getattr(around, "_init_weights", None)):
            ways.append(partial(initialise, owner))
    return ways


def _after(owner: nn.Module, names: list[str], compute: Callable[[], object], filling: int) -> dict[str, torch.Tensor]:
    """What a run leaves in the buffers, which held ``filling`` everywhere before."""
    held: dict[str, Any] = owner._buffers
    before = dict(held)
    try:
        for name in names:
            held[name] = torch.full(before[name].shape, filling, dtype=before[name].dtype, device="cpu")
        with torch.no_grad(), torch.random.fork_rng(devices=[]), suppress(Exception):  # it is the model's code, tried out
            compute()
        return {name: held[name] for name in names}
    finally:
        held.clear()
        held.update(before)
