"""Runs a program's script with a module, and writes down all that can be seen: what it yields, what is left, what it raises."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .portrait import Picture, differences, portrait
from .program import Program


class Hang(BaseException):
    """A run that takes too long. No `Exception`, so that no model and no library takes it for its own."""


@dataclass
class Record:
    """All that was seen of a run."""

    steps: list[Picture] = field(default_factory=list)
    error: BaseException | None = None
    changed: list[str] = field(default_factory=list)
    """What the failing call had changed before it raised: state of the module or of the process."""
    after: Picture | None = None


class Running:
    """What a script gets: see `program.Run`."""

    def __init__(self, module: nn.Module, model: nn.Module, training: bool) -> None:
        self.module, self.model, self.training = module, model, training
        self.changed: list[str] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = pictured(self.module), process()
        try:
            return self.module(*args, **kwargs)
        except Exception:
            self.changed = changes(*before, pictured(self.module), process())
            raise

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        result = self(*args, **kwargs)
        if self.training:
            backward(result)
        return result, [leaf.grad for leaf in leaves if leaf.is_leaf]


def backward(result: object) -> None:
    """Sends a gradient back from every tensor of ``result``, another one for each of its elements."""
    total: Any = 0
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            number = leaf.float() if not leaf.is_complex() else torch.view_as_real(leaf)
            total = total + (number * torch.linspace(0.5, 1.5, number.numel()).view(number.shape)).sum()
    if isinstance(total, Tensor):
        total.backward()


def record(program: Program, module: nn.Module, model: nn.Module, training: bool) -> Record:
    """The record of the script, run with ``module``, which was made of ``model``."""
    seen, run = Record(), Running(module, model, training)
    try:
        for value in program.script(run):
            seen.steps.append(portrait(value))
    except (Exception, KeyboardInterrupt) as error:
        seen.error = error
        seen.changed = run.changed
    seen.after = portrait({"state": pictured(module, program.watch), "process": process(), "random": generators()})
    return seen


def changes(module: Picture, surroundings: Picture, module_now: Picture, surroundings_now: Picture) -> list[str]:
    """What differs between two moments."""
    found = [*differences(module, module_now, "model"), *differences(surroundings, surroundings_now, "process")]
    return [line.replace("in eager", "before") for line in found]


def pictured(module: Any, watch: tuple[str, ...] = ()) -> Picture:
    """Parameters, gradients, buffers, modes, keys, ties and hooks of a module, and the attributes in ``watch``."""
    parts = dict(module.named_modules(remove_duplicate=False))
    parts.pop("", None)
    owners: dict[int, str] = {}
    seen: dict[str, object] = {"keys": list(module.state_dict())}
    for kind, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers)):
        for name, tensor in named(remove_duplicate=False):
            first = owners.setdefault(id(tensor), name)
            seen[f"{kind} {name}"] = tensor if first == name else f"tied to {first}"
            seen[f"gradient {name}"] = getattr(tensor, "grad", None) if tensor.is_leaf else None
    for name, part in parts.items():
        seen[f"module {name}"] = (type(part).__name__, part.training, _hooks(part))
    seen["mode"] = module.training
    seen["hooks"] = _hooks(module)
    for name in watch:
        seen[f"attribute {name}"] = _reach(module, name)
    return portrait(seen)


def _reach(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, "no such attribute")
    return value


def _hooks(module: nn.Module) -> list[int]:
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    return [len(getattr(module, name)) for name in names]


def generators() -> dict[str, object]:
    """The next number of each generator that belongs to the process."""
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    drawn = {"torch": float(torch.rand(())), "random": random.random(), "numpy": float(np.random.rand())}
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])
    return drawn


def process() -> Picture:
    """Modes and options of the process and of this thread, and the functions that somebody could have replaced."""
    glob = torch.nn.modules.module
    functions: list[Any] = [nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__, nn.Module.__init__]
    functions += [nn.Module._apply, Tensor.__init__, Tensor.backward, torch.manual_seed, torch.Tensor.to, random.random]
    functions += [sys.stderr, sys.stdout, sys.excepthook, threading.excepthook, logging.Logger.handle, print, isinstance]
    functions += [nn.Parameter.__new__, torch.nn.functional.linear, torch.relu, torch.autograd.backward]
    return portrait(
        {
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "autocast": (
                torch.is_autocast_enabled("cpu"),
                str(torch.get_autocast_dtype("cpu")),
                torch.is_autocast_cache_enabled(),
            ),
            "dtype": str(torch.get_default_dtype()),
            "device": str(torch.get_default_device()),
            "threads": torch.get_num_threads(),
            "deterministic": (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            "anomaly": torch.is_anomaly_enabled(),
            "modes": torch._C._len_torch_function_stack(),
            "dispatch modes": torch._C._len_torch_dispatch_stack(),
            "transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
            "hooks": [len(getattr(glob, name)) for name in ("_global_forward_hooks", "_global_forward_pre_hooks")],
            "saved tensors": repr(torch._C._autograd._top_saved_tensors_default_hooks(True)),
            "hooks refused": torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
            "logging": (len(logging.getLogger().handlers), logging.getLogger().level, logging.root.manager.disable),
            "environment": sorted(name for name in os.environ if not name.startswith(("TORCH", "PYTEST", "TRITON"))),
            "functions": [id(function) for function in functions],
        }
    )


@contextlib.contextmanager
def as_found(timeout: float) -> Iterator[None]:
    """Puts seeds and options in place, and puts back what a program left otherwise. Raises `Hang` after the timeout."""
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    torch.set_num_threads(1)  # the bits of a sum depend on how many threads share it
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    with warnings.catch_warnings(), _deadline(timeout):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
            torch.set_grad_enabled(modes[0])
            torch.set_default_dtype(modes[1])
            torch.set_num_threads(modes[2])
            torch.use_deterministic_algorithms(False)
            torch.set_default_device(None)


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no end after {seconds:g} seconds")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)
