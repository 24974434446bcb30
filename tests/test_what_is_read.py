"""What a forward may read, each changed after two calls: the next calls see it.

Dynamo guards most of it. What it does not, and we do, is marked by having been found here.
"""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import math
import operator
import os
import random
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partitioner import partition

HERE = sys.modules[__name__]
X = torch.linspace(-1, 1, 12).reshape(3, 4)
NUMBER = 1.0
CONTEXT, LOCAL = contextvars.ContextVar("CONTEXT", default=1.0), threading.local()


@dataclass(frozen=True)
class Read:
    """One thing.

    Args:
        factor: reads it: a number or tensor, given the model.
        change: changes it, given the model and what puts changes of the process back.
        made: attributes of the model.
    """

    factor: Callable[[Any], Any]
    change: Callable[[Any, pytest.MonkeyPatch], Any]
    made: Callable[[], dict[str, Any]] = dict


def scaled(x: Tensor, by: float = 1.0, *, and_by: float = 1.0) -> Tensor:
    return x * by * and_by


def closed_over(number: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * number


def counted() -> Callable[[], float]:
    number = 0.0

    def count() -> float:
        nonlocal number
        number += 1
        return number

    return count


def up_to(number: int) -> Iterator[int]:
    yield from range(number)


class Kind(enum.Enum):
    ONE, TWO = 1.0, 2.0


@dataclasses.dataclass
class Config:
    number: float = 1.0
    table: dict[str, float] = dataclasses.field(default_factory=lambda: {"a": 1.0})


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: float = 1.0


Pair = collections.namedtuple("Pair", "one two")


class Holder:
    def __init__(self, *items: float) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> float:
        return self.items[index]

    def __iter__(self) -> Iterator[float]:
        return iter(self.items)

    def __contains__(self, item: float) -> bool:
        return item in self.items

    def __bool__(self) -> bool:
        return self.items[0] > 0

    def __eq__(self, other: object) -> bool:
        return self.items == getattr(other, "items", None)

    def __hash__(self) -> int:
        return 1

    def __lt__(self, other: Holder) -> bool:
        return self.items[0] < other.items[0]

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.items[0]

    def __enter__(self) -> float:
        return self.items[0]

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def first(self) -> float:
        return self.items[0]

    @staticmethod
    def static() -> float:
        return 1.0

    @classmethod
    def of_class(cls) -> float:
        return 1.0

    def method(self) -> float:
        return self.items[0]


class Other(Holder):
    def method(self) -> float:
        return 5.0


class Meta(type):
    number = 1.0


class Metered(metaclass=Meta):
    pass


class Slots:
    __slots__ = ("number", "other")

    def __init__(self) -> None:
        self.number, self.other = 1.0, 2.0


class Missing(dict[str, float]):
    def __missing__(self, key: str) -> float:
        return 4.0


class Numbers(list[float]):
    def first(self) -> float:
        return self[0]


def entered(holder: Holder) -> float:
    with holder as number:
        return number


READS: dict[str, Read] = {
    "global": Read(lambda s: NUMBER, lambda s, m: m.setattr(HERE, "NUMBER", 2.0)),
    "default": Read(lambda s: scaled(s.one), lambda s, m: m.setattr(scaled, "__defaults__", (2.0,))),
    "keyword default": Read(lambda s: scaled(s.one), lambda s, m: m.setitem(scaled.__kwdefaults__, "and_by", 3.0)),
    "code": Read(
        lambda s: scaled(s.one), lambda s, m: m.setattr(scaled, "__code__", (lambda x, by=1.0, *, and_by=1.0: x * 7).__code__)
    ),
    "closure": Read(
        lambda s: s.f(s.one), lambda s, m: setattr(s.f.__closure__[0], "cell_contents", 5.0), lambda: {"f": closed_over(1.0)}
    ),
    "nonlocal": Read(lambda s: s.f(), lambda s, m: s.f(), lambda: {"f": counted()}),
    "partial": Read(
        lambda s: s.f(s.one), lambda s, m: s.f.keywords.update(and_by=3.0), lambda: {"f": functools.partial(scaled, and_by=2.0)}
    ),
    "context variable": Read(lambda s: CONTEXT.get(), lambda s, m: CONTEXT.set(3.0)),
    "thread local": Read(lambda s: getattr(LOCAL, "number", 1.0), lambda s, m: m.setattr(LOCAL, "number", 4.0, raising=False)),
    "environment": Read(lambda s: float(os.environ.get("A_NUMBER", "1")), lambda s, m: m.setenv("A_NUMBER", "2")),
    "getenv": Read(lambda s: float(os.getenv("A_NUMBER", "1")), lambda s, m: m.setenv("A_NUMBER", "2")),
    "log level": Read(
        lambda s: 1.0 if logging.getLogger("a").isEnabledFor(10) else 2.0,
        lambda s, m: m.setattr(logging.getLogger("a"), "level", 10),
    ),
    "enumeration": Read(lambda s: s.c.value, lambda s, m: setattr(s, "c", Kind.TWO), lambda: {"c": Kind.ONE}),
    "dataclass": Read(lambda s: s.c.number, lambda s, m: setattr(s.c, "number", 2.0), lambda: {"c": Config()}),
    "table of a dataclass": Read(lambda s: s.c.table["a"], lambda s, m: s.c.table.update(a=2.0), lambda: {"c": Config()}),
    "equal dataclasses": Read(
        lambda s: 1.0 if s.c == Config() else 2.0, lambda s, m: setattr(s.c, "number", 2.0), lambda: {"c": Config()}
    ),
    "frozen dataclass": Read(
        lambda s: s.c.number, lambda s, m: object.__setattr__(s.c, "number", 3.0), lambda: {"c": Frozen()}
    ),
    "named tuple": Read(lambda s: s.c.one, lambda s, m: setattr(s, "c", Pair(2.0, 1.0)), lambda: {"c": Pair(1.0, 1.0)}),
    "length": Read(lambda s: len(s.c), lambda s, m: s.c.items.append(1.0), lambda: {"c": Holder(1.0)}),
    "item": Read(lambda s: s.c[0], lambda s, m: s.c.items.insert(0, 3.0), lambda: {"c": Holder(1.0)}),
    "iteration": Read(lambda s: sum(v for v in s.c), lambda s, m: s.c.items.insert(0, 3.0), lambda: {"c": Holder(1.0)}),
    "in an object": Read(
        lambda s: 2.0 if 3.0 in s.c else 1.0, lambda s, m: s.c.items.insert(0, 3.0), lambda: {"c": Holder(1.0)}
    ),
    "in a list": Read(
        lambda s: 2.0 if 3.0 in s.c else 1.0, lambda s, m: operator.setitem(s.c, 0, 3.0), lambda: {"c": [1.0, 2.0]}
    ),
    "in values": Read(lambda s: 2.0 if 3.0 in s.c.values() else 1.0, lambda s, m: s.c.update(a=3.0), lambda: {"c": {"a": 1.0}}),
    "truth": Read(lambda s: 2.0 if s.c else 1.0, lambda s, m: s.c.items.insert(0, -3.0), lambda: {"c": Holder(1.0)}),
    "equality": Read(
        lambda s: 2.0 if s.c == s.d else 1.0, lambda s, m: s.c.items.append(3.0), lambda: {"c": Holder(1.0), "d": Holder(1.0)}
    ),
    "order": Read(
        lambda s: 2.0 if s.c < s.d else 1.0,
        lambda s, m: s.c.items.insert(0, -3.0),
        lambda: {"c": Holder(1.0), "d": Holder(1.0)},
    ),
    "call": Read(lambda s: s.c(s.one), lambda s, m: s.c.items.insert(0, 3.0), lambda: {"c": Holder(1.0)}),
    "with": Read(lambda s: entered(s.c), lambda s, m: s.c.items.insert(0, 3.0), lambda: {"c": Holder(1.0)}),
    "property": Read(
        lambda s: s.c.first, lambda s, m: m.setattr(Holder, "first", property(lambda s: 9.0)), lambda: {"c": Holder(1.0)}
    ),
    "static method": Read(
        lambda s: s.c.static(), lambda s, m: m.setattr(Holder, "static", staticmethod(lambda: 9.0)), lambda: {"c": Holder(1.0)}
    ),
    "class method": Read(
        lambda s: s.c.of_class(),
        lambda s, m: m.setattr(Holder, "of_class", classmethod(lambda c: 9.0)),
        lambda: {"c": Holder(1.0)},
    ),
    "class method of a class": Read(
        lambda s: Holder.of_class(), lambda s, m: m.setattr(Holder, "of_class", classmethod(lambda c: 9.0))
    ),
    "method": Read(lambda s: s.c.method(), lambda s, m: m.setattr(Holder, "method", lambda s: 9.0), lambda: {"c": Holder(1.0)}),
    "len of a class": Read(
        lambda s: len(s.c), lambda s, m: m.setattr(Holder, "__len__", lambda s: 9), lambda: {"c": Holder(1.0)}
    ),
    "item of a class": Read(
        lambda s: s.c[0], lambda s, m: m.setattr(Holder, "__getitem__", lambda s, i: 9), lambda: {"c": Holder(1.0)}
    ),
    "equality of a class": Read(
        lambda s: 2.0 if s.c == s.d else 1.0,
        lambda s, m: m.setattr(Holder, "__eq__", lambda s, other: False),
        lambda: {"c": Holder(1.0), "d": Holder(1.0)},
    ),
    "class": Read(lambda s: s.c.method(), lambda s, m: setattr(s.c, "__class__", Other), lambda: {"c": Holder(1.0)}),
    "is instance": Read(
        lambda s: 1.0 if isinstance(s.c, Other) else 2.0,
        lambda s, m: setattr(s.c, "__class__", Other),
        lambda: {"c": Holder(1.0)},
    ),
    "builtin that a global hides": Read(
        lambda s: len([1.0, 2.0]), lambda s, m: m.setattr(HERE, "len", lambda _: 7.0, raising=False)
    ),
    "attribute of a metaclass": Read(lambda s: Metered.number, lambda s, m: m.setattr(Meta, "number", 3.0)),
    "attribute that hides one of a metaclass": Read(
        lambda s: Metered.number, lambda s, m: m.setattr(Metered, "number", 3.0, raising=False)
    ),
    "slot": Read(lambda s: s.c.number, lambda s, m: setattr(s.c, "number", 5.0), lambda: {"c": Slots()}),
    "slot that is gone": Read(
        lambda s: 1.0 if hasattr(s.c, "number") else 2.0, lambda s, m: delattr(s.c, "number"), lambda: {"c": Slots()}
    ),
    "missing": Read(lambda s: s.c["a"], lambda s, m: operator.setitem(s.c, "a", 2.0), lambda: {"c": Missing()}),
    "list of its own": Read(lambda s: s.c.first(), lambda s, m: s.c.insert(0, 2.0), lambda: {"c": Numbers([1.0])}),
    "count": Read(lambda s: next(s.c), lambda s, m: None, lambda: {"c": itertools.count(1)}),
    "cycle": Read(lambda s: next(s.c), lambda s, m: None, lambda: {"c": itertools.cycle([1.0, 2.0, 3.0])}),
    "iterator": Read(lambda s: next(s.c, 9.0), lambda s, m: None, lambda: {"c": iter([1.0, 2.0, 3.0])}),
    "generator": Read(lambda s: next(s.c, 9.0), lambda s, m: None, lambda: {"c": (v for v in (1.0, 2.0, 3.0))}),
    "function that yields": Read(lambda s: sum(up_to(s.c)), lambda s, m: setattr(s, "c", 4), lambda: {"c": 3}),
    "numpy draws": Read(lambda s: float(np.random.rand()), lambda s, m: np.random.seed(4)),
    "random state": Read(lambda s: float(s.c.rand()), lambda s, m: s.c.seed(4), lambda: {"c": np.random.RandomState(0)}),
    "generator of numpy": Read(
        lambda s: float(s.c.random()), lambda s, m: s.c.random(), lambda: {"c": np.random.default_rng(0)}
    ),
    "random.Random": Read(lambda s: s.c.random(), lambda s, m: s.c.seed(4), lambda: {"c": random.Random(0)}),
    "torch.Generator": Read(
        lambda s: torch.rand(1, generator=s.c), lambda s, m: s.c.manual_seed(4), lambda: {"c": torch.Generator().manual_seed(1)}
    ),
    "array": Read(lambda s: float(s.c[0]), lambda s, m: operator.setitem(s.c, 0, 4.0), lambda: {"c": np.ones(3)}),
    "tensor": Read(lambda s: s.c, lambda s, m: setattr(s, "c", s.c * 3), lambda: {"c": torch.ones(1)}),
    "list of tensors": Read(lambda s: s.c[0], lambda s, m: s.c.insert(0, s.one * 4), lambda: {"c": [torch.ones(1)]}),
    "table of tensors": Read(
        lambda s: sum(s.c.values()), lambda s, m: s.c.update(b=s.one), lambda: {"c": {"a": torch.ones(1)}}
    ),
    "set": Read(lambda s: 1.0 if 4 in s.c else len(s.c), lambda s, m: s.c.add(4), lambda: {"c": {1, 2}}),
    "frozen set": Read(
        lambda s: 1.0 if 4 in s.c else 2.0, lambda s, m: setattr(s, "c", frozenset([4])), lambda: {"c": frozenset([1])}
    ),
    "defaultdict": Read(lambda s: s.c["a"], lambda s, m: s.c.update(a=3.0), lambda: {"c": collections.defaultdict(float)}),
    "defaultdict that grows": Read(
        lambda s: len(s.c) + s.c[len(s.c)], lambda s, m: None, lambda: {"c": collections.defaultdict(float)}
    ),
    "counter": Read(lambda s: s.c["a"], lambda s, m: s.c.update("a"), lambda: {"c": collections.Counter("aab")}),
    "ordered dictionary": Read(
        lambda s: next(iter(s.c.values())),
        lambda s, m: s.c.move_to_end("a"),
        lambda: {"c": collections.OrderedDict(a=1.0, b=2.0)},
    ),
    "proxy of a table": Read(
        lambda s: s.c["a"] * len(s.c),
        lambda s, m: s.d.update(a=3.0, b=2.0),
        lambda: {"c": types.MappingProxyType(TABLE), "d": TABLE},
    ),
    "namespace": Read(
        lambda s: getattr(s.c, "b", s.c.a), lambda s, m: setattr(s.c, "b", 4.0), lambda: {"c": types.SimpleNamespace(a=1.0)}
    ),
    "range": Read(lambda s: len(s.c), lambda s, m: setattr(s, "c", range(4)), lambda: {"c": range(3)}),
    "slice": Read(lambda s: X[0, s.c].sum(), lambda s, m: setattr(s, "c", slice(0, 2)), lambda: {"c": slice(0, 3)}),
    "bytes": Read(lambda s: s.c[0], lambda s, m: setattr(s, "c", b"b"), lambda: {"c": b"a"}),
    "byte array": Read(lambda s: s.c[0], lambda s, m: operator.setitem(s.c, 0, 5), lambda: {"c": bytearray(b"a")}),
    "pattern": Read(
        lambda s: 1.0 if s.c.match("ab") else 2.0, lambda s, m: setattr(s, "c", re.compile("b")), lambda: {"c": re.compile("a")}
    ),
    "list in a tuple": Read(lambda s: s.c[0][0], lambda s, m: operator.setitem(s.c[0], 0, 4.0), lambda: {"c": ([1.0],)}),
    "deep": Read(lambda s: s.c["a"][0]["b"], lambda s, m: s.c["a"][0].update(b=4.0), lambda: {"c": {"a": [{"b": 1.0}]}}),
    "copy": Read(lambda s: copy.deepcopy(s.c)["a"][0], lambda s, m: s.c["a"].insert(0, 5.0), lambda: {"c": {"a": [1.0]}}),
    "any": Read(lambda s: 1.0 if any(v > 2 for v in s.c) else 2.0, lambda s, m: s.c.append(3), lambda: {"c": [1, 2]}),
    "zip": Read(
        lambda s: sum(a * b for a, b in zip(s.c, s.d, strict=False)),
        lambda s, m: s.c.append(3.0),
        lambda: {"c": [1.0], "d": [1.0, 2.0]},
    ),
    "sorted": Read(lambda s: sorted(s.c)[0], lambda s, m: s.c.append(0.5), lambda: {"c": [1.0, 2.0]}),
    "maximum": Read(lambda s: max(s.c.values()), lambda s, m: s.c.update(b=7.0), lambda: {"c": {"a": 1.0}}),
    "torch function": Read(lambda s: s.c(s.one), lambda s, m: setattr(s, "c", torch.exp), lambda: {"c": torch.sin}),
    "function of an op": Read(
        lambda s: s.c(s.one),
        lambda s, m: setattr(s, "c", torch.ops.aten.cos.default),
        lambda: {"c": torch.ops.aten.sin.default},
    ),
    "method of tensors": Read(lambda s: s.c(s.one), lambda s, m: setattr(s, "c", Tensor.cos), lambda: {"c": Tensor.sin}),
    "builtin": Read(lambda s: s.c([1.0, 2.0]), lambda s, m: setattr(s, "c", max), lambda: {"c": min}),
    "function of math": Read(lambda s: s.c(1.5), lambda s, m: setattr(s, "c", math.floor), lambda: {"c": math.ceil}),
    "bound method": Read(
        lambda s: s.c(X).sum(), lambda s, m: setattr(s, "c", s.right.forward), lambda: {"c": nn.Linear(4, 4).forward}
    ),
    "name of a function": Read(lambda s: getattr(torch, s.c)(s.one), lambda s, m: setattr(s, "c", "exp"), lambda: {"c": "sin"}),
    "attribute by name": Read(
        lambda s: operator.attrgetter(s.c)(s), lambda s, m: setattr(s, "c", "e"), lambda: {"c": "d", "d": 1.0, "e": 2.0}
    ),
    "mode of a layer": Read(lambda s: 1.0 if s.left.training else 2.0, lambda s, m: s.left.eval()),
    "attribute of a layer": Read(lambda s: getattr(s.left, "extra", 1.0), lambda s, m: setattr(s.left, "extra", 4.0)),
    "children": Read(lambda s: len(list(s.children())), lambda s, m: s.add_module("new", nn.Linear(1, 1))),
    "modules": Read(lambda s: len(dict(s.named_modules())), lambda s, m: s.left.add_module("new", nn.Linear(1, 1))),
    "buffers": Read(lambda s: sum(b.sum() for b in s.buffers()), lambda s, m: s.register_buffer("new", torch.ones(2))),
    "state": Read(lambda s: len(s.state_dict()), lambda s, m: s.register_buffer("new", torch.ones(2))),
    "list of modules": Read(
        lambda s: len(s.c), lambda s, m: s.c.append(nn.Identity()), lambda: {"c": nn.ModuleList([nn.Identity()])}
    ),
    "list of parameters": Read(
        lambda s: sum(p.sum() for p in s.c),
        lambda s, m: s.c.append(nn.Parameter(torch.ones(1))),
        lambda: {"c": nn.ParameterList([nn.Parameter(torch.ones(1))])},
    ),
    "data of a parameter": Read(lambda s: s.left.weight.sum(), lambda s, m: setattr(s.left.weight, "data", torch.ones(4, 4))),
    "dtype of a parameter": Read(
        lambda s: s.c.element_size(),
        lambda s, m: setattr(s.c, "data", s.c.data.double()),
        lambda: {"c": nn.Parameter(torch.ones(4))},
    ),
    "shape of a parameter": Read(
        lambda s: s.c.numel(), lambda s, m: setattr(s.c, "data", torch.ones(7)), lambda: {"c": nn.Parameter(torch.ones(4))}
    ),
    "frozen parameter": Read(
        lambda s: 1.0 if s.left.weight.requires_grad else 2.0, lambda s, m: s.left.weight.requires_grad_(False)
    ),
    "gradient of a parameter": Read(
        lambda s: 1.0 if s.left.weight.grad is None else s.left.weight.grad.sum(),
        lambda s, m: setattr(s.left.weight, "grad", torch.ones(4, 4)),
    ),
    "attribute of a parameter": Read(
        lambda s: getattr(s.left.weight, "tag", 1.0), lambda s, m: setattr(s.left.weight, "tag", 3.0)
    ),
    "strides of a buffer": Read(
        lambda s: s.c.stride(0), lambda s, m: setattr(s, "c", s.c.t()), lambda: {"c": nn.Buffer(torch.ones(4, 3))}
    ),
    "flag of torch": Read(
        lambda s: 1.0 if torch.backends.cudnn.benchmark else 2.0,
        lambda s, m: m.setattr(torch.backends.cudnn, "benchmark", True),
    ),
}

TABLE: dict[str, float] = {}

FOUND = {
    *(
        "getenv",
        "in a list",
        "in an object",
        "in values",
        "method",
        "class method",
        "class method of a class",
        "len of a class",
    ),
    *("item of a class", "equality of a class", "defaultdict that grows", "counter", "ordered dictionary", "list in a tuple"),
    *("random.Random", "method of tensors", "range", "builtin that a global hides", "attribute of a metaclass"),
    "attribute that hides one of a metaclass",
}
"""Where a change was not seen, or the trial of a plan changed something: these are tried quickly."""


class Reads(nn.Module):
    def __init__(self, read: Read) -> None:
        super().__init__()
        self.left, self.right, self.one, self.factor = nn.Linear(4, 4), nn.Linear(4, 4), torch.ones(1), read.factor
        for name, value in read.made().items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.factor(self) + self.right(x)


def calls(read: Read, prepare: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> list[Tensor]:
    """Results of two calls, and of two after the change."""
    TABLE.clear()
    TABLE["a"] = 1.0
    torch.manual_seed(0)
    np.random.seed(0)
    with pytest.MonkeyPatch.context() as patch:
        run = prepare(model := Reads(read))
        results = [run(X), run(X)]
        read.change(model, patch)
        return [*results, run(X), run(X)]


SLOW = [name for name in READS if name not in FOUND]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("example", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["example", "bare"])
@pytest.mark.parametrize("name", [*sorted(FOUND), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_change_is_seen(name: str, example: bool) -> None:
    arguments = {"example_inputs": X} if example else {}
    plain = contextvars.copy_context().run(calls, READS[name], lambda model: model)
    ours = contextvars.copy_context().run(
        calls, READS[name], lambda model: partition(model, ["cpu:0", "cpu:1"], tune=False, **arguments)
    )
    for one, other in zip(plain, ours, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
