"""More of `ingredients`: quantised layers, lazy ones, scripted ones, sequence models, and habits of large code bases."""

from __future__ import annotations

import enum
import functools
import random
import warnings
from typing import Any

import numpy as np
import torch
from hostile.program import rand
from ingredients import Layers, floats, ingredient
from torch import Tensor, nn
from torch.nn import functional as F

# -- kinds of layers -----------------------------------------------------------------------------------------------------


@ingredient()
def dynamically_quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(Layers(), {nn.Linear})


@ingredient()
def observed() -> nn.Module:
    """Fake quantisation, with observers that watch in training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Layers()
        model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
        return torch.ao.quantization.prepare_qat(model)


@ingredient()
def lazy_then_real() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))
    model(rand(2, 4))
    return model


@ingredient()
def still_lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(2))


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 3:
            return self.inner(x) * 2
        return self.inner(x)


@ingredient()
class scripted_part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.left = torch.jit.script(Gate())
        self.right = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


@ingredient(floats(5, 4))
class decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2)
        self.memory = nn.Parameter(rand(1, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.decoder(x, self.memory.expand(x.shape[0], -1, -1), tgt_mask=mask, tgt_is_causal=True)


@ingredient(floats(5, 4))
class state_space(nn.Module):
    """A recurrence written as a scan, with tables made in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.inject, self.out = nn.Parameter(rand(4)), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rate = torch.exp(-F.softplus(self.decay)) ** torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        kernel = torch.fft.rfft(rate.T, n=2 * x.shape[1])
        signal = torch.fft.rfft(self.inject(x).mT, n=2 * x.shape[1])
        return self.out(torch.fft.irfft(kernel * signal, n=2 * x.shape[1])[..., : x.shape[1]].mT)


@ingredient(floats(6, 4))
class windows(nn.Module):
    """Shifted windows, `unfold`, `as_strided`, and a bias looked up by position."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(4, 8), nn.Linear(4, 4)
        self.bias = nn.Parameter(rand(5, 1))
        self.register_buffer("index", torch.arange(3)[:, None] - torch.arange(3) + 2)

    def forward(self, x: Tensor) -> Any:
        rolled = x.roll(-1, 1).view(-1, 2, 3, 4)
        q, k = self.qk(rolled).chunk(2, -1)
        weights = (q @ k.mT + self.bias[self.index].squeeze(-1)).softmax(-1)
        near = x.unfold(1, 3, 1).mean(-1)
        return (weights @ self.v(rolled)).flatten(1, 2).roll(1, 1), near, x.as_strided((x.shape[0], 2), (24, 1))


@ingredient(floats(3, 4))
class graph_layer(nn.Module):
    """Messages between nodes: `scatter_reduce`, `index_select`, a softmax over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update, self.score = nn.Linear(8, 4), nn.GRUCell(4, 4), nn.Linear(4, 1)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 2, 0], [1, 2, 0, 1, 1]]))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        h = x.flatten(0, 1)
        shift = (torch.arange(x.shape[0]) * 3)[:, None]
        source, target = (source + shift).flatten(), (target + shift).flatten()
        sent = self.message(torch.cat([h.index_select(0, source), h[target]], 1))
        most = h.new_full((len(h), 4), -10.0).scatter_reduce(0, target[:, None].expand(-1, 4), sent, "amax")
        weight = self.score(sent).exp()
        total = h.new_zeros(len(h), 1).scatter_add_(0, target[:, None], weight)[target]
        mean = torch.zeros_like(h).index_put_((target,), sent * weight / total, accumulate=True)
        return self.update(mean + most, h).view_as(x)


# -- habits --------------------------------------------------------------------------------------------------------------


@ingredient()
class drops_layers(nn.Module):
    """Whether a layer runs is drawn in Python, and noise in numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and random.random() < 0.4:
                continue
            x = x + layer(x)
        if self.training:
            x = x + torch.as_tensor(np.random.rand(4), dtype=x.dtype)
        return x


class Kind(enum.Enum):
    SUM = "sum"
    PRODUCT = "product"


@ingredient()
class configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({kind.value: nn.Linear(4, 4) for kind in Kind})
        self.config = {"kind": Kind.PRODUCT, "scale": 0.5, "act": F.gelu, "layers": list(range(3))}
        self.act = functools.partial(F.leaky_relu, negative_slope=0.2)

    def forward(self, x: Tensor, *, scale: float | None = None, **unused: Any) -> Tensor:
        a, b = (part(x) for part in self.parts.values())
        a, b = self.act(a), self.config["act"](b)
        mixed = a * b if self.config["kind"] is Kind.PRODUCT else a + b
        for number in self.config["layers"]:
            mixed = mixed + number
        return mixed * (scale or self.config["scale"])


@ingredient()
class losses(nn.Module):
    """Many losses, and a schedule kept on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.step = nn.Linear(4, 4), 0
        self.classify = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]), label_smoothing=0.1)
        self.log_variance = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        self.step += 1
        out, target = self.body(x), x.detach().argmax(1)
        found = torch.stack([self.classify(out, target), F.huber_loss(out, x), F.kl_div(out.log_softmax(1), x.softmax(1))])
        weighted = (found * torch.exp(-self.log_variance) + self.log_variance).sum()
        return weighted * min(1.0, self.step / 4), [loss.item() for loss in found.detach()]


@ingredient()
class adapted(nn.Module):
    """A frozen layer with a low-rank adapter, merged and unmerged by its owner."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.merged = nn.Linear(4, 4).requires_grad_(False), False
        self.a, self.b = nn.Parameter(rand(2, 4)), nn.Parameter(rand(4, 2))

    def train(self, mode: bool = True) -> nn.Module:
        if mode == self.merged:
            self.base.weight.data += (self.b @ self.a).detach() * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) if self.merged else self.base(x) + x @ self.a.T @ self.b.T


@ingredient()
class equilibrium(nn.Module):
    """A fixed point found without gradients, and a gradient by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(4, 4)
        nn.init.uniform_(self.f.weight, -0.2, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = x
            for _ in range(4):
                z = torch.tanh(self.f(z) + x)
        z = torch.tanh(self.f(z) + x)
        if z.requires_grad:
            z.register_hook(lambda gradient: gradient * 1.5)
        return z


@ingredient()
class detaches(nn.Module):
    """Gradients clipped, stopped and scaled on the way, in place where that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.scale = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Any:
        a, b = self.left(x), self.right(x)
        a[:, 0] = 0
        b = b.clone().clamp_(-1, 1).masked_fill_(a > 0.3, 0.1)
        both = torch.where(a > 0, a, b.detach())
        both[:, 1:3] += self.scale
        return both, a.detach(), both.unbind(1)[2]
