"""Places in tensors that are numbers of other tensors: one graph, where the tracer would end it at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lanes import assert_same, programs
from pretend import MIXED, TWO, spread
from torch import Tensor, nn

from partitioner import partition

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


class Places(nn.Module):
    """Two branches, a memory, and where its rows of most weight are: ``i``, which ``use`` is given."""

    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.left, self.right, self.use = nn.Linear(4, 4), nn.Linear(4, 4), use
        self.register_buffer("memory", torch.arange(64.0).view(4, 4, 4))

    def forward(self, x: Tensor) -> Any:
        """Maps (rows, 4) to (rows, 4), and what ``use`` gives."""
        y = self.left(x) + self.right(x)
        return y * 2, self.use(self, y, y.detach().sum(0).argmax())


def of_rows_beside_masks(self: Any, y: Tensor, i: Tensor) -> Any:
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[i, i] = False
    return self.memory[mask, i], self.memory[i, None, :, i], self.memory[-1 - i, torch.tensor([0, 2])]


def written(self: Any, y: Tensor, i: Tensor) -> Any:
    self.memory[i] = y.detach().mean(0)
    self.memory[:, i, 1:3] = 7.0
    self.memory[..., i] += 1
    self.memory[torch.tensor([0, 1]), i] = self.memory[i, i].clone()
    return self.memory[i].storage_offset()


def written_with_a_gradient(self: Any, y: Tensor, i: Tensor) -> Any:
    z = y * 3
    z[:, i] += self.left.weight[i].sum()
    z[0, i] = self.right.bias[i]
    part = z[..., i]
    part.mul_(2)
    return z, part


def all_or_none(self: Any, y: Tensor, i: Tensor) -> Any:
    z = y * 3
    z[z.sum() > 0] = self.left.bias
    self.memory[i > 1] = 5.0
    return z, y[y.mean() > 0], self.memory[(y > 1).any()].sum()


USES: dict[str, Callable[..., Any]] = {
    "a row": lambda self, y, i: self.memory[i],
    "a column": lambda self, y, i: y[:, i],
    "an element": lambda self, y, i: (self.memory[i, i.int(), i.to(torch.int8)], self.memory[i][i, 1:]),
    "of the end": lambda self, y, i: (self.memory[..., i], self.memory[1:, ..., -1 - i], self.memory[i, ..., 0]),
    "by its method": lambda self, y, i: self.memory.__getitem__((slice(1, 3), i)),
    "a number": lambda self, y, i: self.memory[:, i.item()],
    "beside masks": of_rows_beside_masks,
    "all or none": all_or_none,
    "written": written,
    "written, with a gradient": written_with_a_gradient,
}


def assert_alike(model: nn.Module, parallel: Any, device: bool = True) -> None:
    """Several calls give what eager's give, with their gradients, and leave the same behind."""
    for seed in range(5):
        found = []
        for module in (model, parallel):
            result = module(rows(2 + seed % 3, seed))
            sum(each.sum() for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, Tensor)).backward()
            found.append((result, module.memory.clone(), [each.grad for each in module.parameters()]))
        torch.testing.assert_close(found[1], found[0], check_device=device)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", USES)
def test_one_graph_knows_places(name: str) -> None:
    """It was refused: Python decides on the value of a tensor."""
    model = Places(USES[name])
    options = {"copy": True, "policy": "scatter", "grain": 0, "fullgraph": True}
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=(rows(3),), **options)
    assert_alike(model, parallel)
    assert programs(parallel) <= 3, "one for each place would be many"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lanes", [TWO, MIXED], ids=["two GPUs", "GPU and CPU"])
@pytest.mark.parametrize("name", USES)
def test_places_on_several_devices(name: str, lanes: dict[str, int], world: Any) -> None:
    model = Places(USES[name])
    assert_alike(model, spread(model, (rows(3),), lanes, copy=True, policy="scatter"), device=False)


class Ring(nn.Module):
    """Writes to the next place of a ring, which is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("memory", torch.zeros(3, 4))
        self.register_buffer("next", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x) * self.right(x)
        with torch.no_grad():
            self.memory[self.next] = y.mean(0)
            self.next.add_(1).remainder_(3)
        return y + self.memory.sum(0) + self.memory[self.next]


def test_a_place_that_is_not_there(world: Any) -> None:
    """The error is the one of indexing, as the op is; on several devices and on lanes."""
    model = Ring()
    options = {"copy": True, "fullgraph": True}
    for parallel in (
        partition(model, ["cpu:0", "cpu:1"], example_inputs=(rows(3),), **options),
        spread(model, (rows(3),), TWO, copy=True),
    ):
        assert_same(model(rows(2)).detach(), parallel(rows(2)).detach())
        for module in (model, parallel):
            module.next.fill_(5)
            with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 3"):
                module(rows(2))
            module.next.fill_(1)
        assert_same(model(rows(2)).detach(), parallel(rows(2)).detach())
        model.load_state_dict(Ring().state_dict() | dict(model.named_parameters()))
