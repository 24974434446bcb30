"""The property-test material itself: its random modules are legal, reach everything, and its comparison misses nothing."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from models import MODELS, make, numbers
from partitioner.errors import SpecError
from partitioner.testing import (
    KINDS,
    GeneratedModule,
    Recipe,
    Step,
    assert_equal_runs,
    build,
    device_lists,
    difference,
    fake_device_lists,
    modules,
    policies,
    recipes,
)
from partitioner.testing.generate import make_class, written

SLOW_START = (HealthCheck.too_slow, HealthCheck.data_too_large)


# -- random modules --------------------------------------------------------------------------------------------------


def differentiate(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    outputs = [leaf for leaf in pytree.tree_leaves(module(*inputs)) if leaf.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(leaf) for leaf in outputs])


@pytest.mark.slow
def test_eager_differentiates_every_example_and_every_kind_is_reached() -> None:
    kinds: Counter[str] = Counter()

    @settings(max_examples=300, suppress_health_check=SLOW_START)
    @given(modules(max_steps=12), st.booleans())
    def run(module: GeneratedModule, train: bool) -> None:
        module.train(train)
        for seed in range(2):  # the second call meets the buffers that the first one wrote
            differentiate(module, module.example_inputs(seed))
        kinds.update(step.kind for step in module.recipe.steps)

    run()
    assert len(kinds) > 0.9 * len(KINDS), f"rarely drawn: {sorted(set(KINDS) - set(kinds))}"
    for kind in set(KINDS) - set(kinds):  # hypothesis draws unevenly, so chance may leave one out
        assert find(recipes(), lambda recipe, kind=kind: kind in {step.kind for step in recipe.steps})


@settings(suppress_health_check=SLOW_START)
@given(modules(max_steps=12))
def test_the_writer_knows_each_shape_and_what_shares_memory(module: GeneratedModule) -> None:
    """Whether a write is legal is decided from these; a wrong one would surface as a rare error in eager's backward."""
    writer = written(module.recipe)
    source = module.source.rsplit("return", 1)[0] + "return locals()"
    names = make_class(source).forward(module, *module.example_inputs())
    owners: dict[int, int] = {}
    for value in writer.values:
        found = names[value.name]
        assert tuple(found.shape) == (module.recipe.batch, *value.shape), value
        address = found.untyped_storage().data_ptr()
        assert owners.setdefault(address, value.storage) == value.storage, f"{value} shares memory that it should not"


@settings(suppress_health_check=SLOW_START)
@given(modules())
def test_a_recipe_gives_the_same_module_every_time(module: GeneratedModule) -> None:
    again = build(module.recipe)
    assert again.source == module.source
    assert_equal_runs(module, again, module.example_inputs(), train=True)
    assert_equal_runs(module, copy.deepcopy(module), module.example_inputs(), train=False)


def test_every_form_of_output_is_returned() -> None:
    steps = (Step("linear"), Step("add"))
    forms = {form: build(Recipe(steps, outputs=form)) for form in ("tensor", "tuple", "list", "dict", "nested")}
    made = {form: type(module(*module.example_inputs())) for form, module in forms.items()}
    assert made == {"tensor": Tensor, "tuple": tuple, "list": list, "dict": dict, "nested": dict}


def test_another_batch_size_and_seed_give_other_inputs() -> None:
    module = build(Recipe((Step("conv"), Step("norm")), inputs=3, image=True))
    image, flat, state = module.example_inputs(seed=1, batch=2)
    assert (tuple(image.shape), tuple(flat.shape)) == ((2, 6, 4, 4), (2, 6))
    assert image.requires_grad and not state.requires_grad
    assert not torch.equal(image, module.example_inputs(seed=2, batch=2)[0])
    assert module(image, flat, state).shape[0] == 2


def test_a_failing_example_shrinks_to_the_step_that_fails_and_prints_as_code() -> None:
    simplest = find(modules(), lambda module: "relu_" in {step.kind for step in module.recipe.steps})
    assert [step.kind for step in simplest.recipe.steps] == ["relu_"]
    assert "v1.relu_()" in repr(simplest) and "build(Recipe(" in repr(simplest)


def test_a_misspelt_kind_names_the_nearest_ones() -> None:
    with pytest.raises(SpecError, match=r"view_wrote.*view_write"):
        build(Recipe((Step("view_wrote"),)))
    with pytest.raises(SpecError, match="tensor, tuple"):
        build(Recipe((Step("add"),), outputs="set"))


# -- devices and policies --------------------------------------------------------------------------------------------


@given(device_lists(), fake_device_lists())
def test_device_lists_hold_what_they_say(lanes: list[str], fakes: list[str]) -> None:
    assert lanes and len(set(lanes)) == len(lanes) and set(lanes) <= {f"cpu:{index}" for index in range(4)}
    assert fakes and set(fakes) <= {"cpu", *(f"cuda:{index}" for index in range(8))}


def test_policies_are_the_names_given() -> None:
    assert find(policies(["serial", "heft"]), lambda name: True) == "serial"
    assert find(policies(["serial", "heft"]), lambda name: name != "serial") == "heft"
    with pytest.raises(SpecError, match="no names"):
        policies([])


# -- the named models --------------------------------------------------------------------------------------------------


@pytest.mark.sampled(15)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_each_model_equals_its_own_copy(name: str) -> None:
    for train in (True, False):
        model = make(name)
        twin = copy.deepcopy(model)
        assert_equal_runs(model, twin, model.example_inputs(), model.example_kwargs(), train=train)
        assert MODELS[name].__doc__, "a model tells its story"


# -- the comparison ----------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """What the faulty modules below differ from."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.count = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.count.add_(1)
        return {"y": self.layer(x) + torch.rand_like(x)}


class OtherOutput(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": super().forward(x)["y"] + 0.25}


class OtherForm(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"z": super().forward(x)["y"]}


class OtherType(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": super().forward(x)["y"].double()}


class OtherShape(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": super().forward(x)["y"].t()}


class OtherBuffer(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.count.add_(1)
        return super().forward(x)


class OtherDraws(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        result = super().forward(x)
        torch.rand(1)
        return result


class OtherGradient(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        result = super().forward(x)["y"]
        return {"y": result.detach() + 2 * (result - result.detach())}


class NoGradient(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": super().forward(x)["y"].detach()}


class OtherInput(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x.detach().zero_()
        return super().forward(x)


class OtherKeys(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Buffer(torch.zeros(1))
        self.hidden = nn.Buffer(torch.zeros(1), persistent=False)


class OtherSecondCall(Plain):
    """Right on the first call only, as a trace is that ran an update while tracing."""

    calls = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        return {"y": super().forward(x)["y"] * (1.0 if self.calls == 1 else 3.0)}


FAULTS = {
    OtherOutput: r"call 0: output\['y'\]: 12 of 12 elements differ; the most by 0\.25",
    OtherForm: r"output has the form \{'z': 'Tensor'\}, and \{'y': 'Tensor'\} in eager",
    OtherType: r"output\['y'\]: dtype is torch.float64, and torch.float32 in eager",
    OtherShape: r"output\['y'\]: shape is \(4, 3\), and \(3, 4\) in eager",
    OtherBuffer: r"after the last call: count: 1 of 1 elements differ; the most by 2 at \(\): 2.0 in eager, 4.0 in other",
    OtherDraws: "random generator of cpu",
    OtherGradient: r"gradient of layer\.weight: 16 of 16 elements differ",
    NoGradient: r"requires_grad is False, and True in eager(.|\n)*gradient of layer.weight: None, and a tensor",
    OtherInput: r"input\[0\]: 12 of 12 elements differ",
    OtherKeys: r"state_dict key 'extra' is not in eager\n  buffer 'hidden' is not in eager",
    OtherSecondCall: r"call 1: output\['y'\]",
}


@pytest.mark.parametrize("faulty", FAULTS)
def test_each_kind_of_difference_is_found_and_named(faulty: type[Plain]) -> None:
    eager, other = Plain(), faulty()
    other.load_state_dict(eager.state_dict(), strict=False)
    x = numbers(3, 4, gradient=True)
    with pytest.raises(AssertionError, match=FAULTS[faulty]):
        assert_equal_runs(eager, other, (x,), train=True)


def test_all_differences_are_told_at_once() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_equal_runs(Plain(), Plain(), (numbers(3, 4),), train=True)
    text = str(caught.value)
    assert "output['y']" in text and "before the first call: layer.weight" in text and "Plain differs from Plain" in text


def test_both_modules_are_left_as_they_were_found() -> None:
    """So two modules that share their parameters can be compared, and a test can go on with either."""
    module = Plain().eval()
    module.layer.weight.grad = torch.ones(4, 4)
    kept, before = copy.deepcopy(module), torch.get_rng_state()
    assert_equal_runs(module, module, (numbers(3, 4),), train=True)
    assert difference(kept.count, module.count) is None and not module.training
    assert torch.equal(module.layer.weight.grad, torch.ones(4, 4)) and module.layer.bias.grad is None
    assert torch.equal(before, torch.get_rng_state())


class Sums(nn.Module):
    """One input in three branches, called in the order given: the gradients of the input are summed in that order."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> list[Tensor]:
        found = {index: x * (0.1 + index) for index in self.order}
        return [found[index] for index in range(len(self.order))]


def test_the_order_of_two_gradients_is_held_to_the_bit_and_that_of_three_to_rounding() -> None:
    """Addition of floats commutes and does not associate; eager's own order is no promise where three meet."""
    x = numbers(64, 64, gradient=True)
    assert_equal_runs(Sums((0, 1)), Sums((1, 0)), (x,), train=True, gradient_bitwise=True)
    assert_equal_runs(Sums((0, 1, 2)), Sums((2, 0, 1)), (x,), train=True)
    with pytest.raises(AssertionError, match=r"gradient of call 0: input\[0\]"):
        assert_equal_runs(Sums((0, 1, 2)), Sums((2, 0, 1)), (x,), train=True, gradient_bitwise=True)


def test_rounding_is_no_cover_for_a_wrong_gradient() -> None:
    eager, other = Plain(), OtherGradient()
    other.load_state_dict(eager.state_dict())
    with pytest.raises(AssertionError, match="more than rounding"):
        assert_equal_runs(eager, other, (numbers(3, 4),), train=True, gradient_bitwise=False)


def test_values_agree_to_the_bit_or_within_the_tolerance() -> None:
    nan, one = torch.tensor([float("nan"), 0.0]), torch.tensor([1.0])
    assert difference(nan, nan.clone()) is None
    assert difference(nan, torch.tensor([float("nan"), -0.0])) is not None
    assert "inf" in str(difference(one, torch.tensor([float("nan")]), bitwise=False, rtol=1.0))
    assert difference(one, one + 1e-6) is not None
    assert difference(one, one + 1e-6, bitwise=False, rtol=1e-5) is None
    assert difference(one, one * 1.1, bitwise=False, rtol=1e-5) is not None
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) is not None
    assert difference(torch.tensor([1 + 2j]), torch.tensor([1 + 2j])) is None
    assert difference(3, 4) == "4, and 3 in eager"
    assert difference(float("nan"), float("nan")) is None


def test_leaves_of_dataclasses_are_compared_by_name() -> None:
    eager, other = make("DataclassOutput"), make("DataclassOutput")
    with torch.no_grad():
        other.right.weight.add_(1.0)
    with pytest.raises(AssertionError, match=r"output\.hidden\[1\]"):
        assert_equal_runs(eager, other, eager.example_inputs(), train=False)
