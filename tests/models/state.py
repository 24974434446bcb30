"""State that outlives a call: buffers, counters, caches, Python attributes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Model, model, numbers


@model
class RunningStatistics(Model):
    """Two batch norms in two branches, each with its own running mean, which the op's schema does not say it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x * 2)


@model
class CumulativeStatistics(Model):
    """`momentum=None` averages over all calls: a tensor's value, the call counter, becomes a Python number in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@model
class Counter(Model):
    """`self.n.add_(1)` reads and writes a buffer, and touches no value of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.n = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.n.add_(1)
        return x * self.n

    def example_inputs(self) -> tuple[object, ...]:
        return (numbers(3, 6, gradient=True),)


@model
class ReplacedCounter(Model):
    """`self.n = self.n + 1` binds the buffer's name to a new tensor, for which there is no op."""

    def __init__(self) -> None:
        super().__init__()
        self.n = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + 1
        return x * self.n


@model
class ParityCounter(Model):
    """A counter that feeds back: what a call returns depends on how many came before."""

    def __init__(self) -> None:
        super().__init__()
        self.sign = nn.Buffer(torch.ones(1))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.sign.neg_()
        return self.head(x) * self.sign


@model
class KeyValueCache(Model):
    """A decoder's cache: keys are written at a position with `index_copy_`, read whole, and the position moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query = nn.Linear(6, 4), nn.Linear(6, 4)
        self.keys = nn.Buffer(torch.zeros(8, 4))
        self.position = nn.Buffer(torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.index_copy_(0, self.position, self.key(x[:1]).detach())
        scores = self.query(x) @ self.keys.t()
        self.position.add_(1).remainder_(8)
        return scores


@model
class RunningMean(Model):
    """An exponential average by hand, written in one branch and read in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(6))
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self.mean
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.head(centred)


@model
class NonPersistent(Model):
    """A buffer that is in no state_dict still carries state from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Buffer(torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        result = x + self.last * 2
        self.last.copy_(x.detach().mean())
        return result


CALLS: list[int] = []


@model
class ModuleLevelState(Model):
    """The forward extends a list of its file: the values are right either way, and the list must grow as well."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        CALLS.append(1)
        return self.head(x)


@model
class PythonCounter(Model):
    """A Python number on the module, changed and read by the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * float(self.calls)


@model
class ListMemory(Model):
    """A list that the forward extends with its own tensors and sums over."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().mean())
        return x + torch.stack(self.seen).sum()


@model
class DictMemory(Model):
    """A cache by key: the first call fills it, and later calls take another path."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "mean" not in self.cache:
            self.cache["mean"] = x.detach().mean()
            return x
        return x - self.cache["mean"]


@model
class LocalContainers(Model):
    """Lists and dicts that live for one call: the order of appends is the order of the branches in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(6, 2) for name in ("b", "a", "c")})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        collected: list[Tensor] = []
        found: dict[str, Tensor] = {}
        for name, head in self.heads.items():
            found[name] = head(x)
            collected.append(found[name])
        found["all"] = torch.cat(collected, 1)
        return found


@model
class CalledNTimes(Model):
    """A loop whose length is a buffer's value."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Buffer(torch.tensor(2))
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(self.steps)):
            x = torch.tanh(self.layer(x))
        return x
