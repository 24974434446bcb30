"""Programs that an outsider wrote who had not seen the others: classes that make objects in their own way, what users do to the
partitioned module itself (methods replaced, another class, another dictionary), models that hold the module made of them.

Each is judged as those of `hostile` are: it does what the plain model does.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import os
import random
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum
from types import MethodType, SimpleNamespace
from typing import Any, ClassVar, Protocol, runtime_checkable
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hostile.judge import EQUAL, REFUSED, Change, Variant, judge
from hostile.program import Program, Run, Steps, Two, kept_in, raised, rand
from lanes import OLD_TORCH
from pretend import TWO, pretending, spread
from torch import Tensor, nn
from torch.nn.utils import parametrize

from partitioner import InputError, PlacementError, TraceError, partition

FRESH: dict[str, Program] = {}

fresh = kept_in(FRESH)

pytestmark = pytest.mark.usefixtures("scattering")


def verdict_of(program: Program, example: bool = True, made: Change | None = None) -> str:
    verdict = judge(program, Variant(not example, example), made)
    return verdict.kind if verdict.kind in (EQUAL, REFUSED) else f"{verdict.kind}: {verdict.detail}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", FRESH)
def test_equal(name: str, example: bool) -> None:
    cannot_be_repeated = example and name == "generator_that_forward_sends_to"
    assert verdict_of(FRESH[name], example) == (REFUSED if cannot_be_repeated else EQUAL)


def test_a_generator_that_forward_sends_to_is_refused() -> None:
    """The error was that an object of ours has no ``send``, and that the model fails on its example."""
    with pytest.raises(InputError, match="forward uses 'send' of a generator that the model holds"):
        partition(Sends(), example_inputs=(rand(),))


class Single(type):
    """Makes one object of a class, and gives it again."""

    made: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in Single.made:
            Single.made[cls] = super().__call__(*args)
        return Single.made[cls]


class Registry(metaclass=Single):
    def __init__(self) -> None:
        self.calls = 0


class Registers(Two):
    def forward(self, x: Tensor) -> Tensor:
        registry = Registry()
        registry.calls += 1
        return self.left(x) * registry.calls + self.right(x)


def registers() -> nn.Module:
    Single.made.clear()
    return Registers()


@fresh(registers)
def one_object_of_a_class(run: Run) -> Steps:
    """Dynamo makes objects past the metaclass, so each call had a registry of its own.

    What the metaclass keeps was not put back after `partition` had run the model.
    """
    for _ in range(3):
        yield run(rand()), Registry().calls


def test_one_object_of_a_class_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the graph, so it is refused, and the registry is as it was."""

    with pretending(monkeypatch):
        one = FRESH["one_object_of_a_class"]
        assert verdict_of(one, made=lambda model, _: spread(model, (rand(),), TWO)) == REFUSED


class Quacking(type):
    """Whatever quacks is an instance of its classes."""

    def __instancecheck__(cls, one: object) -> bool:
        return hasattr(one, "quack")


class Duck(metaclass=Quacking):
    pass


@runtime_checkable
class Quacks(Protocol):
    quack: bool


class AsksForDucks(Two):
    def forward(self, x: Tensor) -> Tensor:
        twice = 2.0 if isinstance(self, (str, Duck)) else 1.0
        return self.left(x) * twice + self.right(x) * (3.0 if isinstance(self, Quacks) else 1.0)


@fresh(AsksForDucks)
def instances_that_a_metaclass_tells(run: Run) -> Steps:
    """The answer was taken for good: of a metaclass of the user's, and of a protocol."""
    yield run(rand())
    run.module.quack = True
    yield run(rand())
    del run.module.quack
    yield run(rand())


class Levels(Two):
    def __init__(self) -> None:
        super().__init__()
        self.levels = Enum("Levels", {"LOW": [1.0], "HIGH": [2.0, 3.0]})

    def forward(self, x: Tensor, name: str = "LOW") -> Tensor:
        return self.left(x) * sum(self.levels[name].value) + self.right(x)


@fresh(Levels)
def what_members_of_an_enumeration_hold(run: Run) -> Steps:
    """Looked up by its name, a member was a constant, with all that it held."""
    yield run(rand())
    run.model.levels.LOW.value.append(5.0)
    yield run(rand())
    run.model.levels.HIGH._value_ = [7.0]
    yield run(rand(), "HIGH"), run(rand())


class Handle:
    made = closed = 0

    def __init__(self, kind: str) -> None:
        Handle.made += 1
        self.kind = kind

    def __del__(self) -> None:
        assert self.kind
        Handle.closed += 1


class Opens(Two):
    def forward(self, x: Tensor) -> Tensor:
        handle = Handle("file")
        return self.left(x) + self.right(x) * len(handle.kind)


@fresh(Opens)
def objects_with_a_finaliser(run: Run) -> Steps:
    """They were not made, and the finaliser ran on the half of one that stood for them."""
    for before in [(Handle.made, Handle.closed)] * 3:
        yield run(rand()), Handle.made - before[0], Handle.closed - before[1]


@dataclass(slots=True)
class Tally:
    total: Tensor
    calls: int = 0
    last: Tensor = field(init=False)


class Tallies(Two):
    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        left, tally = self.left(x) + self.tally.total, self.tally
        tally.total, tally.calls = left.detach().mean(0), tally.calls + 1
        if hasattr(tally, "last"):
            left = left + tally.last
        tally.last = left.detach()
        return left * tally.calls + self.right(x)


@fresh(Tallies)
def state_in_slots(run: Run) -> Steps:
    """What `partition` had written there when it ran the model was not put back."""
    for seed in range(3):
        yield run(rand(seed=seed)), run.module.tally


class Encodes(Two):
    def encode(self, x: Tensor) -> Tensor:
        return self.left(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x) * self.right(x)


@fresh(Encodes)
def method_replaced_on_the_module(run: Run) -> Steps:
    """Callers of the method had the new one, and forward went on with that of the class."""
    module = run.module
    yield run(rand()), module.encode(rand())
    module.encode = lambda x: x * 2
    yield run(rand()), module.encode(rand()), "encode" in vars(module)
    del module.encode
    yield run(rand()), module.encode(rand()), raised(lambda: delattr(module, "encode"))
    module.encode = MethodType(lambda self, x: self.right(x) + 1, module)
    twin = copy.deepcopy(module)
    yield run(rand()), twin(rand()), twin.encode(rand()), twin.encode.__self__ is twin
    del vars(module)["encode"]
    yield run(rand()), twin(rand())


@fresh(Encodes)
def method_wrapped_on_the_module(run: Run) -> Steps:
    """The new one calls the class's, and not itself."""
    module = run.module
    plain = module.encode
    module.encode = lambda x: plain(x) * 2
    yield run(rand()), module.encode(rand())
    module.encode = plain
    yield run(rand()), module.encode(rand())


@pytest.mark.xfail(OLD_TORCH, reason="torch 2.11 does not trace the method of ours that the new one calls", strict=True)
def test_wrapped_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new method is part of the one graph, with the class's method in it."""
    model = Encodes()
    with pretending(monkeypatch):
        parallel = spread(model, (rand(),), TWO, copy=True)
        for module in (model, parallel):
            plain = module.encode
            module.encode = lambda x, plain=plain: plain(x) * 2
        for call in (lambda module: module(rand()), lambda module: module.encode(rand())):
            torch.testing.assert_close(call(parallel).detach(), call(model).detach(), check_device=False)


class Freezes(Two):
    def frozen(self) -> Freezes:
        self.left.requires_grad_(False)
        return self

    def forward(self, x: Tensor) -> Freezes:
        self.result = self.left(x) * self.right(x)
        return self


@fresh(Freezes)
def module_that_a_method_returns(run: Run) -> Steps:
    """It was the plain model, so that ``model = model.frozen()`` left the lanes."""
    yield run(rand()) is run.module, run.module.result
    yield run.module.frozen() is run.module, run.learn(rand(grad=True)) is run.module


class EncodesMore(Encodes):
    def encode(self, x: Tensor, times: int = 1) -> Tensor:
        return super().encode(x) * times


class EncodesNothing(Encodes):
    @property
    def encode(self) -> Any:  # type: ignore[override]
        return self.right


@fresh(EncodesMore)
def method_of_a_nearer_class(run: Run) -> Steps:
    """It had the signature of the method that it overrides."""
    yield run(rand()), run.module.encode(rand(), times=3), str(inspect.signature(run.module.encode))


@fresh(EncodesNothing)
def property_in_the_place_of_a_method(run: Run) -> Steps:
    """It was called in the place of being asked."""
    yield run(rand()), run.module.encode is run.module.right


class Scales(Two):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.gain = nn.Parameter(torch.ones(4)), 2.0

    def scaled(self, x: Tensor) -> Tensor:
        return self.left(x) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x) * self.gain + self.right(x)


@fresh(Scales)
def parametrized_itself(run: Run) -> Steps:
    """Torch gives the module another class, in which the weight is a property, and the model lost it."""
    module = run.module
    yield run(rand())
    parametrize.register_parametrization(module, "scale", nn.Tanh())
    yield run.learn(rand(grad=True)), module.scaled(rand()), list(module.state_dict())
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.parametrizations.scale.original.add_(1)
    yield twin(rand()), run(rand())
    parametrize.remove_parametrizations(module, "scale")
    yield run(rand()), list(module.state_dict())


def test_another_class_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops met tensors of two devices. Nothing can run as it is there, so a class of the user's is refused, and a call is."""
    with pretending(monkeypatch):
        parallel = spread(Scales(), (rand(),), TWO)
        before = parallel(rand())
        with pytest.raises(PlacementError, match="Scales was given another class"):
            parallel.__class__ = type("More", (Scales,), {})
        assert torch.equal(before, parallel(rand()))
        parametrize.register_parametrization(parallel, "scale", nn.Tanh())
        for call in (parallel, parallel.scaled):
            with pytest.raises(PlacementError, match="Scales was given another class"):
                call(rand())
        parametrize.remove_parametrizations(parallel, "scale", leave_parametrized=False)
        assert torch.equal(before, parallel(rand()))


@fresh(Scales)
def dictionary_replaced(run: Run) -> Steps:
    """The module had one, and the model, which computes, went on with the other."""
    module = run.module
    saved = copy.deepcopy(vars(module))
    with torch.no_grad():
        module.scale.mul_(2)
    yield run(rand())
    module.__dict__ = saved
    module.gain = 3.0
    yield run(rand()), module.scale
    yield run.learn(rand(grad=True)), module.scale.grad


def test_transforms_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal had the first line of a page of torch's: "If you are reaching here, it means dynamo failed for ..."."""
    with pretending(monkeypatch):
        parallel = spread(Two(), (rand(),), TWO)
        for call in (torch.func.vmap(parallel), torch.func.grad(lambda x: parallel(x).sum())):
            with pytest.raises(TraceError, match=r"Two is called under a transform of torch\.func"):
                call(rand(2, 4))


@fresh(Two)
def copied_with_its_trainer(run: Run) -> Steps:
    """The copy of the trainer asked for a copy of the module, of which there was the half."""
    run.module.trainer = SimpleNamespace(module=run.module)
    twin = copy.deepcopy(run.module)
    with torch.no_grad():
        twin.left.weight.mul_(2)
    yield twin.trainer.module is twin, twin(rand()), run(rand())
    yield copy.deepcopy(twin.trainer).module(rand())


class Doubles(torch.autograd.Function):
    """Doubles what lies in a list, by a layer, as a list, or gives its argument back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, others: list[Any]) -> Any:
        how = others[0]
        if isinstance(how, Tensor):
            return tuple(x * other * 2 for other in others)
        return x if how is None else how(x) * 2 if isinstance(how, nn.Module) else [x * 2]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None if gradients[0] is None else gradients[0] * 3, None


class UsesDoubles(Two):
    def forward(self, x: Tensor) -> Any:
        given = [[self.left(x)], [self.right], [None], ["a list"]]
        results = [Doubles.apply(y, others) for y in (x, self.left(x)) for others in given]
        return results, results[2] is x


@fresh(UsesDoubles)
def functions_that_look_into_their_arguments(run: Run) -> Steps:
    """What a list or a layer holds had gradients, and where nothing asked for any an argument came back as it was."""
    yield run.learn(rand(grad=True))
    yield run(rand())
    with torch.no_grad():
        yield run(rand())


class Switches(Two):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode(False):
            left = self.left(x)
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            return left + self.right(x)


@fresh(Switches)
def switches_that_do_more_than_they_say(run: Run) -> Steps:
    """`inference_mode(False)` turns gradients on, which was forgotten under `no_grad`.

    And hooks for saved tensors were refused on the thread from then on, if the tracer met hooks where the model refuses them.
    """
    yield run.learn(rand(grad=True))
    with torch.no_grad():
        yield run(rand())
    with torch.autograd.graph.save_on_cpu():
        yield raised(lambda: run.module(rand()))
        yield run.module.left(rand())


class CountsByThread(Two):
    counts = threading.local()

    def forward(self, x: Tensor) -> Tensor:
        self.counts.calls = getattr(self.counts, "calls", 0) + 1
        return self.left(x) * self.counts.calls + self.right(x)


def counts_by_thread() -> nn.Module:
    vars(CountsByThread.counts).clear()
    return CountsByThread()


@fresh(counts_by_thread)
def counter_of_each_thread(run: Run) -> Steps:
    """What `partition` had counted when it ran the model was not put back."""
    for _ in range(2):
        yield run(rand()), vars(CountsByThread.counts)


ARRAY, TURNS = np.zeros(2), itertools.count()
NUMBERS, OTHERS = np.random.default_rng(0), torch.Generator()


class Writes(Two):
    def __init__(self) -> None:
        super().__init__()
        self.table = np.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.left.weight
        weight.calls = getattr(weight, "calls", 0) + 1
        ARRAY[0] += 1
        self.table += ARRAY[0]
        os.environ["TIMES"] = os.environ.get("TIMES", "") + "I"
        torch.set_default_dtype(torch.float64 if torch.get_default_dtype() is torch.float32 else torch.float32)
        drawn = torch.rand((), generator=OTHERS, dtype=torch.float32) + NUMBERS.random()
        return self.left(x) * float(self.table[0] + next(TURNS)) + self.right(x) * drawn * weight.calls


def writes() -> nn.Module:
    global TURNS, NUMBERS
    TURNS, NUMBERS = itertools.count(), np.random.default_rng(0)
    OTHERS.manual_seed(0)
    ARRAY.fill(0)
    os.environ.pop("TIMES", None)
    torch.set_default_dtype(torch.float32)
    return Writes()


@fresh(writes)
def what_forward_writes_anywhere(run: Run) -> Steps:
    """What `partition` had done when it ran the model was not put back: in arrays, in iterators and generators of random
    numbers that are globals, in attributes of weights, in the environment, and in torch's options."""
    for _ in range(2):
        yield run(rand()), ARRAY.copy(), run.module.table.copy(), run.module.left.weight.calls
        yield os.environ["TIMES"], str(torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    del os.environ["TIMES"]


class Learns(Two):
    """Learns in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.SGD(self.left.parameters(), 0.1, momentum=0.9)

    def forward(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        self.left(torch.ones(2, 4)).square().mean().backward()
        self.optimizer.step()
        return self.right(x)


@fresh(Learns)
def optimizer_in_forward(run: Run) -> Steps:
    """What the optimizer keeps was lost, and that weights were written by a trace without an example."""
    for _ in range(3):
        yield run(rand()), run.module.left.weight, list(run.module.optimizer.state.values())


@functools.lru_cache
def counted(number: int) -> float:
    SEEN.append(number)
    return float(number)


@functools.lru_cache
def drawn() -> float:
    return random.random()


SEEN: list[int] = []


class Cached(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * counted(2) + self.right(x) * drawn() + len(SEEN)


def cached() -> nn.Module:
    SEEN.clear()
    counted.cache_clear()
    drawn.cache_clear()
    return Cached()


@fresh(cached)
def cached_functions_that_do_more(run: Run) -> Steps:
    """They did it, and drew, in each call, as if there were no cache."""
    for _ in range(3):
        yield run(rand()), list(SEEN), counted.cache_info().currsize


class Sends(Two):
    def __init__(self) -> None:
        super().__init__()
        self.average = self.averages()
        next(self.average)

    @staticmethod
    def averages() -> Generator[float, float, None]:
        total, number, given = 0.0, 0, 0.0
        while True:
            given = yield total / (number or 1)
            total, number = total + given, number + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.average.send(x.shape[0]) + self.right(x)


@fresh(Sends)
def generator_that_forward_sends_to(run: Run) -> Steps:
    for rows in (3, 6, 6):
        yield run(rand(rows, 4))


class Asks(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu"):
            left = self.left(x)
        scale = 2.0 if torch.distributed.is_initialized() else 1.0
        return left * scale, self.right(x) * len(str(torch.get_autocast_dtype("cpu")))


@fresh(Asks)
def answers_of_the_process(run: Run) -> Steps:
    """Dynamo took them for good: the dtype of a block of autocast that names none, and that there is no group of processes."""
    dtype, hook = torch.get_autocast_dtype("cpu"), sys.excepthook
    yield run(rand())
    torch.set_autocast_dtype("cpu", torch.float16)
    yield run(rand())
    torch.set_autocast_dtype("cpu", dtype)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield run(rand())
    torch.distributed.destroy_process_group()
    sys.excepthook = hook
    yield run(rand())


@fresh(Two)
def calls_of_layers_replaced(run: Run) -> Steps:
    """Of a class that is called, its `forward` was asked to be what it was, and not its ``__call__``."""
    yield run(rand())
    plain, seen = nn.Module.__call__, list[str]()
    with patch.object(nn.Linear, "__call__", lambda self, x: x * 3):
        yield run(rand())
    with patch.object(nn.Module, "__call__", lambda self, *args: (seen.append(type(self).__name__), plain(self, *args))[1]):
        yield run(rand()), seen.count("Linear")
    yield run(rand())
