"""What ops are seen to touch: each distinct one is looked at once, and nothing is switched, drawn or allocated by that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accounts import both_accounts, missing, resources
from hypothesis import given, settings
from lanes import programs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partitioner import partition
from partitioner.frontend.analysis.looks import Looks, form_of
from partitioner.frontend.analysis.observe import observe
from partitioner.ir.access import Access
from partitioner.ir.graph import Graph, Op
from partitioner.testing import GeneratedModule, modules
from programs import traced

X = torch.ones(2, 4)
STEPS = 12


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often ops were looked at, by target."""
    counted: Counter[str] = Counter()
    plain = Looks.look

    def look(self: Looks, node: torch.fx.Node) -> Any:
        counted[node.target if isinstance(node.target, str) else node.target.__name__] += 1
        return plain(self, node)

    monkeypatch.setattr(Looks, "look", look)
    return counted


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.a(x)) * torch.sigmoid(self.b(x))


@pytest.mark.parametrize("blocks", [1, 2, 30])
def test_equal_ops_are_looked_at_once(blocks: int, looks: Counter[str]) -> None:
    """Their weights are others, of equal shapes. So the looks at a model are as many as it has kinds of ops."""
    graph = traced(nn.Sequential(*(Block() for _ in range(blocks))), X)
    assert len(graph.ops) == 6 * blocks
    assert looks == {"linear": 1, "relu": 1, "sigmoid": 1, "mul": 1, "add": 1}


def test_bodies_share_what_was_seen(looks: Counter[str]) -> None:
    """The same ops in four branches of two choices."""

    class Choices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            first = torch.cond(x.sum() > 0, lambda h: self.blocks[0](h), lambda h: self.blocks[1](h), (x,))
            return torch.cond(x.sum() > 1, lambda h: self.blocks[2](h), lambda h: self.blocks[3](h), (first,))

    traced(Choices(), X)
    assert looks["linear"] == looks["relu"] == looks["sigmoid"] == 1


Function = Callable[..., Any]


def seen(function: Function, *inputs: Tensor) -> Graph:
    """The graph of a function of tensors."""

    class Model(nn.Module):
        def forward(self, *given: Tensor) -> Any:
            return function(*given)

    return traced(Model(), *inputs)


@pytest.mark.parametrize(
    ("target", "one", "other"),
    [
        ("add", lambda x: x + 1, lambda x: x + 1.0),
        ("mul", lambda x: x * 0.0, lambda x: x * -0.0),
        ("mul", lambda x: x * True, lambda x: x * 1),
        ("sum", lambda x: x.sum((0,)), lambda x: x.sum(0)),
        ("dropout", lambda x: torch.dropout(x, 0.5, True), lambda x: torch.dropout(x, 0.5, False)),
        ("reshape", lambda x: x.reshape(4, 2), lambda x: x.t().reshape(4, 2)),
        ("relu", lambda x: x.relu(), lambda x: x.double().relu()),
        ("relu", lambda x: nn.functional.relu(x), lambda x: nn.functional.relu(x, inplace=True)),
        ("cat", lambda x: torch.cat([x, x]), lambda x: torch.cat([x, x, x])),
    ],
)
def test_unequal_ops_are_told_apart(target: str, one: Function, other: Function, looks: Counter[str]) -> None:
    """Equal in Python, and not the same: what was seen of one says nothing of the other."""
    seen(lambda x: (one(x), other(x), one(x), other(x)), X)
    assert looks[target] == 2


def test_forms_of_constants() -> None:
    constants = (1, 1.0, True, "1", 0.0, -0.0, None, (1,), [1], torch.float32)
    assert len({form_of(constant) for constant in constants}) == len(constants)
    assert form_of(X) == form_of(torch.zeros(2, 4)) != form_of(torch.zeros(4, 2).t())


def test_what_shares_a_storage_is_told_by_identity() -> None:
    """
    v = x[0]        w = v.t()        c = x.clone()        w.add_(1) writes x, and c is nobody else's
    """
    graph = seen(lambda x: (x[0].t().add_(1), x.clone()), X)
    written = [op for op in graph.ops if op.target == "add_"]
    assert [str(access) for access in written[0].accesses] == ["w:arg0"]
    (clone,) = (op for op in graph.ops if op.target == "clone")
    assert clone.storages == (clone.name,)


def test_a_copy_that_may_be_a_view() -> None:
    """`reshape` copied what it was given here. Of another input it gives a view: a write to it is one to its input, too."""
    graph = seen(lambda x: x.t().reshape(8).add_(1), X)
    (written,) = (op for op in graph.ops if op.target == "add_")
    assert {access.resource for access in written.accesses if access.write} >= {"arg0", "reshape"}


class Assigns(nn.Linear):
    """As masked convolutions do."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data * 0.5
        return super().forward(x)


def test_a_checkpoint_writes_what_its_body_writes() -> None:
    """The statistics of a norm, and none of the weights beside them."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.block, x, use_reentrant=False)

    graph = traced(Checkpointed(), X)
    written = {access.resource for op in graph.ops for access in op.accesses if access.write}
    assert {key for key in written if key.startswith("self.")} == {
        f"self.block.1.{key}" for key in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_what_gives_a_parameter_other_data_writes() -> None:
    """Else a layer may run before, or between the two ops of an assignment to ``data``, and its backward finds another version.

    In torch 2.14 that is one op, after which the parameter lies in another storage: what was written was looked up there.
    """
    parallel = partition(Assigns(4, 4), ["cpu:0", "cpu:1"], example_inputs=X)
    writes = [op.target for op in parallel.graph.ops if Access("self.weight", True) in op.accesses]
    assert writes in (["set_", "uncounted"], ["shallow_copy_data_"])


def test_inputs_of_one_storage_are_one_resource() -> None:
    base = torch.ones(4, 4)
    graph = seen(lambda x, y: (x.add_(1), y * 2), base[:2], base[2:])
    (added,), (times,) = ([op for op in graph.ops if op.target == target] for target in ("add_", "mul"))
    assert graph.edges[added.name, times.name] == "hazard"


def test_the_process_is_left_as_it_is() -> None:
    """A look calls ops on fakes; what switches something is not called, and nothing random is drawn."""

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            found = torch.vmap(lambda row: row * 2, randomness="same")(x) + torch.rand(4)
            torch.use_deterministic_algorithms(False)
            torch.set_default_dtype(torch.float32)
        return torch.dropout(found, 0.5, True)

    def state() -> tuple[Any, ...]:
        flags = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled()
        nesting = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
        return *flags, *nesting, torch.get_default_dtype(), torch._C._functorch.peek_interpreter_stack()

    before, numbers = state(), torch.get_rng_state()
    graph = seen(forward, X)
    assert state() == before and torch.equal(torch.get_rng_state(), numbers)
    assert [op.target for op in graph.ops].count("run_region") == 1


def test_what_cannot_be_called_on_fakes_is_told_by_the_table() -> None:
    """A sparse argument, and a size that depends on values: reads, writes and draws are the table's."""
    indices = torch.tensor([[0, 1], [1, 0]])
    graph = seen(lambda x, i: torch.sparse_coo_tensor(i, x[0, :2], (2, 2)).to_dense() @ x, X, indices)
    for op in graph.ops:
        assert {access.resource for access in op.accesses} >= {name for name in op.inputs if name.startswith("arg")}
    assert all(op.tensor for op in graph.ops)


def test_flops_and_shapes_are_those_of_the_example() -> None:
    graph = seen(lambda x, y: (x @ y).relu(), torch.ones(3, 5), torch.ones(5, 7))
    product, relu = graph.ops
    assert (product.flops, relu.flops) == (2 * 3 * 5 * 7, 0)
    assert [str(meta) for meta in product.outputs] == ["float32[3, 7]"] and product.bytes == 3 * 7 * 4


def test_a_recurrent_layer_is_as_many_kernels_as_it_has_steps() -> None:
    """Three GRUs were predicted at a third of their time, as if threads inside of them helped: lanes were not tried."""

    def op_of(layer: nn.RNNBase) -> Op:
        op = next(op for op in seen(layer, torch.ones(STEPS, 2, 8)).ops if op.target == layer.mode.lower())
        assert op.flops == 2 * STEPS * 2 * len(layer.weight_ih_l0) * (8 + 16)
        return op

    gru, lstm = op_of(nn.GRU(8, 16)), op_of(nn.LSTM(8, 16))  # oneDNN has one kernel for an LSTM
    assert gru.work and lstm.work and gru.work.kernels > 8 * STEPS > lstm.work.kernels
    weights = 4 * 3 * 16 * (8 + 16)
    assert gru.work.touched > STEPS * weights / 2 and gru.work.touched > 10 * gru.bytes


def test_an_open_dimension_is_seen_at_the_size_that_it_had() -> None:
    """The second batch size opens the dimension; shapes are numbers all the same."""
    parallel = partition(nn.Sequential(Block(), Block()), ["cpu:0"], example_inputs=X)
    for rows in (5, 9):
        parallel(torch.ones(rows, 4))
    assert programs(parallel) == 2
    assert [meta.shape for _, meta in parallel.graph.inputs if meta is not None] == [(5, 4)]
    assert [op.outputs[0].shape for op in parallel.graph.ops] == [(5, 4)] * 12


@given(modules())
@settings(max_examples=settings.default.max_examples // 2)
def test_the_table_says_no_less_than_what_is_seen(model: GeneratedModule) -> None:
    """Of any model: what it forgot would be a race where an op cannot be observed."""
    graph = traced(model, *model.example_inputs(0)).fx
    forgotten = [(name, target, missing(one, other)) for name, target, one, other in both_accounts(graph)]
    assert not [item for item in forgotten if item[2]]
    assert observe(graph, resources(graph)).keys() >= {node.name for node in graph.nodes if node.op.startswith("call")}


class DropsNothing(nn.Module):
    """Writes to what a dropout gives that drops nothing: it is the input itself, which is read once more."""

    def __init__(self, name: str, probability: float) -> None:
        super().__init__()
        self.drop, self.probability = getattr(nn.functional, name), probability

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = x * 2
        dropped = self.drop(made, self.probability, self.training)
        dropped += 1
        return dropped * 2, made * 3


@pytest.mark.sampled(4)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"])
def test_a_dropout_that_drops_nothing_gives_its_input(name: str, probability: float, grad: bool) -> None:
    """For fakes torch has a decomposition of it that gives a copy: what wrote to it was in no order with what read the input.

    Where tasks are functions of TorchScript, the first call recorded one and wrote twice: X-MOD's first result was wrong.
    """
    model = DropsNothing(name, probability).train(probability == 0.0)
    x = torch.randn(*((1, 2, 3, 2, 2) if name == "dropout3d" else (2, 3, 2, 2) if name == "dropout2d" else (2, 3, 2)))
    with torch.set_grad_enabled(grad):
        for options in ({"tune": False}, {"compile_tasks": "torchscript", "policy": "single"}):
            parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=x, check=False, copy=True, **options)
            for _ in range(2):
                assert all(map(torch.equal, parallel(x), model(x)))
        made, written = (parallel.graph.by_name[each].storages for each in ("made", "dropped_1"))
        assert set(made) <= set(written)
        dropping = partition(DropsNothing(name, 0.3).train(), ["cpu"], example_inputs=x, check=False, tune=False)
        assert "made" not in dropping.graph.by_name["dropped"].storages


class DropsNothingInside(nn.Module):
    """Likewise inside of a transform, whose values have no storages that can be asked for."""

    def forward(self, x: Tensor) -> Tensor:
        def row(each: Tensor) -> Tensor:
            dropped = nn.functional.dropout(each * 2, 0.1, self.training)
            return nn.functional.dropout(dropped + 1, 0.0)

        return torch.func.vmap(row)(x) + nn.functional.dropout(nn.functional.dropout(x, 0.1, self.training), 0.0)


def test_a_dropout_that_drops_nothing_inside_of_a_transform() -> None:
    model = DropsNothingInside().eval()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, copy=True)
    assert torch.equal(parallel(X), model(X)) and programs(parallel) == 1
