"""Training with an optimizer for each part: the parts of a partitioned model are the submodules of the model.

    python examples/train_optimizer_per_part.py

A pretrained encoder is tuned slowly, a new head fast, and each is clipped on its own. The same is done in eager, and the
losses are printed side by side.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from partitioner import partition


class TwoEncoders(nn.Module):
    """Two encoders, one for each kind of input, and a head over both."""

    def __init__(self, width: int, classes: int = 4) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width))
        self.text = nn.Sequential(nn.Embedding(64, width), nn.Flatten(), nn.Linear(6 * width, width))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        return self.head(torch.cat([self.image(image), self.text(text)], dim=1))


def build(width: int = 128) -> nn.Module:
    torch.manual_seed(0)
    return TwoEncoders(width).train()


Batch = tuple[tuple[Tensor, Tensor], Tensor]


def batches(steps: int, size: int = 32) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)

    def batch() -> Batch:
        image = torch.randn(size, 32, generator=generator)
        text = torch.randint(64, (size, 6), generator=generator)
        return (image, text), (image[:, 0] > 0).long() + 2 * (text[:, 0] > 31).long()

    return [batch() for _ in range(steps)]


def train(model: nn.Module, data: list[Batch]) -> list[float]:
    """Each part has an optimizer, a learning rate and a limit for its gradients."""
    parts: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {
        "image": (model.image, torch.optim.AdamW(model.image.parameters(), lr=1e-4)),
        "text": (model.text, torch.optim.AdamW(model.text.parameters(), lr=1e-4)),
        "head": (model.head, torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)),
    }
    losses = []
    for inputs, target in data:
        logits = model(*inputs)
        loss = nn.functional.cross_entropy(logits, target.to(logits.device))
        loss.backward()
        for part, optimizer in parts.values():
            nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(width: int = 128, steps: int = 20) -> None:
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
