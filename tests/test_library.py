"""Python's library in a forward that has to be one graph: what reads nothing but its arguments is worked out or looked into."""

from __future__ import annotations

import bisect
import cmath
import copy
import functools
import heapq
import json
import operator
import statistics
import textwrap
import unicodedata
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lanes import OLD_TORCH, assert_same, numbers
from torch import Tensor, nn

from partitioner import partition
from partitioner.model.library import IN_PYTHON, least, most

X = numbers(3, 4)


class Model(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.body, self.bounds = nn.Linear(4, 4), body, [1, 3, 5]

    @functools.cached_property
    def width(self) -> int:
        return 3

    def forward(self, x: Tensor) -> Any:
        return self.body(self, self.layer(x))


def beams(model: Model, x: Tensor) -> Any:
    """A search: the items of a heap are ranks and tensors."""
    heap: list[Any] = []
    for rank in (3, 1, 2, 0):
        heapq.heappush(heap, (rank, x * rank))
    (least_rank, first), second = heapq.heappop(heap), heapq.heapreplace(heap, (9, x))
    return first + second[1], least_rank, heapq.heappushpop(heap, (0, x))[0], [rank for rank, _ in heap]


def inserted(model: Model, x: Tensor) -> Any:
    bounds = list(model.bounds)
    bisect.insort(bounds, 2)
    heapq.heapify(bounds)
    return x * bounds[1] + bisect.bisect(model.bounds, 4), bounds


def chosen(model: Model, x: Tensor) -> Any:
    place, most_of = max(enumerate([1, 5, 2]), key=operator.itemgetter(1))
    return x * place, most_of, min((x, x + 1), key=lambda each: each.dim()) * 2, max([], default=7), min("bbb", "a", key=len)


def failing(model: Model, x: Tensor) -> Any:
    said = []
    for function in (lambda: max([], key=len), lambda: "abc".index("z"), lambda: int("a"), lambda: b"a".index(b"z")):
        try:
            function()
        except ValueError as error:
            said.append(str(error))
    return x, said


def texts(model: Model, x: Tensor) -> Any:
    """Of what is neither list nor dictionary, and of both."""
    loaded = json.loads(json.dumps({"a": [1, 2.5], "b": model.bounds}))
    loaded["a"].append(len(textwrap.wrap("a b c d e f", 3)))
    return (
        x * loaded["a"][1],
        loaded,
        statistics.stdev(model.bounds),
        (5).to_bytes(2, "little"),
        unicodedata.normalize("NFD", "é"),
    )


def others(model: Model, x: Tensor) -> Any:
    copied = model.bounds[:] if OLD_TORCH else copy.copy(model.bounds)  # torch 2.11 does not look into that
    copied.append(4)
    return x * model.width, copied, zlib.crc32(b"a"), cmath.exp(1j), [*map(str.upper, "ab")], b"a,b".split(b",")


@pytest.mark.parametrize("body", [beams, inserted, chosen, failing, texts, others])
def test_one_graph(body: Callable[..., Any]) -> None:
    """Each ended the graph, and was refused where state lies on several devices."""
    model = Model(body)
    parallel = partition(Model(body), ["cpu"], example_inputs=X, fullgraph=True)
    parallel.load_state_dict(model.state_dict())
    for bounds in ([1, 3, 5], [1, 3, 5, 6], [0, 3, 5]):
        model.bounds, parallel.bounds = bounds[:], bounds[:]
        assert_same(model(X), parallel(X))
        assert model.bounds == parallel.bounds


def test_sizes_that_vary() -> None:
    """What is worked out for one size is not for another one."""

    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * bisect.bisect([2, 4, 6], len(x))

    parallel = partition(Sized(), ["cpu"], fullgraph=True)
    for size in (3, 5, 7, 1):
        assert_same(Sized()(torch.ones(size)), parallel(torch.ones(size)))


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers()), max_size=12), st.tuples(st.integers(-3, 3), st.integers()))
def test_they_do_what_they_stand_for(items: list[tuple[int, int]], item: tuple[int, int]) -> None:
    for function, ours in IN_PYTHON.items():
        one = (sorted if function.__name__.startswith("insort") else _heap)(items)
        other = list(one)
        arguments = () if function in (heapq.heappop, heapq.heapify) else (item,)
        if items or function not in (heapq.heappop, heapq.heapreplace):
            assert (function(one, *arguments), one) == (ours(other, *arguments), other)
    for function, ours in ((max, most), (min, least)):
        assert function(items, key=lambda each: each[0], default=0) == ours(items, key=lambda each: each[0], default=0)
        assert _said(function) == _said(ours)
    assert _said(heapq.heappop) == _said(IN_PYTHON[heapq.heappop])
    assert _said(heapq.heapreplace, 0) == _said(IN_PYTHON[heapq.heapreplace], 0)


def _said(function: Callable[..., Any], *arguments: Any) -> str:
    """What is said of the empty list."""
    with pytest.raises((ValueError, IndexError)) as caught:
        function([], *arguments)
    return str(caught.value)


def _heap(items: list[Any]) -> list[Any]:
    made = list(items)
    heapq.heapify(made)
    return made
