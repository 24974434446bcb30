"""Models small enough to measure, their plans, and what PyTorch's CPU allocator gave out while one ran."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

import zoo
from partitioner.compile import plan_of
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.analysis.held import memory_of
from partitioner.frontend.trace import graphs_of_call
from partitioner.ir.footprint import Footprint
from partitioner.ir.machine import Device, Machine
from partitioner.ir.optimizer import OPTIMIZERS
from partitioner.ir.plan import Plan
from partitioner.model.call import Call
from partitioner.model.state import attribute
from partitioner.runtime.module import Parallel
from partitioner.spec.spec import Spec

CPU = Machine((Device("cpu", "cpu"),))


class Recurrent(nn.Module):
    """Words, two layers of LSTM, and words again."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(500, 64), nn.LSTM(64, 96, 2, batch_first=True), nn.Linear(96, 500)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class UNet(nn.Module):
    """Two levels down and up again, each with what the way down had."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = _double(3, width), _double(width, 2 * width), _double(2 * width, 4 * width)
        self.lift, self.join = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), _double(4 * width, 2 * width)
        self.lift_again, self.join_again = nn.ConvTranspose2d(2 * width, width, 2, 2), _double(2 * width, width)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.first(x)
        middle = self.second(nn.functional.max_pool2d(high, 2))
        low = self.third(nn.functional.max_pool2d(middle, 2))
        middle = self.join(torch.cat([self.lift(low), middle], 1))
        return self.head(self.join_again(torch.cat([self.lift_again(middle), high], 1)))


def _double(inside: int, outside: int) -> nn.Sequential:
    one, other = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
    return nn.Sequential(one, nn.BatchNorm2d(outside), nn.ReLU(), other, nn.BatchNorm2d(outside), nn.ReLU())


def mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1))))


def towers() -> nn.Module:
    """Two branches that are joined."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = mlp(), mlp(), nn.Linear(256, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([self.left(x), self.right(x)], -1))

    return Towers()


def _bert() -> nn.Module:
    transformers: Any = zoo.import_transformers()

    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    return transformers.BertModel(transformers.BertConfig(vocab_size=500, **size))


def _gpt2() -> nn.Module:
    transformers: Any = zoo.import_transformers()

    tokens = {"vocab_size": 500, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, use_cache=False, **tokens)
    return transformers.GPT2LMHeadModel(config)


def _torchvision(name: str, **options: Any) -> nn.Module:
    model: nn.Module = getattr(zoo.import_torchvision().models, name)(weights=None, **options)
    return model


@dataclass(frozen=True)
class Case:
    """A model, and what it is called with for a batch."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    batch: int


def _ids(batch: int) -> Tensor:
    return torch.randint(0, 500, (batch, 32))


CASES = {
    "mlp": Case(mlp, lambda batch: torch.randn(batch, 128), 256),
    "towers": Case(towers, lambda batch: torch.randn(batch, 128), 256),
    "resnet18": Case(lambda: _torchvision("resnet18"), lambda batch: torch.randn(batch, 3, 48, 48), 6),
    "googlenet": Case(
        lambda: _torchvision("googlenet", aux_logits=False, init_weights=False),
        lambda batch: torch.randn(batch, 3, 64, 64),
        4,
    ),
    "mobilenet": Case(lambda: _torchvision("mobilenet_v2"), lambda batch: torch.randn(batch, 3, 48, 48), 6),
    "unet": Case(UNet, lambda batch: torch.randn(batch, 3, 48, 48), 4),
    "lstm": Case(Recurrent, _ids, 8),
    "bert": Case(_bert, _ids, 8),
    "gpt2": Case(_gpt2, _ids, 8),
}
"""What peaks are measured of, by name."""


def traced(model: nn.Module, x: Tensor, training: bool) -> Traced:
    """The graph of a call."""
    with torch.set_grad_enabled(training):
        ((found, _),) = graphs_of_call(model, Call.of((x,), {}), whole=True, check=False)
    return found


def planned(model: nn.Module, x: Tensor, training: bool, optimizer: str = "none", machine: Machine = CPU) -> Plan:
    """A plan of a call, with the memory of its ops."""
    found = traced(model, x, training)
    memory = memory_of(found, training=training, optimizer=OPTIMIZERS[optimizer])
    return replace(plan_of(found, machine, Spec()), memory=memory)


def plan_in(parallel: Parallel, training: bool, optimizer: str = "none") -> Plan:
    """The plan of a module's program, with the memory of its ops."""
    plan = parallel._partitioner_programs.plan
    assert plan is not None
    state = {name: attribute(parallel, name) for name in plan.state}
    return replace(plan, memory=memory_of(Traced(plan.graph, state), training=training, optimizer=OPTIMIZERS[optimizer]))


def beyond(footprint: Footprint) -> int:
    """Bytes of a peak beyond what is there before a call, and beside margins."""
    return footprint.total - footprint.state - footprint.inputs - footprint.margin


class Loss(torch.autograd.Function):
    """A loss that takes no memory, but gives its argument a gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.shape = x.shape
        return x.new_zeros(())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient.new_zeros(context.shape)


def step_of(
    parallel: Parallel,
    training: bool,
    optimizer: torch.optim.Optimizer | None,
    args: Sequence[Any],
    named: Mapping[str, Any],
) -> Callable[[], None]:
    """A call, in training with a backward and a step of the optimizer."""

    def call() -> None:
        parallel(*args, **named)

    def train() -> None:
        results = tree_leaves(parallel(*args, **named))  # which the caller keeps, as most do
        losses = [Loss.apply(each) for each in results if isinstance(each, Tensor) and each.requires_grad]
        torch.autograd.backward(losses)
        if optimizer is not None:
            optimizer.step()
        parallel.zero_grad()

    return train if training else torch.no_grad()(call)


def allocated(call: Callable[[], object]) -> int:
    """The most bytes that the CPU's allocator had given out at once in a call, on this thread, beyond those before it."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        call()
    events = sorted((each for each in found.profiler.kineto_results.events() if each.name() == "[memory]"), key=_start)
    now = most = 0
    for each in events:
        now += each.nbytes()
        most = max(most, now)
    return most


def _start(event: Any) -> int:
    return int(event.start_ns())
