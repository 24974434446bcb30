"""What forward leaves behind, in objects of every kind, wherever they lie: calls of the user's count, and no others."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import functools
import io
import itertools
import math
import os
import random
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from .program import PROGRAMS, Program, Run, Steps, Two, rand


class Does(Two):
    """Does something that counts, and computes with what it gives."""

    def __init__(self, does: Callable[[Any], Any], made: dict[str, Any]) -> None:
        super().__init__()
        self.does = does
        for name, value in made.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) * self.does(self) + self.right(x)


def effect(
    seen: Callable[[Any], Any] = lambda _: None, made: Callable[[], dict[str, Any]] = dict, begin: Callable[[], object] = dict
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Registers what forward does.

    Args:
        seen: shows what it has left.
        made: attributes of the model.
        begin: puts back what lies elsewhere.
    """

    def register(does: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def build() -> nn.Module:
            begin()
            return Does(does, made())

        def script(run: Run) -> Steps:
            for _ in range(3):
                yield run(rand()), seen(run.model)
            begin()

        name = f"left.{does.__name__}"
        PROGRAMS[name] = Program(name, build, script, lambda: ((rand(),), {}), slow=True)
        return does

    return register


# -- in attributes ---------------------------------------------------------------------------------------------------------


@effect(lambda m: (m.total.copy(), m.table.copy()), lambda: {"total": np.zeros(2), "table": np.zeros((2, 2))})
def arrays(self: Any) -> Any:
    self.total += 1
    self.table[0, 0] = self.total.sum()
    return float(self.table.sum())


@effect(lambda m: m.rows.copy(), lambda: {"rows": np.zeros(2, dtype=[("a", "f4"), ("b", "i4")])})
def records(self: Any) -> Any:
    self.rows["a"] += 1
    return float(self.rows["a"].sum())


@effect(lambda m: list(m.items), lambda: {"items": array.array("d")})
def arrays_of_python(self: Any) -> Any:
    self.items.append(1.0)
    return sum(self.items)


@effect(lambda m: dict(m.items), lambda: {"items": collections.UserDict()})
def dictionary_of_the_users(self: Any) -> Any:
    self.items["calls"] = self.items.get("calls", 0) + 1
    return float(self.items["calls"])


@effect(lambda m: list(m.items), lambda: {"items": collections.UserList()})
def list_of_the_users(self: Any) -> Any:
    self.items.append(1)
    return float(len(self.items))


@effect(lambda m: list(m.items.values()), lambda: {"items": weakref.WeakKeyDictionary()})
def weak_keys(self: Any) -> Any:
    self.items[self.left] = self.items.get(self.left, 0.0) + 1
    return self.items[self.left]


KNOWN = Two()


@effect(lambda _: KNOWN.calls, lambda: {"known": weakref.ref(KNOWN)}, lambda: setattr(KNOWN, "calls", 0))
def weak_reference(self: Any) -> Any:
    self.known().calls += 1
    return float(self.known().calls)


@effect(lambda _: vars(math).get("calls"), begin=lambda: vars(math).pop("calls", None))
def attribute_of_a_module_of_pythons(self: Any) -> Any:
    math.calls = getattr(math, "calls", 0) + 1  # type: ignore[attr-defined]
    return math.calls  # type: ignore[attr-defined]


@effect(lambda m: list(m.items.values()), lambda: {"items": {}})
def weights_as_keys(self: Any) -> Any:
    self.items[self.left.weight] = self.items.get(self.left.weight, 0.0) + 1
    return self.items[self.left.weight]


@effect(lambda m: (m.calls, m.lock.locked()), lambda: {"lock": threading.Lock(), "calls": 0})
def under_a_lock(self: Any) -> Any:
    with self.lock:
        self.calls += 1
    return self.calls


@effect(lambda m: m.file.getvalue(), lambda: {"file": io.StringIO()})
def text_in_memory(self: Any) -> Any:
    self.file.write("x")
    return float(self.file.tell())


@effect(lambda m: (m.deep.calls, m.deep.items), lambda: {"deep": SimpleNamespace(items=[{"k": []}], calls=0)})
def deep_objects(self: Any) -> Any:
    self.deep.items[0]["k"].append(1)
    self.deep.calls += 1
    return float(len(self.deep.items[0]["k"]) * self.deep.calls)


@effect(lambda m: len(m.seen), lambda: {"seen": []})
def threads(self: Any) -> Any:
    thread = threading.Thread(target=self.seen.append, args=(1,))
    thread.start()
    thread.join()
    return float(len(self.seen))


# -- in the model ----------------------------------------------------------------------------------------------------------


@effect(lambda m: (m.left.weight.calls, m.left.calls))
def attributes_of_weights_and_parts(self: Any) -> Any:
    self.left.weight.calls = getattr(self.left.weight, "calls", 0) + 1
    self.left.calls = getattr(self.left, "calls", 0) + 1
    return float(self.left.calls * self.left.weight.calls)


@effect(lambda m: list(m.state_dict()))
def buffers_and_parts(self: Any) -> Any:
    number = len(self._buffers)
    self.register_buffer(f"b{number}", torch.ones(1))
    if "more" not in self._modules:
        self.add_module("more", nn.Linear(4, 4))
        self.gain = nn.Parameter(torch.full((4,), 2.0))
    return self.more.weight.detach().sum() + number + self.gain


@effect(lambda m: (m.training, m.left.training))
def modes(self: Any) -> Any:
    self.train(not self.training)
    return 1.0 + self.training


@effect(lambda m: m.left.weight.requires_grad)
def what_needs_gradients(self: Any) -> Any:
    self.left.weight.requires_grad_(not self.left.weight.requires_grad)
    return 1.0 + self.left.weight.requires_grad


@effect(lambda m: (m.left.weight.clone(), m.right.weight.clone()))
def weights(self: Any) -> Any:
    with torch.no_grad():
        self.left.weight.clamp_(-0.1, 0.1)
    nn.init.uniform_(self.right.weight)
    return 1.0


@effect(lambda m: m.right.weight.clone())
def states_that_are_loaded(self: Any) -> Any:
    state = self.state_dict()
    self.load_state_dict({name: value * 0.5 for name, value in state.items()})
    return copy.deepcopy(self.left).weight.detach().sum()


@effect(lambda m: list(m._modules))
def parts_that_change_places(self: Any) -> Any:
    self.left, self.right = self.right, self.left
    return 1.0


@effect(lambda m: len(m.left._forward_hooks))
def hooks(self: Any) -> Any:
    self.left.register_forward_hook(lambda module, args, result: result + 1)
    return 1.0


@effect(lambda m: m.left.weight.grad)
def gradients(self: Any) -> Any:
    before = self.left.weight.grad
    self.left.weight.grad = torch.ones(4, 4) if before is None else before + 1
    return self.left.weight.grad.mean()


# -- elsewhere -------------------------------------------------------------------------------------------------------------

VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=0)
ARRAY, TENSOR, LIST = np.zeros(3), torch.zeros(3), list[Any]()
COUNTS, SUMS = collections.Counter[int](), collections.defaultdict[int, int](int)
HELD: dict[str, Any] = {}
NUMBER, TURNS, YIELDED, DRAWN, OTHERS = 0, itertools.count(), iter(()), np.random.default_rng(0), torch.Generator()


def begin() -> None:
    global NUMBER, TURNS, YIELDED, DRAWN
    NUMBER, TURNS, YIELDED, DRAWN = 0, itertools.count(1), (float(number) for number in range(1, 50)), np.random.default_rng(0)
    HELD["turns"], Of.calls = iter(range(50)), 0
    Of.items.clear()
    ARRAY.fill(0)
    TENSOR.zero_()
    for held in (LIST, COUNTS, SUMS):
        held.clear()  # type: ignore[attr-defined]
    OTHERS.manual_seed(5)
    VARIABLE.set(0)
    os.environ.pop("LEFT", None)
    torch.set_default_dtype(torch.float32)
    kept.cache_clear()


class Of:
    """Counts for its class."""

    calls = 0
    items: ClassVar[list[int]] = []

    @classmethod
    def add(cls) -> int:
        cls.calls += 1
        cls.items.append(cls.calls)
        return cls.calls


@functools.lru_cache
def kept(number: int) -> float:
    LIST.append(number)
    return number + random.random()


@effect(lambda m: (dict(COUNTS), dict(SUMS)), begin=begin)
def counts_in_globals(self: Any) -> Any:
    COUNTS[3] += 1
    SUMS[4] += COUNTS[3]
    return float(SUMS[4])


@effect(lambda m: (ARRAY.copy(), TENSOR.clone(), list(LIST), NUMBER), begin=begin)
def globals_of_many_kinds(self: Any) -> Any:
    global NUMBER
    NUMBER += 1
    ARRAY[0] += 1
    TENSOR[0] += 1
    LIST.append(NUMBER)
    return TENSOR[0].clone() + float(ARRAY[0]) + len(LIST)


@effect(begin=begin)
def iterators_in_globals(self: Any) -> Any:
    return float(next(TURNS) + next(YIELDED) + next(HELD["turns"]))  # type: ignore[call-overload]


@effect(begin=begin)
def generators_in_globals(self: Any) -> Any:
    return float(DRAWN.random()) + torch.rand((), generator=OTHERS)


@effect(lambda m: (Of.calls, list(Of.items)), begin=begin)
def classes(self: Any) -> Any:
    return float(Of.add())


@effect(lambda m: (list(LIST), kept.cache_info().currsize), begin=begin)
def caches(self: Any) -> Any:
    return kept(2) + len(LIST)


@effect(lambda m: VARIABLE.get(), begin=begin)
def context_variables(self: Any) -> Any:
    VARIABLE.set(VARIABLE.get() + 1)
    return float(VARIABLE.get())


@effect(lambda m: os.environ.get("LEFT"), begin=begin)
def environment(self: Any) -> Any:
    os.environ["LEFT"] = os.environ.get("LEFT", "") + "I"
    return float(len(os.environ["LEFT"]))


@effect(lambda m: str(torch.get_default_dtype()), begin=begin)
def default_dtype(self: Any) -> Any:
    torch.set_default_dtype(torch.float64 if torch.get_default_dtype() is torch.float32 else torch.float32)
    return torch.ones((), dtype=torch.float32)
