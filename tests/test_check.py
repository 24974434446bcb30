"""The comparison with eager, tested by programs that are known to be wrong.

Traced graphs are damaged: an op gone, done twice, cut off from autograd, or burned in as the value that it had on the example.
Whatever makes a difference on other inputs must be noticed on the two draws that the comparison makes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner import DifferenceError, TraceError, partition
from partitioner.compile import make_plan
from partitioner.frontend.check import compare
from partitioner.frontend.check.compare import Outcome, differs
from partitioner.frontend.check.interpret import interpret
from partitioner.frontend.trace import trace
from partitioner.ir.graph import Graph
from partitioner.model.call import Call
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from partitioner.testing import GeneratedModule, modules

Damage = Callable[[torch.fx.Graph, torch.fx.Node, Tensor], dict[str, Any]]
"""Damages a graph at a node that had a value on the example; returns constants that it needs."""


def negated(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> dict[str, Any]:
    return _put_behind(fx, node, torch.neg)


def detached(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> dict[str, Any]:
    return _put_behind(fx, node, torch.detach)


def done_twice(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> dict[str, Any]:
    with fx.inserting_after(node):
        again = fx.node_copy(node)
    node.replace_all_uses_with(again, delete_user_cb=lambda user: user is not again)
    return {}


def gone(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> dict[str, Any]:
    node.replace_all_uses_with(node.all_input_nodes[0])
    fx.erase_node(node)
    return {}


def burned_in(fx: torch.fx.Graph, node: torch.fx.Node, value: Tensor) -> dict[str, Any]:
    with fx.inserting_after(node):
        constant = fx.create_node("get_attr", "burned_in")
    node.replace_all_uses_with(constant)
    return {"burned_in": value.detach().clone()}


def _put_behind(fx: torch.fx.Graph, node: torch.fx.Node, function: Callable[..., Any]) -> dict[str, Any]:
    with fx.inserting_after(node):
        new = fx.call_function(function, (node,))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return {}


DAMAGES: dict[str, Damage] = {
    function.__name__.replace("_", " "): function for function in (negated, detached, done_twice, gone, burned_in)
}


def damaged(graph: Graph, model: nn.Module, call: Call, damage: str, pick: int) -> Graph | None:
    """A copy of the graph with one op damaged; ``None`` if that op cannot be."""
    values: dict[str, Any] = {}
    with torch.random.fork_rng():
        twin = copy.deepcopy(model)
        interpret(
            graph, twin, [tensor.clone() for tensor in call.tensors], lambda node, value: values.update({node.name: value})
        )
    fx = torch.fx.Graph()
    names: dict[torch.fx.Node, torch.fx.Node] = {}
    fx.output(fx.graph_copy(graph.fx, names))
    nodes = [node for node in fx.nodes if node.op.startswith("call") and isinstance(values.get(node.name), Tensor)]
    nodes = [node for node in nodes if node.all_input_nodes and values[node.name].is_floating_point()]
    if not nodes:
        return None
    node = nodes[pick % len(nodes)]
    before = values.get(node.all_input_nodes[0].name)
    if damage == "gone" and (not isinstance(before, Tensor) or before.shape != values[node.name].shape):
        return None
    constants = DAMAGES[damage](fx, node, values[node.name])
    fx.lint()
    return replace(graph, fx=fx, constants={**graph.constants, **constants})


def matters(graph: Graph, model: GeneratedModule) -> bool:
    """Whether the graph differs from the model on any of some other inputs, by a way of comparing of its own."""
    for seed in range(1, 6):
        inputs = model.example_inputs(seed)
        wanted = outcome(lambda twin, given: tree_leaves(twin(*given)), model, inputs)
        found = outcome(lambda twin, given: interpret(graph, twin, given), model, inputs)
        if len(wanted) != len(found) or not all(map(alike, wanted, found)):
            return True
    return False


def outcome(run: Callable[[nn.Module, list[Tensor]], Any], model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Any]:
    """Results, buffers and gradients of one run on a copy of the model, or the kind of error."""
    twin = copy.deepcopy(model)
    leaves = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    torch.manual_seed(3)
    try:
        results = run(twin, [leaf.view_as(leaf) if leaf.requires_grad else leaf for leaf in leaves])
        tensors = [result for result in results if isinstance(result, Tensor)]
        roots = [result for result in tensors if result.requires_grad]
        held = [leaf for leaf in (*leaves, *twin.parameters()) if leaf.requires_grad]
        weights = [torch.linspace(1, 2, root.numel()).reshape(root.shape) for root in roots]
        gradients = torch.autograd.grad(roots, held, weights, allow_unused=True) if roots and held else ()
    except RuntimeError as error:
        return [type(error).__name__]
    return [len(tensors), *tensors, *(tensor.requires_grad for tensor in tensors), *twin.buffers(), *gradients]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
    return type(one) is type(other) and one == other


@given(model=modules(), train=st.booleans(), damage=st.sampled_from(sorted(DAMAGES)), pick=st.integers(0, 99))
@settings(max_examples=200)
def test_a_wrong_program_is_noticed(model: GeneratedModule, train: bool, damage: str, pick: int) -> None:
    model.train(train)
    call = Call.of(model.example_inputs(0), {})
    try:
        graph = trace(model, call)
    except TraceError:
        return
    assert compare(graph, model, call).difference is None, "the traced program is right"
    wrong = damaged(graph, model, call, damage, pick)
    if wrong is not None and compare(wrong, model, call).difference is None:
        assert not matters(wrong, model), f"a {damage} op went unnoticed"


class Counted(nn.Module):
    """Counts how often its forward runs for real, and keeps a statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, torch.fx.Proxy):
            RUNS.append(tuple(x.shape))
        self.mean.add_(x.detach().mean(0))
        return self.drop(self.left(x)) + self.right(x)


RUNS: list[tuple[int, ...]] = []
X = torch.arange(12.0).reshape(3, 4) / 5


def test_the_check_costs_two_eager_calls_and_leaves_no_trace() -> None:
    model = Counted()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    RUNS.clear()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X)
    assert RUNS == [(3, 4), (3, 4)]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert any("compared with eager on two inputs in" in note for note in parallel.graph.notes)


def test_without_the_check_nothing_is_called() -> None:
    RUNS.clear()
    parallel = partition(Counted(), ["cpu:0"], example_inputs=X, check=False)
    assert RUNS == []
    assert not any("compared" in note for note in parallel.graph.notes)


def test_on_the_meta_device_the_check_says_that_it_was_skipped() -> None:
    with torch.device("meta"):
        model, x = Counted(), torch.empty(3, 4)
    plan = make_plan(model, Call.of((x,), {}), build_machine(load_spec(None), ["cpu"]), load_spec(None), check=True)
    assert "not compared with eager, for there are no values on the meta device" in plan.graph.notes


class BurnsIn(nn.Module):
    """Another factor in every call, and the tracer sees one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


class Scaled(nn.Module):
    """Multiplies by the number of its calls."""

    def forward(self, x: Tensor) -> Tensor:
        return x * len(HIDDEN.append(0) or HIDDEN)


HIDDEN: list[int] = []


def test_what_changes_from_call_to_call_shows_on_the_second_draw() -> None:
    """The first call agrees with the trace by luck; that is what the second is for."""
    HIDDEN.clear()
    with pytest.raises(DifferenceError, match=r"BurnsIn(.|\n)*(export|symbolic_trace): output"):
        partition(BurnsIn(), ["cpu:0"], example_inputs=X)


class HalfTraced(nn.Module):
    """`symbolic_trace` sees one branch of a test that it takes for constant; export sees the right one."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, torch.fx.Proxy) else x * 3


def test_another_front_end_is_tried_on_a_difference() -> None:
    parallel = partition(HalfTraced(), ["cpu:0"], example_inputs=X)
    assert parallel.graph.tracer == "export"
    assert any(
        "symbolic_trace differed from eager in output 0: values differ by up to" in note for note in parallel.graph.notes
    )
    assert torch.equal(parallel(X), X * 3)


class Sneaky(nn.Module):
    """Wrong in every trace, inside of one submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.good, self.bad, self.head = nn.Linear(4, 4), TracedOtherwise(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bad(self.good(x)))


class TracedOtherwise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, torch.fx.Proxy) or torch.compiler.is_exporting() else x * 3


def test_a_refusal_names_where_the_program_leaves_the_model() -> None:
    with pytest.raises(DifferenceError) as raised:
        partition(Sneaky(), ["cpu:0"], example_inputs=X)
    text = str(raised.value)
    assert "no traced program computes what Sneaky computes" in text
    assert "The first submodule whose result the program does not compute is bad, traced as mul" in text
    assert "test_check.py:" in text


def test_a_buffer_keeps_no_history() -> None:
    """A program that had lost a `detach` wrote a tensor with a history into a buffer. That was not noticed; and where another
    difference was, the value was put back and the buffer was still part of a graph: the model could not be copied any more.
    """
    model = Counted()
    call = Call.of((X.clone().requires_grad_(),), {})
    graph = trace(model, call)
    fx = copy.deepcopy(graph.fx)
    for node in fx.nodes:
        if node.target == "detach":
            node.replace_all_uses_with(node.all_input_nodes[0])
            fx.erase_node(node)
    assert str(compare(replace(graph, fx=fx), model, call).difference).startswith("whether mean needs a gradient: False")
    assert not model.mean.requires_grad
    copy.deepcopy(model)


def test_an_output_that_lost_its_gradient() -> None:
    """The values are right, and training would be quietly wrong."""
    outcome = Outcome([X], {"output 0": True}, {}, [])
    assert str(differs(outcome, replace(outcome, attached={"output 0": False}))) == (
        "whether output 0 needs a gradient: True in the model, False in the program"
    )
