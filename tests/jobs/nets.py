"""Small models, losses and batches that jobs train over ranks and tests train in one process; the same values every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jobs.nets_of_layers import Aside, Averaging, Beside, Cooling, Hinted, Late, Mapped, Picked, Plain
from torch import Tensor, nn

ROWS = 16
STEPS = 10


class Skipping(nn.Module):
    """Six layers, the first embedding read again at the end, by a view and a sum; a dict with a number as its output."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(6)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> dict[str, Any]:
        first = x = self.embed(ids)
        for layer in self.layers:
            x = torch.relu_(layer(x))
        left, right = x.split(8, -1)
        return {"logits": self.head(self.norm(torch.cat([right, left], -1) + first)), "layers": 6}


class Shared(Skipping):
    """Ties, a buffer that all layers read, and a learnt number."""

    def __init__(self) -> None:
        super().__init__(tied=True)
        self.temperature = nn.Parameter(torch.tensor(1.2))
        self.register_buffer("shift", torch.linspace(-0.1, 0.1, 16))

    def forward(self, ids: Tensor) -> dict[str, Any]:
        first = x = self.embed(ids)
        for layer in self.layers:
            x = torch.relu_(layer(x) + self.shift)
        return {"logits": self.head(self.norm(x + first)) / self.temperature}


class UNet(nn.Module):
    """Down and up again, each level joined with the one that it came from; batch norm, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = self._block(3, 8), self._block(8, 12), self._block(12, 16)
        self.up_two, self.up_one = self._block(16 + 12, 12), self._block(12 + 8, 8)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True))

    def forward(self, image: Tensor) -> Tensor:
        one = self.one(image)
        two = self.two(F.max_pool2d(one, 2))
        three = self.three(F.max_pool2d(two, 2))
        up = self.up_two(torch.cat([F.interpolate(three, scale_factor=2.0), two], 1))
        return self.head(self.up_one(torch.cat([F.interpolate(up, scale_factor=2.0), one], 1)))


class Keeping(nn.Module):
    """Values that a layer reads and keeps for its weight's gradient, and that the last stage reads as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = x.masked_fill(mask, 0.0)
        seen = []
        for layer in self.layers:
            x = layer(x)
            seen.append(x)
        return {"logits": sum(seen)}


class Towers(nn.Module):
    """Three towers that read one layer, joined under a mask; in-place ops, buffers, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 10)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.BatchNorm1d(32), nn.Linear(32, 16)) for _ in range(3)
        )

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.first(x))
        found = [tower(hidden) for tower in self.towers]
        return {"logits": self.head(sum(each.masked_fill(mask, 0.0) for each in found)), "aside": found[1]}


class Words(nn.Module):
    """A loss of its own over a vocabulary, for which no logits leave the model; a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(50, 16), nn.Linear(16, 32)
        self.head, self.rise = nn.Linear(32, 50), torch.linspace(0.0, 0.1, 32)

    def forward(self, ids: Tensor, target: Tensor) -> dict[str, Tensor]:
        logits = self.head(torch.relu(self.hidden(self.embed(ids)) + self.rise))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=7, label_smoothing=0.1)}


class Tailed(nn.Module):
    """One layer, and more work behind it than in it, none of it with parameters; its names are those of a rank's part."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.cut = nn.Linear(16, 10), nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = one = self.idle(x.masked_fill(mask, 0.0)) * self.cut
        for _ in range(8):
            one = torch.cumsum(torch.tanh(one), -1)
        for _ in range(8):
            x = torch.softmax(x, -1) * 4
        return {"logits": x + one}


class Repeated(nn.Module):
    """One layer for all depths, with a norm and a number of each: stages of one rank share it, as in ALBERT. Another one comes
    later, so that the stage in which it does not is on a rank whose other stage has it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.late, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(8))
        self.gains = nn.ParameterList(nn.Parameter(torch.tensor(1.0)) for _ in range(8))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = x.masked_fill(mask, 0.0)
        for depth, (norm, gain) in enumerate(zip(self.norms, self.gains, strict=True)):
            x = x + gain * torch.relu((self.layer if depth < 3 else self.late)(self.layer(norm(x))))
        return {"logits": self.head(x)}


class Routed(nn.Module):
    """Experts with a gate that each of them reads, behind layers that do not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(16, 16) for _ in range(8)).requires_grad_(False)
        self.gate, self.head = nn.Linear(16, 3), nn.Linear(16, 10)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = x.masked_fill(mask, 0.0)
        for layer in self.first:
            x = x + torch.tanh(layer(x))
        best, which = self.gate(x).softmax(-1).topk(2, -1)
        parts = ((best * (which == number)).sum(-1, keepdim=True) for number in range(3))
        return {"logits": self.head(sum(part * expert(x) for part, expert in zip(parts, self.experts, strict=True)))}


class Clamped(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (ctx.saved_tensors[0].abs() < 1.5)


class Waves(nn.Module):
    """Complex numbers, which two towers read; a number as first input, and a table of as many rows as a microbatch has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 10)
        self.filter = nn.Parameter(torch.linspace(0.1, 1.0, 18).view(9, 2))
        self.left, self.right = (
            nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)) for width in (16, 9)
        )

    def forward(self, temperature: Tensor, x: Tensor, table: Tensor) -> dict[str, Tensor]:
        x = Clamped.apply(self.first(x) + table.sum(0))
        waves = torch.fft.rfft(x) * torch.view_as_complex(self.filter)
        found = self.left(torch.fft.irfft(waves, n=16)) * self.right(waves.abs())
        return {"logits": self.head(Clamped.apply(found)) / temperature}


def _hugging_face(name: str) -> nn.Module:
    import zoo

    zoo.import_torchvision()
    import transformers

    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 3, "num_heads": 2}
    if name == "t5":
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, use_cache=False))
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=4, n_head=2, n_positions=16, use_cache=False)
        return transformers.GPT2LMHeadModel(config)
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "projection_dim": 16}
    text = {**tower, "vocab_size": 50, "max_position_embeddings": 16, "eos_token_id": 49}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**tower, "image_size": 16, "patch_size": 8}, projection_dim=16
    )
    return transformers.CLIPModel(config)


def _next_word(output: Any, target: Tensor) -> Tensor:
    logits = output["logits"] if isinstance(output, dict) else output.logits
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def _alike(output: Any) -> Tensor:
    """Pictures and texts of a microbatch know each other; the batch has no target."""
    wanted = torch.arange(len(output.logits_per_text))
    return F.cross_entropy(output.logits_per_text, wanted) + F.cross_entropy(output.logits_per_image, wanted)


def _joined(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output["logits"], target) + 0.1 * output["aside"].square().mean()


def _in_part(output: Any, target: Tensor) -> Tensor:
    """A loss that leaves out a result where a microbatch begins with one of the later classes."""
    found = F.cross_entropy(output["logits"], target)
    return found + output["aside"].square().mean() if target[0] < 5 else found


def _left_out(draw: torch.Generator) -> Any:
    """Features, of which `_in_part` reads all but the last two rows of the first half, and none of the second half."""
    inputs, target = _features(draw)
    return inputs, target % 5 + 5 * (torch.arange(ROWS) >= ROWS // 2 - 2)


def _features(draw: torch.Generator) -> Any:
    x, mask = torch.randn(ROWS, 16, generator=draw), torch.rand(ROWS, 16, generator=draw) < 0.2
    return {"x": x, "mask": mask}, torch.randint(0, 10, (ROWS,), generator=draw)


def _signals(draw: torch.Generator) -> Any:
    inputs = {"temperature": torch.tensor(2.0), "x": torch.randn(ROWS, 16, generator=draw)}
    return inputs | {"table": torch.randn(4, 16, generator=draw)}, torch.randint(0, 10, (ROWS,), generator=draw)


def _ids(draw: torch.Generator) -> Any:
    return torch.randint(0, 50, (ROWS, 5), generator=draw), torch.randint(0, 50, (ROWS, 5), generator=draw)


def _texts(draw: torch.Generator) -> Any:
    ids, target = _ids(draw)
    return {"ids": ids, "target": target.where(target != 7, 8)}  # of ignored ones each microbatch would have another number


def _translations(draw: torch.Generator) -> Any:
    source, target = _ids(draw)
    return {"input_ids": source, "decoder_input_ids": target.flip(1)}, target


def _masks(draw: torch.Generator) -> Any:
    return torch.randn(ROWS, 3, 16, 16, generator=draw), torch.randint(0, 2, (ROWS, 16, 16), generator=draw)


def _captions(draw: torch.Generator) -> Any:
    ids, _ = _ids(draw)
    return {"input_ids": ids, "pixel_values": torch.randn(ROWS, 3, 16, 16, generator=draw)}


@dataclass(frozen=True)
class Training:
    """A model to train: how to build it, the loss, one batch, what counts. In eval mode: without dropout, with fixed norms."""

    build: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    batch: Callable[[torch.Generator], Any]
    train: bool = False
    count: Callable[..., Any] | None = None

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().train(self.train)

    def batches(self) -> list[Any]:
        draw = torch.Generator().manual_seed(1)
        return [self.batch(draw) for _ in range(STEPS)]


TRAININGS = {
    "skipping": Training(lambda: Skipping(tied=False), _next_word, _ids),
    "tied": Training(lambda: Skipping(tied=True), _next_word, _ids),
    "shared": Training(Shared, _next_word, _ids),
    "keeping": Training(Keeping, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "towers": Training(Towers, _joined, _features),
    "words": Training(Words, lambda output: output["loss"], _texts),
    "tailed": Training(Tailed, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "routed": Training(Routed, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "repeated": Training(Repeated, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "aside": Training(Aside, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "in part": Training(Aside, _in_part, _left_out),
    "beside": Training(Beside, _joined, _features),
    "layers": Training(Plain, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "last alone": Training(Beside, lambda output, target: F.cross_entropy(output["aside"], target), _features),
    "averaging": Training(Averaging, lambda output, target: F.cross_entropy(output["logits"], target), _features, train=True),
    "cooling": Training(Cooling, lambda output, target: F.cross_entropy(output["logits"], target), _features, train=True),
    "late": Training(Late, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "mapped": Training(Mapped, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "picked": Training(Picked, lambda output, target: F.cross_entropy(output["logits"], target), _features),
    "hinted": Training(Hinted, _next_word, _ids, train=True),
    "waves": Training(Waves, lambda output, target: F.cross_entropy(output["logits"], target), _signals),
    "unet": Training(UNet, F.cross_entropy, _masks),
    "t5": Training(lambda: _hugging_face("t5"), _next_word, _translations),
    "gpt2": Training(lambda: _hugging_face("gpt2"), _next_word, _ids),
    "clip": Training(lambda: _hugging_face("clip"), _alike, _captions, count=lambda *_, **__: 1),  # pairs of a microbatch
}


BY_ITSELF = {"clip", "words"}
"""Trainings whose loss takes no target: a batch is the model's arguments."""


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """Some rows of a batch; what has none is for all of them."""
    return torch.utils._pytree.tree_map(lambda each: each[start:stop] if each.shape[:1] == (ROWS,) else each, batch)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of every training. What has a gradient of zeros decays, and what has none does not."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05)
