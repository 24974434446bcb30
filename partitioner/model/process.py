"""What belongs to the process or to the thread and a forward may change: options of Python's, numpy's and torch's, and lists.

Each option is asked for, and put back if it is another one afterwards.
"""

from __future__ import annotations

import builtins
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.backends import ContextProp
from torch.distributions import Distribution
from torch.nn.modules import module as modules
from torch.utils import deterministic

from partitioner.model.containers import refill
from partitioner.model.modes import device_types, flushes
from partitioner.model.recursion import recursion_limit

Option = tuple[Callable[[], Any], Callable[[Any], object]]
"""How it is asked for, and how it is set."""

_NUMBERS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "flags", "traps")
"""What a context of `decimal` holds."""

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
"""What programs handle."""


def process_undo() -> Callable[[], None]:
    """Puts back what belongs to the process or the thread: generators of random numbers, options, the environment."""
    in_use = torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
    of_gpus = torch.cuda.default_generators if in_use else ()
    generators = (torch.default_generator, *of_gpus)
    states, python, numbers = [each.get_state() for each in generators], random.getstate(), np.random.get_state()
    asked = [(ask, put, then) for ask, put, then in map(_asked, _options()) if then is not ask]

    def undo() -> None:
        for ask, put, then in asked:
            with suppress(Exception):  # what can no longer be asked for, or set, such as a folder that is gone
                if not _is_same(ask(), then):
                    put(then)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numbers)

    return undo


def _asked(option: Option) -> tuple[Callable[[], Any], Callable[[Any], object], Any]:
    """An option as it is; where it cannot be asked for, the question stands for the answer."""
    ask, put = option
    try:
        return ask, put, ask()
    except Exception:
        return ask, put, ask


def _is_same(now: Any, then: Any) -> bool:
    return now is then or bool(now == then)


def _options() -> Iterator[Option]:
    """All of them."""
    yield from _of_python()
    yield from _of_torch()
    yield np.geterr, lambda then: np.seterr(**then)
    yield np.get_printoptions, lambda then: np.set_printoptions(**then)
    for logger in [logging.getLogger(), *map(logging.getLogger, _loggers())]:
        yield partial(_log, logger), partial(_set_log, logger)


def _of_python() -> Iterator[Option]:
    yield recursion_limit, sys.setrecursionlimit
    yield sys.getswitchinterval, sys.setswitchinterval
    yield sys.get_int_max_str_digits, sys.set_int_max_str_digits
    yield gc.isenabled, lambda then: gc.enable() if then else gc.disable()
    yield gc.get_threshold, lambda then: gc.set_threshold(*then)
    yield os.getcwd, os.chdir
    yield partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)
    yield lambda: logging.root.manager.disable, logging.disable
    yield _filters, _set_filters
    yield partial(list, sys.path), partial(refill, sys.path)
    yield partial(list, sys.argv), partial(refill, sys.argv)
    yield lambda: dict(os.environ), _set_environment
    yield _decimal, _set_decimal
    yield partial(dict, vars(builtins)), partial(refill, vars(builtins))
    for name in ("excepthook", "displayhook", "stdin", "stdout", "stderr"):
        yield partial(getattr, sys, name), partial(setattr, sys, name)
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
            yield partial(signal.getsignal, number), partial(signal.signal, number)


def _filters() -> tuple[object, list[object], object]:
    return warnings.filters, list(warnings.filters), warnings.showwarning


def _set_filters(then: tuple[Any, list[object], Any]) -> None:
    """Only if they have changed: by this Python forgets which warnings it has given that are to come once."""
    warnings.filters, kept, warnings.showwarning = then
    refill(then[0], kept)
    with warnings.catch_warnings():  # tells Python that they have
        pass


def _of_torch() -> Iterator[Option]:
    yield torch.is_grad_enabled, torch.set_grad_enabled
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_num_threads, torch.set_num_threads
    yield flushes, torch.set_flush_denormal
    yield default_device, torch.set_default_device
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda then: torch.use_deterministic_algorithms(then[0], warn_only=then[1]),
    )
    filled = "fill_uninitialized_memory"
    yield partial(getattr, deterministic, filled), partial(setattr, deterministic, filled)
    yield (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda then: torch.set_anomaly_enabled(*then),
    )
    yield torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    for kind in device_types():
        yield partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)
        yield partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind)
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        yield getattr(torch.backends.cuda, f"{name}_sdp_enabled"), getattr(torch.backends.cuda, f"enable_{name}_sdp")
    for backend in vars(torch.backends).values():
        if isinstance(backend, ModuleType):
            yield from ((each.getter, each.setter) for each in vars(type(backend)).values() if isinstance(each, ContextProp))
    yield lambda: Distribution._validate_args, Distribution.set_default_validate_args
    for name in ("overwrite_module_params_on_conversion", "swap_module_params_on_conversion"):
        yield getattr(torch.__future__, f"get_{name}"), getattr(torch.__future__, f"set_{name}")
    printing = vars(torch._tensor_str.PRINT_OPTS)
    yield partial(dict, printing), partial(refill, printing)
    for hooks in [held for name, held in vars(modules).items() if name.startswith("_global_") and isinstance(held, dict)]:
        yield partial(dict, hooks), partial(refill, hooks)


def _set_environment(then: dict[str, str]) -> None:
    for name in os.environ.keys() - then.keys():
        del os.environ[name]
    os.environ.update({name: text for name, text in then.items() if os.environ.get(name) != text})


def default_device() -> torch.device | None:
    """What `torch.set_default_device` was given last, and ``None`` if that is nothing."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _decimal() -> tuple[decimal.Context, decimal.Context]:
    """The thread's context, and what it holds."""
    context = decimal.getcontext()
    return context, context.copy()


def _set_decimal(then: tuple[decimal.Context, decimal.Context]) -> None:
    context, held = then
    for name in _NUMBERS:
        setattr(context, name, getattr(held, name))
    decimal.setcontext(context)


def _loggers() -> list[str]:
    """Names of loggers that are not torch's own, which set themselves up at their first use."""
    found = list(logging.root.manager.loggerDict.items())
    return [name for name, each in found if isinstance(each, logging.Logger) and name.partition(".")[0] != "torch"]


def _log(logger: logging.Logger) -> tuple[object, ...]:
    return logger.level, logger.propagate, logger.disabled, list(logger.handlers)


def _set_log(logger: logging.Logger, then: tuple[Any, ...]) -> None:
    level, logger.propagate, logger.disabled, logger.handlers[:] = then
    logger.setLevel(level)
