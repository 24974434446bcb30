"""Hooks of modules inside a model: who has some, and how they are kept from being called.

A hook is Python that runs around a module's forward or backward, and may do anything. So a module that has hooks is called as a
whole, and hooks run in program order, one at a time. Of the tensors, a hook may change those that it is given and the module's
own.

The first program is compared with the model as it is, hooks included, for the model's forward may use what they keep. They are
silent whenever else a program is made: a user's list of features would hold what no call gave.

PyTorch's own hooks are part of what a module computes (`torch.nn.utils.weight_norm`) or belong to its tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_ALL: tuple[dict[int, Any], ...] = tuple(getattr(torch.nn.modules.module, f"_global{kind}") for kind in _KINDS)


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks run around a module's forward or backward: its own, or a user's for all modules."""
    return any(getattr(module, kind) for kind in _KINDS) or any(map(_has_users, _OF_ALL))


def hooked(root: nn.Module) -> tuple[str, ...]:
    """Qualified names of the modules that have hooks, outer ones first. Those of the root run around every program."""
    return tuple(path for path, module in root.named_modules() if path and has_hooks(module))


def calls_users_hooks(module: nn.Module) -> bool:
    """Whether a call of ``module`` calls hooks of a user."""
    kinds = (getattr(child, kind) for child in module.modules() for kind in _KINDS)
    return any(map(_has_users, kinds)) or any(map(_has_users, _OF_ALL))


@contextmanager
def silenced(root: nn.Module) -> Iterator[None]:
    """Put hooks that do nothing into the places of those that users have put on modules inside ``root``, for a while."""
    kept: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for hooks in (getattr(module, kind) for path, module in root.named_modules() if path for kind in _KINDS):
        if _has_users(hooks):
            kept.append((hooks, dict(hooks)))
            hooks.update({key: _silent for key, hook in hooks.items() if not _is_pytorchs(hook)})
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)


def _silent(*_args: Any, **_kwargs: Any) -> None:
    """Does nothing."""


def _has_users(hooks: Mapping[int, Any]) -> bool:
    return not all(map(_is_pytorchs, hooks.values()))


def _is_pytorchs(hook: Any) -> bool:
    """Whether a hook's function, or its class, is defined in torch."""
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return str(home).startswith("torch.")
