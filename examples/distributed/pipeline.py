"""Pipeline parallelism: a small language model with tied embeddings is cut into two stages, one for each rank.

    torchrun --nproc-per-node 2 examples/distributed/pipeline.py

Where it is cut is decided by what ops cost. Both stages hold the tied weight, and their gradients of it are summed.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from partitioner.distributed import parallelize

SPEC = {"distributed": {"mesh": {"pipeline": 2}, "schedule": "1f1b", "microbatches": 4}}
WORDS, LENGTH = 64, 16


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unsqueeze(1).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))
        return x + self.mlp(self.after(x))


class Language(nn.Module):
    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build() -> nn.Module:
    torch.manual_seed(0)  # every rank builds the same model
    return Language()


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), target.flatten())


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Counting, from anywhere in steps of one to three: the next number is to be said."""
    generator = torch.Generator().manual_seed(step)
    start, stride = torch.randint(WORDS, (16, 1), generator=generator), torch.randint(1, 4, (16, 1), generator=generator)
    ids = (start + stride * torch.arange(LENGTH + 1)) % WORDS
    return ids[:, :-1], ids[:, 1:]


def main(steps: int = 50) -> None:
    example, _ = batch(0)
    model, step = parallelize(build(), example, SPEC, loss_of)
    if dist.get_rank() == 0:
        print(model.cut)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(steps):
        loss = step(batch(number))
        step.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % 10 == 9:
            print(f"step {number + 1:3}   loss {loss.item():.4f}")
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
