"""State on several devices: placed by the first program, taken where it is by all that come later.

The accelerators are pretended (see `pretend`): a fake of a tensor lies where the tensor says it lies, so a model whose state
has been spread cannot be traced as it lies, just as on a machine that has them.
"""

from __future__ import annotations

import copy
import gc
import logging
import random
import re
import weakref
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from lanes import NormedTowers, Tower, Towers, assert_same, numbers
from pretend import MIXED, TWO, World, put, put_at, spec, spread
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from models import MODELS, make
from partitioner import InputError, PlacementError, TraceError, partition
from partitioner.driver import planned
from partitioner.frontend.capture.refusal import WITHOUT_VALUES, Together
from partitioner.ir.mode import Mode
from partitioner.ir.plan import state_devices
from partitioner.lower.modes import with_autocast
from partitioner.runtime.module import Parallel
from partitioner.runtime.moving import move_state
from partitioner.runtime.pieces import Piece

X = numbers(4, 6)
MACHINES = {"two GPUs": TWO, "GPU and CPU": MIXED}
EACH = pytest.mark.parametrize("lanes", MACHINES.values(), ids=MACHINES)

pytestmark = pytest.mark.usefixtures("one_thread", "world")


class Habits(nn.Module):
    """Two towers, a buffer that forward replaces, and whatever else ``habit`` asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Tower(), Tower()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("total", torch.zeros(6))
        self.unused = nn.Parameter(torch.zeros(3))
        self.habit = ""
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        a, b = self.left(x), self.right(x)
        self.total = self.total + a.detach().sum(0)
        self.calls += 1
        if self.habit == "raise":
            raise LookupError("mine")
        if self.habit == "values" and (x < 9).all():
            raise ValueError(f"below 9: {list(x.shape)}")
        if self.habit == "key":
            a = a * {"one": 1}[self.habit]
        if self.habit == "shape":
            a = a.view(7)
        if self.habit == "index":
            a = a[:, 7]
        if self.habit == "branch" and a.sum() > 0:
            b = b * 2
        if self.habit == "draw" and random.random() < 0.5:
            b = b * 2
        if self.habit == "count":
            b = b * int(random.random() * 3)
        if self.habit == "print":
            print(a.shape, a)
        return self.drop(a) * b

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Another method that uses the parts."""
        return self.left(x), self.right(x)


def homes(parallel: Parallel) -> dict[str, str]:
    """The device of each parameter and buffer."""
    return {name: str(tensor.device) for name, tensor in parallel.state_dict(keep_vars=True).items()}


def lies_as_planned(parallel: Parallel) -> bool:
    """Whether every program that was made uses state where it is."""
    pieces = parallel._partitioner_programs.pieces
    found = homes(parallel)
    return all(found[name] == device for piece in pieces for name, device in state_devices(piece.plan).items())


def eager(model: nn.Module, *inputs: Tensor, seed: int = 0) -> Any:
    """What the model itself gives, from one seed."""
    torch.manual_seed(seed)
    return model(*inputs)


# -- placed once -----------------------------------------------------------------------------------------------------


@EACH
def test_the_first_program_places_state(lanes: dict[str, int]) -> None:
    """In place: whoever held a parameter holds it still. What no op uses goes to the first device."""
    model = Habits().eval()
    held = {name: id(parameter) for name, parameter in model.named_parameters()}
    parallel = spread(model, (X,), lanes)
    assert set(homes(parallel).values()) == set(lanes)
    assert lies_as_planned(parallel)
    assert homes(parallel)["unused"] == "lazy:0"
    assert held == {name: id(parameter) for name, parameter in parallel.named_parameters()}
    assert homes(parallel)["left.0.weight"] == homes(parallel)["left.0.bias"]


def test_tied_state_stays_tied() -> None:
    model = Habits().eval()
    model.right[2].weight = model.left[0].weight
    parallel = spread(model, (X,), TWO)
    assert parallel.right[2].weight is parallel.left[0].weight
    with torch.no_grad():
        assert_same(eager(copy.deepcopy(model), X), eager(parallel, X))


class Plain(nn.Module):
    """Tensors that are no parameters and no buffers: an attribute, one of a list, one of a module that is not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.rand(6)
        self.held = [torch.rand(6), nn.Linear(6, 6)]

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        return self.held[1](x * self.scale) + x.tanh() * self.held[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lanes", [TWO, MIXED, {"lazy:0": 2}], ids=["two GPUs", "GPU and CPU", "one GPU"])
@pytest.mark.parametrize("examples", [(X,), None], ids=["examples", "none"])
def test_state_that_is_not_registered(lanes: dict[str, int], examples: tuple[Tensor, ...] | None) -> None:
    """It is placed as well, where the model has nothing else."""
    model = Plain()
    parallel = partition(model, example_inputs=examples, spec=spec(lanes), copy=True)
    with torch.no_grad():
        for batch in (4, 3):
            assert_same(model(numbers(batch, 6)), parallel(numbers(batch, 6)))
    held = [parallel.scale, parallel.held[0], *parallel.held[1].parameters()]
    assert {str(tensor.device) for tensor in held} <= set(lanes)


# -- later programs --------------------------------------------------------------------------------------------------


@EACH
def test_later_programs_take_state_where_it_is(lanes: dict[str, int]) -> None:
    """Another mode, another batch size, another grad mode: each is traced although state lies on several devices."""
    model = Habits()
    parallel = spread(model, (X,), lanes, copy=True)
    placed = homes(parallel)
    for number, (train, batch, grad) in enumerate([(True, 4, True), (False, 4, True), (False, 3, True), (True, 7, False)]):
        model.train(train), parallel.train(train)
        with torch.set_grad_enabled(grad):
            x = numbers(batch, 6, seed=number)
            assert_same(eager(model, x).detach(), eager(parallel, x).detach())
    assert len(parallel._partitioner_programs.pieces) >= 4
    assert homes(parallel) == placed and lies_as_planned(parallel)
    assert_same(model.total, parallel.total.cpu())


class Cooled(Habits):
    """Divided by a number that a schedule changes."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.temperature


@EACH
def test_a_number_that_changes_is_no_tensor_of_the_hosts(lanes: dict[str, int]) -> None:
    """The tracer passes it as one, and that was refused where there is no host: "temperature lies on cpu"."""
    model = Cooled().eval()
    parallel = spread(model, (X,), lanes, copy=True)
    for model.temperature in (2.0, 1.5, 0.5, 0.1):
        parallel.temperature = model.temperature
        with torch.no_grad():
            assert_same(eager(model, X), eager(parallel, X))
    assert len(parallel._partitioner_programs.pieces) == 2


def test_one_program_serves_all_batch_sizes() -> None:
    """The first other size opens the dimension, also where state is spread."""
    model = Towers()
    parallel = spread(model, (X,), TWO, copy=True)
    for batch in (4, 3, 5, 6, 9):
        assert_same(model(numbers(batch, 6)).detach(), parallel(numbers(batch, 6)).detach())
    assert len(parallel._partitioner_programs.pieces) == 2


class Exchanging(nn.Module):
    """Two layers that change places in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, 6) to (batch, 6)."""
        y = self.left(x).tanh() * self.right(x)
        self.left, self.right = self.right, self.left
        return y


@pytest.mark.usefixtures("scattering")
def test_layers_that_forward_exchanges() -> None:
    """Torch guards on which device each weight lies, so that each order has its program."""
    model = Exchanging()
    parallel = spread(model, (X,), TWO, copy=True, policy="scatter")
    for _ in range(3):
        assert_same(model(X).detach(), parallel(X).detach())


@EACH
def test_training(lanes: dict[str, int]) -> None:
    """Gradients lie where their parameters do; statistics, dropout and updates as in eager."""
    model = nn.Sequential(nn.Linear(6, 6), NormedTowers())
    parallel = spread(model, (X,), lanes, copy=True)
    for module in (model, parallel):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(0)
        for step in range(4):
            optimizer.zero_grad()
            module(numbers(4, 6, seed=step)).square().mean().backward()
            optimizer.step()
    for (name, mine), theirs in zip(model.state_dict().items(), parallel.state_dict().values(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5, msg=name)


def test_autocast_makes_a_program_of_its_own() -> None:
    model = Towers()
    parallel = spread(model, (X,), TWO, copy=True)
    for dtype in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16), torch.no_grad():
            found = parallel(X)
            assert_same(model(X), found)
            assert found.dtype is dtype
    assert len(parallel._partitioner_programs.pieces) == 2


class Seen(TorchDispatchMode):
    """Writes down what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lanes", [TWO, {"lazy:0": 2}, {"cpu": 2}], ids=["two GPUs", "one GPU", "CPU"])
def test_under_a_dispatch_mode(lanes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode sees the ops of the program, traced under it or not; afterwards lanes go on."""
    model = Towers()
    parallel = spread(model, (X,), lanes, copy=True, check=False)
    ran: list[Piece] = []
    call = Piece.__call__
    monkeypatch.setattr(Piece, "__call__", lambda piece, *arguments: (ran.append(piece), call(piece, *arguments))[1])
    for batch in (4, 3, 5):
        x = numbers(batch, 6)
        with Seen() as mine, torch.no_grad():
            expected = model(x)
        with Seen() as theirs, torch.no_grad():
            assert_same(expected, parallel(x))
        assert mine.ops.count("aten.addmm.default") == theirs.ops.count("aten.addmm.default") == 8
        ran.clear()
        assert_same(model(x).detach(), parallel(x).detach())
        assert len(ran) == 1


@pytest.mark.parametrize("traced_on", ["cuda:0", "cpu"])
def test_autocast_follows_an_op_to_another_kind_of_device(traced_on: str) -> None:
    """What is placed on another kind of device than the traced one is under that autocast there, whatever it had of its own."""
    plan = planned(Towers(), example_inputs=X, spec=spec({"cuda:0": 1, "cpu": 1}))
    plan = replace(plan, graph=replace(plan.graph, device=traced_on))
    home, away = (traced_on[:4].strip(":"), "cpu") if traced_on != "cpu" else ("cpu", "cuda")
    on, off = (home, True, "float16"), (away, False, "bfloat16")
    moved = with_autocast(plan, Mode(autocast=(off, on)))
    own = Mode(grad=False, autocast=((away, True, "bfloat16"), (home, False, "float16")))
    ruled = replace(plan, graph=replace(plan.graph, ops=tuple(replace(op, mode=own) for op in plan.graph.ops)))
    lanes = {op: plan.machine.lanes[plan.placement.lane[task]].kind for op, task in plan.tasks.task_of.items()}
    assert set(lanes.values()) == {"cuda", "cpu"}
    both = zip(plan.graph.ops, moved.graph.ops, with_autocast(ruled, Mode()).graph.ops, strict=True)
    for old, new, other in both:
        if lanes[old.name] == home:
            assert new is old and other.mode == own
        else:
            assert new.mode == Mode(autocast=((away, True, "float16"), on))
            assert other.mode == Mode(grad=False, autocast=((away, False, "float16"), (home, False, "float16")))
    assert with_autocast(plan, Mode(autocast=(off, (home, False, "float16")))) is plan


def test_a_model_is_traced_where_it_came_from() -> None:
    """Its forward may make tensors without naming a device, or name the one that it was on: they go where their readers are."""

    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = Tower(), Tower()

        def forward(self, x: Tensor) -> Tensor:
            a = self.left(x) + torch.arange(6)
            b = self.right(x) + torch.zeros(len(x), 1, device="cpu") + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
            return a.to("cpu") * b.cpu() * torch.ones(6, device=x.device)

    model = Makes()
    for lanes in (TWO, MIXED, {"lazy:0": 2}):
        parallel = spread(model, (X,), lanes, copy=True)
        for batch in (4, 3, 5):
            assert_same(model(numbers(batch, 6)).detach(), parallel(numbers(batch, 6)).detach())
        assert "runs as it is" not in str(parallel)


def test_copies_are_made_under_the_modes_of_the_call() -> None:
    """A value that crosses just after an op of a region without gradients keeps its history, and is no inference tensor."""

    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.third = Tower(), Tower(), Tower()

        def forward(self, x: Tensor) -> Tensor:
            a = self.left(x)
            with torch.no_grad():
                b = self.right(a)
            with torch.inference_mode():
                c = b.mean(0) * 2
            return self.third(a * b) + self.right(a) + c

    model = Regions()
    for lanes in (TWO, MIXED):
        parallel = spread(model, (X,), lanes, copy=True)
        for module in (model, parallel):
            module.zero_grad()
            module(X).square().sum().backward()
        for (name, mine), theirs in zip(model.named_parameters(), parallel.parameters(), strict=True):
            torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_a_replaced_buffer_lands_on_the_model() -> None:
    model = Habits().eval()
    parallel = spread(model, (X,), TWO, copy=True)
    with torch.no_grad():
        for number in range(3):
            model(numbers(4, 6, seed=number)), parallel(numbers(4, 6, seed=number))
    assert_same(model.total, parallel.total)
    assert parallel.original.total is parallel.total and type(parallel.total) is Tensor
    assert "total" in parallel._buffers and parallel.calls == model.calls == 3


def test_other_methods_run_through_lanes(world: World) -> None:
    model = Habits().eval()
    parallel = spread(model, (X,), TWO, copy=True)
    with torch.no_grad():
        world.issued.clear()
        assert_same(model.halves(X), parallel.halves(X))
    assert {stream for stream, what in world.issued if what == "linear"} == {"lazy:0/caller", "lazy:1/1"}


# -- hazards ---------------------------------------------------------------------------------------------------------

PYTHON = {"CumulativeStatistics", "DataDependent", "HiddenControlFlow", "StateRead"}
"""Hazards in which Python decides on data, or asks for the state of a generator."""


def leaves(tree: Any) -> list[Any]:
    """Tensors and other values of a result; of a dataclass, its fields."""
    found = pytree.tree_leaves(tree)
    return [part for leaf in found for part in (leaves(vars(leaf)) if is_dataclass(leaf) else [leaf])]


def assert_two_calls_alike(model: Any, parallel: nn.Module) -> None:
    """Results, written inputs and, in the end, state of two calls of a hazard are eager's."""
    for _ in range(2):
        results, inputs = [], []
        for module in (model, parallel):
            args, kwargs = model.example_inputs(), model.example_kwargs()
            torch.manual_seed(0), random.seed(0), np.random.seed(0)
            results.append(leaves(module(*args, **kwargs)))
            inputs.append(
                [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
            )
        for mine, theirs in zip(results[0] + inputs[0], results[1] + inputs[1], strict=True):
            if isinstance(mine, Tensor):
                torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5, equal_nan=True, check_device=False)
            else:
                assert mine == theirs
        torch.testing.assert_close(dict(parallel.state_dict()), dict(model.state_dict()), rtol=1e-5, atol=1e-6, equal_nan=True)


ON_BOTH = [pytest.param(name, lanes, id=f"{name}-{where}") for name in sorted(MODELS) for where, lanes in MACHINES.items()]
"""Every hazard on both machines."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "lanes"), ON_BOTH)
@pytest.mark.filterwarnings("ignore")  # some of these models make torch warn in eager, too
def test_hazards(name: str, lanes: dict[str, int]) -> None:
    """Two calls with results, buffers and written inputs as in eager, in training; or refused with a reason."""
    model, parallel = make(name).train(), None
    try:
        parallel = spread(make(name).train(), model.example_inputs(), lanes, example_kwargs=model.example_kwargs(), check=False)
    except TraceError as error:
        assert name in PYTHON and "cannot be one graph" in str(error)
        return
    assert_two_calls_alike(model, parallel)


# -- refusals --------------------------------------------------------------------------------------------------------


def here(text: str) -> int:
    """The line of this file that holds ``text``."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("habit", "reason", "line"),
    [
        ("branch", "Python decides on the value of a tensor", 'habit == "branch"'),
        ("draw", "Python (decides on|computes with) a number that it draws", 'habit == "draw"'),
        ("count", "Python computes with a number that it draws", "int(random.random() * 3)"),
        ("print", "it prints", "print(a.shape, a)"),
    ],
)
def test_a_graph_break_is_refused(habit: str, reason: str, line: str) -> None:
    """With its reason and its line. The module is as it was, and goes on."""
    model = Habits().eval()
    parallel = spread(model, (X,), TWO, copy=True)
    before = {name: tensor.clone() for name, tensor in parallel.state_dict().items()}
    parallel.habit = habit
    with pytest.raises(TraceError, match=f"cannot be one graph.*{reason}.*{re.escape(__file__)}:{here(line)}"):
        parallel(X)
    assert_same(before, dict(parallel.state_dict()))
    assert parallel.calls == 0 and type(parallel.total) is Tensor
    parallel.habit = ""
    assert_same(model(X).detach(), parallel(X).detach())


def test_a_graph_break_in_the_example_is_refused() -> None:
    """Before anything has moved."""
    model = Habits()
    model.habit = "branch"
    with pytest.raises(TraceError, match="Python decides on the value of a tensor"):
        spread(model, (X,), TWO)
    assert {str(tensor.device) for tensor in model.state_dict().values()} == {"cpu"} and model.calls == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("habit", "kind", "text"),
    [
        ("raise", LookupError, "^mine$"),
        ("values", ValueError, r"^below 9: \[4, 6\]$"),
        ("key", KeyError, "^'key'$"),
        ("shape", RuntimeError, r"^shape '\[7\]' is invalid for input of size 24$"),
        ("index", IndexError, "^index 7 is out of bounds for dimension 1 with size 6$"),
    ],
)
def test_what_the_model_raises_comes_out(habit: str, kind: type[Exception], text: str) -> None:
    """The type and the text that eager has, and nothing of it stays behind."""
    model = Habits().eval()
    parallel = spread(model, (X,), TWO, copy=True)
    model.habit = parallel.habit = habit
    with pytest.raises(kind, match=text):
        model(X)
    with pytest.raises(kind) as caught:
        parallel(X)
    assert type(caught.value) is kind and re.search(text, str(caught.value)) and not hasattr(caught.value, "__notes__")
    model.habit = parallel.habit = ""
    assert type(parallel.total) is Tensor
    with torch.no_grad():
        parallel.total.copy_(model.total)
        assert_same(model(X), parallel(X))
        assert_same(model.total, parallel.total)


def test_a_model_on_several_devices_is_asked_what_it_raises() -> None:
    """With values, so that what they decide is what it raises: each op has its tensors where its first one lies."""
    with FakeTensorMode(), Together():
        x, weight = torch.ones(3, device="lazy:0"), torch.ones(2, 3, device="lazy:1")
        assert [str(each.device) for each in (x @ weight.T, weight * x, x.add_(weight[0]))] == ["lazy:0", "lazy:1", "lazy:0"]


@torch.library.custom_op("partitioner_tests::halved", mutates_args=("x",))
def halved(x: Tensor) -> None:
    """An op with a rule for fakes that is stricter than the op itself, as that of torch's grouped matrix products is."""
    x /= 2


@halved.register_fake
def _(x: Tensor) -> None:
    raise RuntimeError("expected bfloat16")


@torch.library.custom_op("partitioner_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """An op without a rule for fakes."""
    return x * 2


class Strict(nn.Module):
    """Two towers, and an op that fakes do not take."""

    def __init__(self, op: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.op, self.left, self.right = op, Tower(), Tower()
        self.register_buffer("total", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (4, 6) to (4, 6), and writes its argument and the buffer."""
        self.total += x
        self.op(x.neg_())
        return self.left(x) * self.right(x)


@pytest.mark.parametrize(("op", "reason"), [(halved, "expected bfloat16"), (doubled, "no fake impl")], ids=["strict", "none"])
@pytest.mark.parametrize("check", [True, False])
def test_what_fakes_do_not_take_is_no_fault_of_the_models(op: Callable[[Tensor], Any], reason: str, check: bool) -> None:
    """The mixture of experts of phimoe ran in eager, and was said to fail on its examples; what had failed was a rule of
    torch's for fakes, which wanted bfloat16. Now the model is asked, and it and the arguments are left as they were."""
    model, x = Strict(op).eval(), X.clone()
    with torch.no_grad():
        assert model(x.clone()).isfinite().all()
        model.total.zero_()
        with pytest.raises(TraceError, match=f"cannot be one graph.*{reason}.*Strict itself raises nothing on this call"):
            planned(model, ["cuda:0", "cuda:1"], example_inputs=x, check=check)
    assert_same(x, X)
    assert not model.total.any()


LOGGER = logging.getLogger("models")
SCALE, GENERATOR = torch.ones(6, requires_grad=True), torch.Generator()
BEYOND: dict[str, Callable[[Tensor], object]] = {
    r"does not look into pack_padded_sequence": lambda x: nn.utils.rnn.pack_padded_sequence(x[..., None], [4] * 6),
    r"it makes an object of a library of C\+\+": lambda x: torch._C._DisableTorchDispatch(),
    r"an op gives what is no tensor": lambda x: torch.random.fork_rng(devices=[]).__enter__(),
    r"it logs": lambda x: LOGGER.error("called %s", x),
    r"torch's tracer takes no sparse Tensor": lambda x: x.to_sparse(),
    r"it makes a torch\.Generator": lambda x: torch.Generator(),
    r"an op is given a Generator, which no graph can hold": lambda x: torch.rand(4, generator=GENERATOR),
    r"Tensor\.numpy\(\) gives values to Python": lambda x: x.detach().numpy(),
    r"it makes a parameter, or a layer that has one": lambda x: nn.Linear(6, 6)(x),
    r"Attempted to use tensor creation function with requires_grad=True": lambda x: torch.ones(6, requires_grad=True),
    r"Tensor\.retain_grad\(\) keeps a gradient": lambda x: SCALE.retain_grad(),
    r"a hook .* reads in backward what may have changed": lambda x: (x * SCALE).register_hook(lambda grad: grad * len(BEYOND)),
}


@pytest.mark.parametrize("reason", BEYOND)
def test_a_refusal_speaks_of_the_model(reason: str) -> None:
    """And not of the tracer's settings and developers, which nobody here has set or asked; and it says what to do."""
    line = BEYOND[reason].__code__.co_firstlineno
    message = rf"asks for: .*{reason}.* \(at {re.escape(__file__)}:{line}\).*\. Move that out of forward, give fullgraph=False"
    with pytest.raises(TraceError, match=message):
        planned(Strict(BEYOND[reason]), ["cuda:0", "cuda:1"], example_inputs=X)


def test_what_is_found_without_values_says_so() -> None:
    """A model on the meta device cannot be called with values. So what fakes raise is passed on, and where it comes from."""
    with torch.device("meta"):
        model, x = Strict(halved).eval(), torch.empty(4, 6)
    with pytest.raises(InputError, match=f"fails on the example inputs. RuntimeError: expected bfloat16.*{WITHOUT_VALUES}"):
        planned(model, ["cuda:0", "cuda:1"], example_inputs=x)


def test_a_fault_of_ours_is_no_fault_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """What our own code raised while a graph was looked at was told as if the model failed on its examples."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr("partitioner.frontend.trace.build_graph", broken)
    with pytest.raises(TraceError, match="a fault of partitioner, KeyError: 'gone'"):
        planned(Towers(), ["cuda:0", "cuda:1"], example_inputs=X, check=False)


def test_inputs_of_the_wrong_shape() -> None:
    """The model's own complaint, told before anything runs, and without a page of log."""
    parallel = spread(Towers(), (X,), TWO, copy=True)
    with pytest.raises(RuntimeError, match=r"\(4x5 and 6x6\)"):
        parallel(numbers(4, 5))
    assert parallel(numbers(4, 6)).shape == (4, 2)


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    parallel = spread(Habits(), (X,), TWO, copy=True)
    parallel.habit = "branch"
    with pytest.raises(TraceError):
        parallel(X)
    with pytest.raises(RuntimeError):
        parallel(numbers(4, 5))
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    assert capsys.readouterr() == ("", "")


class Writes(nn.Module):
    """Writes one of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Tower(), Tower()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Adds to ``y`` in place."""
        y.add_(self.left(x))
        return self.right(x) + y


def test_arguments_that_share_memory_are_refused() -> None:
    """Where the model writes one of them: on several devices each argument is moved by itself."""
    base = numbers(8, 6)
    with pytest.raises(PlacementError, match="share memory that the model writes"):
        spread(Writes(), (base[:4], base[2:6]), TWO, check=False)
    parallel = spread(Writes(), (X, X + 1), TWO)
    with torch.no_grad(), pytest.raises(PlacementError, match="share memory that the model writes"):
        parallel(base[:4], base[2:6])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", ["lazy:0", "lazy:1", "cpu"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_written_argument_is_the_callers(where: str, grad: bool) -> None:
    """Also where it had to be moved: the caller's tensor has what was written."""
    model = Writes()
    parallel = spread(model, (X, X + 1), TWO, copy=True, check=False)
    mine, theirs = X + 1, put(X + 1, where)
    with torch.set_grad_enabled(grad):
        assert_same(model(X, mine).detach(), parallel(X, theirs).detach())
        assert_same(mine.detach(), theirs.detach())
        assert mine.requires_grad == theirs.requires_grad == grad


def test_views_of_one_tensor_are_fine_where_only_state_is_written() -> None:
    """Two columns of one batch, and batch norm's statistics."""
    model = nn.ModuleDict({"left": NormedTowers(), "right": NormedTowers()})

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.parts["left"](x) + self.parts["right"](y)

    eager_pair = Pair()
    parallel = spread(eager_pair, (X, X + 1), TWO, copy=True)
    base = numbers(8, 6)
    torch.manual_seed(0)
    expected = eager_pair(base[:4], base[4:])
    torch.manual_seed(0)
    assert_same(expected.detach(), parallel(base[:4], base[4:]).detach())


# -- memory ----------------------------------------------------------------------------------------------------------


def roomy(model: nn.Module, batch: int, lanes: dict[str, int], **options: Any) -> Parallel:
    """``model`` on devices that hold a call of so many rows, and not many more."""
    width, state = 6, sum(p.numel() * 4 for p in model.parameters())
    caps = {name.replace(":", ""): state + batch * width * 4 * 12 for name in lanes}
    return partition(model, example_inputs=X, spec=spec(lanes, **caps), copy=True, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lanes", [TWO, MIXED, {"lazy:0": 2}, {"cpu": 2}], ids=["two GPUs", "GPU and CPU", "one GPU", "CPU"])
def test_other_sizes_are_held_against_the_caps(lanes: dict[str, int]) -> None:
    """The example fits; later batches are refused before they run, with the numbers, and the module goes on."""
    model = Towers().eval()
    parallel = roomy(model, 40, lanes)
    with torch.no_grad():
        for batch in (4, 7, 3, 16, 33):
            assert_same(model(numbers(batch, 6)), parallel(numbers(batch, 6)))
        programs = len(parallel._partitioner_programs.pieces)
        for batch in (2000, 500, 20000):
            with pytest.raises(
                PlacementError, match=r"needs .*B of state and .*B of live values, and has .*B\n.*smaller batch"
            ):
                parallel(numbers(batch, 6))
            assert_same(model(numbers(9, 6)), parallel(numbers(9, 6)))
        assert len(parallel._partitioner_programs.pieces) == programs


def test_further_programs_are_held_against_the_caps() -> None:
    """Another mode, and the first other batch size, are programs of their own."""
    model = Towers()
    parallel = roomy(model, 40, TWO)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            with pytest.raises(PlacementError, match="of live values, and has"):
                parallel(numbers(3000, 6))
            assert_same(model(X).detach(), parallel(X).detach())


def test_a_first_call_that_does_not_fit_places_nothing() -> None:
    parallel = partition(Towers(), spec=spec(TWO, lazy0=1000, lazy1=1000))
    with pytest.raises(PlacementError, match=r"need .* of parameters and buffers"):
        parallel(numbers(3000, 6))
    assert set(homes(parallel).values()) == {"cpu"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("again", [{"cpu": 2}, {"lazy:0": 2}, TWO, MIXED], ids=["CPU", "one GPU", "same", "GPU and CPU"])
@pytest.mark.parametrize("example", [True, False])
def test_what_is_spread_already_says_what_to_do_first(again: dict[str, int], example: bool) -> None:
    """It was said to be no one graph, or that nothing of it could be traced; and `to` advises to partition it again."""
    parallel = spread(Towers().eval(), (X,), TWO)
    lay = homes(parallel)
    assert len({*lay.values()}) == 2
    for model in (parallel, parallel.original):
        with pytest.raises(
            PlacementError, match=r"^the state of Towers lies on lazy:0, lazy:1, .*parallel\.original\.to\(\"cpu\"\)"
        ):
            partition(model, example_inputs=X if example else None, spec=spec(again))(X)
    assert homes(parallel) == lay and parallel(X).shape == (4, 2)
    with pytest.raises(PlacementError, match=r"partition\(parallel\.original\.to\(\"cpu\"\), devices="):
        parallel.to("lazy:0")
    for tensor in parallel.original.parameters():  # stands for `.to`
        put_at(tensor, "cpu")
    assert isinstance(partition(parallel.original, example_inputs=X, spec=spec(again)), Parallel)


# -- without examples ------------------------------------------------------------------------------------------------


@EACH
def test_without_examples_the_first_call_places(lanes: dict[str, int]) -> None:
    """Nothing moves before. An optimizer that was made in between holds the parameters still."""
    model = Habits().eval()
    twin = copy.deepcopy(model)
    parallel = partition(model, spec=spec(lanes))
    assert "provisional" in str(parallel) and set(homes(parallel).values()) == {"cpu"}
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    parallel(X).sum().backward()
    assert "provisional" not in str(parallel)
    assert set(homes(parallel).values()) == set(lanes) and lies_as_planned(parallel)
    optimizer.step()
    twin(X).sum().backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for (name, mine), theirs in zip(twin.named_parameters(), parallel.parameters(), strict=True):
        torch.testing.assert_close(theirs.data, mine.data, msg=name)


def test_a_first_call_is_traced_before_it_runs() -> None:
    """So an argument that can be read only once is refused: tracing would have read it."""
    parallel = partition(Habits().eval(), spec=spec({"lazy:0": 2}))
    with pytest.raises(InputError, match="of type generator, which can be read only once"):
        parallel(X for _ in range(3))
    assert set(homes(parallel).values()) == {"cpu"}
    assert parallel(X).shape == (4, 6)


class Sum(nn.Module):
    """Adds up what two towers give for each item."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Tower(), Tower()

    def forward(self, items: Any) -> Tensor:
        """Maps an iterable of (batch, 6) to (batch, 6)."""
        return sum(self.left(item) * self.right(item) for item in items)  # type: ignore[return-value]


def test_a_generator_where_state_is_spread() -> None:
    """Equal, or refused with a reason: never half read."""
    model = Sum()
    parallel = spread(model, ([X, X + 1],), TWO, copy=True)
    with torch.no_grad():
        assert_same(model([X, X + 1]), parallel([X, X + 1]))
        given = iter([X, X + 1])
        try:
            assert_same(model([X, X + 1]), parallel(given))
        except TraceError as error:
            assert "cannot be one graph" in str(error) and len(list(given)) == 2
        assert_same(model([X, X + 1]), parallel([X, X + 1]))


def test_a_first_call_that_fails_places_nothing() -> None:
    parallel = partition(Habits().eval(), spec=spec(TWO))
    with pytest.raises(RuntimeError):
        parallel(numbers(4, 5))
    assert set(homes(parallel).values()) == {"cpu"}
    assert parallel(X).shape == (4, 6) and set(homes(parallel).values()) == set(TWO)


def test_a_call_that_fails_keeps_no_model() -> None:
    """torch never lets go of a callback that has raised, as ours does where nothing can run as it is; it held the model."""
    parallel = spread(Tower(), (X,), TWO)
    with pytest.raises(TypeError):
        parallel("no tensor")
    alive = [weakref.ref(weight) for weight in parallel.parameters()]
    del parallel
    gc.collect()
    assert [weight() for weight in alive] == [None] * len(alive)


class Recorded(nn.Module):
    """Records gradients whatever its caller does, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.second(self.first(x).relu())


@EACH
def test_gradients_that_forward_asks_for_cross_devices(lanes: dict[str, int]) -> None:
    """A copy under the caller's no_grad would have no history, and the first layer no gradient, without a word."""
    model = Recorded()
    one, other = lanes
    pins = {"pins": [{"match": "first", "device": one}, {"match": "second", "device": other}]}
    parallel = partition(copy.deepcopy(model), example_inputs=(X,), spec=spec(lanes) | pins)
    x, same = X.clone().requires_grad_(), X.clone().requires_grad_()
    with torch.no_grad():
        mine, theirs = model(x), parallel(same)
    mine.sum().backward(), theirs.sum().backward()
    assert model.first.weight.grad is not None and x.grad is not None
    assert_same((model.first.weight.grad, x.grad), (parallel.first.weight.grad, same.grad))


def test_devices_between_which_torch_moves_nothing_in_place() -> None:
    """A device that a package of others brings took a part of the state, and the error said that the example was wrong."""
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    state, homes = {"first": first, "second": second}, {"first": "cpu", "second": "meta"}
    with pytest.raises(PlacementError, match=r"second lies on cpu, and torch cannot put .* on meta .*model\.to\('meta'\)"):
        move_state(state, homes, "cpu")
