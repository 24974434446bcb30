"""A model that no rank ever holds as a whole: built on the meta device, each rank reads what it holds."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from partitioner import distributed


class Tied(nn.Module):
    """An embedding that is the head as well, and one layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(40, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.idle, self.head = nn.Linear(16, 16), nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over all places."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def answer(folder: Path, **mesh: int) -> dict[str, object]:
    """Train three steps beside the whole model: what this rank holds, and what it has read."""
    torch.manual_seed(0)
    ids, target = torch.randint(0, 40, (8, 5)), torch.randint(0, 40, (8, 5))
    whole = Tied()
    whole.load_state_dict(torch.load(folder / "whole.pt", weights_only=True))
    with torch.device("meta"):
        empty = Tied()
    spec = {"distributed": {"mesh": mesh, "microbatches": 2, "timeout": 60}}
    part, step = distributed.parallelize(empty, ids, spec, loss_of, weights=folder / "model.safetensors")
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (part, whole)]
    apart = 0.0
    for _ in range(3):
        loss = step((ids, target))
        wanted = loss_of(whole(ids), target)
        wanted.backward()
        apart = max(apart, abs(loss.item() - wanted.item()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    kept = sorted(key for key, tensor in empty.state_dict(keep_vars=True).items() if not tensor.is_meta)
    return {"apart": apart, "held": sorted(part.state_dict()), "read": kept}
