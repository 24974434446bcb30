"""A large table stays in the host's memory, the network runs on the accelerator: pins say which part goes where.

    python examples/hybrid_cpu_gpu.py
    python -m partitioner inspect examples/hybrid_cpu_gpu.py --spec specs/cpu_gpu.yaml     needs no GPU to plan for one

Without an accelerator the same model runs on two CPU lanes, and the pins name the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partitioner import partition


class Preprocessor(nn.Module):
    """Looks words up and normalises them: little arithmetic, much memory."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="mean")
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.embedding(ids))


class Hybrid(nn.Module):
    """The preprocessor and what follows it."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.preprocessor = Preprocessor(words, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.network(self.preprocessor(ids))


def build(words: int = 50_000, width: int = 128) -> nn.Module:
    torch.manual_seed(0)
    return Hybrid(words, width).eval()


def example_inputs(words: int = 50_000, batch: int = 16) -> Tensor:
    return torch.randint(words, (batch, 12), generator=torch.Generator().manual_seed(1))


def main(words: int = 50_000, width: int = 128) -> None:
    model, ids = build(words, width), example_inputs(words)
    expected = model(ids)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    network = "cpu" if accelerator is None else f"{accelerator}:0"
    devices = ["cpu:0", "cpu:1"] if accelerator is None else ["cpu", network]
    pins = [{"match": "preprocessor*", "device": "cpu"}, {"match": "network*", "device": network}]
    parallel = partition(model, devices, example_inputs=ids, pins=pins)
    for name, parameter in parallel.named_parameters():
        print(f"{name:32} {parameter.device}")
    found = parallel(ids)  # the copy between the devices is part of the program
    print(f"\nthe result lies on {found.device}; the largest difference is {(found.cpu() - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
