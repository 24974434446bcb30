"""Results on several devices lie in the memory in which eager's lie, and what cannot be so is refused: each was silent once.

Devices are pretended (see `pretend`), and what is compared are values and memory, not where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hostile.program import Two, rand, two
from pretend import TWO, put, spec, spread
from torch import Tensor, nn

from partitioner import PlacementError, TraceError, partition
from partitioner.runtime.module import Parallel

MACHINES = {"two": TWO, "three": {"lazy:0": 1, "lazy:1": 1, "lazy:2": 1}, "mixed": {"lazy:0": 1, "cpu": 1}}

pytestmark = pytest.mark.usefixtures("scattering", "one_thread", "world")


def scattered(model: nn.Module, *inputs: Any, lanes: dict[str, int] = TWO, **options: Any) -> Parallel:
    """``model`` with each op on whichever device it may be on."""
    return spread(model, inputs, lanes, copy=True, policy="scatter", **options)


def related(results: Any, *others: Tensor) -> list[list[bool]]:
    """Which of some tensors lie in one memory."""
    keys = [each.untyped_storage()._cdata for each in (*results, *others)]
    return [[one == other for one in keys] for other in keys]


FORWARDS: dict[str, Callable[..., Any]] = {
    "views of a result": lambda self, x, y: (
        lambda left, right: (left, left.T, left[:1].view(-1), right, right.unsqueeze(0), left + right + y[0, 0])
    )(self.left(x), self.right(x)),
    "an expanded one": lambda self, x, y: (lambda e: (e, e + 1, e.transpose(0, 1), self.right(e) + y[0, 0]))(
        self.left(x)[:1].expand(3, 4)
    ),
    "an argument and its views": lambda self, x, y: (y, y[:1], y.T, y.detach(), self.left(x) + self.right(x) + y.sum()),
    "one that is written": lambda self, x, y: (y.mul_(2), y.view(-1)[1:], self.left(x) * self.right(x) + y.sum()),
    "nothing but that": lambda self, x, y: (y, x.view(-1)),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fullgraph", [None, False], ids=["one graph", "pieces"])
@pytest.mark.parametrize("where", ["cpu", "lazy:0", "lazy:1"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", FORWARDS)
def test_results_share_what_they_share_in_eager(name: str, machine: str, where: str, fullgraph: bool | None) -> None:
    """A view that another device took of a copy, or of an argument that had been moved, was no view of the caller's.

    So a write to the one was not seen in the other, and an argument that forward returns was another tensor.
    """
    if fullgraph is False and name in ("views of a result", "an expanded one") and machine != "mixed":
        pytest.skip("what Python goes on with is brought to the first device, each by itself")
    model = two(FORWARDS[name])()
    parallel = scattered(model, rand(), rand(2, 4), lanes=MACHINES[machine], fullgraph=fullgraph)
    for rows in (2, 5):
        x, mine, theirs = rand(), rand(rows, 4), put(rand(rows, 4), where)
        with torch.no_grad():
            one, other = model(x, mine), parallel(x, theirs)
        assert related(other, theirs) == related(one, mine)
        assert [each is theirs for each in other] == [each is mine for each in one]
        for each in (one[0], other[0]):
            each.data.fill_(3)
        for left, right in zip(one, other, strict=True):
            torch.testing.assert_close(right, left, check_device=False)
            assert right.stride() == left.stride()


def test_gradients_go_through_views_of_an_argument() -> None:
    model = two(lambda self, x, y: (self.left(x).sum() + self.right(y).sum(), y.expand(3, 2, 4), y.T.detach()))()
    found = []
    for module, where in ((model, "cpu"), (scattered(model, rand(), rand(2, 4)), "cpu")):
        y = put(rand(2, 4, grad=True), where)
        total, views, apart = module(rand(), y)
        (total + views.square().sum()).backward()
        assert views._base is y and not apart.requires_grad
        found.append(y.grad)
    torch.testing.assert_close(found[1], found[0], check_device=False)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "columns": lambda: rand(3, 8)[:, ::2],
    "rows": lambda: rand(6, 4)[1::2],
    "transposed": lambda: rand(4, 3).T,
    "expanded": lambda: rand(1, 8)[:, ::2].expand(3, 4),
    "windows": lambda: rand(6).unfold(0, 4, 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_argument_that_is_moved_keeps_its_layout(layout: str, grad: bool) -> None:
    """Its copy had no gaps, so what forward takes by strides (`as_strided`) were other numbers."""
    model = two(lambda self, x: self.left(x) * self.right(x) + x.as_strided((1, 4), (1, 1 if layout == "windows" else 2)))()
    parallel = scattered(model, LAYOUTS[layout]())
    with torch.set_grad_enabled(grad):
        x = LAYOUTS[layout]()
        one, other = model(x), parallel(x)
    torch.testing.assert_close(other, one, check_device=False)


def test_how_often_an_argument_was_written() -> None:
    """The moved one had never been."""
    model = two(lambda self, x: self.left(x) + self.right(x) * (x._version > 0))()
    parallel = scattered(model, rand())
    x = rand()
    for _ in range(2):
        torch.testing.assert_close(parallel(x), model(x), check_device=False)
        x.add_(1)
    with torch.inference_mode():
        torch.testing.assert_close(parallel(x), model(x), check_device=False)


class Doubling(torch.overrides.TorchFunctionMode):
    """Doubles what `torch.relu` gives."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.relu else result


@pytest.mark.parametrize("example", [True, False])
def test_a_function_mode_of_the_callers(example: bool) -> None:
    """The tracer went through it, and what it had made of the ops ran under it once more."""
    model = two(lambda self, x: torch.relu(self.left(x)) + self.right(x))()
    parallel = partition(model, spec=spec(TWO), example_inputs=rand() if example else None, copy=True)
    with Doubling(), pytest.raises(TraceError, match=r"under a transform of torch\.func .* or a function mode"):
        parallel(rand())
    with torch.device("cpu"):
        torch.testing.assert_close(parallel(rand()), model(rand()), check_device=False)


def _catches(self: Any, x: Tensor, rows: Tensor) -> Tensor:
    y = self.left(x)
    try:
        z = self.right(x)[rows]
    except IndexError:
        z = self.right(x)[:1]
    if self.fails:
        z = z[rows]
    return y + z


@pytest.mark.parametrize("fails", [False, True])
def test_an_error_that_forward_catches(fails: bool) -> None:
    """It came out of the call as it was, although the model catches it and goes on: that is refused, with the reason."""
    model = two(_catches, fails=False)()
    parallel = scattered(model, rand(), torch.tensor([0]))
    parallel.fails = model.fails = fails
    error, text = (
        (IndexError, "^index 7 is out of bounds") if fails else (TraceError, "goes on after what an op raises .*index 7")
    )
    with pytest.raises(error, match=text):
        parallel(rand(), torch.tensor([7]))
    torch.testing.assert_close(parallel(rand(), torch.tensor([0])), model(rand(), torch.tensor([0])), check_device=False)


@pytest.mark.parametrize("example", [True, False])
def test_a_first_call_whose_argument_lies_on_an_accelerator(example: bool) -> None:
    """The model lay on the CPU, and the refusal said that it cannot be one graph; the model raises nothing, it said, too."""
    model, x = Two(), put(rand(), "lazy:1")
    parallel = partition(model, example_inputs=x if example else None, spec=spec(TWO), copy=True)
    for _ in range(2):
        torch.testing.assert_close(parallel(x), model(rand()), check_device=False)


def test_pins_that_tear_a_result_from_its_memory() -> None:
    """They are refused, with the reason."""

    class Views(Two):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            left = self.left(x)
            return left, self.part(left)

        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Flatten(0)

    pins = {"pins": [{"match": "left", "device": "lazy:0"}, {"match": "part", "device": "lazy:1"}]}
    with pytest.raises(PlacementError, match="memory that is written in place or that a result lies in"):
        partition(Views(), example_inputs=rand(), spec=spec(TWO) | pins)
    assert isinstance(partition(Views(), example_inputs=rand(), spec=spec(TWO)), Parallel)


class Repeats(nn.Module):
    """Tensors that repeat elements go from one device to another: a weight, what a layer gives, and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.weight = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(rand(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        each = self.weight.expand(len(x), -1, -1)
        rows = self.left(x[:, :1]).expand(-1, 3, -1)
        turned = self.right(x.transpose(0, 1)).transpose(0, 1)
        (gradient,) = torch.autograd.grad((self.right(rows) * rows).square().sum(), rows, create_graph=True)
        return each + turned, turned + rows, gradient, rows * each


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("left", [0, 1])
def test_what_repeats_elements_repeats_them_elsewhere(machine: str, left: int) -> None:
    """A copy wrote each of them out, so that ops on it laid their results out otherwise, and more went over the link."""
    model, names = Repeats(), [*MACHINES[machine]]
    pins = [{"match": "left", "device": names[left]}, {"match": "right", "device": names[1 - left]}]
    machine_and_pins = spec(MACHINES[machine]) | {"pins": pins}
    parallel = partition(model, example_inputs=(rand(2, 3, 4),), spec=machine_and_pins, copy=True, check=False)
    found = []
    for module in (model, parallel):
        x = rand(2, 1, 4, grad=True)
        results = module(x.expand(-1, 3, -1))
        sum(each.square().sum() for each in results).backward()
        found.append((*results, x.grad, *(each.grad for each in module.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, check_device=False)
        assert other.stride() == one.stride()
