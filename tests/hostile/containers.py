"""Containers that forward takes, writes, makes and gives back."""

from __future__ import annotations

import collections
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from .program import OLDER, Run, Steps, program, raised, rand, two

Point = namedtuple("Point", "first second")


class Named(NamedTuple):
    first: Tensor
    second: Tensor
    scale: float = 1.5


@dataclass
class Found:
    first: Tensor
    second: Tensor | None = None
    more: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    first: Tensor
    scale: float = 2.0


@program(two(lambda self, x: Point(self.left(x), second=Named(self.right(x), x))))
def named_tuples_returned(run: Run) -> Steps:
    result = run.learn(rand())[0]
    yield result, result.second.scale


@program(two(lambda self, x: Found(self.left(x), more=[self.right(x), x])))
def dataclass_returned(run: Run) -> Steps:
    yield run.learn(rand())


@program(two(lambda self, x: Frozen(self.left(x) + self.right(x))))
def frozen_dataclass_returned(run: Run) -> Steps:
    yield run(rand()).first


@program(two(lambda self, given: self.left(given.first) * given.scale), lambda: Frozen(rand()))
def frozen_dataclass_as_input(run: Run) -> Steps:
    yield run(Frozen(rand()))
    yield run(Frozen(rand(seed=5), 3.0))


@program(two(lambda self, given: self.left(given.first) + (0 if given.second is None else given.second)), lambda: Found(rand()))
def dataclass_as_input(run: Run) -> Steps:
    yield run.learn(Found(rand()))
    yield run.learn(Found(rand(), rand(seed=4)))


@program(two(lambda self, x: BaseModelOutput(self.left(x), hidden_states=(x, self.right(x)))))
def model_output_returned(run: Run) -> Steps:
    result = run.learn(rand())[0]
    yield result, list(result), result["last_hidden_state"] is result[0], result.attentions


@program(two(lambda self, x: OrderedDict([("b", self.left(x)), ("a", self.right(x)), (3, x)])))
def ordered_dict_returned(run: Run) -> Steps:
    yield run(rand())


def _many_kinds(self: nn.Module, x: Tensor) -> tuple[Any, ...]:
    made = defaultdict(list)
    made["left"].append(self.left(x))
    return (
        deque([x, self.right(x)], maxlen=3),
        made,
        Counter("aab"),
        {"a", "b"},
        frozenset([1]),
        range(3),
        slice(1, 2),
        None,
        ...,
    )


@program(two(_many_kinds))
def many_kinds_returned(run: Run) -> Steps:
    result = run(rand())
    yield result, result[0].maxlen, result[1].default_factory


@program(two(lambda self, x: ChainMap({"a": self.left(x)}, {"a": x, "b": self.right(x)})))
def chain_map_returned(run: Run) -> Steps:
    result = run(rand())
    yield type(result).__name__, result["a"], result["b"], len(result.maps)


@program(two(lambda self, given: self.left(given["a"]) * given["b"]), lambda: ChainMap({"a": rand()}, {"b": 2.0}))
def chain_map_as_input(run: Run) -> Steps:
    yield run(ChainMap({"a": rand()}, {"b": 2.0}))
    yield run(ChainMap({"a": rand()}, {"b": 3.0}))
    yield run(ChainMap({}, {"a": rand(), "b": 2.0}))


@program(
    two(lambda self, x: self.left(x) * self.config["scale"], config={"scale": 1.0}),
    limit="a key that is added to a ChainMap is not guarded",
)
def chain_map_as_attribute(run: Run) -> Steps:
    first = {"scale": 2.0}
    run.module.config = ChainMap({}, first)
    yield run(rand())
    first["scale"] = 3.0
    yield run(rand())
    run.module.config.maps[0]["scale"] = 5.0
    yield run(rand())


@program(two(lambda self, given: self.left(given["x"]) + self.right(given["y"])), lambda: {"x": rand(), "y": rand()})
def dict_as_input(run: Run) -> Steps:
    yield run.learn({"x": rand(), "y": rand(seed=4)})
    yield run.learn({"y": rand(), "x": rand(seed=4)})
    yield run.learn({"x": rand(), "y": rand(seed=4), "z": rand(seed=5)})
    yield raised(lambda: run({"x": rand()}))
    yield run(types.MappingProxyType({"x": rand(), "y": rand()}))
    yield run(UserDict(x=rand(), y=rand()))


@program(two(lambda self, given: [self.left(value) for value in given.values()]), lambda: {"x": rand(), "y": rand(seed=4)})
def order_of_a_dict(run: Run) -> Steps:
    yield run({"x": rand(), "y": rand(seed=4)})
    yield run({"y": rand(seed=4), "x": rand()})


def _writes_dict(self: nn.Module, given: dict[str, Tensor]) -> Tensor:
    given["left"] = self.left(given.pop("x"))
    given.setdefault("y", given["left"] * 2)
    return self.right(given["left"])


@program(two(_writes_dict), lambda: {"x": rand()})
def dict_of_the_caller_written(run: Run) -> Steps:
    for given in ({"x": rand()}, {"x": rand(), "y": 3}, {"y": 4, "x": rand(), "z": 5}):
        yield run(given), given


def _writes_list(self: nn.Module, x: Tensor, found: list[Tensor]) -> list[Tensor]:
    found.append(self.left(x))
    found.extend([self.right(x), x])
    found[0] = found[0] * 2
    return found


@program(two(_writes_list), rand, list)
def list_of_the_caller_written(run: Run) -> Steps:
    found: list[Tensor] = []
    for seed in range(3):
        yield run(rand(seed=seed), found) is found, found


@program(two(lambda self, given: self.left(given[0]) + sum(given)), lambda: [rand(), rand(seed=4)])
def lists_of_other_lengths(run: Run) -> Steps:
    for length in (2, 3, 1, 6):
        yield run.learn([rand(seed=seed) for seed in range(length)])
    yield run.learn(tuple(rand(seed=seed) for seed in range(2)))


@program(two(lambda self, items: self.left(next(items)) + sum(items)), lambda: iter([rand(), rand(seed=4)]), refused=True)
def iterator_as_input(run: Run) -> Steps:
    items = iter([rand(), rand(seed=4)])
    yield run(items), list(items)


@program(two(lambda self, items: self.left(next(items))), lambda: (rand(seed=seed) for seed in range(3)), refused=True)
def generator_as_input(run: Run) -> Steps:
    items = (rand(seed=seed) for seed in range(3))
    yield run(items)
    yield run(items)
    yield len(list(items))


def _generates(self: nn.Module, x: Tensor) -> Any:
    yield self.left(x)
    yield self.right(x)


@program(two(_generates), refused=True)
def forward_is_a_generator(run: Run) -> Steps:
    result = run(rand())
    yield type(result).__name__, list(result)


@program(two(lambda self, x: map(self.left, [x, x * 2])), refused=True)
def lazy_result(run: Run) -> Steps:
    yield list(run(rand()))


@program(two(lambda self, x: ((), [], {}, None, (None,), [[self.left(x)], []])))
def empty_containers(run: Run) -> Steps:
    yield run(rand())


@program(two(lambda self, x: None if x.shape[0] == 3 else self.left(x)))
def nothing_returned(run: Run) -> Steps:
    yield run(rand())
    yield run(rand(2, 4))


@program(two(lambda self, x: (3, 2.5, "text", True, torch.float32, x.device, self.left(x).shape, slice(None))))
def no_tensors_returned(run: Run) -> Steps:
    yield run(rand())


@program(two(lambda self, x: types.SimpleNamespace(first=self.left(x), second=self.right(x))), refused=True)
def object_returned(run: Run) -> Steps:
    result = run(rand())
    yield result.first, result.second


def _sorted(self: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: self.left(given[key]) for key in sorted(given)} | {"last": next(reversed(given.values()))}


@program(two(_sorted), lambda: {"b": rand(), "a": rand(seed=4)}, unchecked=OLDER)
def dict_made_in_another_order(run: Run) -> Steps:
    yield run({"b": rand(), "a": rand(seed=4)})
    yield run(collections.OrderedDict(c=rand(), a=rand(seed=4)))
