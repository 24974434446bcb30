"""How much memory a program takes: its values against a plain replay, ops against what autograd is known to save, and caps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers
from peaks import planned, towers, traced
from torch import Tensor, nn

from partitioner import driver
from partitioner.compile import plan_of
from partitioner.errors import PlacementError, SpecError, VerifyError
from partitioner.frontend.analysis.held import memory_of
from partitioner.ir.batch import _last, batch_of, largest_batch
from partitioner.ir.footprint import footprints, least_cap, standing_bytes
from partitioner.ir.liveness import peak_bytes
from partitioner.ir.machine import Device, Machine
from partitioner.ir.optimizer import OPTIMIZERS
from partitioner.ir.parse import parse
from partitioner.ir.plan import Plan
from partitioner.ir.program import Copy, Free, Program, outputs_of
from partitioner.lower.memory import explained
from partitioner.lower.room import peak_of
from partitioner.lower.verify import verify_memory, verify_plan
from partitioner.planner.assigned import placed
from partitioner.planner.memory import demands
from partitioner.planner.policies.fit import Fit
from partitioner.report.inspect import inspect
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import Spec, load_spec
from programs import Lowered, lowered_programs

HEADER = "program P\nlane 0 cuda0/0 cuda:0\nlane 1 cpu/0 cpu\n"


def program(text: str) -> Program:
    return parse(HEADER + text)


def replayed(known: Program) -> dict[str, list[int]]:
    """Bytes on each device after each instruction: every storage that a live value may hold, once."""
    sizes: Counter[str] = Counter()
    for value in known.values:
        for storage in value.storages:
            sizes[storage] = max(sizes[storage], value.bytes)
    callers = {storage for name in known.inputs for storage in known.by_name[name].storages}
    live: list[str] = []
    history: dict[str, list[int]] = {value.torch_device: [] for value in known.values}
    for item in known.instructions:
        live += outputs_of(item)
        if isinstance(item, Free):
            live.remove(item.value)
        for device, sums in history.items():
            held = {s for name in live if known.by_name[name].torch_device == device for s in known.by_name[name].storages}
            sums.append(sum(sizes[storage] for storage in held - callers))
    return history


@given(lowered_programs())
def test_the_peak_is_the_largest_sum_of_a_replay(lowered: Lowered) -> None:
    history, peaks = replayed(lowered.program), peak_bytes(lowered.program)
    for device, sums in history.items():
        size, index = peaks.get(device, (0, -1))
        assert size == max(sums, default=0)
        if size:
            assert sums[index] == size and max(sums[:index], default=0) < size, "the first instruction at which it is"


def test_a_view_takes_nothing() -> None:
    """A value and its view are one storage, which lives until the last of both is freed."""
    text = """
    value a cuda:0 100 a
    value v cuda:0 50 a
    value b cuda:0 10 b
    0 run t0 () -> (a) w:a
    0 run t1 (a) -> (v) r:a
    0 free a
    0 run t2 (v) -> (b) r:a w:b
    0 free v
    """
    assert peak_bytes(program(text)) == {"cuda:0": (110, 3)}


def test_a_free_makes_room() -> None:
    text = """
    value a cuda:0 100 a
    value b cuda:0 100 b
    0 run t0 () -> (a) w:a
    0 free a
    0 run t1 () -> (b) w:b
    """
    assert peak_bytes(program(text)) == {"cuda:0": (100, 0)}


def test_inputs_are_the_callers_and_copies_are_not() -> None:
    text = """
    value x cpu 100 x
    value x@cuda:0 cuda:0 100 x@cuda:0
    input x
    0 copy x -> x@cuda:0
    0 free x@cuda:0
    """
    assert peak_bytes(program(text)) == {"cuda:0": (100, 0)}


# -- what ops keep ---------------------------------------------------------------------------------------------------

X = torch.randn(8, 4, 16)


class Called(nn.Module):
    """A function of an activation, which has a history, and of a weight."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(16, 16)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight[0], self.weight)


SAVES = {
    "linear": (lambda a, w: nn.functional.linear(a, w), {"mul", "weight"}, 0),
    "relu": (lambda a, w: a.relu(), {"it"}, 0),
    "relu_": (lambda a, w: a.relu_(), {"mul"}, 0),
    "add": (lambda a, w: a + w[1], set(), 0),
    "gelu": (lambda a, w: nn.functional.gelu(a), {"mul"}, 0),
    "softmax": (lambda a, w: a.softmax(-1), {"it"}, 0),
    "layer_norm": (lambda a, w: nn.functional.layer_norm(a, (16,), w[1]), {"mul", "weight"}, 2 * 8 * 4 * 4),
    "dropout": (lambda a, w: nn.functional.dropout(a, 0.5), set(), 8 * 4 * 16 * 4),
    "matmul": (lambda a, w: a @ a.transpose(1, 2), {"mul"}, 0),
    "view": (lambda a, w: a.view(32, 16), set(), 0),
}
"""By op: what its backward needs, as PyTorch's derivatives say, and the bytes of its own that it keeps beside."""


@pytest.mark.parametrize("name", SAVES)
def test_an_op_keeps_what_its_backward_needs(name: str) -> None:
    function, saves, kept = SAVES[name]
    memory = memory_of(traced(Called(function), X, True), training=True)
    last = list(memory.ops)[-1]
    names = {memory.storages[number].name for number in memory.ops[last].saved}
    assert {"it" if each == last else each for each in names} == saves
    assert memory.ops[last].kept == kept


@pytest.mark.parametrize("name", SAVES)
def test_in_inference_nothing_is_kept(name: str) -> None:
    memory = memory_of(traced(Called(SAVES[name][0]), X, False), training=False)
    assert not any(each.saved or each.kept or each.backward or each.differentiable for each in memory.ops.values())


def test_no_gradient_reaches_what_is_under_no_grad() -> None:
    def partly(a: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = (a @ w).relu()
        return hidden + a

    found = traced(Called(partly), X, True)
    memory = memory_of(found, training=True)
    name = {op.target: op.name for op in found.graph.ops}
    assert not memory.ops[name["relu"]].saved and not memory.ops[name["relu"]].differentiable
    assert memory.ops[name["add"]].gradients == (("mul", 0),)


def test_what_cannot_be_called_on_fakes_keeps_all_that_it_touches() -> None:
    @torch.library.custom_op("test_memory::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty(x.shape) if torch.is_grad_enabled() is None else x.new_empty(x.shape))
    found = traced(Called(lambda a, w: twice(a)), X, True)
    calls = [node for node in found.graph.fx.nodes if node.name == list(found.graph.by_name)[-1]]
    calls[0].args = (*calls[0].args, "one argument too many")
    memory = memory_of(found, training=True)
    assert {memory.storages[number].name for number in memory.ops[calls[0].name].saved} == {"mul", calls[0].name}


# -- footprints ------------------------------------------------------------------------------------------------------

BATCH = torch.randn(64, 128)


def pair(first: int | None = None, second: int | None = None) -> Machine:
    return Machine((Device("one", "cuda:0", memory=first), Device("two", "cuda:1", memory=second)))


def spread(machine: Machine, training: bool = False, optimizer: str = "none") -> Plan:
    """Towers on two devices, one tower on each."""
    pins = [{"match": "left", "device": "one"}, {"match": "right", "device": "two"}, {"match": "head", "device": "one"}]
    found = traced(towers(), BATCH, training)
    memory = memory_of(found, training=training, optimizer=OPTIMIZERS[optimizer])
    free = Machine(tuple(replace(each, memory=None) for each in machine.devices))
    return replace(plan_of(found, free, load_spec({"pins": pins})), machine=machine, memory=memory)


def test_state_counts_where_it_is_used() -> None:
    """Parameters, their gradients when all are there, and two tensors and a counter of AdamW for each."""
    plan = spread(pair(), True, "adamw")
    found = footprints(plan)
    tower = 5 * (128 * 128 + 128) * 4
    head = (256 * 16 + 16) * 4
    assert {name: each.parameters for name, each in found.items()} == {"cuda:0": tower + head, "cuda:1": tower}
    assert {name: each.optimizer for name, each in found.items()} == {
        "cuda:0": 2 * (tower + head) + 48,
        "cuda:1": 2 * tower + 40,
    }
    assert standing_bytes(plan) == {"cuda:0": 4 * (tower + head) + 48, "cuda:1": 4 * tower + 40}
    assert sum(demands(plan.tasks, plan.costs, plan.memory)) == sum(standing_bytes(plan).values())
    assert sum(demands(plan.tasks, plan.costs)) == 2 * tower + head


def test_ties_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
            self.other.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.one(x).relu())

    plan = planned(Tied(), torch.randn(4, 64), True, "adam")
    (found,) = footprints(plan).values()
    assert (found.parameters, found.optimizer) == (64 * 64 * 4, 2 * 64 * 64 * 4 + 4)
    assert sum(demands(plan.tasks, plan.costs, plan.memory)) == 4 * 64 * 64 * 4 + 4


def test_parts_add_up_and_the_copies_are_there() -> None:
    plan = spread(pair())
    found = footprints(plan)
    copies = [item for item in plan.program.instructions if isinstance(item, Copy)]
    assert copies and {name: each.total for name, each in found.items()} == {n: sum(e.parts.values()) for n, e in found.items()}
    assert all(str(each).startswith(f"{name}: ") and each.largest for name, each in found.items())
    assert max(each.copies for each in found.values()) >= min(plan.program.by_name[item.target].bytes for item in copies)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["by_level", "list", "single"])
@pytest.mark.parametrize("training", [False, True])
def test_no_plan_is_below_the_bound(policy: str, training: bool) -> None:
    found = traced(towers(), BATCH, training)
    memory = memory_of(found, training=training, optimizer=OPTIMIZERS["adam"])
    for machine in (pair(), Machine((Device("cpu", "cpu", lanes=2),)), Machine((*pair().devices, Device("cpu", "cpu")))):
        plan = replace(plan_of(found, machine, load_spec(policy=policy)), memory=memory)
        assert least_cap(plan) <= max(each.total for each in footprints(plan).values())


def test_the_bound_knows_that_a_copy_of_a_view_is_small() -> None:
    """Of a large value only a row is read on the other device: no bound may count all of it there."""

    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Parameter(torch.randn(4000, 8)), nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return ((x * self.large)[:1] @ self.small).relu()

    found = traced(Row(), torch.randn(1, 8), False)
    row = next(op.name for op in found.graph.ops if op.target == "getitem")
    memory = memory_of(found, training=False)
    last = next(op.name for op in found.graph.ops if op.target == "matmul")
    pins = [{"match": row, "device": "one"}, {"match": last, "device": "two"}]
    plan = replace(plan_of(found, pair(), load_spec({"pins": pins})), memory=memory)
    assert least_cap(plan) <= max(each.total for each in footprints(plan).values())
    assert footprints(plan)["cuda:1"].total < 4000


# -- caps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_a_plan_fits_the_caps_that_its_refusal_names_and_none_below(training: bool) -> None:
    plan = spread(pair(1, 1), training, "adamw")
    with pytest.raises(PlacementError) as refusal:
        verify_plan(plan)
    text = str(refusal.value)
    enough = [int(number) for number in re.findall(r"(\d+) B \([^)]*\) on cuda", text)]
    assert len(enough) == 2 and "smaller batch" in text and "the largest: " in text and "No plan fits where" in text
    verify_plan(replace(plan, machine=pair(*enough)))
    for less in ((enough[0] - 1, enough[1]), (enough[0], enough[1] - 1)):
        with pytest.raises(PlacementError, match=r"of state and .* of live values, and has"):
            verify_plan(replace(plan, machine=pair(*less)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cap", ["64KiB", "600KiB"])
def test_the_cap_that_a_refusal_names_is_enough(cap: str) -> None:
    """What the refused plan took was named: under such caps tasks went elsewhere, and were refused again. The first cap is too
    small for a weight, whose op is named and not the number of its task; the second for what is alive."""

    def plan_with(memory: str | int) -> Plan:
        limits = {
            "devices": [{"device": "cuda:0"}, {"device": "cuda:1"}],
            "max_memory": {"cuda:0": memory, "cuda:1": memory},
            "training": False,
        }
        return driver.planned(towers(), spec=limits, example_inputs=(BATCH,))

    with pytest.raises(PlacementError, match="linear" if cap == "64KiB" else "of live values") as refusal:
        plan_with(cap)
    (named,) = re.findall(r"There is a plan where each device has (\d+) B", str(refusal.value))
    assert peak_of(plan_with(int(named))) <= int(named)


def test_larger_calls_are_held_against_the_caps() -> None:
    plan = spread(pair())
    enough = [2 * each.total for each in footprints(plan).values()]
    capped = replace(plan, machine=pair(*enough))
    verify_memory(capped, {op.name: op.bytes for op in plan.graph.ops})
    with pytest.raises(PlacementError, match="The largest batch that this plan fits with is"):
        verify_memory(capped, {op.name: 100 * op.bytes for op in plan.graph.ops})


@pytest.mark.parametrize("training", [False, True])
def test_the_largest_batch_is_the_largest(training: bool) -> None:
    """Traced again with that batch, the model fits the cap, and with one more it does not."""
    model = towers()
    plan = planned(model, BATCH, training, "sgd_momentum")
    (footprint,) = footprints(plan).values()
    cap = 3 * footprint.total
    capped = replace(plan, machine=Machine((Device("cpu", "cpu", memory=cap),)))
    assert batch_of(plan) == 64 and largest_batch(plan) is None
    most = largest_batch(capped)
    assert most is not None and most > 3 * 64
    totals = [next(iter(footprints(planned(model, torch.randn(batch, 128), training, "sgd_momentum")).values())).total
              for batch in (most, most + 1)]  # fmt: skip
    assert totals[0] <= cap < totals[1]
    assert f"The largest batch that fits is predicted to be {most}." in inspect(capped).summary.notes
    tiny = replace(plan, machine=Machine((Device("cpu", "cpu", memory=1000),)))
    assert largest_batch(tiny) == 0 and list(explained(tiny))[-1] == "No batch is small enough for this plan."


@given(integers(0, 5000), integers(1, 60), integers(0, 40), integers(2, 300))
def test_the_last_with_room_is_found(cap: int, slope: int, stairs: int, start: int) -> None:
    """As counting finds it, for room that shrinks evenly but for stairs."""

    def room(batch: int) -> int:
        return cap - slope * batch - stairs * (batch // 7)

    if room(1) >= 0:
        assert _last(room, start) == next(batch for batch in range(1, 6000) if room(batch + 1) < 0)


# -- what a spec says ------------------------------------------------------------------------------------------------


def test_max_memory_overrides_what_devices_say() -> None:
    spec = load_spec({"devices": [{"device": "cuda:0", "name": "gpu", "memory": "1GiB"}, {"device": "cuda:1"}]})
    short = load_spec(spec, max_memory={"gpu": "20GiB", "cuda:1": 10**9})
    assert [device.memory for device in build_machine(short).devices] == [20 * 2**30, 10**9]
    assert build_machine(load_spec(max_memory={"cuda": "2GiB"}), ["cuda:0", "cpu"]).devices[0].memory == 2 * 2**30
    assert hash(short) == hash(load_spec(spec, max_memory={"cuda:1": 10**9, "gpu": 20 * 2**30}))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"devices": [{"device": "cuda:0"}], "max_memory": {"cuda:1": "1GiB"}}, "max_memory.*is no device of this spec"),
        ({"max_memory": {"cuda": 1000, "cuda:0": 1000}}, '"cuda:0" is "cuda" again; keep one'),
        ({"max_memory": {"cuda:0": "20GiX"}}, "is not a size"),
        ({"max_memory": ["cuda:0"]}, "should be a mapping"),
        ({"devices": [{"device": "cpu"}], "max_memory": {7: "1GiB"}}, r"1 fault\n.* 7 should be text"),
        ({"optimizer": "adamv"}, 'no optimizer that is known; did you mean "adam'),
        ({"training": "yes"}, "should be true or false"),
    ],
)
def test_what_no_spec_may_say(document: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        load_spec(document)


def test_a_cap_of_no_device_of_the_machine() -> None:
    with pytest.raises(SpecError, match=r"cuda:1.* is not in this machine, which has cuda:0, cpu"):
        build_machine(load_spec(max_memory={"cuda:1": "1GiB"}), ["cuda:0", "cpu"])
    assert Spec().training is None and Spec().optimizer == "none"


class Lopsided(nn.Module):
    """Weights without values to speak of, and values without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(32, 160), nn.Linear(160, 160), nn.Linear(160, 160)

    def forward(self, x: Tensor) -> Tensor:
        heavy = self.third(self.second(self.first(x[:2, :32])))
        return heavy.sum() + torch.cat([x.exp(), x.sin()]).cos().sum()


def test_the_smallest_peak_counts_values_too() -> None:
    """Beside all placements of all tasks, and beside the most even placement of the state alone."""
    found = traced(Lopsided(), torch.ones(150, 150), False)
    smallest = plan_of(found, pair(), Spec(objective="memory", grain=0))
    roomy, peaks = pair(2**40, 2**40), []
    for homes in product((0, 1), repeat=len(smallest.tasks.tasks)):
        try:
            each = plan_of(found, roomy, Spec(policy=lambda problem, homes=homes: placed(problem, "all", homes), grain=0))
        except VerifyError:  # tasks of one group on two devices
            continue
        peaks.append(peak_of(each))
    evened = plan_of(found, roomy, Spec(policy=lambda problem: Fit()(replace(problem, objective="memory")), grain=0))
    assert min(peaks) <= peak_of(smallest) <= 1.1 * min(peaks)
    assert peak_of(evened) > 1.15 * peak_of(smallest)
