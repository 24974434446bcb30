"""What would Llama 3.1 405B take on 512 H100? Step time, tokens per second, bubble and memory of each device, predicted.

    python benchmarks/llama405b.py                    the mesh of torchtitan: data 8 (FSDP2) x pipeline 8 x tensor 8
    python benchmarks/llama405b.py --tensor 1         data 64 x pipeline 8, and a batch of 512: a microbatch for each stage
    python benchmarks/llama405b.py --layers 8         a few layers, to see that it runs

The model is the published architecture on the meta device, in bfloat16: it takes no memory, and no device is needed. Beside the
predictions stand the figures that torchtitan published for the same mesh and batch.

Sources: Grattafiori et al., "The Llama 3 Herd of Models", arXiv 2407.21783, table 3; Liang et al., "TorchTitan: One-stop
PyTorch native solution for production ready LLM pretraining", arXiv 2410.06511, and docs/performance.md of torchtitan, table 5.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from _common import print_machine, table
from torch import Tensor, nn
from torch.nn import functional

from partitioner.distributed import Outlook, outlook
from partitioner.errors import PartitionerError
from partitioner.ir.units import format_duration, format_size

RANKS, EACH, STAGES, BATCH, SEQUENCE = 512, 8, 8, 256, 8192
PUBLISHED = {"1f1b": (100, "82.5 GiB"), "interleaved_1f1b": (128, "72.7 GiB")}
"""Tokens per second and GPU, and memory: float8, full activation checkpointing, tensor parallelism that overlaps."""

ASSUMED = """
Assumed of the machine: H100 SXM by its data sheet (989 TFLOP/s in bfloat16, 3.35 TB/s, 80 GB), of which large ops reach 70%
and 85%, and of whose memory a plan may use 90%; NVLink 450 GB/s each way within a host, and between hosts one 400 Gb/s port
for each GPU, of which messages reach 80%; 10 us latency of each; 6 us for the host to issue an op. torchtitan's GPUs were
others: 96 GB of HBM2e at 2.4 TB/s, held to 500 W.

Assumed of the program: all in bfloat16, AdamW's state too; no float8; "segments" are run again in a backward, as many as
take the least memory; ops as the model has them, not fused, and attention not halved for being causal; a backward takes
twice as long as its forward; messages between stages and work go on at once, collectives of the tensor axis and work do
not; FSDP2 gathers a stage's parameters once a step and scatters its gradients after the last backward; neither loss nor the
optimizer's step are counted.
"""


@dataclass(frozen=True)
class Sizes:
    """The architecture. The defaults are those of 405B."""

    layers: int = 126
    width: int = 16384
    heads: int = 128
    groups: int = 8
    inner: int = 53248
    words: int = 128256


class Attention(nn.Module):
    """Grouped queries with rotary positions."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.depth = sizes.width // sizes.heads
        kept = self.depth * sizes.groups
        self.queries = nn.Linear(sizes.width, sizes.width, bias=False)
        self.keys, self.values = nn.Linear(sizes.width, kept, bias=False), nn.Linear(sizes.width, kept, bias=False)
        self.output = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rows, length, _ = x.shape
        queries, keys, values = (
            part(x).view(rows, length, -1, self.depth).transpose(1, 2) for part in (self.queries, self.keys, self.values)
        )
        queries, keys = turned(queries, cosine, sine), turned(keys, cosine, sine)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(rows, length, -1))
        return out


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Positions turned into the angles of pairs of channels."""
    one, other = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-other, one), dim=-1) * sine


class Layer(nn.Module):
    """Attention, and a gated network of two matrices and one."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.before, self.between = nn.RMSNorm(sizes.width, eps=1e-5), nn.RMSNorm(sizes.width, eps=1e-5)
        self.gate, self.up = nn.Linear(sizes.width, sizes.inner, bias=False), nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), cosine, sine)
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Words in, logits out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.RMSNorm(sizes.width, eps=1e-5), nn.Linear(sizes.width, sizes.words, bias=False)
        depth = sizes.width // sizes.heads
        self.register_buffer("cosine", torch.empty(SEQUENCE, depth), persistent=False)
        self.register_buffer("sine", torch.empty(SEQUENCE, depth), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        logits: Tensor = self.head(self.norm(x))
        return logits


def main(words: Sequence[str] | None = None) -> None:
    """Predict and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor", type=int, default=8, help="ranks of the tensor axis; the data axis is 64 over that")
    parser.add_argument("--layers", type=int, default=126)
    parser.add_argument("--auto", action="store_true", help="let the planner choose the mesh, too")
    options = parser.parse_args(words)
    print_machine()
    with torch.device("meta"):
        model = Llama(Sizes(layers=options.layers)).to(torch.bfloat16)
    print(f"{sum(each.numel() for each in model.parameters()) / 1e9:.1f} billion parameters, {options.layers} layers\n")
    rows = []
    for (schedule, each), recompute in itertools.product((("1f1b", 1), ("interleaved_1f1b", 2)), ("none", "segments")):
        start = time.perf_counter()
        found = predicted(model, {"schedule": schedule, "stages_per_rank": each, "recompute": recompute}, options.tensor)
        rows.append(row(found, time.perf_counter() - start))
    print(
        table(
            ("schedule", "run again", "step", "tokens/s/GPU", "bubble", "exchange", "memory", "planning s", "torchtitan"), rows
        )
    )
    print(ASSUMED)
    if options.auto:
        start = time.perf_counter()
        try:
            print(predicted(model, {"mesh": "auto"}, 1))
        except PartitionerError as error:
            print(error)
        print(f"planned in {time.perf_counter() - start:.1f} s")


def predicted(model: nn.Module, asked: dict[str, object], tensor: int) -> Outlook:
    """One way to train it."""
    copies = RANKS // STAGES // tensor
    rows = max(BATCH // copies, STAGES)
    fixed = {"mesh": {"data": copies, "pipeline": STAGES, "tensor": tensor}, "microbatches": rows, "wrap": "fsdp2"}
    links = {"between": {"network": "InfiniBand-NDR"}}
    section = {**({} if "mesh" in asked else fixed), "hosts": RANKS // EACH, "ranks": RANKS, "links": links, **asked}
    batch = torch.zeros(BATCH if "mesh" in asked else rows, SEQUENCE, dtype=torch.int64, device="meta")
    machine = [{"device": "cuda:0", "hardware": "H100"}]
    return outlook(model, batch, {"devices": machine, "optimizer": "adamw", "distributed": section})


def row(found: Outlook, seconds: float) -> list[object]:
    """A line of the table."""
    asked = found.asked
    tokens = asked.mesh.data * asked.microbatches * SEQUENCE  # a microbatch is one sequence
    published = "{} tokens/s/GPU, {}".format(*PUBLISHED[asked.schedule]) if asked.mesh.tensor == 8 else "another mesh"
    fits = f", {format_size(found.excess)} too much" if found.excess else ""
    return [
        f"{asked.schedule}, {asked.microbatches} microbatches",
        asked.recompute,
        format_duration(found.step),
        f"{tokens / found.step / RANKS:.0f}",
        f"{found.bubble:.1%}",
        format_duration(found.exchange),
        f"{format_size(min(found.memory))} to {format_size(max(found.memory))}{fits}",
        f"{seconds:.1f}",
        published,
    ]


if __name__ == "__main__":
    main()
