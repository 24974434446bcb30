"""What forward may ask of the process: files, options of torch's and of Python's, functions that somebody has replaced.

Each question is asked before, while and after the answer is another one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import inspect
import io
import itertools
import logging
import math
import operator
import os
import random
import re
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .program import OLDER, PROGRAMS, Program, Run, Steps, Two, rand

HERE = sys.modules[__name__]
FILE = Path(gettempdir()) / f"asked-{os.getpid()}"
TEXT = "1 + 1.0"

Change = Callable[[], contextlib.AbstractContextManager[Any]]


class Asks(Two):
    def __init__(self, question: Callable[[], float]) -> None:
        super().__init__()
        self.question = question

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.question() + self.right(x)


class Calls(Two):
    """Calls functions of torch's by several ways."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.left(x)), torch.sigmoid(self.right(x))
        shifted = nn.functional.layer_norm(x, (4,)) + math.pi * torch.pi
        return left + right * F.softmax(left, -1) + F.gelu(x) + x.tanh() + shifted


def register(name: str, build: Callable[[], nn.Module], *changes: Change, limit: str = "") -> None:
    def script(run: Run) -> Steps:
        yield run(rand()), run(rand())
        for change in changes:
            with change():
                yield run(rand()), run(rand())
            yield run(rand())

    PROGRAMS[f"asked.{name}"] = Program(f"asked.{name}", build, script, lambda: ((rand(),), {}), slow=True, limit=limit)


def swap(owner: Any, name: str, value: Any, **options: Any) -> Change:
    return lambda: patch.object(owner, name, value, **options)


def set_to(value: Any, get: Callable[[], Any], put: Callable[[Any], Any]) -> Change:
    @contextlib.contextmanager
    def change() -> Iterator[None]:
        before = get()
        put(value)
        try:
            yield
        finally:
            put(before)

    return change


def attribute(owner: Any, name: str, value: Any) -> Change:
    return set_to(value, lambda: getattr(owner, name), lambda new: setattr(owner, name, new))


@contextlib.contextmanager
def file_there() -> Iterator[None]:
    FILE.write_text("7")
    try:
        yield
    finally:
        FILE.unlink()


def from_file() -> float:
    try:
        with open(FILE) as file:
            return float(file.read())
    except OSError:
        return 0.5


def imported() -> float:
    try:
        import late_module

        return float(late_module.number)
    except ImportError:
        return 1.0


LATE = ModuleType("late_module")
LATE.number = 4.0  # type: ignore[attr-defined]


def executed() -> float:
    names: dict[str, float] = {}
    exec("number = 3.0 * " + TEXT, names)
    return names["number"]


def one(first: int) -> int:
    """A function of which forward asks what it is like."""
    return first


backends = torch.backends

QUESTIONS: dict[str, tuple[Callable[[], float], list[Change]]] = {
    "working_directory": (lambda: len(os.getcwd()), [lambda: contextlib.chdir("/")]),
    "file_that_is_there": (lambda: 2.0 if os.path.exists(FILE) else 1.0, [file_there]),
    "file_by_its_path": (lambda: float(FILE.read_text()) if FILE.exists() else 1.0, [file_there]),
    "file_opened": (from_file, [file_there]),
    "garbage_collection": (
        lambda: 2.0 if gc.isenabled() else 1.0,
        [set_to(False, gc.isenabled, lambda on: on and gc.enable())],
    ),
    "modules_loaded": (
        lambda: 2.0 if "late_module" in sys.modules else 1.0,
        [lambda: patch.dict(sys.modules, late_module=LATE)],
    ),
    "module_imported_inside": (imported, [lambda: patch.dict(sys.modules, late_module=LATE)]),
    "command_line": (lambda: len(sys.argv), [swap(sys, "argv", ["a"] * 9)]),
    "name_of_the_thread": (lambda: len(threading.current_thread().name), [attribute(threading.current_thread(), "name", "a")]),
    "frame": (lambda: len(sys._getframe(1).f_code.co_name), []),
    "caller": (lambda: len(inspect.stack()[1].function), []),
    "precision_of_products": (
        lambda: len(torch.get_float32_matmul_precision()),
        [set_to("high", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)],
    ),
    "deterministic_mode": (
        lambda: torch.get_deterministic_debug_mode() + 1,
        [set_to(1, torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode)],
    ),
    "uninitialised_memory": (
        lambda: 2.0 if torch.utils.deterministic.fill_uninitialized_memory else 1.0,
        [attribute(torch.utils.deterministic, "fill_uninitialized_memory", False)],
    ),
    "warnings_each_time": (
        lambda: 2.0 if torch.is_warn_always_enabled() else 1.0,
        [set_to(True, torch.is_warn_always_enabled, torch.set_warn_always)],
    ),
    "anomalies": (
        lambda: torch.is_anomaly_enabled() + 2.0 * torch.is_anomaly_check_nan_enabled(),
        [lambda: torch.autograd.set_detect_anomaly(True), lambda: torch.autograd.set_detect_anomaly(True, check_nan=False)],
    ),
    "fast_paths": (
        lambda: 2.0 if backends.mha.get_fastpath_enabled() else 1.0,
        [set_to(False, backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled)],
    ),
    "flash_attention": (
        lambda: 2.0 if backends.cuda.flash_sdp_enabled() else 1.0,
        [set_to(False, backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp)],
    ),
    "mkldnn": (lambda: 2.0 if backends.mkldnn.enabled else 1.0, [lambda: backends.mkldnn.flags(enabled=False)]),
    "cudnn_benchmark": (lambda: 2.0 if backends.cudnn.benchmark else 1.0, [attribute(backends.cudnn, "benchmark", True)]),
    "tf32": (lambda: 2.0 if backends.cuda.matmul.allow_tf32 else 1.0, [attribute(backends.cuda.matmul, "allow_tf32", True)]),
    "worker_of_a_loader": (
        lambda: 1.0 if torch.utils.data.get_worker_info() is None else 2.0,
        [swap(torch.utils.data._utils.worker, "_worker_info", SimpleNamespace(id=1))],
    ),
    "cuda_that_is_mocked": (
        lambda: 2.0 if torch.cuda.is_available() else 1.0,
        [swap(torch.cuda, "is_available", lambda: True)],
    ),
    "version_of_torch": (lambda: len(torch.__version__), [swap(torch, "__version__", "9")]),
    "hooks_that_are_refused": (
        lambda: 2.0 if torch._C._autograd._saved_tensors_hooks_is_enabled() else 1.0,
        [lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here")],
    ),
    "dtype_of_autocast": (
        lambda: len(str(torch.get_autocast_dtype("cpu"))),
        [set_to(torch.float16, lambda: torch.get_autocast_dtype("cpu"), lambda new: torch.set_autocast_dtype("cpu", new))],
    ),
    "seed_of_torch": (lambda: torch.initial_seed() % 7 + 1.0, []),
    "threads_of_torch": (lambda: torch.get_num_threads(), [set_to(2, torch.get_num_threads, torch.set_num_threads)]),
    "printed_digits": (
        lambda: len(str(torch.tensor(1 / 3))),
        [set_to(8, lambda: 4, lambda digits: torch.set_printoptions(precision=digits))],
    ),
    "errors_of_numpy": (lambda: len(np.geterr()["divide"]), [lambda: np.errstate(divide="raise")]),
    "filters_of_warnings": (lambda: len(warnings.filters) / 10, [lambda: warnings.catch_warnings(action="ignore")]),
    "level_of_all_logs": (lambda: logging.root.manager.disable + 1, [set_to(30, lambda: 0, logging.disable)]),
    "square_root_replaced": (lambda: math.sqrt(4.0), [swap(math, "sqrt", lambda _: 9.0)]),
    "length_replaced": (lambda: len([1, 2]), [swap(HERE, "len", lambda _: 5, create=True)]),
    "random_replaced": (lambda: random.random() + random.uniform(1, 2), [swap(random, "random", lambda: 0.25)]),
    "numpy_replaced": (lambda: float(np.random.rand()), [swap(np.random, "rand", lambda: 0.25)]),
    "clock_replaced": (lambda: float(time.time() > 5), [swap(time, "time", lambda: 0.25)]),
    "pattern_replaced": (lambda: float(re.sub("a", "1", "a")), [swap(re, "sub", lambda *_: "4")]),
    "mean_replaced": (lambda: statistics.mean([1.0, 2.0]), [swap(statistics, "mean", lambda _: 7.0)]),
    "operator_replaced": (lambda: operator.add(1, 2), [swap(operator, "add", lambda *_: 7.0)]),
    "reduce_replaced": (lambda: functools.reduce(lambda a, b: a + b, [1, 2]), [swap(functools, "reduce", lambda *_: 7.0)]),
    "chain_replaced": (lambda: sum(itertools.chain([1], [2])), [swap(itertools, "chain", lambda *_: [9])]),
    "abstract_class_edited": (
        lambda: 2.0 if isinstance(Asks, collections.abc.Sized) else 1.0,
        [swap(collections.abc.Sized, "__subclasshook__", classmethod(lambda *_: True))],
    ),
    "standard_output": (
        lambda: 2.0 if isinstance(sys.stdout, io.StringIO) else 1.0,
        [lambda: contextlib.redirect_stdout(io.StringIO())],
    ),
    "global_found_by_its_name": (
        lambda: globals().get("LATER", 1.0) + getattr(sys.modules[__name__], "LATER", 1.0),
        [swap(HERE, "LATER", 3.0, create=True)],
    ),
    "text_evaluated": (lambda: eval(TEXT), [swap(HERE, "TEXT", "2.0 + 3")]),
    "text_executed": (executed, [swap(HERE, "TEXT", "2.0 + 3")]),
    "documentation": (lambda: len(one.__doc__ or ""), [attribute(one, "__doc__", "short")]),
    "name_of_a_function": (lambda: len(one.__name__), [attribute(one, "__name__", "another_name")]),
    "signature": (lambda: len(inspect.signature(one).parameters), [swap(HERE, "one", lambda a, b, c: 0)]),
    "code": (lambda: one.__code__.co_argcount, [attribute(one, "__code__", (lambda a, b: 0).__code__)]),
}

REPLACED: dict[str, list[Change]] = {
    "relu": [swap(F, "relu", lambda x: x * 2), swap(F, "relu", torch.tanh)],
    "sigmoid": [swap(torch, "sigmoid", lambda x: x * 2)],
    "softmax_by_a_mock": [swap(F, "softmax", Mock(side_effect=lambda x, _: x * 3))],
    "linear": [swap(F, "linear", lambda x, weight, bias=None: x @ weight.T * 2)],
    "forward_of_linear": [swap(nn.Linear, "forward", lambda self, x: x @ self.weight)],
    "call_of_linear": [swap(nn.Linear, "__call__", lambda self, x: x * 3)],
    "method_of_tensors": [swap(Tensor, "tanh", lambda self: self * 5)],
    "constants": [swap(torch, "pi", 3.0), swap(math, "pi", 2.0)],
    "norm": [swap(F, "layer_norm", lambda x, _: x * 0)],
}

for _name, (_question, _changes) in QUESTIONS.items():
    _limit = OLDER if _name in ("version_of_torch", "name_of_a_function") else ""
    register(_name, functools.partial(Asks, _question), *_changes, limit=_limit)
for _name, _changes in REPLACED.items():
    register(f"replaced_{_name}", Calls, *_changes)
