"""What a first call leaves behind, such as a mask: what every call would leave is there before a job, the rest is refused."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.distributed.traced.example import example_in
from partitioner.errors import TraceError
from partitioner.frontend.check.interpret import interpret

WIDTH = 4


class Late(nn.Module):
    """A layer, and what `made` gives it in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.held = nn.Linear(WIDTH, WIDTH), None
        self.tables: dict[int, Tensor] = {}
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.held is None:
            self.held = self.made(x)
        return self.layer(x * self.held + self.shift)

    def made(self, x: Tensor) -> Any:
        raise NotImplementedError


class Mask(Late):
    def made(self, x: Tensor) -> Any:
        return torch.ones(x.shape[1], x.shape[1]).tril()[-1]


class Table(Late):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(x.shape[1]).cos()
        return self.layer(x * self.tables[x.shape[1]])


class Registered(Late):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, x.shape[1]), persistent=False)
        return self.layer(x * self.table)


class Norming(Late):
    """Before another's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class Normed(Norming, Mask):
    pass


class Hooked(Late):
    """As models of Hugging Face do that give their hidden states: hooks, put there under a lock, which no tracer enters."""

    lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        if self.held is None:
            with self.lock:
                self.held = self.made(x)
        return self.layer(x) + self.shift

    def made(self, x: Tensor) -> Any:
        self.layer.register_forward_hook(twice)
        return True


class NormedAndHooked(Norming, Hooked):
    pass


class HookedByData(Hooked):
    def made(self, x: Tensor) -> Any:
        return x.detach().mean(0)


class HookedOften(Hooked):
    def forward(self, x: Tensor) -> Tensor:
        self.held = None
        return super().forward(x)


class HookedAndWriting(Hooked):
    def made(self, x: Tensor) -> Any:
        self.shift.copy_(-x.detach().mean(0))
        return True


class HookedAndLearning(Hooked):
    def made(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.layer.bias.copy_(-x.mean(0))
        return True


def twice(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


class OfData(Late):
    def made(self, x: Tensor) -> Any:
        return x.detach().mean(0)


class OfWeights(Late):
    def made(self, x: Tensor) -> Any:
        return self.layer.weight.detach().mean(0)


class FilledByData(Late):
    def made(self, x: Tensor) -> Any:
        found = torch.zeros(WIDTH)
        found[0] = x.detach().sum()
        return found


class Drawn(Late):
    def made(self, x: Tensor) -> Any:
        return torch.rand(WIDTH)


class Doubled(Late):
    def forward(self, x: Tensor) -> Tensor:
        if self.held is None:
            self.held, x = torch.ones(WIDTH), x * 2
        return self.layer(x)


class Writing(Late):
    def made(self, x: Tensor) -> Any:
        self.shift.copy_(-x.detach().mean(0))
        return torch.ones(WIDTH)


class Learning(Late):
    def made(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.layer.bias.copy_(-x.mean(0))
        return torch.ones(WIDTH)


@pytest.mark.parametrize("kind", [Mask, Table, Registered, Normed, Hooked, NormedAndHooked])
def test_what_every_call_would_leave_is_there(kind: type[Late]) -> None:
    """And values are what they were, statistics of a norm among them."""
    model, x = kind(), torch.randn(8, WIDTH)
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    example = example_in(model, x, None, 2)
    assert example.is_current() and example.is_current()
    assert torch.equal(torch.get_rng_state(), drawn)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    first = [op.target for op in example.traced.graph.ops]
    assert not {"ones", "arange", "linspace"}.intersection(first), "the graph is that of all later calls"


@pytest.mark.parametrize("kind", [OfData, OfWeights, FilledByData, Drawn, Doubled, Writing, Learning])
def test_what_hangs_on_the_first_call_is_refused(kind: type[Late]) -> None:
    model = kind()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TraceError, match="another value, and ranks would go on with that of the example"):
        example_in(model, torch.randn(8, WIDTH), None, 2)
    assert model.held is None, "nothing is left"
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [HookedByData, HookedOften, HookedAndWriting, HookedAndLearning])
def test_what_is_hidden_and_more_than_hooks_is_refused(kind: type[Late]) -> None:
    model = kind()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TraceError, match=r"`lock` context manager.*call the model once before"):
        example_in(model, torch.randn(8, WIDTH), None, 2)
    assert model.held is None and not model.layer._forward_hooks, "nothing is left"
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_hooks_are_put_there_once() -> None:
    model, x = Hooked(), torch.randn(8, WIDTH)
    expected = copy.deepcopy(model)(x[:4])
    example = example_in(model, x, None, 2)
    assert len(model.layer._forward_hooks) == 1
    graph, values = example.traced.graph, example.arguments([x[:4]])
    values |= {name: example.traced.state[key] for name, key in graph.states.items()}
    (found,) = interpret(graph, [values[name] for name in graph.arguments])
    torch.testing.assert_close(found, expected)
