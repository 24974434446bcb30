"""More of `ingredients`: signals and images, transforms, hooks, several modules that learn together, results of any form."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import Any, NamedTuple

import torch
from hostile.program import rand
from ingredients import Layers, floats, ingredient, tokens
from torch import Tensor, nn
from torch.nn import functional as F

# -- signals and images ------------------------------------------------------------------------------------------------


@ingredient(floats(32))
class spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(9))
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: Tensor) -> Any:
        z = torch.stft(x, 16, 8, window=self.window, return_complex=True)
        y = torch.istft(z * self.gain[:, None], 16, 8, window=self.window, length=32)
        return y, z.abs().log1p(), z


@ingredient(floats(8))
class fourier_mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.view_as_complex(rand(5, 2)))
        self.skip = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        z = torch.fft.rfft(x) * self.weight
        return torch.fft.irfft(z, n=8) + self.skip(x), z.conj(), torch.view_as_real(z)


@ingredient(floats(2, 6, 6))
class spatial_transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.where, self.body = nn.Linear(72, 6), nn.Conv2d(2, 3, 3, padding=1)
        nn.init.zeros_(self.where.weight)
        self.where.bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.where(x.flatten(1)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.body(F.grid_sample(x, grid, align_corners=False)) + F.interpolate(
            self.body(x)[:, :, ::2, ::2], scale_factor=2
        )


@ingredient(floats(2, 6, 6))
class residual_block(nn.Module):
    """Convolutions, norms and activations in place, with stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU(inplace=True))
        self.b = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Dropout2d(0.3), nn.SiLU(inplace=True))
        self.keep = 0.7

    def forward(self, x: Tensor) -> Tensor:
        out = self.b(self.a(x))
        if self.training:
            out = out * torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype).bernoulli_(self.keep).div_(self.keep)
        out += x
        return F.adaptive_avg_pool2d(F.relu_(out), 2).flatten(1)


@ingredient(floats(2, 6, 6))
class pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.conv = nn.Conv2d(2, 2, 3, padding="same", padding_mode="circular")

    def forward(self, x: Tensor) -> Any:
        small, where = self.down(self.conv(x))
        return self.up(small, where, output_size=x.shape[-2:]), where


@ingredient()
class dropouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.a, self.b, self.c = nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2), nn.Dropout(0.5, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        noisy = self.right(x) + 0.1 * torch.randn_like(x)
        return self.a(self.left(x)) + self.b(noisy) * self.c(F.rrelu(self.left(x), training=self.training))


# -- transforms and programs inside of forward -------------------------------------------------------------------------


@ingredient()
class vectorised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Bilinear(4, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.func.vmap(lambda row: self.left(row).softmax(0).outer(row).sum(0))(x)
        return self.right(rows, x)


@ingredient()
class energy(nn.Module):
    """A gradient that is part of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        slope = torch.func.grad(lambda y: self.right(torch.tanh(self.left(y))).sum())(x)
        return x - 0.1 * slope


@ingredient()
class hypernetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make, self.body = nn.Linear(4, 20), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = self.make(x.mean(0) if len(x) else x.new_zeros(4))
        state = {"weight": made[:16].view(4, 4) + self.body.weight, "bias": made[16:]}
        return torch.func.functional_call(self.body, state, (x,)) + self.body(x)


@ingredient()
class conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.left(y), lambda y: self.right(y), (x,)) + self.left(x)


@ingredient()
class refines(nn.Module):
    """Steps until they change little."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.inject, self.taken = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        z, given = torch.zeros_like(x), self.inject(x)
        for number in range(6):
            new = torch.tanh(0.5 * self.step(z) + given)
            done = (new - z).abs().amax() < 0.05 if x.numel() else True
            z, self.taken = new, number
            if done:
                break
        return z


@ingredient(tokens(1))
class beams(nn.Module):
    """A search with Python's lists."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(11, 4), nn.GRUCell(4, 4), nn.Linear(4, 11)

    def forward(self, ids: Tensor) -> Any:
        best = []
        for row in ids:
            open_ = [(0.0, row.tolist(), torch.zeros(1, 4, dtype=self.head.weight.dtype))]
            for _ in range(3):
                grown = []
                for score, path, h in open_:
                    h = self.cell(self.table(torch.tensor(path[-1:])), h)
                    values, indices = F.log_softmax(self.head(h), -1)[0].topk(2)
                    grown += [(score + v, [*path, i], h) for v, i in zip(values.tolist(), indices.tolist(), strict=True)]
                open_ = sorted(grown, key=lambda beam: -beam[0])[:2]
            best.append(open_[0][:2])
        return best


@ingredient(tokens(3))
class generates(nn.Module):
    """Greedy, with what it makes put behind what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(11, 4), nn.Linear(4, 4), nn.Linear(4, 11)

    @torch.no_grad()
    def generate(self, ids: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            ids = torch.cat([ids, self.logits(ids)[:, -1:].argmax(-1)], 1)
        return ids

    def logits(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.mix(self.table(ids))).cumsum(1))

    def forward(self, ids: Tensor) -> Any:
        return self.logits(ids), self.generate(ids, 3)


# -- modules that watch, and modules that learn together ----------------------------------------------------------------


@ingredient()
def recorded_activations() -> nn.Module:
    model = Layers()
    model.seen = {}
    for name, part in model.named_children():
        part.register_forward_hook(lambda _, args, out, name=name: model.seen.__setitem__(name, out.detach().mean()))
    model.head.register_full_backward_hook(lambda module, given, taken: (given[0] * 2,))
    model.left.register_forward_pre_hook(lambda _, args: (args[0] * 1.5,))
    return model


@ingredient()
class profiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.profiler.record_function("left"):
            a = self.left(x)
        with torch.autograd.profiler.record_function("right"), contextlib.suppress(ValueError):
            b = self.right(x)
        return a * b


@ingredient()
class frozen_teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Layers(), Layers().eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        with torch.inference_mode():
            wanted = self.teacher(x)
        with torch.autocast("cpu", enabled=False):
            got = self.student(x)
        return F.mse_loss(got, wanted.clone()), got


@ingredient()
class adversaries(nn.Module):
    """Two networks, and a result for each of their losses."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.judge = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Any:
        made = self.make(torch.randn_like(x))
        right, wrong = self.judge(x), self.judge(made.detach())
        return F.softplus(-right).mean() + F.softplus(wrong).mean(), F.softplus(-self.judge(made)).mean()


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@ingredient(lambda rows, seed: (rand(rows, 4, seed=seed), rand(rows, 4, seed=seed + 100)))
class siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = self.left

    def forward(self, x: Tensor, y: Tensor) -> Any:
        pair = Pair(self.left(x), self.right(y))
        return pair, F.cosine_similarity(*pair)


@dataclasses.dataclass
class Answer:
    loss: Tensor | None
    states: tuple[Tensor, ...]
    names: dict[str, Any]


@ingredient()
class answers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Answer:
        a = self.left(x)
        b = self.right(a)
        named = collections.OrderedDict(x=x, a=a, view=b[:, :2], shape=b.shape)
        self.calls += 1
        return Answer(None if not self.training else b.mean(), (a, b, x), named)
