"""What ops cost and take where sizes follow from values: the rows of an expert, what a mask picks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lanes import numbers
from peaks import allocated, beyond, plan_in, step_of
from torch import Tensor, nn

from partitioner import Parallel, partition, save_plan
from partitioner.ir.footprint import footprints
from partitioner.ir.graph import Op
from partitioner.ir.plan import Plan

WIDTH = 64


class Routed(nn.Module):
    """Each row goes to one of three experts: the first has the rows whose first number is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def chosen(self, x: Tensor) -> Tensor:
        return (x[:, 0] > 0).long() + (x[:, 0] > 1).long()

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.chosen(x), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero(as_tuple=True)[0]
            out = out.index_add(0, rows, expert(x[rows]))
        return out


class Drawn(Routed):
    """By a draw."""

    def chosen(self, x: Tensor) -> Tensor:
        return (x[:, 0] + 0.1 * torch.rand_like(x[:, 0]) > 0).long()


class Counted(Routed):
    """By a buffer that forward writes before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def chosen(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (x[:, 0] > self.calls).long()


class Refusing(Routed):
    """Not for such values."""

    def chosen(self, x: Tensor) -> Tensor:
        torch._assert_async((x[:, 0] < 100).all(), "too much")
        return super().chosen(x)


def planned(model: nn.Module, x: Tensor, **options: Any) -> tuple[Parallel, Plan]:
    parallel = partition(model, ["cpu", "cpu"], example_inputs=x, fullgraph=True, **{"policy": "single", **options})
    return parallel, parallel._partitioner_programs.shown.executable.plan


def products(plan: Plan) -> list[Op]:
    return [op for op in plan.graph.ops if op.target == "linear"]


def rows() -> Tensor:
    """Of 60: 30 for the first expert, 20 for the second, 10 for the third."""
    x = numbers(60, WIDTH, seed=1)
    x[:, 0] = torch.tensor([-1.0] * 3 + [0.5] * 2 + [2.0]).repeat(10)
    return x


@pytest.mark.parametrize("check", [True, False])
def test_each_expert_costs_what_its_rows_do(check: bool) -> None:
    """Two rows were assumed of each, whatever it got, and the experts were taken for too small to gain anything."""
    with torch.no_grad():
        _, plan = planned(Routed(), rows(), check=check)
    assert [op.flops for op in products(plan)] == [2 * count * WIDTH * WIDTH for count in (30, 20, 10)]
    assert [op.bytes for op in products(plan)] == [4 * count * WIDTH for count in (30, 20, 10)]


class Counting(nn.Module):
    """As many rows of a table as a number says, and one more."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, count: Tensor) -> Tensor:
        return self.layer(self.table(torch.arange(int(count.item()) + 1)))


def test_a_number_that_is_read_is_the_call_s() -> None:
    with torch.no_grad():
        _, plan = planned(Counting(), torch.tensor(49))
    assert [op.flops for op in products(plan)] == [2 * 50 * WIDTH * WIDTH]


def test_a_batch_that_comes_later_has_its_own() -> None:
    with torch.no_grad():
        parallel, _ = planned(Routed(), rows())
        parallel(torch.cat([rows(), rows()]))
        shown = parallel._partitioner_programs.shown.executable.plan
    assert [op.flops for op in products(shown)] == [2 * count * WIDTH * WIDTH for count in (60, 40, 20)]


@pytest.mark.parametrize("training", [False, True])
def test_what_they_take_is_predicted(training: bool) -> None:
    model, x = Routed().train(training), rows()
    with torch.set_grad_enabled(training):
        parallel = partition(model, ["cpu"], example_inputs=x, policy="single", fullgraph=True)
    (footprint,) = footprints(plan_in(parallel, training)).values()
    call = step_of(parallel, training, None, (x,), {})
    call()
    assert beyond(footprint) == pytest.approx(allocated(call), rel=0.01)


@pytest.mark.parametrize(("make", "counts"), [(Drawn, (30, 30, 0)), (Counted, None)])
def test_nobody_sees_that_something_was_run(make: type[Routed], counts: tuple[int, ...] | None) -> None:
    """No random number is gone, and no buffer written; where that would be needed, nothing is run."""
    model, x = make(), rows()
    kept, drawn = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    with torch.no_grad():
        parallel, plan = planned(model, x, check=False)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    if counts is not None:
        assert [op.flops for op in products(plan)] == [2 * count * WIDTH * WIDTH for count in counts]
    wanted = make()
    wanted.load_state_dict(kept)
    with torch.no_grad():
        assert torch.equal(parallel(x), (torch.set_rng_state(drawn), wanted(x))[1])


def test_the_model_says_itself_that_it_refuses() -> None:
    parallel, _ = planned(Refusing(), rows())
    with pytest.raises(RuntimeError, match="too much"):
        parallel(100 + numbers(7, WIDTH))


def test_a_plan_is_for_other_values_too(tmp_path: Path) -> None:
    """What values pick is no part of what a program computes."""
    with torch.no_grad():
        parallel, _ = planned(Routed(), rows())
        save_plan(parallel, tmp_path / "plan.json")
        model, x = Routed(), -rows()
        again = partition(model, example_inputs=x, plan=tmp_path / "plan.json")
        assert torch.equal(again(x), model(x))
