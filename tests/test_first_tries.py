"""What a new user tries first, and gets wrong: one clear message of our own family each time, and what to do next."""

from __future__ import annotations

import copy
import gc
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lanes import Towers, assert_same, numbers, spec
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from partitioner import (
    InputError,
    PartitionerError,
    PlacementError,
    SpecError,
    TraceError,
    parse,
    partition,
    plan,
    plans,
    save_plan,
    verify,
)
from partitioner.driver import planned
from partitioner.frontend.capture.amended import amends
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem

X = numbers(4, 6)
LANES = ["cpu:0", "cpu:1"]

pytestmark = pytest.mark.usefixtures("one_thread")


def scripted() -> nn.Module:
    return torch.jit.trace(nn.Linear(6, 6), X)  # type: ignore[no-any-return,no-untyped-call]


# -- what is no model, no device, no argument ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: None, "a model is a torch.nn.Module, and this is of type NoneType"),
        (lambda: nn.Linear, "a model is a torch.nn.Module, and this is of type type"),
        (lambda: nn.Linear(6, 6).state_dict(), "a model is a torch.nn.Module, and this is of type OrderedDict"),
        (lambda: nn.LazyLinear(3), "weight has no shape yet, because its module is lazy; call the model once before"),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.LazyLinear(3)), r"1\.weight has no shape yet"),
        (scripted, "a ScriptModule holds no Python to trace; partition the module that it was made from"),
        (lambda: nn.Linear(6, 6, device="meta"), r"weight is on the meta device and has no values.*to_empty.*inspect"),
    ],
    ids=["None", "class", "state_dict", "lazy", "lazy inside", "script", "meta"],
)
@pytest.mark.parametrize("examples", [None, X, X.to("meta")], ids=["none", "cpu", "meta"])
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_models_that_are_none(model: Any, says: str, examples: Any) -> None:
    with pytest.raises(InputError, match=says):
        partition(model(), LANES, example_inputs=examples)


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"devices": 2}, SpecError, "devices is 2; name them in a list, one mention for each lane"),
        ({"devices": {"cpu": 2}}, SpecError, "devices is a mapping of 1; name them in a list"),
        ({"devices": [0, 1]}, SpecError, r"devices\[0\]: 0 is not a device; write cpu, or an accelerator with its index"),
        ({"devices": []}, SpecError, "devices is empty; name at least one"),
        ({"devices": ["cuda:0"]}, PlacementError, "cuda:0 cannot be used here"),
        ({"example_kwargs": [X]}, InputError, "example_kwargs is of type list; give a dict of keyword arguments by name"),
        ({"example_input": X}, SpecError, 'has no argument example_input; did you mean "example_inputs"?'),
        ({"device": LANES}, SpecError, 'has no argument device; did you mean "devices"?'),
        ({"zzz": 1}, SpecError, "has no argument zzz; there are model, devices, example_inputs"),
        ({"example_inputs": (X, X)}, InputError, "do not fit Towers.forward: too many positional arguments"),
        ({"example_inputs": {"y": X}}, InputError, r"do not fit Towers.forward.*goes into a tuple: \(\{\.\.\.\},\)"),
        ({"example_inputs": numbers(4, 5)}, InputError, "Towers fails on the example inputs. RuntimeError: mat1 and mat2"),
        (
            {"example_inputs": (X for _ in range(2))},
            InputError,
            "an argument is of type generator, which can be read only once",
        ),
        ({"example_inputs": (iter([X]),)}, InputError, "an argument is of type list_iterator, which can be read only once"),
        ({"policy": "fastest"}, SpecError, 'policy: "fastest" is not known; there are auto, by_level, .*single'),
        ({"policy": "fastest", "example_inputs": X}, SpecError, 'policy: "fastest" is not known'),
        ({"backend": "cuda", "example_inputs": X}, SpecError, 'backend: "cuda" is not known'),
        ({"pins": [{"match": "no.such", "device": "cpu"}]}, PlacementError, "pattern 'no.such' matches no op"),
        ({"pins": [{"match": "stem", "device": "cuda:3"}]}, SpecError, "cuda:3"),
        ({"grain": "soon"}, SpecError, '"soon" is not a duration'),
        ({"policy": {"name": "exact", "time_limit": -1}}, SpecError, 'policy "exact": time_limit: -1 is not a duration'),
        ({"policy": {"name": "search", "time_limit": float("nan")}}, SpecError, '"search": time_limit: nan is not a duration'),
        ({"backend": "streams"}, SpecError, "backend 'streams' is for accelerators, the plan is for cpu"),
        ({"spec": {"distributed": {"mesh": {"data": 2}}}}, SpecError, "the section distributed is for the ranks of a job"),
        ({"check": "no", "example_inputs": X}, SpecError, 'check: "no" should be true or false'),
        ({"tune": (), "example_inputs": X}, SpecError, "tune: a list of 0 should be true or false"),
        ({"tune": X, "example_inputs": X}, SpecError, "tune: a Tensor should be true or false"),
        ({"tune": "auto", "example_inputs": X}, SpecError, 'tune: "auto" should be true or false'),
        ({"plan": 3}, SpecError, '"3": cannot be read as text: .*str'),
        ({"weights": "x.safetensors", "example_inputs": X}, SpecError, r"built under torch\.device.*this one has values"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_are_wrong(arguments: dict[str, Any], kind: type[PartitionerError], says: str) -> None:
    """At once, with example inputs or without, and the model is as it was."""
    model = Towers()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(kind, match=says) as raised:
        partition(model, **{"devices": LANES, **arguments})
    assert "\n\n" not in str(raised.value) and len(str(raised.value)) < 500
    assert type(model) is Towers and model(X).shape == (4, 2)
    assert_same(before, dict(model.state_dict()))


def failing(problem: Problem) -> Assignment:
    """A policy of a user's own, with a mistake in it."""
    raise ZeroDivisionError(f"of {len(problem.tasks)}")


@pytest.mark.parametrize("options", [{}, {"example_inputs": X}, {"example_inputs": X, "check": False}], ids=len)
def test_a_policy_that_fails_is_told(options: dict[str, Any]) -> None:
    """The tracer took its error for a graph that cannot be planned: the model ran without lanes."""
    with pytest.raises(SpecError, match="policy failing fails on Towers: ZeroDivisionError: of"):
        partition(Towers(), LANES, policy=failing, **options)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: verify(3), "verify takes a Program, and this is a int; parse"),  # type: ignore[arg-type]
        (lambda: verify("program x"), "verify takes a Program, and this is a str; parse"),  # type: ignore[arg-type]
        (lambda: parse(None), "not a printed program"),  # type: ignore[arg-type]
        (lambda: parse(""), "not a printed program"),
        (lambda: save_plan(partition(nn.Linear(6, 6), LANES, example_inputs=X), ""), '"": cannot be written'),
        (
            lambda: save_plan(partition(nn.Linear(6, 6), LANES, example_inputs=X), 3),
            '"3": cannot be written: (expected str|argument should be a str)',
        ),  # type: ignore[arg-type]
        (lambda: plan({"tasks": []}, {"devices": [{"name": "a", "kind": "b"}]}, policy=3), "3 is no policy; give a name"),  # type: ignore[arg-type]
    ],
)
def test_other_functions_that_are_called_wrongly(wrong: Callable[[], object], says: str) -> None:
    """They raised an AttributeError, a TypeError or a ValueError from deep inside."""
    with pytest.raises(PartitionerError, match=says):
        wrong()


# -- what is unusual, and fine ---------------------------------------------------------------------------------------


class Sum(nn.Module):
    """Adds up what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, items: Any) -> Tensor:
        """Maps an iterable of (batch, 6) to (batch, 6)."""
        total = torch.zeros(4, 6)
        for item in items:
            total = total + self.layer(item)
        return total


def test_generators_as_arguments_of_a_call() -> None:
    """They are read once, by the call, whether it has an example or not."""
    model = Sum()
    for examples in (None, ([X, X],)):
        parallel = partition(model, example_inputs=examples, spec=spec(), copy=True)
        for count in (2, 3):
            assert_same(model([X] * count).detach(), parallel(X for _ in range(count)).detach())
            assert_same(model([X] * count).detach(), parallel([X] * count).detach())


class Packed(nn.Module):
    """A recurrent layer on sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.left, self.right = nn.LSTM(6, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, sequences: PackedSequence) -> tuple[Tensor, PackedSequence]:
        """The last hidden states through two layers, and all of them."""
        states, (last, _) = self.rnn(sequences)
        return self.left(last) * self.right(last), states


def test_packed_sequences() -> None:
    model = Packed()
    examples = [pack_sequence([numbers(length, 6) for length in lengths]) for lengths in [(5, 3), (4, 4, 2), (6,)]]
    for given in (None, (examples[0],)):
        parallel = partition(model, example_inputs=given, spec=spec(), copy=True)
        for sequences in examples:
            (mine, states), (theirs, found) = model(sequences), parallel(sequences)
            assert_same(mine.detach(), theirs.detach())
            assert type(found) is PackedSequence
            assert_same(pad_packed_sequence(states)[0].detach(), pad_packed_sequence(found)[0].detach())


LONG = 700
"""More ops than Python's recursion limit has room for, at two frames for each."""


class Chain(nn.Module):
    """Several hundred tensors, added one by one."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        """Maps any shape to itself."""
        if self.how == "sum":
            return sum(x * number for number in range(LONG // 2))  # type: ignore[return-value]
        y = x
        for _ in range(LONG):
            y = y + x
        return y


@pytest.mark.parametrize("how", [pytest.param("sum", marks=pytest.mark.slow), "loop"])
def test_long_chains(how: str) -> None:
    """Deeper than Python's recursion limit, with and without an example, forward and backward."""
    model = Chain(how)
    for examples in (None, X):
        parallel = partition(model, LANES, example_inputs=examples)
        mine, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
        model(mine).sum().backward(), parallel(theirs).sum().backward()
        assert_same(mine.grad, theirs.grad)


# -- before the first call -------------------------------------------------------------------------------------------


class Hidden(Towers):
    """A forward that proxies cannot follow."""

    def forward(self, x: Tensor) -> Tensor:
        """As for `Towers`, with a loop over a size."""
        return super().forward(torch.stack([x[number] for number in range(len(x))]))


@pytest.mark.parametrize("model", [Towers, Hidden])
def test_without_examples(model: type[Towers]) -> None:
    """What can be seen is shown, and marked as provisional; a model that torch.fx cannot see is not refused on that account."""
    eager = model(branches=2)
    parallel = partition(eager, spec=spec(2), copy=True)
    assert ("provisional" if model is Towers else "traced and planned at its first call") in str(parallel)
    if model is Towers:
        assert len(parallel.dag) == 9 and len(set(parallel.placement.lane.values())) == 2
    else:
        with pytest.raises(PartitionerError, match=r"has no plan yet: .*Call it once, or pass example_inputs"):
            _ = parallel.dag
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for module, stepping in ((eager, torch.optim.SGD(eager.parameters(), lr=0.1)), (parallel, optimizer)):
        module(X).sum().backward()
        stepping.step()
    assert_same(dict(eager.state_dict()), dict(parallel.state_dict()))
    assert "provisional" not in str(parallel) and "planned at" not in str(parallel)
    assert parallel.graph.observed and len(set(parallel.placement.lane.values())) == 2


def test_pins_without_examples() -> None:
    """By module or by the op that the tracer will find in it; the first call heeds them."""
    for match in ("towers.1", "towers.1.*", "towers_1_0_linear"):
        devices = [{"device": "cpu", "lanes": 2}]
        parallel = partition(Towers(), spec={"devices": devices, "pins": [{"match": match, "device": "cpu"}]})
        assert parallel(X).shape == (4, 2)
    with pytest.raises(PlacementError, match=r"pattern 'tower.1' matches no op.*the top-level modules are: head, stem, towers"):
        partition(Towers(), pins=[{"match": "tower.1", "device": "cpu"}])


def test_a_first_call_that_fails_is_the_models_own() -> None:
    parallel = partition(Towers(), spec=spec())
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as raised:
        parallel(numbers(4, 5))
    assert not isinstance(raised.value, PartitionerError)
    assert parallel(X).shape == (4, 2)


def test_nothing_happens_while_it_is_only_traced() -> None:
    """Without the check the example call is traced and not run: what forward assigns and draws is put back."""

    class Counting(Towers):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if torch.rand(()) < 2:
                self.calls += 1
            return super().forward(x)

    model = Counting()
    torch.manual_seed(3)
    parallel = partition(model, example_inputs=X, spec=spec(), check=False)
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert_same(torch.rand(()), drawn)
    assert model.calls == 0
    parallel(X)
    assert model.calls == 2


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_the_summary_shows_the_speedup() -> None:
    """And that it rests on figures which nobody measured, where it does."""
    parallel = partition(Towers(), example_inputs=X, spec=spec())
    assert re.search(
        r"^  expected, on assumed hardware figures: .* a call, [2-3]\.\d\dx as fast as one device$", str(parallel), re.M
    )
    given = {"device": "cpu", "lanes": 3, "handoff": 0, "overhead": 1e-3, "flops": 1e10, "bandwidth": 1e10}
    parallel = partition(Towers(), example_inputs=X, spec={"devices": [given], "grain": 1e-9})
    assert re.search(r"^  expected: .* a call, [2-3]\.\d\dx as fast as one device$", str(parallel), re.M)


def test_planning_for_a_meta_model() -> None:
    """Its example inputs may lie on the CPU: only their shapes are looked at."""
    with torch.device("meta"):
        model = Towers()
    plan = planned(model, ["cuda:0", "cuda:1"], example_inputs=X)
    assert plan.graph.observed and plan.makespan is not None
    assert planned(model, ["cuda:0", "cuda:1"], example_inputs=X.to("meta")).makespan == plan.makespan


def test_a_plan_of_what_cannot_be_one_graph() -> None:
    class Decides(Towers):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if y.sum() > 0 else x

    with pytest.raises(TraceError, match=re.escape(__file__)):
        planned(Decides(), ["cuda:0", "cuda:1"], example_inputs=X)


def test_no_garbage_is_looked_for_in_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 15 s of 10^5 ops it took a fifth."""
    seen, real = list[bool](), plans.view_of
    monkeypatch.setattr(plans, "view_of", lambda module: (seen.append(gc.isenabled()), real(module))[1])
    planned(Towers(), ["cpu:0", "cpu:1"])
    assert seen == [False] and gc.isenabled()


def test_a_torch_whose_tracer_is_not_known_is_refused_in_words() -> None:
    """torch 2.14 renamed a method of its tracer: everything ran as it is, and the reason that was given was ``var_getattr``."""

    class Variable:
        """As of a torch that is not known."""

    with pytest.raises(TraceError, match=r"^torch .* has a tracer that .* does not know: Variable has no look_up\. Take"):
        amends(Variable, "look_up")(lambda plain: plain)


# -- what comes after or before ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_partitioned_module_is_not_scripted() -> None:
    """TorchScript said "Expected a single top-level function", and named a line of ours."""
    with pytest.raises(PartitionerError, match=r"Script parallel\.original, or take Python out of lanes"):
        torch.jit.script(partition(nn.Linear(6, 6), LANES))


def test_a_model_that_is_sharded_already() -> None:
    """With examples it failed for what a mesh lacks; in its first call hooks gather the weights, and it is traced then."""
    model = Towers(6)
    eager, hook = copy.deepcopy(model), sys.excepthook
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(InputError, match="is a DTensor, which hooks of the model gather for a call"):
            partition(model, LANES, example_inputs=X)
        assert_same(partition(model, LANES)(X), eager(X))
    finally:
        torch.distributed.destroy_process_group()
        sys.excepthook = hook
