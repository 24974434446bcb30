"""Programs that were different or failed on several devices, with compiled tasks, or under autocast around the call.

Each test tells what went wrong. Devices are pretended (see `pretend`), and what is compared are values, not where they lie.
"""

from __future__ import annotations

import copy
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, Two, kept_in, rand
from lanes import assert_same, numbers
from pretend import MIXED, TWO, World, put, put_at, spec, spread
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from partitioner import TraceError, partition
from partitioner.runtime.module import Parallel

EACH = pytest.mark.parametrize("lanes", [TWO, MIXED], ids=["two GPUs", "GPU and CPU"])

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


def pinned(model: nn.Module, lanes: dict[str, int], left: str, right: str) -> Parallel:
    """A model of two branches, each on a device."""
    pins = {"pins": [{"match": "left", "device": left}, {"match": "right", "device": right}]}
    return partition(model, example_inputs=(rand(),), spec=spec(lanes) | pins, copy=True)


# -- arguments that are moved --------------------------------------------------------------------------------------------------


class WritesBeside(Two):
    """Writes to its argument where autograd does not look."""

    def forward(self, x: Tensor) -> Tensor:
        x.detach()[:1] = 7.0
        return self.left(x) * self.right(x)


class CastsTwice(Two):
    """Autocast keeps a cast of what wants a gradient for its next reader, so that readers count as writers of it."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.left(x) + x * 2 + self.right(x)


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("where", ["lazy:0", "lazy:1", "cpu"])
@pytest.mark.parametrize("kind", [WritesBeside, CastsTwice])
def test_an_argument_that_wants_a_gradient(kind: type[Two], where: str, lanes: dict[str, int], world: World) -> None:
    """What was written was copied back as an op that autograd records, and torch refuses that for leaves."""
    if where not in (*lanes, "cpu"):
        pytest.skip("there is no such device")
    model = kind()
    parallel = spread(model, (rand(),), lanes, copy=True)
    mine, theirs = rand(grad=True), put(rand(grad=True), where)
    one, other = model(mine), parallel(theirs)
    torch.testing.assert_close(other.detach(), one.detach(), check_device=False)
    assert_same(mine.detach(), theirs.detach())
    assert theirs.is_leaf and theirs.requires_grad and theirs._version == mine._version
    one.sum().backward(), other.sum().backward()
    torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-2, atol=1e-2)


class Scales(Two):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(3)
        return self.left(x) * self.right(x)


def test_a_written_argument_keeps_its_history(world: World) -> None:
    """A write that autograd does record is a part of the caller's history."""
    model = Scales()
    parallel = spread(model, (rand(),), TWO, copy=True, check=False)
    found = []
    for module in (model, parallel):
        start = rand(grad=True)
        x = start * 2
        version = x._version
        result = module(x)
        assert x._version == version + 1
        (result.sum() + x.square().sum()).backward()
        found.append((x.detach(), start.grad))
    assert_same(*found)


def test_a_first_call_without_values_is_the_models_error(world: World) -> None:
    """What lies on the meta device was to be moved to the weights for the plan, and torch said that it cannot be."""
    model = Two()
    parallel = partition(model, spec=spec(TWO), copy=True)
    for rows in (3, 5):
        with pytest.raises(RuntimeError, match="Tensor on device cpu is not on the expected device meta"):
            parallel(torch.empty(rows, 4, device="meta"))
        assert_same(parallel(rand(rows, 4)), model(rand(rows, 4)))


LOGGER = logging.getLogger("once")


def test_what_is_logged_once(world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """transformers gives loggers a ``warning_once``, and a GPT-2 that computes its loss calls it: that was refused."""
    once = functools.cache(lambda self, text: self.warning(text))
    monkeypatch.setattr(logging.Logger, "warning_once", once, raising=False)

    class Says(Two):
        def forward(self, x: Tensor) -> Tensor:
            LOGGER.warning_once("no kind of loss is known")  # type: ignore[attr-defined]
            return super().forward(x)

    model = Says()
    parallel = partition(model, spec=spec(TWO), copy=True)
    for rows in (3, 5):
        assert_same(parallel(rand(rows, 4)), model(rand(rows, 4)))
    assert [record.message for record in caplog.records if record.name == "once"] == ["no kind of loss is known"]


def test_what_is_not_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody reads ``LOGGER.debug`` of a forward, until somebody does: a level that is off was refused as one that is on."""

    class Says(Two):
        def forward(self, x: Tensor) -> Tensor:
            LOGGER.debug("values %s", x)
            LOGGER.log(logging.INFO, f"{x.shape[0]} rows")
            return super().forward(x) * (2 if LOGGER.isEnabledFor(logging.ERROR) else 3)

    model = Says()
    parallel = partition(model, spec=spec(TWO), copy=True)
    for level in (logging.WARNING, logging.CRITICAL):
        with caplog.at_level(level, "once"):
            for rows in (3, 5):
                assert_same(parallel(rand(rows, 4)), model(rand(rows, 4)))
    with caplog.at_level(logging.DEBUG, "once"), pytest.raises(TraceError, match="it logs"):
        parallel(rand())


class DrawsNumpy(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(np.random.beta(0.4, 0.4))


def test_a_refusal_names_what_numpy_is_asked_for(world: World) -> None:
    """It spoke of an option of torch's tracer, and of an object at an address."""
    with pytest.raises(TraceError, match=r"numpy's RandomState\.beta is called"):
        partition(DrawsNumpy(), spec=spec(TWO))(rand())


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.view(-1),
    "split": lambda x: x.split(2),
    "expand": lambda x: x[:1].expand(5, 4),
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_of_an_argument_that_are_results_without_gradients(view: Callable[[Tensor], Any], world: World) -> None:
    """Under `torch.no_grad()` a view of what wants a gradient wants one, too; that of an argument which was moved did not."""

    class Views(Two):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Any]:
            return self.left(x), self.right(x), view(x)

    model = Views()
    parallel = spread(model, (rand(),), TWO, copy=True)
    for rows in (3, 5):
        with torch.no_grad():
            pairs = zip(tree_leaves(model(x := rand(rows, 4, grad=True))), tree_leaves(parallel(x)), strict=True)
        for mine, theirs in pairs:
            assert theirs.requires_grad == mine.requires_grad
            assert_same(mine.detach(), theirs.detach())


@pytest.mark.parametrize("left, right", [("cpu", "lazy:0"), ("lazy:0", "cpu")])
def test_memory_of_the_host_is_read_before_the_call_ends(left: str, right: str, world: World) -> None:
    """A branch on the CPU took the argument as it is, and the GPU's copy of it was still under way when the call was over.

    From pinned memory that is so, and a loader that fills its buffer again gave the GPU half of the next batch.
    """
    model = Two()
    parallel = pinned(model, MIXED, left, right)
    buffer = rand()
    for seed in range(3):
        buffer.copy_(rand(seed=seed))
        assert_same(model(rand(seed=seed)).detach(), parallel(buffer).detach())


# -- compiled tasks ------------------------------------------------------------------------------------------------------------


class Draws(Two):
    """Random integers of the form of a tensor that wants a gradient."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = self.left(x)
        return torch.randint_like(left, 5) + 1, (torch.randint_like(left, 2, 7) * left).relu() + self.right(x)


def test_random_integers_want_no_gradient() -> None:
    """In Python they do not; ATen's op took the gradient of its argument, and backward failed for want of a derivative."""
    model = Draws()
    options = {"copy": True, "check": False, "compile_tasks": "torchscript"}
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=(rand(),), **options)
    found = []
    for module in (model, parallel):
        torch.manual_seed(3)
        x = rand(grad=True)
        drawn, result = module(x)
        assert not drawn.requires_grad
        result.sum().backward()
        found.append((drawn, result.detach(), x.grad, [parameter.grad for parameter in module.parameters()]))
    assert_same(*found)


@pytest.mark.parametrize("between", [torch.linspace, torch.logspace])
def test_steps_between_tensors_want_no_gradient(between: Callable[..., Tensor]) -> None:
    """Likewise: a model that asked for numbers between two that it computes was refused once its tasks were compiled."""

    class Steps(Two):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return between(self.left(x).sum(), self.right(x).sum(), 5), self.right(x)

    model = Steps()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=(rand(),), copy=True, compile_tasks="torchscript")
    found = parallel(rand(grad=True))
    assert not found[0].requires_grad
    assert_same(model(rand()), found)


# -- state that forward replaces -----------------------------------------------------------------------------------------------


class Recurrent(Two):
    """Keeps what one device has computed for a weight on the other one: as a buffer, and as an attribute that is none at first.

    ``gain`` is a number that it reads, so that another one makes another program, which finds state where it then lies.
    """

    gain, detached, written = 1.0, True, False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3, 4))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.written:
            self.state.mul_(0.5)
        mixed = self.left(self.state) * self.gain
        if self.last is not None:
            mixed = mixed + self.left(self.last)
        new = self.right(x)
        self.last = new.tanh()
        self.state = new.detach() if self.detached else new * 1
        if self.written:
            self.state.add_(1)
        return mixed - new


@pytest.mark.sampled(1)
@EACH
@pytest.mark.parametrize("detached", [True, False], ids=["detached", "with its history"])
def test_state_that_forward_replaces_moves_to_the_weights(lanes: dict[str, int], detached: bool, world: World) -> None:
    """It came to lie where it was computed, and the next program was refused: "lies there already", said its error."""
    model, (left, right) = Recurrent(), lanes
    model.detached = detached
    parallel = pinned(model, lanes, left, right)
    found = []
    for module in (model, parallel):
        results = []
        for step, gain in enumerate((1.0, 2.0, 3.0)):
            module.gain, module.written = gain, step == 2
            results.append(module(rand(seed=step)))
        torch.stack(results).sum().backward()
        grads = [each.grad for each in module.parameters()]
        found.append(([each.detach() for each in results], module.state.detach().clone(), grads))
    (results, state, grads), (others, other, of_parallel) = found
    assert_same([*results, state], [*others, other])
    torch.testing.assert_close(of_parallel, grads)  # three contributions, summed in the order of sequence numbers
    assert str(parallel.left.weight.device) == left, "weights stay"


# -- TorchScript under autocast ------------------------------------------------------------------------------------------------

SCRIPTED: dict[str, Program] = {}

scripted = kept_in(SCRIPTED)


def in_python(x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x = x * 0.5
    return x


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # models have such functions all the same
    halved = torch.jit.script(in_python)


class Halves(Two):
    def forward(self, x: Tensor) -> Tensor:
        return halved(self.left(x), 2) + self.right(x)


class HalvesInside(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        plain = halved(self.right(x), 1)
        with torch.autocast("cpu", torch.bfloat16):
            return plain, halved(self.left(x), 2) + 1


@scripted(Halves)
def autocast_around(run: Run) -> Steps:
    """TorchScript gives float32 there; the Python that it was made of, which was traced, bfloat16."""
    for enabled in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            yield run.learn(rand(grad=True)), run(rand(5, 4))


@scripted(HalvesInside)
def autocast_inside(run: Run) -> Steps:
    for rows in (3, 5):
        yield run.learn(rand(rows, 4, grad=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", SCRIPTED)
def test_scripted_functions_cast_as_they_do(name: str, example: bool) -> None:
    assert_equal(SCRIPTED[name], Variant(True, example))


def test_scripted_functions_on_several_devices(world: World) -> None:
    """One graph without autocast; with it, a refusal that says why."""
    model = Halves()
    parallel = spread(model, (rand(),), TWO, copy=True)
    assert_same(model(rand()).detach(), parallel(rand()).detach())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TraceError, match="in_python is TorchScript's, which casts"):
        parallel(rand())


class Averages(nn.Module):
    """Norms whose statistics are means of all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


@pytest.mark.usefixtures("world")
def test_norms_whose_statistics_are_means_of_all_batches() -> None:
    """The count that they read ended the graph, and the refusal said that Python decides on the value of a tensor."""
    model = Averages()
    parallel = spread(model, (rand(),), TWO, copy=True)
    for _ in range(2):
        x = rand()
        torch.testing.assert_close(parallel(x), model(x), check_device=False)
    torch.testing.assert_close(dict(parallel.state_dict()), dict(model.state_dict()), check_device=False)


class CastsAndNot(Two):
    """Reads its argument under autocast more than once, and out of it."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = self.left(x) @ self.right(x).softmax(-1).T
        return scores.float() @ self.left(x)


@pytest.mark.usefixtures("world")
def test_casts_that_are_not_kept_round_otherwise() -> None:
    """Where autocast keeps a cast of an argument its gradients are summed in bfloat16; here they are not, and were refused."""
    x, y = rand(grad=True), rand(grad=True)
    model = CastsAndNot()
    parallel = spread(model, (x,), TWO, copy=True)
    model(x).sum().backward()
    parallel(y).sum().backward()
    torch.testing.assert_close(y.grad, x.grad, rtol=2e-2, atol=2e-2)


MADE: dict[str, Callable[[float], Tensor]] = {
    "a number that is open": lambda n: torch.tensor(n),
    "some that are": lambda n: torch.tensor([1.0, n, 2 * n, 0.0]),
    "scalar_tensor": lambda n: torch.scalar_tensor(n),
    "as_tensor": lambda n: torch.as_tensor([1.0, 2.0, 3.0, 4.0]) * n,
    "asarray": lambda n: torch.asarray([1.0, 2.0, 3.0, 4.0]) * n,
    "a window": lambda n: torch.kaiser_window(4) * n,
    "one of signals": lambda n: torch.signal.windows.cosine(4) * n,
    "frequencies": lambda n: torch.fft.fftfreq(4) * n,
    "strides": lambda n: torch.empty_strided((4,), (1,)).fill_(n),
    "drawn": lambda n: torch.normal(0.0, n, (4,)),
    "a class's": lambda n: torch.Tensor([1.0, 2.0, 3.0, 4.0]) * n,
}
"""Tensors that are made from numbers, and named no device."""


class Makes(Two):
    """Makes a tensor for each branch."""

    def __init__(self, make: Callable[[float], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor, number: float) -> Tensor:
        return self.left(x + self.make(number)) * self.right(x * self.make(number))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_from_numbers_lies_with_its_op(name: str, world: World) -> None:
    """It lay on the host, as it named no device and torch has more such functions than were known: torch's error."""
    model = Makes(MADE[name])
    pins = {"pins": [{"match": "left", "device": "lazy:0"}, {"match": "right", "device": "lazy:1"}]}
    parallel = partition(model, example_inputs=(rand(), 0.5), spec=spec(TWO) | pins, copy=True)
    for number in (0.5, 1.5, 2.5):
        torch.manual_seed(0)
        expected = model(rand(), number)
        torch.manual_seed(0)
        assert_same(expected.detach(), parallel(rand(), number).detach())


class MakesWithin(Two):
    """Makes tensors in the bodies of other ops."""

    def forward(self, x: Tensor) -> Tensor:
        left = checkpoint(lambda h: h + torch.Tensor([1.0, 2.0, 3.0, 4.0]), self.left(x), use_reentrant=False)
        return left * torch.cond(
            x.sum() > 0, lambda h: h * torch.kaiser_window(4), lambda h: h - torch.ones(4), (self.right(x),)
        )


def test_what_is_made_from_numbers_in_a_body(world: World) -> None:
    """There a function that is told no device stands for one that is, which a graph has to have a name for."""
    model = MakesWithin()
    pins = {"pins": [{"match": "left", "device": "lazy:0"}, {"match": "right", "device": "lazy:1"}]}
    parallel = partition(model, example_inputs=rand(), spec=spec(TWO) | pins, copy=True)
    for x in (rand(), -rand()):
        assert_same(model(x).detach(), parallel(x).detach())


ENTERED: list[str] = []


@contextmanager
def noted() -> Iterator[None]:
    """What a checkpoint runs again, it runs within this."""
    ENTERED.append("again")
    yield


def contexts_of_both() -> tuple[Any, Any]:
    return nullcontext(), noted()


class Recomputes(Two):
    def forward(self, x: Tensor) -> Tensor:
        left = checkpoint(lambda h: self.left(h).sin(), x, use_reentrant=False, context_fn=contexts_of_both)
        return left * self.right(x)


@pytest.mark.parametrize("lanes", [TWO, {"cpu": 2}], ids=["two GPUs", "CPU"])
def test_contexts_of_a_checkpoint_follow_it_to_its_device(lanes: dict[str, int], world: World) -> None:
    """The copy of its body for a device had lost them, and with them which values a selective checkpoint keeps."""
    parallel = spread(Recomputes(), (rand(),), lanes, check=False)
    ENTERED.clear()
    parallel(rand()).sum().backward()
    assert ENTERED == ["again"]


class Counts(Two):
    """Gives how often a tensor was written that both branches read."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, int, int]:
        kept = x * 1
        seen = kept.data
        kept.add_(1)
        return self.left(kept) + seen, self.right(seen), seen._version, kept._version


@EACH
def test_how_often_a_tensor_was_written(lanes: dict[str, int], world: World) -> None:
    """A copy of it on another device was asked, which was never written."""
    model = Counts()
    parallel = spread(model, (rand(),), lanes, copy=True, policy="scatter")
    assert parallel(rand())[2:] == model(rand())[2:] == (0, 1)


class Follows(Two):
    """Weights that follow others in forward, by what is given to their ``data``, and by what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.left(x), self.right(x)
        with torch.no_grad():
            self.slow.weight.data = 0.9 * self.slow.weight.data + 0.1 * self.left.weight.data
            self.slow.bias.data.mul_(0.9).add_(self.left.bias.data, alpha=0.1)
            target = self.slow(x)
        return left * right, target


def test_weights_that_follow_others(world: World) -> None:
    """Where a model reads ``data``, all from the first time to the last was one op, as if the thread's mode changed."""
    model = Follows()
    parallel = spread(model, (rand(),), TWO, copy=True)
    (plan,) = [piece.plan for piece in parallel._partitioner_programs.pieces] or [parallel._partitioner_programs.provisional]
    assert plan is not None and not any("region" in op.name for op in plan.graph.ops)
    for seed in range(3):
        assert_same(list(model(rand(seed=seed))), list(parallel(rand(seed=seed))))
    assert_same(dict(model.state_dict()), dict(parallel.state_dict()))


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("kind", ["encoder", "attention"])
def test_a_transformer_is_trained_and_then_evaluated(kind: str, lanes: dict[str, int], world: World) -> None:
    """Without gradients torch has one op for a layer, which was refused where training had spread what it takes."""
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)) if kind == "encoder" else Attends()
    x = rand(3, 5, 8)
    parallel = partition(model, example_inputs=(x,), spec=spec(lanes), copy=True)
    parallel(x).sum().backward()
    with torch.no_grad():
        found = parallel.eval()(x)
    torch.testing.assert_close(found, model.eval()(x), check_device=False)


def test_a_transformer_layer_is_taken_apart_by_pins(world: World) -> None:
    one, other = TWO
    pins = [{"match": "0.linear1", "device": one}, {"match": "0.linear2", "device": other}]
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    parallel = partition(model, example_inputs=(rand(3, 5, 8),), spec=spec(TWO) | {"pins": pins}, copy=True)
    assert {str(parallel.get_parameter(f"0.linear{each}.weight").device) for each in (1, 2)} == {*TWO}
    torch.testing.assert_close(parallel(rand(3, 5, 8)), model(rand(3, 5, 8)), check_device=False)


class Attends(nn.Module):
    """Two branches that attend, with weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x, x, x, need_weights=False)[0] + self.right(x, x, x, need_weights=False)[0]


class Lengths(nn.Module):
    """Python reads how long each row is, which is a tensor that has to lie on the CPU, as for `pack_padded_sequence`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if lengths.device.type != "cpu":
            raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor")
        longest = max(lengths.tolist())
        return self.last(self.first(x).tanh() * longest)


@pytest.mark.parametrize("example", [True, False])
def test_what_belongs_on_the_cpu_stays_there(example: bool, world: World) -> None:
    """All arguments were moved to where the model lay, and the model was said to fail on the example."""
    model, x, lengths = Lengths(), numbers(4, 6), torch.tensor([3, 1, 2, 3])
    given, original = (put(x, "lazy:0"), lengths), copy.deepcopy(model)
    for parameter in model.parameters():
        put_at(parameter, "lazy:0")
    asked = spec(TWO) | {"fullgraph": False, "pins": [{"match": "last", "device": "lazy:1"}]}
    parallel = partition(model, example_inputs=given if example else None, spec=asked, check=False)  # a draw is not pretended
    torch.testing.assert_close(parallel(*given), original(x, lengths), check_device=False)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left(x) * self.right(y)


@pytest.mark.parametrize("example", [True, False])
def test_what_is_only_left_on_the_cpu_is_moved(example: bool, world: World) -> None:
    """A model on an accelerator would fail on an argument that nobody has put there: it goes where it is read."""
    model, x, y = Both(), numbers(4, 6), numbers(4, 6) + 1
    given, original = (put(x, "lazy:0"), y), copy.deepcopy(model)
    for parameter in model.parameters():
        put_at(parameter, "lazy:0")
    parallel = partition(model, example_inputs=given if example else None, spec=spec(TWO), check=False)
    torch.testing.assert_close(parallel(*given), original(x, y), check_device=False)
