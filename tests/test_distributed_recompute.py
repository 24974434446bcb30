"""What a backward runs again instead of keeping: the same values, the same random numbers, and only borders kept meanwhile."""

from __future__ import annotations

import copy
import random
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.nets import TRAININGS
from lanes import OLD_TORCH
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.utils._pytree import tree_leaves

from partitioner.distributed import outlook, plan
from partitioner.distributed.pipeline import segments
from partitioner.distributed.pipeline.rerun import Rerun, refuse_unknown
from partitioner.distributed.pipeline.schedules import SCHEDULES, kind_of
from partitioner.distributed.pipeline.segments import in_flight, segments_of
from partitioner.distributed.traced.example import Example, example_in
from partitioner.errors import PlacementError, SpecError, TraceError
from partitioner.frontend.check.interpret import interpret
from partitioner.ir.access import ANY, Access
from partitioner.spec.distributed import DistributedSpec
from partitioner.testing import build, recipes

AGAIN = DistributedSpec(recompute="segments")


def drawn(draw: random.Random) -> Any:
    """Segments that end anywhere."""

    def ends(ops: Any, rules: Any, _flying: int) -> list[int]:
        cuts = segments.cuts_between(ops, rules)
        return sorted({cuts[-1], *(cut for cut in cuts[1:] if draw.random() < 0.3)})

    return ends


def ran(example: Example, inputs: list[Tensor], run: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results, gradients, and what the state is then, of one call with a backward."""
    graph = example.traced.graph
    known = example.arguments(inputs) | {name: state[key] for name, key in graph.states.items()}
    torch.manual_seed(1)
    results = run([known[name] for name in graph.arguments])
    learnt = [each for each in results if isinstance(each, Tensor) and each.requires_grad]
    if learnt:
        torch.stack([(each.double() * (place + 1)).sin().sum() for place, each in enumerate(learnt)]).sum().backward()
    leaves = {f"result {place}": each for place, each in enumerate(tree_leaves(results)) if isinstance(each, Tensor)}
    grads = {f"gradient of {key}": each.grad for key, each in state.items() if each.grad is not None}
    return {**leaves, **grads, **state, "random": torch.get_rng_state()}


def state_of(example: Example) -> dict[str, Tensor]:
    return {key: copy.deepcopy(each) for key, each in example.traced.state.items()}


def rerun(example: Example, parts: Any) -> Rerun:
    runs = [lambda values, graph=part.graph: interpret(graph, values) for part in parts]
    return Rerun(example.traced.graph, parts, runs)


@settings(max_examples=settings.default.max_examples // 2)
@given(recipe=recipes(), draw=st.randoms(use_true_random=False), whole=st.booleans())
def test_random_programs_give_the_same_bits_when_run_again(recipe: Any, draw: random.Random, whole: bool) -> None:
    """In-place ops, buffers, dropout, views, ties: results, gradients, buffers and random numbers, segments anywhere."""
    model = build(recipe)
    inputs = [tensor.detach() for tensor in model.example_inputs(0)]
    try:
        example = example_in(model, tuple(tensor.clone() for tensor in inputs), None, 1)
    except TraceError:  # a result is made by no op
        return
    spec = DistributedSpec(recompute="stage" if whole else "segments")
    with mock.patch.object(segments, "ends_of", drawn(draw)):
        parts = segments_of(example.traced, spec, 1)
    plain = ran(
        example, [each.clone() for each in inputs], lambda values: interpret(example.traced.graph, values), state_of(example)
    )
    again = ran(example, [each.clone() for each in inputs], rerun(example, parts), state_of(example))
    assert plain.keys() == again.keys()
    for name, value in plain.items():
        assert torch.equal(value, again[name]) or bool(value.isnan().any()), name


class Deep(nn.Module):
    """Blocks that keep much inside and pass little on; dropout in each."""

    def __init__(self, blocks: int = 12) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(32, 256) for _ in range(blocks))
        self.narrow = nn.ModuleList(nn.Linear(256, 32) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = x + nn.functional.dropout(narrow(torch.sigmoid(torch.tanh(wide(x)))), 0.1)
        return x


def kept(example: Example, x: Tensor, run: Any) -> int:
    """Bytes that autograd keeps for a backward, beside the model's state. Under a checkpoint that is what goes into it."""
    state, storages = state_of(example), {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    graph = example.traced.graph
    known = example.arguments([x]) | {name: state[key] for name, key in graph.states.items()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = run([known[name] for name in graph.arguments])
    own = {each.untyped_storage().data_ptr() for each in state.values()}
    assert found
    return sum(size for place, size in storages.items() if place not in own)


def test_only_what_passes_between_segments_is_kept_and_that_is_predicted() -> None:
    model, x = Deep(), torch.randn(64, 32)
    example = example_in(model, x, None, 1)
    parts = segments_of(example.traced, AGAIN, 1)
    assert 3 <= len(parts) <= 12
    assert all(len([name for name in part.graph.arguments if name not in part.graph.states]) == 1 for part in parts)
    little, much = (
        kept(example, x, each) for each in (rerun(example, parts), lambda values: interpret(example.traced.graph, values))
    )
    assert little == len(parts) * x.numel() * 4 < much / 8

    def predicted(**options: Any) -> Any:
        return outlook(model, x, {"distributed": {"mesh": {"pipeline": 1}, **options}})

    plain, again, stage = (predicted(recompute=each) for each in ("none", "segments", "stage"))
    largest = max(kept(example_of_part(part), x, lambda v, g=part.graph: interpret(g, v)) for part in parts)
    state = sum(each.numel() * 4 for each in model.parameters()) * 2
    assert little + largest <= again.memory[0] - state <= 1.5 * (little + largest)
    assert again.memory[0] < stage.memory[0] and again.memory[0] < plain.memory[0]
    assert again.step == pytest.approx(plain.step * 4 / 3), "a backward is two forwards, and there is one more"
    assert plain.bound < again.bound <= again.step and "segments run again" in str(again)


def example_of_part(part: Any) -> Example:
    """A segment as if it were a model of one input."""
    (name,) = (name for name in part.graph.arguments if name not in part.graph.states)
    return Example(part.traced, None, {name: 0}, None, (), frozenset(), (True,))  # type: ignore[arg-type]


def test_auto_runs_again_only_where_all_does_not_fit() -> None:
    model, x = Deep(12), torch.ones(256, 32)
    mesh = {"auto": True, "data": 1, "tensor": 1}

    def chosen(memory: int | None, **options: Any) -> Any:
        devices = {"devices": [{"device": "cpu", "memory": memory}]} if memory else {}
        return outlook(model, x, {**devices, "distributed": {"mesh": mesh, "ranks": 2, "microbatches": 2, **options}})

    free = chosen(None)
    assert free.asked.recompute == "none" and all(row.asked.recompute == "none" for row in free.choice.rows)
    least = chosen(None, recompute="segments")
    cap = (max(free.memory) + max(least.memory)) // 2
    tight = chosen(cap)
    assert tight.asked.recompute == "segments" and max(tight.memory) <= cap and free.step < tight.step
    assert ", segments again" in str(tight.choice)
    with pytest.raises(PlacementError, match="the model fits 2 ranks in no way"):
        chosen(cap, recompute="none")
    inside = plan(model, x, {"distributed": {"mesh": mesh, "ranks": 2}}, training=False)
    assert inside.document.distributed["recompute"] == "none"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("recompute", [pytest.param("stage", marks=pytest.mark.slow), "segments"])
def test_no_schedule_beats_the_bound(name: str, recompute: str) -> None:
    """And what is in flight is less; but not where the halves of a backward are apart."""
    kind, model = SCHEDULES[name], Deep(4)
    fields = {"mesh": {"pipeline": 2}, "microbatches": 8, "schedule": name, "stages_per_rank": 2 if kind.several else 1}
    plain, again = (
        outlook(model, torch.ones(64, 32), {"distributed": {**fields, "recompute": each}}) for each in ("none", recompute)
    )
    assert plain.step < again.step and again.bound <= again.step
    assert kind.split or max(again.memory) < max(plain.memory)


def test_more_in_flight_more_is_run_at_once() -> None:
    """Each microbatch in flight keeps all borders, so there are fewer of them."""
    example = example_in(Deep(16), torch.randn(64, 32), None, 1)
    counts = [len(segments_of(example.traced, AGAIN, flying)) for flying in (1, 8, 64)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]
    spec = {"mesh": {"pipeline": 4}, "microbatches": 8}
    assert [in_flight(DistributedSpec(**spec, schedule=each)) for each in ("1f1b", "gpipe")] == [4, 8]


def test_what_would_go_wrong_is_refused() -> None:
    with pytest.raises(SpecError, match=r"take recompute: stage, and a schedule whose backwards are not split"):
        kind_of(DistributedSpec(mesh={"branch": 2}, recompute="segments"))
    split = {"schedule": "interleaved_zero_bubble", "stages_per_rank": 2, "microbatches": 4}
    with pytest.raises(SpecError, match="schedule interleaved_zero_bubble and a branch axis"):
        kind_of(DistributedSpec(mesh={"branch": 2, "pipeline": 2}, recompute="stage", **split))
    graph = example_in(nn.Linear(4, 4), torch.ones(2, 4), None, 1).traced.graph
    unknown = mock.Mock(ops=[mock.Mock(accesses=(Access(ANY, True),), shown="linear = linear(...) in net")])
    refuse_unknown(graph, "stage")
    with pytest.raises(SpecError, match=r"recompute: stage would run this twice, .*: linear = linear.* in net"):
        refuse_unknown(unknown, "stage")


class Scanned(nn.Module):
    """A sum that goes on along its rows, by a tree of halves: views of what a transform gives, and a transform of those."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = associative_scan(torch.add, self.first(x), dim=1, combine_mode="generic")
        return self.last(found)  # type: ignore[no-any-return]


class Certain(Scanned):
    """Switches something for the whole process, and back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)
        found: torch.Tensor = self.first(x)
        torch.use_deterministic_algorithms(False)
        return self.last(found)  # type: ignore[no-any-return]


class Sloped(Scanned):
    """Reads how a layer's output changes with its input, as models of differential equations do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.grad(lambda given: self.first(given).tanh().sum())(x)
        return self.last(found)  # type: ignore[no-any-return]


def test_a_gradient_in_forward_is_not_run_again() -> None:
    """Torch's error about hooks came out of the first step, within an engine's."""
    graph = example_in(Sloped(), torch.randn(2, 4), None, 1).traced.graph
    with pytest.raises(SpecError, match=r"torch.func.grad, .* do not work: run_region = run_region.* .*recompute.py:\d+"):
        refuse_unknown(graph, "segments")


def test_a_scan_is_known_and_a_switch_is_not() -> None:
    """A scan takes rows by an op of several overloads, whose schemas tell what it does; the error says where a switch is."""
    if not OLD_TORCH:  # whose tracer cannot look into one
        refuse_unknown(example_in(Scanned(), torch.randn(2, 5, 4), None, 1).traced.graph, "segments")
    switched = example_in(Certain(), torch.randn(2, 5, 4), None, 1).traced.graph
    with pytest.raises(SpecError, match=r"what it does is unknown: run_region = run_region.* .*recompute.py:\d+"):
        refuse_unknown(switched, "segments")


def test_a_model_that_is_trained_with_batch_norm_has_its_statistics_once() -> None:
    """In train mode: running statistics are written by the first run alone."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True)) for _ in range(4)))
    x = TRAININGS["towers"].batches()[0][0]["x"]
    example = example_in(model, x, None, 1)
    parts = segments_of(example.traced, AGAIN, 1)
    plain = ran(example, [x], lambda values: interpret(example.traced.graph, values), state_of(example))
    again = ran(example, [x], rerun(example, parts), state_of(example))
    assert len(parts) > 1 and "0.1.running_mean" in plain
    assert all(torch.equal(value, again[name]) for name, value in plain.items())
