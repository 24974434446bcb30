"""The comparison with eager, tested by programs that are known to be wrong.

Traced graphs are damaged: an op gone, done twice, cut off from autograd, or burned in as the value that it had on the example.
Whatever makes a difference on other inputs must be noticed on the two draws that the comparison makes.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import act, acting
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_structure

from partitioner import DifferenceError, InputError, partition
from partitioner.frontend.capture.dynamo import Compiled, Found, compiled
from partitioner.frontend.check.compare import Outcome, compare, differs
from partitioner.model.call import Call
from partitioner.model.keep import state_kept
from partitioner.model.modes import threads
from partitioner.plans import make_plan
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec
from partitioner.testing import GeneratedModule, modules

Damage = Callable[[torch.fx.Graph, torch.fx.Node, Tensor], None]
"""Damages a graph at a node that had a value on the example."""


def negated(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> None:
    _put_behind(fx, node, torch.neg)


def detached(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> None:
    _put_behind(fx, node, torch.detach)


def done_twice(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> None:
    with fx.inserting_after(node):
        again = fx.node_copy(node)
    node.replace_all_uses_with(again, delete_user_cb=lambda user: user is not again)


def gone(fx: torch.fx.Graph, node: torch.fx.Node, _value: Tensor) -> None:
    node.replace_all_uses_with(node.all_input_nodes[0])
    fx.erase_node(node)


def burned_in(fx: torch.fx.Graph, node: torch.fx.Node, value: Tensor) -> None:
    fx.owning_module.burned_in = value.detach().clone()
    with fx.inserting_after(node):
        constant = fx.get_attr("burned_in")
    node.replace_all_uses_with(constant)


def _put_behind(fx: torch.fx.Graph, node: torch.fx.Node, function: Callable[..., Any]) -> None:
    with fx.inserting_after(node):
        new = fx.call_function(function, (node,))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


DAMAGES: dict[str, Damage] = {
    function.__name__.replace("_", " "): function for function in (negated, detached, done_twice, gone, burned_in)
}


def traced(model: nn.Module, edit: Callable[[Found], object] = lambda found: None) -> Compiled:
    """The model through its graphs as they lie, after an edit of each."""

    def receive(found: Found) -> Callable[..., Sequence[Any]]:
        edit(found)
        found.module.graph.lint()
        found.module.recompile()
        return found.module.forward

    return compiled(model, receive)


class Values(torch.fx.Interpreter):
    """The value of each node on the example."""

    def __init__(self, found: Found) -> None:
        super().__init__(found.module, garbage_collect_values=False)
        with torch.random.fork_rng(), torch.no_grad():
            self.run(*copy.deepcopy([x.detach() if isinstance(x, Tensor) else x for x in found.inputs]))

    def of(self, node: torch.fx.Node) -> Any:
        return self.env.get(node)


def damage(found: Found, name: str, pick: int) -> bool:
    """Damage one op, if any can be."""
    fx, values = found.module.graph, Values(found)
    nodes = [node for node in fx.nodes if node.op.startswith("call") and isinstance(values.of(node), Tensor)]
    nodes = [node for node in nodes if node.all_input_nodes and values.of(node).is_floating_point()]
    if not nodes:
        return False
    node = nodes[pick % len(nodes)]
    before = values.of(node.all_input_nodes[0])
    if name == "gone" and (not isinstance(before, Tensor) or before.shape != values.of(node).shape):
        return False
    DAMAGES[name](fx, node, values.of(node))
    return True


def matters(run: Callable[..., Any], model: GeneratedModule) -> bool:
    """Whether ``run`` differs from the model on any of some other inputs, by a way of comparing of its own."""
    for seed in range(1, 6):
        inputs = model.example_inputs(seed)
        wanted, found = outcome(model.forward, model, inputs), outcome(run, model, inputs)
        if len(wanted) != len(found) or not all(map(alike, wanted, found)):
            return True
    return False


def outcome(run: Callable[..., Any], model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Any]:
    """Results, buffers and gradients of one run, or the kind of error. The model's state is put back."""
    leaves = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    kept = copy.deepcopy(dict(model.named_buffers()))
    torch.manual_seed(3)
    try:
        results = tree_leaves(run(*[leaf.view_as(leaf) if leaf.requires_grad else leaf for leaf in leaves]))
        tensors = [result for result in results if isinstance(result, Tensor)]
        roots = [result for result in tensors if result.requires_grad]
        held = [leaf for leaf in (*leaves, *model.parameters()) if leaf.requires_grad]
        weights = [torch.linspace(1, 2, root.numel()).reshape(root.shape) for root in roots]
        gradients = torch.autograd.grad(roots, held, weights, allow_unused=True) if roots and held else ()
        buffers = [buffer.detach().clone() for buffer in model.buffers()]
    except RuntimeError as error:
        return [type(error).__name__]
    finally:
        for name, buffer in model.named_buffers():
            buffer.detach_().copy_(kept[name])
    return [len(tensors), *tensors, *(tensor.requires_grad for tensor in tensors), *buffers, *gradients]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
    return type(one) is type(other) and one == other


@settings(max_examples=settings.default.max_examples // 3)
@given(model=modules(), train=st.booleans(), name=st.sampled_from(sorted(DAMAGES)), pick=st.integers(0, 99))
def test_a_wrong_program_is_noticed(model: GeneratedModule, train: bool, name: str, pick: int) -> None:
    model.train(train)
    call = Call.of(model.example_inputs(0), {})
    assert compare(model, call, traced(model)) is None, "the traced program is right"
    done: list[bool] = []
    wrong = traced(model, lambda found: done.append(damage(found, name, pick)))
    if compare(model, call, wrong) is None and any(done):
        assert not matters(wrong, model), f"a {name} op went unnoticed"


class Counted(nn.Module):
    """Tells how often it runs for real, and keeps a statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.add_(act(x, 0).detach().mean(0))
        return self.drop(self.left(x)) + self.right(x)


X = torch.arange(12.0).reshape(3, 4) / 5


def test_the_check_costs_two_calls_of_each_and_leaves_no_trace() -> None:
    model, runs = Counted(), list[int]()
    before = copy.deepcopy(model.state_dict())
    state, python = torch.get_rng_state(), random.getstate()
    with acting(0, lambda: runs.append(1)):
        partition(model, ["cpu:0", "cpu:1"], example_inputs=X)
    assert len(runs) == 4
    assert torch.equal(state, torch.get_rng_state()) and random.getstate() == python
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_the_check_nothing_is_called() -> None:
    runs: list[int] = []
    with acting(0, lambda: runs.append(1)):
        parallel = partition(Counted(), ["cpu:0"], example_inputs=X, check=False)
    assert not runs
    assert any(op.target == "linear" for op in parallel.graph.ops)


def test_on_the_meta_device_there_is_nothing_to_compare() -> None:
    with torch.device("meta"):
        model, x = Counted(), torch.empty(3, 4)
    plan = make_plan(model, Call.of((x,), {}), build_machine(load_spec(None), ["cpu"]), load_spec(None), check=True)
    assert any(op.target == "linear" for op in plan.graph.ops)


class Asking(nn.Module):
    """Another result while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2 if torch.compiler.is_compiling() else 3)


def test_a_model_that_is_traced_wrongly_is_refused() -> None:
    """It is left as it was."""
    model, other = Asking(), Asking()
    with pytest.raises(DifferenceError, match=r"Asking do not compute what it computes\. output 0: values differ"):
        partition(model, ["cpu:0"], example_inputs=X)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(X), other(X))


def test_the_second_call_tells_what_the_first_does_not() -> None:
    """A program that keeps the first result for good."""
    kept: list[Any] = []

    def run(x: Tensor) -> Tensor:
        kept.append(kept[0] if kept else torch.relu(x))
        return kept[-1]

    difference = compare(nn.ReLU(), Call.of((X,), {}), run)
    assert str(difference).startswith("output 0: values differ by up to")


def test_what_differs_in_two_calls_of_eager_is_not_compared() -> None:
    """The clock, for one: nobody could say whether a program of that is right."""

    class Timed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + clock()

    assert compare(Timed(), Call.of((X,), {}), traced(Timed())) is None


@torch._dynamo.disable
def clock() -> float:
    return time.perf_counter()


def test_who_fails_is_told_apart() -> None:
    """The model on its inputs, which is the caller's to mend; or the program, on inputs that the model takes."""

    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise LookupError("nothing like that")

    def fails(x: Tensor) -> Tensor:
        raise LookupError("out of luck")

    with pytest.raises(InputError, match=r"Picky fails on the example inputs. LookupError: nothing like that"):
        compare(Picky(), Call.of((X,), {}), traced(Picky()))
    assert str(compare(nn.ReLU(), Call.of((X,), {}), fails)) == "the program fails: LookupError: out of luck"


def test_a_long_error_of_the_model_is_cut_short() -> None:
    """Of an op that a device does not have torch lists forty kernels, and the refusal was 46 lines."""

    class Wordy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("\n".join(["no such kernel", *map(str, range(45))]))

    with pytest.raises(InputError, match=r"Wordy fails on the example inputs\. NotImplementedError: no such kernel") as raised:
        partition(Wordy(), ["cpu"], example_inputs=(torch.ones(2),))
    assert str(raised.value).endswith("\n3\n... and 41 more lines, in the cause")
    assert "44" in str(raised.value.__cause__)


def test_a_buffer_keeps_no_history() -> None:
    """A program that had lost a `detach` wrote a tensor with a history into a buffer. That was not noticed; and where another
    difference was, the value was put back and the buffer was still part of a graph: the model could not be copied any more.
    """

    def without_detach(found: Found) -> None:
        for node in found.module.graph.nodes:
            if node.target == "detach":
                node.replace_all_uses_with(node.all_input_nodes[0])
                found.module.graph.erase_node(node)

    model = Counted()
    call = Call.of((X.clone().requires_grad_(),), {})
    with acting(0, lambda: None):
        difference = compare(model, call, traced(model, without_detach))
    assert str(difference).startswith("whether mean needs a gradient: False")
    assert not model.mean.requires_grad
    copy.deepcopy(model)


def test_an_output_that_lost_its_gradient() -> None:
    """The values are right, and training would be quietly wrong."""
    outcome = Outcome([X], tree_structure([0]), {"output 0": True}, {}, [])
    assert str(differs(outcome, replace(outcome, attached={"output 0": False}))) == (
        "whether output 0 needs a gradient: True in the model, False in the program"
    )


def test_what_is_no_tensor_is_not_rounded() -> None:
    outcome = Outcome([3], tree_structure([0]), {}, {}, [])
    assert differs(outcome, replace(outcome, outputs=[X]), outcome) == "output 0: int in the model, Tensor in the program"


def test_what_stands_between_threads_is_not_put_back() -> None:
    """An event that forward had set was unset again, and a thread that waited for it would have waited for ever."""
    done = threading.Event()

    class Tells(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            done.set()
            return x + 1

    with state_kept(model := Tells()):
        model(X)
    assert done.is_set()


class Doubles(dict[str, int]):
    """A dictionary of the user's own, which does something when an item is set."""

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key, 2 * value)

    update = None  # type: ignore[assignment]


class Says(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the user's own code runs")


CONTAINERS: Sequence[Callable[[], Any]] = (
    lambda: Counter("aab"),
    lambda: OrderedDict(a=1, b=2, c=3),
    lambda: {"a": 1, "b": 2, "c": 3},
    lambda: defaultdict(int, a=1, b=2),
    lambda: Doubles(a=1, b=2, c=3),
    lambda: Says([1, 2, 3]),
    lambda: [1, 2, 3],
    lambda: {1, 2, 3},
    lambda: deque([1, 2, 3], maxlen=3),
)

CHANGES: Sequence[Callable[[Any], Any]] = (
    lambda held: held.pop("a"),
    lambda held: held.__setitem__("a", 5),
    lambda held: held.__setitem__("new", 6),
    lambda held: held.move_to_end("a"),
    lambda held: held["absent"],
    lambda held: held.popitem(),
    lambda held: held.clear(),
    lambda held: held.pop(),
    lambda held: held.append(4),
    lambda held: held.add(4),
    lambda held: held.reverse(),
)


@given(st.sampled_from(CONTAINERS), st.lists(st.sampled_from(CHANGES), max_size=4))
def test_containers_are_put_back(make: Callable[[], Any], changes: list[Callable[[Any], Any]]) -> None:
    """A counter had twice its counts afterwards, an ordered dictionary another order, and a user's own dictionary was left."""

    class Holds(nn.Module):
        held = make()

        def forward(self) -> None:
            for change in changes:
                with suppress(KeyError, IndexError, AttributeError, TypeError):
                    change(self.held)

    with state_kept(model := Holds()):
        model()
    assert repr(model.held) == repr(make())


def test_a_set_that_is_emptied_and_filled_has_not_changed() -> None:
    """The tracer fills sets anew, so a model that registers buffers in each call was refused, as hashes of strings had it."""
    model = nn.Identity()
    model.names = {0, 8}
    with state_kept(model) as changed:
        assert list(model.names) == [0, 8]
        model.names.clear()
        model.names.update([8, 0])
        assert list(model.names) == [8, 0]
    assert changed == []
    with state_kept(model) as changed:
        model.names.remove(8)
        model.names.add(8.0)
    assert changed == ["names"]


class Amplified(nn.Module):
    """As an untrained network does: a sum's last bits, which depend on the number of threads, become visible."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.sum() - x.flip(0).sum()) * 1e4 + x[:3]


def test_rounding_is_what_the_model_itself_makes_of_other_threads() -> None:
    """EfficientNets were refused on some machines: a lane's one thread was held against eager's two, to a part in 10,000."""
    model, x = Amplified(), torch.linspace(-1, 1, 1_000_003) * 1e3
    call = Call.of((x,), {})
    with threads(1):
        wanted = model(x)
    with threads(2):
        assert not torch.allclose(model(x), wanted, rtol=1e-4), "this machine sums alike with one thread and with two"

        def lane(x: Tensor) -> Tensor:
            with threads(1):
                return model(x)

        assert compare(model, call, lane) is None
        assert "values differ" in str(compare(model, call, lambda x: lane(x) + 200 * (model(x) - lane(x))))
