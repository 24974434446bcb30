"""Training as usual: a partitioned model is a module, its parameters are the model's own, one optimizer takes them all.

    python examples/train_one_optimizer.py

The same steps are taken in eager, and the losses printed side by side.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from partitioner import partition


class Regressor(nn.Module):
    """Two branches over the same features, joined by a head. Dropout draws the same numbers as in eager."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU())
        self.deep = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(2 * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.wide(x), self.deep(x)], dim=1)).squeeze(1)


def build(width: int = 256) -> nn.Module:
    torch.manual_seed(0)
    return Regressor(width).train()


def batches(steps: int, size: int = 64) -> list[tuple[Tensor, Tensor]]:
    """What is to be learned: the sine of a weighted sum."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(size, 16, generator=generator) for _ in range(steps)]
    return [(x, (x @ torch.linspace(-1, 1, 16)).sin()) for x in inputs]


def train(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> list[float]:
    """A training loop that knows nothing of partitions."""
    torch.manual_seed(2)  # for dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        prediction = model(x)
        loss = nn.functional.mse_loss(prediction, y.to(prediction.device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(width: int = 256, steps: int = 20) -> None:
    data = batches(steps)
    eager = build(width)
    parallel = partition(copy.deepcopy(eager), example_inputs=data[0][0])
    for step, (wanted, found) in enumerate(zip(train(eager, data), train(parallel, data), strict=True)):
        print(f"step {step:3}   eager {wanted:.6f}   partitioned {found:.6f}")
        # Gradients that meet in one tensor may be summed in another order, so the last bits may differ.
        assert abs(wanted - found) <= 1e-4 * abs(wanted), "the losses differ"
    print("the losses are equal")


if __name__ == "__main__":
    main()
