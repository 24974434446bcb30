"""The contract of an nn.Module, held by what `partition` returns: state, hooks, modes, arguments, copies, refusals.

Each test does the same to a plain model and to its partitioned twin, and compares. What training does is in test_training.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lanes import NormedTowers, Tower, Towers, assert_same, assert_same_state, numbers, programs, spec, spread, used_lanes
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import zoo
from partitioner import partition
from partitioner.errors import PartitionerError, PlacementError
from partitioner.runtime.module import Parallel

X = numbers(4, 6)

pytestmark = pytest.mark.usefixtures("one_thread")


def twins(model: nn.Module, *inputs: Any, lanes: int = 3) -> tuple[nn.Module, Parallel]:
    """A model, and a partitioned copy of it."""
    return model, spread(model, *inputs, lanes=lanes, copy=True)


# -- state -----------------------------------------------------------------------------------------------------------


def test_the_model_is_moved_and_not_copied() -> None:
    """Memory is what people come for: the result holds the very parameters of the model, in their order."""
    model = Towers()
    parallel = spread(model, X)
    assert list(map(id, model.parameters())) == list(map(id, parallel.parameters()))
    assert [name for name, _ in model.named_modules()] == [name for name, _ in parallel.named_modules()]
    with torch.no_grad():
        model.stem.weight.add_(1.0)
    assert_same(model(X), parallel(X))


def test_copy_leaves_the_model_alone() -> None:
    model = Towers()
    parallel = spread(model, X, copy=True)
    assert not {*map(id, model.parameters())} & {*map(id, parallel.parameters())}
    with torch.no_grad():
        parallel.stem.weight.zero_()
    assert model.stem.weight.any()


class Headed(Towers):
    """With an auxiliary head for training, as GoogLeNet has two."""

    def __init__(self) -> None:
        super().__init__()
        self.aux1 = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.aux1(x) if self.training else x)


def test_keys_of_parts_that_are_never_called() -> None:
    """In eval mode nothing calls the auxiliary head, and a torch.fx GraphModule would lose its keys."""
    model = Headed().eval()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, copy=True, check=False)
    assert any(key.startswith("aux1.") for key in parallel.state_dict())
    assert not any(op.path.startswith("aux") for op in parallel.graph.ops)
    assert list(parallel.state_dict()) == list(model.state_dict())
    assert parallel.state_dict()._metadata == model.state_dict()._metadata


class TiedAutoencoder(nn.Module):
    """Two branches, each of which uses one weight, and the whole uses it a third time."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.right.weight = self.left.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


def test_tied_weights_stay_tied() -> None:
    """One owner, one gradient: the sum over both uses."""
    model, parallel = twins(TiedAutoencoder(), X, lanes=2)
    assert parallel.left.weight is parallel.right.weight
    assert len(list(parallel.parameters())) == 3
    for module in (model, parallel):
        module(X).sum().backward()
    assert_same(model.left.weight.grad, parallel.left.weight.grad)


def test_buffers_are_updated() -> None:
    model, parallel = twins(NormedTowers(), X)
    for _ in range(3):
        torch.manual_seed(1)
        expected = model(X)
        torch.manual_seed(1)
        assert_same(expected, parallel(X))
    assert parallel.towers[0][1].num_batches_tracked == 3
    assert_same_state(model, parallel)


@pytest.mark.parametrize("lanes", [2, 3])
def test_load_state_dict_both_ways(lanes: int) -> None:
    """Plain to partitioned, back, and from one number of lanes to another: the keys are the contract."""
    plain, parallel, other = Towers(), spread(Towers(), X, lanes=lanes), spread(Towers(), X, lanes=5 - lanes)
    assert parallel.load_state_dict(plain.state_dict()).missing_keys == []
    assert_same(plain(X), parallel(X))
    other.load_state_dict(parallel.state_dict())
    assert_same(plain(X), other(X))
    fresh = Towers()
    fresh.load_state_dict(other.state_dict())
    assert_same_state(plain, fresh)


def test_load_state_dict_says_what_is_wrong() -> None:
    parallel = spread(Towers(), X)
    state = parallel.state_dict()
    state["surplus"] = state.pop("head.bias")
    with pytest.raises(RuntimeError, match=r"(?s)head\.bias.*surplus") as raised:
        parallel.load_state_dict(state)
    assert "Towers" in str(raised.value)


def test_load_state_dict_by_assignment() -> None:
    """`assign=True` puts other parameters in the old ones' places, and the next call uses them."""
    plain, parallel = twins(Towers(), X)
    state = Towers().state_dict()
    plain.load_state_dict(state, assign=True)
    parallel.load_state_dict(copy.deepcopy(state), assign=True)
    assert_same(plain(X), parallel(X))


def test_saving_a_state_dict() -> None:
    model, parallel = twins(Towers(), X)
    file = io.BytesIO()
    torch.save(parallel.state_dict(), file)
    file.seek(0)
    fresh = Towers()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert_same_state(model, fresh)


def test_safetensors() -> None:
    """The format holds plain tensors by name, without ties or metadata."""
    safetensors = pytest.importorskip("safetensors.torch")
    model, parallel = twins(NormedTowers(), X)
    saved = safetensors.load(safetensors.save(parallel.state_dict()))
    fresh = spread(NormedTowers(), X, lanes=2)
    fresh.load_state_dict(saved)
    assert_same_state(model, fresh)


class WithExtraState(Towers):
    """Keeps a note beside its tensors."""

    note = "old"

    def get_extra_state(self) -> str:
        return self.note

    def set_extra_state(self, state: str) -> None:
        self.note = state


def test_extra_state_of_the_root() -> None:
    """As a child too: then the parent asks the child to save and load itself."""
    parent = nn.ModuleDict({"body": spread(WithExtraState(), X)})
    state = parent.state_dict()
    assert state["body._extra_state"] == "old"
    state["body._extra_state"] = "new"
    parent.load_state_dict(state)
    assert parent["body"].note == parent["body"].original.note == "new"


def test_state_dict_hooks_of_the_root_run_once() -> None:
    """Registered before partitioning or after it."""
    seen: list[str] = []
    model = Towers()
    model.register_state_dict_post_hook(lambda *_: seen.append("before"))
    parallel = spread(model, X)
    parallel.register_state_dict_post_hook(lambda *_: seen.append("after"))
    parallel.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
    parallel.load_state_dict(parallel.state_dict())
    assert seen == ["before", "after", "load"]


def test_functional_call_uses_the_parameters_that_it_is_given() -> None:
    model, parallel = twins(Towers(), X)
    other = {name: value * 2 for name, value in model.named_parameters()}
    assert_same(torch.func.functional_call(model, other, X), torch.func.functional_call(parallel, other, X))
    assert_same(model(X), parallel(X))


def test_deepcopy_is_independent() -> None:
    """It shows the plan of what it was copied from, until a call makes its own, and shares neither parameters nor modes."""
    model, parallel = twins(NormedTowers(), X)
    twin = copy.deepcopy(parallel)
    assert not {*map(id, parallel.parameters())} & {*map(id, twin.parameters())}
    assert twin.plan is parallel.plan
    twin.eval()
    with torch.no_grad():
        twin.towers[0][0].weight.zero_()
    assert_same_state(model, parallel)
    assert parallel.training and parallel.towers[0].training and not twin.towers[0].training
    torch.manual_seed(1)
    expected = model(X)
    torch.manual_seed(1)
    assert_same(expected, parallel(X))


def test_deepcopy_keeps_ties_and_hooks() -> None:
    seen: list[nn.Module] = []
    parallel = spread(TiedAutoencoder(), X, lanes=2)
    parallel.register_forward_hook(lambda module, args, output: seen.append(module))
    twin = copy.deepcopy(parallel)
    assert twin.left.weight is twin.right.weight
    twin(X)
    assert seen == [twin]


@pytest.mark.parametrize("save", [pickle.dumps, lambda module: torch.save(module, io.BytesIO())])
def test_pickling_is_refused(save: Callable[[nn.Module], Any]) -> None:
    """Generated code and streams do not travel; a GraphModule that is pickled may even come back wrong."""
    with pytest.raises(PartitionerError, match=r"not pickled.*state_dict"):
        save(spread(Towers(), X))


# -- the tree --------------------------------------------------------------------------------------------------------


def test_a_child_of_another_module() -> None:
    """Everything that a parent does to its children reaches the partitioned one, and through it the model."""
    parallel = spread(NormedTowers(), X)
    parent = nn.Sequential(nn.Linear(6, 6), parallel)
    assert "1.towers.0.0.weight" in parent.state_dict()
    parent.eval()
    assert not parallel.training and not parallel.original.training and not parallel.towers[0][2].training
    parent.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in parallel.original.parameters())
    parent.requires_grad_(True)(X).sum().backward()
    parent.zero_grad()
    assert parallel.towers[0][0].weight.grad is None
    plain = copy.deepcopy(nn.Sequential(parent[0], parallel.original))
    parent.double()
    assert_same(plain.double()(X.double()), parent(X.double()))


def test_apply_reaches_every_module() -> None:
    model, parallel = twins(Towers(), X)

    def reset(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.5)

    assert_same(model.apply(reset)(X), parallel.apply(reset)(X))


class WithMethods(Towers):
    """Has attributes that users reach for."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(6)
        self.labels = ("a", "b")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.mask)

    def predict(self, x: Tensor) -> list[str]:
        return [self.labels[int(index)] for index in self(x).argmax(1)]


def test_attributes_and_methods_of_the_model() -> None:
    model, parallel = twins(WithMethods(), X)
    assert parallel.labels == ("a", "b") and parallel.predict(X) == model.predict(X)
    assert "towers" in dir(parallel) and not hasattr(parallel, "nothing")
    with pytest.raises(AttributeError, match="nothing"):
        _ = parallel.nothing


def test_an_attribute_that_is_set_is_the_models() -> None:
    model, parallel = twins(WithMethods(), X)
    model.mask = parallel.mask = torch.zeros(6)
    assert parallel.original.mask is parallel.mask
    assert_same(model(X), parallel(X))


@pytest.mark.parametrize("name", ["head", "towers.1", "towers.2.1"])
def test_a_submodule_that_is_replaced(name: str) -> None:
    """A layer, and a branch of other layers than the plan knows."""
    model, parallel = twins(Towers(), X)
    new = {"head": nn.Linear(18, 3), "towers.1": nn.Sequential(nn.Linear(6, 6), nn.ReLU())}.get(name, nn.Sigmoid())
    model.set_submodule(name, new)
    parallel.set_submodule(name, copy.deepcopy(new))
    assert_same(model(X), parallel(X))


def test_parametrized_before() -> None:
    """A weight that is computed from others on each access is computed where it is used."""
    model = Towers()
    nn.utils.parametrizations.weight_norm(model.towers[0][0])
    nn.utils.parametrize.register_parametrization(model.towers[1][0], "weight", nn.Tanh())
    model, parallel = twins(model, X)
    assert_same(model(X), parallel(X))
    for module in (model, parallel):
        module(X).sum().backward()
    key = "towers.1.0.parametrizations.weight.original"
    assert_same(model.get_parameter(key).grad, parallel.get_parameter(key).grad)


def test_parametrized_after() -> None:
    model, parallel = twins(Towers(), X)
    for module in (model, parallel):
        nn.utils.parametrize.register_parametrization(module.towers[1][0], "weight", nn.Tanh())
        nn.utils.parametrize.register_parametrization(module.head, "bias", nn.Tanh())
    assert_same(model(X), parallel(X))
    assert_same_state(model, parallel)
    for module in (model, parallel):
        nn.utils.parametrize.remove_parametrizations(module.head, "bias")
    assert_same(model(X), parallel(X))


def test_it_prints_what_was_made() -> None:
    parallel = spread(Towers(), X)
    assert repr(parallel).startswith("Parallel(Towers): ")
    assert "cpu/0, cpu/1, cpu/2" in repr(parallel)
    assert "def host_2" in parallel.code and set(parallel.placement.lane) == {task.name for task in parallel.plan.tasks.tasks}
    assert set(parallel.dag) == {op.name for op in parallel.graph.ops}


# -- hooks -----------------------------------------------------------------------------------------------------------


def test_hooks_on_leaf_modules() -> None:
    """Before and after partitioning; what they see and what they change is what eager gives."""
    model = Towers()
    seen: list[tuple[str, Tensor, Tensor]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda module, args, output: seen.append((name, args[0].detach(), output.detach()))

    model.towers[0][0].register_forward_hook(note("before"))
    model.towers[1][0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    parallel = partition(model, example_inputs=X, spec=spec())
    seen.clear()
    handle = parallel.towers[2][2].register_forward_hook(note("after"))
    ours = parallel(X)
    observed, seen[:] = list(seen), []
    assert_same(model(X), ours)
    assert_same(seen, observed)
    assert [name for name, *_ in observed] == ["before", "after"]
    handle.remove()
    seen.clear()
    parallel(X)
    assert [name for name, *_ in seen] == ["before"]


def test_hooks_on_the_root_run_once() -> None:
    """Those that came with the model, and those that came later; with and without keyword arguments."""
    model = Towers()
    seen: list[str] = []
    model.register_forward_pre_hook(lambda module, args: seen.append("pre"))
    model.register_forward_hook(lambda module, args, output: output + 1)
    bare = Towers()
    bare.load_state_dict(model.state_dict())
    parallel = spread(model, X)
    seen.clear()
    parallel.register_forward_pre_hook(lambda module, args, kwargs: seen.append("kwargs"), with_kwargs=True)
    parallel.register_forward_hook(lambda module, args, output: seen.append("post"))
    assert_same(bare(X) + 1, parallel(X))
    assert seen == ["pre", "kwargs", "post"]


def test_backward_hooks_on_the_root_and_on_leaves() -> None:
    model, parallel = twins(Towers(), X)
    seen: dict[nn.Module, list[Tensor]] = {model: [], parallel: []}
    for module, found in seen.items():
        module.register_full_backward_hook(lambda m, grads, outs, found=found: found.append(outs[0]))
        module.head.register_full_backward_hook(lambda m, grads, outs, found=found: found.append(grads[0]))
        module(X.clone().requires_grad_()).square().sum().backward()
    assert len(seen[model]) == 2
    assert_same(seen[model], seen[parallel])


def test_tensor_hooks_on_parameters() -> None:
    _, parallel = twins(Towers(), X)
    seen: list[Tensor] = []
    parallel.head.weight.register_hook(seen.append)
    parallel.stem.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad))
    parallel(X).sum().backward()
    assert len(seen) == 2


# -- modes -----------------------------------------------------------------------------------------------------------


def test_the_other_mode_is_traced_when_it_is_first_used() -> None:
    model, parallel = twins(NormedTowers(), X)
    training = parallel.plan
    assert parallel.eval() is parallel and parallel.plan is training
    assert_same(model.eval()(X), parallel(X))
    evaluating = parallel.plan
    assert evaluating is not training
    model.train(), parallel.train()
    torch.manual_seed(2)
    expected = model(X)
    torch.manual_seed(2)
    assert_same(expected, parallel(X))
    assert parallel.plan is training
    assert_same(model.eval()(X), parallel.eval()(X))
    assert parallel.plan is evaluating


def test_one_submodule_in_eval_mode() -> None:
    """Frozen batch norm, as in fine-tuning: that module's statistics stay, the others' move."""
    model, parallel = twins(NormedTowers(), X)
    for module in (model, parallel):
        module.towers[1].eval()
        torch.manual_seed(2)
        module(X)
    assert parallel.towers[0][1].num_batches_tracked == 1 and parallel.towers[1][1].num_batches_tracked == 0
    assert_same_state(model, parallel)


@pytest.mark.parametrize("through", ["attribute", "original"])
def test_a_mode_set_without_train(through: str) -> None:
    """Some libraries put `training` back by hand, and some hold the model itself: there is one mode, not two."""
    model, parallel = twins(Towers(), X)
    target = parallel if through == "attribute" else parallel.original
    target.training = model.training = False
    assert parallel.training is parallel.original.training is False
    assert_same(model(X), parallel(X))


# -- arguments and results -------------------------------------------------------------------------------------------


@dataclass
class Batch:
    """A user's own container."""

    x: Tensor
    extra: list[Tensor]
    scale: float


@dataclass
class Answer:
    """A user's own result."""

    total: Tensor
    parts: dict[str, Tensor]


for _container in (Batch, Answer):
    pytree.register_dataclass(_container)


class Flexible(Towers):
    """Takes and gives structures."""

    def forward(self, batch: Any, scale: float = 1.0, *, bias: Tensor | None = None, names: Any = ("a",)) -> Any:
        total = super().forward(batch["x"]) * scale
        if bias is not None:
            total = total + bias
        return total, [{"sum": total.sum(), **dict.fromkeys(names, total * 2)}, None, "text"], (batch["y"],)


def test_nested_inputs_and_outputs() -> None:
    """Tensors at any depth; flags, None and text are constants, and a call with others gets a program of its own."""
    batch = {"x": X, "y": numbers(2, seed=3), "unused": [X]}
    model, parallel = twins(Flexible(), batch)
    for kwargs in ({}, {"scale": 2.0}, {"bias": numbers(2)}, {"bias": None, "names": ["b", "c"]}, {"scale": 2.0}):
        assert_same(model(batch, **kwargs), parallel(batch, **kwargs))
    assert_same(model(batch, 3.0), parallel(batch, 3.0))
    assert parallel(batch)[2][0] is batch["y"]


def test_a_true_is_no_one() -> None:
    """`True == 1` and `1 == 1.0`, and yet they are other arguments: types are guarded."""
    model, parallel = twins(Flexible(), {"x": X, "y": X})
    integers = {"x": X, "y": X}
    for scale in (1, True, 1.0, 0, False, 0.0):
        assert_same(model(integers, scale), parallel(integers, scale))


class TakesDataclass(Towers):
    """Dataclass in, dataclass out."""

    def forward(self, batch: Batch) -> Answer:
        total = super().forward(batch.x) * batch.scale
        return Answer(total, {str(n): total + extra for n, extra in enumerate(batch.extra)})


def test_registered_dataclasses() -> None:
    model, parallel = twins(TakesDataclass(), Batch(X, [numbers(2)], 2.0))
    for batch in (Batch(X + 1, [numbers(2)], 2.0), Batch(X, [], 2.0), Batch(X, [numbers(2), numbers(1)], 3.0)):
        result = parallel(batch)
        assert type(result) is Answer
        assert_same(model(batch), result)


def test_model_output_of_transformers() -> None:
    """A ModelOutput is a dataclass, a dict and a tuple at once, and comes out as one."""
    entry = zoo.ZOO["transformers/bert"]
    if not entry.installed:
        pytest.skip("transformers is not installed")
    model = entry.build()
    _, kwargs = entry.inputs()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_kwargs=kwargs, copy=True)
    with torch.no_grad():
        expected, result = model(**kwargs), parallel(**kwargs)
    assert type(result) is type(expected) and list(result.keys()) == list(expected.keys())
    torch.testing.assert_close(result.last_hidden_state, expected.last_hidden_state)
    torch.testing.assert_close(result[1], expected["pooler_output"])


def test_positional_and_keyword_arguments_are_one() -> None:
    model, parallel = twins(Towers(), X)
    assert_same(model(x=X), parallel(x=X))
    assert_same(model(X), parallel(X))


def test_the_first_other_batch_size_opens_the_dimension() -> None:
    """One program for the example's size, one for all others. Sizes 0 and 1 may mean something else, and get their own."""
    model, parallel = twins(Towers(), X)
    for batch in (3, 17, 5, 9, 4):
        assert_same(model(numbers(batch, 6)), parallel(numbers(batch, 6)))
    assert_same(model(numbers(2, 3, 6)[0]), parallel(numbers(2, 3, 6)[0]))
    assert programs(parallel) == 2
    for batch in (1, 0, 1, 2):
        assert_same(model(numbers(batch, 6)), parallel(numbers(batch, 6)))
    assert programs(parallel) <= 4


class BranchesOnShape(Towers):
    """Other sizes are other programs."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] % 2:
            x = x[:, :-1]
        h = x.unflatten(1, (-1, 6)).sum(1)
        return super().forward(h)


def test_other_shapes_are_traced_when_they_come() -> None:
    model, parallel = twins(BranchesOnShape(), X)
    for shape in ((4, 6), (9, 6), (4, 12), (4, 13), (2, 18), (5, 19), (4, 6)):
        assert_same(model(numbers(*shape)), parallel(numbers(*shape)))


def test_changing_constants_are_noticed() -> None:
    """An argument that is no tensor and can be changed in place: what it holds is guarded, not who it is."""
    model, parallel = twins(Flexible(), {"x": X, "y": X})
    names = {"a"}
    assert_same(model({"x": X, "y": X}, names=names), parallel({"x": X, "y": X}, names=names))
    names.add("b")
    result = parallel({"x": X, "y": X}, names=names)
    assert {"a", "b"} <= result[1][0].keys()


def test_other_dtypes() -> None:
    """The module is converted, and the input with it; both programs stay right."""
    model, parallel = twins(Towers(), X)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype), parallel.to(dtype)
        assert parallel.stem.weight.dtype == dtype
        result = parallel(X.to(dtype))
        assert result.dtype == dtype
        assert_same(model(X.to(dtype)), result)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["half", "bfloat16", "double", "float"])
def test_methods_that_change_dtypes(name: str) -> None:
    model, parallel = twins(NormedTowers().eval(), X)
    assert getattr(parallel, name)() is parallel
    getattr(model, name)()
    x = X.to(model.towers[0][0].weight.dtype)
    assert_same(model(x), parallel(x))
    assert parallel.towers[0][1].num_batches_tracked.dtype == torch.int64


def test_integer_inputs() -> None:
    model, parallel = twins(nn.Sequential(nn.Embedding(9, 6), Towers()), torch.arange(4))
    for dtype in (torch.int64, torch.int32):
        assert_same(model(torch.tensor([3, 8], dtype=dtype)), parallel(torch.tensor([3, 8], dtype=dtype)))


def test_strided_inputs() -> None:
    """Transposed, expanded, empty."""
    model, parallel = twins(Towers(), X)
    for x in (numbers(6, 4).t(), numbers(1, 6).expand(5, 6), numbers(0, 6), numbers(8, 6)[::2]):
        assert_same(model(x), parallel(x))


# -- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda module: module.to("meta"), id="to"),
        pytest.param(lambda module: module.to(device="meta", dtype=torch.float64), id="to with dtype"),
        pytest.param(lambda module: module.to(torch.empty(1, device="meta")), id="to tensor"),
        pytest.param(lambda module: module.to_empty(device="meta"), id="to_empty"),
        pytest.param(lambda module: nn.Sequential(module).to("meta"), id="parent"),
    ],
)
def test_moving_is_refused(move: Callable[[nn.Module], Any]) -> None:
    """A plan says where everything lies; the error says what to do instead, and nothing has moved."""
    model, parallel = twins(Towers(), X)
    with pytest.raises(PlacementError) as raised:
        move(parallel)
    text = str(raised.value)
    assert text.startswith("Towers is partitioned over cpu; moving what lies on cpu to meta would break its plan.")
    assert "partition(parallel.original, devices=[...])" in text
    assert_same(model(X), parallel(X))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where there is no GPU")
@pytest.mark.parametrize("move", [lambda module: module.cuda(), lambda module: module.to("cuda:0")])
def test_moving_to_what_is_not_there_is_refused(move: Callable[[nn.Module], Any]) -> None:
    model, parallel = twins(Towers(), X)
    with pytest.raises(PlacementError, match="would break its plan"):
        move(parallel)
    assert_same(model(X), parallel(X))


def test_moving_to_where_it_is() -> None:
    model, parallel = twins(Towers(), X)
    assert_same(model(X), parallel.cpu().to("cpu").to(torch.device("cpu"))(X))


def test_partitioning_again() -> None:
    """The advice of that error, and its shortcut; ties to the first result remain."""
    model, parallel = twins(Towers(), X)
    again = spread(parallel.original, X, lanes=2)
    assert again.stem.weight is parallel.stem.weight and len(used_lanes(again)) == 2
    assert_same(model(X), again(X))
    assert_same(model(X), spread(parallel, X, lanes=2)(X))


def test_the_model_still_works_by_itself() -> None:
    model = Towers()
    parallel = spread(model, X)
    assert parallel.original is model
    assert_same(model(X), parallel(X))


def test_a_tower_alone_still_works() -> None:
    """Submodules are the model's own and can be called."""
    parallel = spread(Towers(), X)
    assert isinstance(parallel.towers[0], Tower)
    assert parallel.towers[0](X).shape == (4, 6)
