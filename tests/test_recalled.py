"""What a call on fakes gives is made again of a like one: the same forms, and the same tensors and storages shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from partitioner.distributed.traced.recalled import Calls
from partitioner.model.storage import storage_key

OPS: dict[str, Callable[..., Any]] = {
    "new": lambda x, y: F.linear(x, y),
    "a view": lambda x, y: x[:, 1:].transpose(0, 1),
    "views of each other": lambda x, y: (x + y).chunk(2, 1),
    "itself": lambda x, y: x.contiguous(),
    "itself and a view of the other": lambda x, y: {"x": x, "y": y.view(-1), "n": 3},
    "a conjugate": lambda x, y: torch.complex(x, y).conj(),
    "bits of another dtype": lambda x, y: torch.view_as_complex(x.view(4, 3, 2)),
    "written": lambda x, y: x.add_(y),
    "written out of shape": lambda x, y: x.t_(),
}


def facts(result: Any, given: Sequence[torch.Tensor]) -> list[Any]:
    """The form of each tensor of a result, which tensor it is, and whose storage it has."""
    made = tree_leaves(result)
    known = [*given, *(each for each in made if isinstance(each, torch.Tensor))]

    def told(each: torch.Tensor) -> tuple[Any, ...]:
        first = (next(place for place, one in enumerate(known) if same(one, each)) for same in (is_same, is_shared))
        form = each.shape, each.stride(), each.storage_offset(), each.dtype, each.device
        return *form, type(each), each.is_conj(), *first

    return [told(each) if isinstance(each, torch.Tensor) else each for each in made]


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other


def is_shared(one: torch.Tensor, other: torch.Tensor) -> bool:
    return storage_key(one) == storage_key(other)


@pytest.mark.parametrize("name", OPS)
def test_what_a_call_gives_is_made_again_of_a_like_one(name: str) -> None:
    function = OPS[name]
    calls, fake, made = Calls(), FakeTensorMode(), []

    def counted(*given: torch.Tensor) -> Any:
        made.append(given)
        return function(*given)

    for _ in range(3):
        with fake:
            given, again = (tuple(torch.empty(4, 6) for _ in range(2)) for _ in range(2))
        with fake, torch.no_grad():
            wanted = facts(function(*given), given)
        assert facts(calls("call_function", counted, again, {}, fake), again) == wanted
        assert [each.shape for each in again] == [each.shape for each in given]
    once = name not in ("a conjugate", "bits of another dtype", "written", "written out of shape")
    assert len(made) == (1 if once else 3)


def test_calls_differ_in_what_shares_a_storage_and_in_numbers() -> None:
    """An op that gives its first argument where both are one would else be taken for one that gives a new tensor."""
    calls, fake = Calls(), FakeTensorMode()
    with fake:
        one, other = torch.empty(2), torch.empty(2)

    def larger(x: torch.Tensor, y: torch.Tensor, times: float) -> Any:
        return x if storage_key(x) == storage_key(y) else (x + y, times)

    assert calls("call_function", larger, (one, other, 1), {}, fake)[1] == 1
    assert calls("call_function", larger, (one, one, 1), {}, fake) is one
    assert type(calls("call_function", larger, (one, other, 1.0), {}, fake)[1]) is float
    assert type(calls("call_function", larger, (one, other, True), {}, fake)[1]) is bool


def test_what_nobody_counts_writes_of_is_made_each_time() -> None:
    """Under inference mode tensors do not know whether they were written."""
    calls, fake, made = Calls(), FakeTensorMode(), []
    with fake, torch.inference_mode():
        x = torch.empty(2)

        def written(x: torch.Tensor) -> torch.Tensor:
            made.append(x)
            return x.t_()

        assert all(calls("call_function", written, [x], {}, fake) is x for _ in range(2))
    assert len(made) == 2
