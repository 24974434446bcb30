"""Models of images: U-Nets, pyramids, generators, detectors, contrastive pairs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _models.registry import model, normal


class DoubleConv(nn.Module):
    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(source, target, 3, padding=1, bias=False),
            nn.BatchNorm2d(target),
            nn.ReLU(inplace=True),
            nn.Conv2d(target, target, 3, padding=1, bias=False),
            nn.BatchNorm2d(target),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


@model(normal(3, 32, 32))
class Unet(nn.Module):
    """The U-Net of most tutorials: a list of skips that is turned around."""

    def __init__(self, features: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        self.downs, self.ups, self.pool = nn.ModuleList(), nn.ModuleList(), nn.MaxPool2d(2)
        channels = 3
        for feature in features:
            self.downs.append(DoubleConv(channels, feature))
            channels = feature
        for feature in reversed(features):
            self.ups.append(nn.ConvTranspose2d(feature * 2, feature, 2, stride=2))
            self.ups.append(DoubleConv(feature * 2, feature))
        self.bottleneck = DoubleConv(features[-1], features[-1] * 2)
        self.final_conv = nn.Conv2d(features[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottleneck(x)
        skips = skips[::-1]
        for index in range(0, len(self.ups), 2):
            x = self.ups[index](x)
            skip = skips[index // 2]
            if x.shape != skip.shape:
                x = F.interpolate(x, size=skip.shape[2:])
            x = self.ups[index + 1](torch.cat((skip, x), dim=1))
        return self.final_conv(x)


@model(normal(1, 40, 40))
class UnetPadded(nn.Module):
    """A U-Net that pads by the difference of sizes, as the first ones did."""

    def __init__(self) -> None:
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(1, 8), DoubleConv(8, 16), DoubleConv(16, 16)
        self.up1, self.up2 = DoubleConv(32, 8), DoubleConv(16, 8)
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.outc = nn.Conv2d(8, 1, 1)

    def join(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.upsample(x)
        dy, dx = skip.size()[2] - x.size()[2], skip.size()[3] - x.size()[3]
        x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return torch.cat([skip, x], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        x = self.up1(self.join(x3, x2))
        return torch.sigmoid(self.outc(self.up2(self.join(x, x1))))


@model(normal(3, 32, 32))
class AttentionUnet(nn.Module):
    """Skips are weighed by gates, and every depth has an output of its own in training."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.mid = DoubleConv(3, 8), DoubleConv(8, 16), DoubleConv(16, 32)
        self.gate_x, self.gate_g, self.psi = nn.Conv2d(16, 8, 1), nn.Conv2d(32, 8, 1), nn.Conv2d(8, 1, 1)
        self.dec2, self.dec1 = DoubleConv(48, 16), DoubleConv(24, 8)
        self.heads = nn.ModuleDict({"side": nn.Conv2d(16, 2, 1), "main": nn.Conv2d(8, 2, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        e1 = self.enc1(x)
        e2 = self.enc2(F.avg_pool2d(e1, 2))
        m = F.interpolate(self.mid(F.avg_pool2d(e2, 2)), scale_factor=2, mode="nearest")
        e2 = e2 * torch.sigmoid(self.psi(F.relu(self.gate_x(e2) + self.gate_g(m))))
        d2 = self.dec2(torch.cat([m, e2], 1))
        d1 = self.dec1(torch.cat([F.interpolate(d2, scale_factor=2.0), e1], 1))
        out = {"out": self.heads["main"](d1)}
        if self.training:
            out["aux"] = F.interpolate(self.heads["side"](d2), size=x.shape[-2:])
        return out


@model(normal(3, 32, 32))
class FeaturePyramid(nn.Module):
    """A top-down pyramid with one head that is applied at every level."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(c, d, 3, 2, 1) for c, d in ((3, 8), (8, 16), (16, 32)))
        self.lateral = nn.ModuleList(nn.Conv2d(c, 8, 1) for c in (8, 16, 32))
        self.head = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for stage in self.stages:
            x = F.relu(stage(x))
            features.append(x)
        pyramid = [lateral(feature) for lateral, feature in zip(self.lateral, features, strict=True)]
        for i in range(len(pyramid) - 1, 0, -1):
            pyramid[i - 1] += F.interpolate(pyramid[i], scale_factor=2)
        return [self.head(level).permute(0, 2, 3, 1).flatten(1, 2) for level in pyramid]


@model(normal(3, 16, 16))
class HighResolution(nn.Module):
    """Two resolutions side by side that exchange what they found, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.high = nn.ModuleList(DoubleConv(8, 8) for _ in range(2))
        self.low = nn.ModuleList(DoubleConv(8, 8) for _ in range(2))
        self.down = nn.ModuleList(nn.Conv2d(8, 8, 3, 2, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        low = self.down[-1](high)
        for i, (sharp, coarse) in enumerate(zip(self.high, self.low, strict=True)):
            high, low = sharp(high), coarse(low)
            high, low = high + F.interpolate(low, scale_factor=2), low + self.down[i](high)
        return torch.cat([high.mean((2, 3)), low.amax((2, 3))], 1)


@model(normal(3, 16, 16))
class SelectiveKernel(nn.Module):
    """Branches with other kernels, weighed by a softmax over branches; stacked and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(3, 8, k, padding=k // 2) for k in (1, 3, 5))
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 24)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.stack([branch(x) for branch in self.branches], dim=1)
        weights = self.excite(F.relu(self.squeeze(found.sum(1).mean((-1, -2))))).view(-1, 3, 8).softmax(1)
        return (found * weights[..., None, None]).sum(1)


@model(normal(1, 28, 28))
class VariationalAutoencoder(nn.Module):
    """Draws its latent in forward, in eval mode as well."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.fc3, self.fc4 = nn.Linear(8, 32), nn.Linear(32, 784)

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


@model(normal(16))
class Generator(nn.Module):
    """A DCGAN generator whose noise is partly its own, drawn from nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(24, 16, 4, 1, 0, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        noise = torch.randn(z.size(0), 8, device=z.device)
        return self.net(torch.cat([z, noise], 1)[:, :, None, None])


@model(normal(3, 12, 12))
class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.PReLU(), nn.Conv2d(16, 16, 3, padding=1)) for _ in range(3)
        )
        self.tail = nn.Sequential(nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2))
        self.register_buffer("mean", torch.tensor([0.45, 0.44, 0.40]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.mean
        h = shallow = self.head(x)
        for block in self.body:
            h = h + 0.1 * block(h)
        return (self.tail(h + shallow) + self.mean).clamp_(0, 1)


@model(normal(1, 16, 16))
class Capsules(nn.Module):
    """Routing by agreement: a loop that updates logits in place."""

    def __init__(self) -> None:
        super().__init__()
        self.primary = nn.Conv2d(1, 16, 5, 4)
        self.weight = nn.Parameter(torch.randn(1, 36, 5, 6, 4) * 0.1)

    def squash(self, x: Tensor) -> Tensor:
        norm = (x**2).sum(-1, keepdim=True)
        return norm / (1 + norm) * x / (norm + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        u = self.squash(self.primary(x).view(batch, -1, 4))
        u_hat = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros(batch, 36, 5, 1, device=x.device)
        for iteration in range(3):
            v = self.squash((logits.softmax(2) * u_hat).sum(1, keepdim=True))
            if iteration < 2:
                logits += (u_hat * v).sum(-1, keepdim=True)
        return v.squeeze(1).norm(dim=-1)


@model(lambda batch, generator: (torch.randn(batch, 3, 8, 8, generator=generator), torch.rand(batch, generator=generator)))
class DiffusionUnet(nn.Module):
    """A denoiser: sinusoidal time embedding, added to every block."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.down, self.mid, self.up = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 3, 3, 1, 1)
        self.norm = nn.GroupNorm(4, 16)
        self.q, self.k, self.v = (nn.Conv2d(16, 16, 1) for _ in range(3))

    def embed(self, t: Tensor, dim: int = 16) -> Tensor:
        half = dim // 2
        frequency = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        angle = t[:, None].float() * frequency[None]
        return torch.cat([angle.cos(), angle.sin()], dim=-1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        e = self.time(self.embed(t))[:, :, None, None]
        h = F.silu(self.norm(self.down(x))) + e
        b, c, height, width = h.shape
        q, k, v = (f(h).reshape(b, c, height * width).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = h + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, c, height, width)
        h = self.mid(h) + e
        return self.up(F.interpolate(h, scale_factor=2, mode="nearest"))


@model(lambda batch, generator: tuple(torch.randn(batch, 3, 16, 16, generator=generator) for _ in range(3)))
class TripletNetwork(nn.Module):
    """One network called three times: batch norm statistics are written three times, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)
        )
        self.project = nn.Linear(8, 4)

    def embed(self, x: Tensor) -> Tensor:
        return F.normalize(self.project(self.backbone(x)), dim=1)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        a, p, n = self.embed(anchor), self.embed(positive), self.embed(negative)
        return F.relu((a - p).pow(2).sum(1) - (a - n).pow(2).sum(1) + 0.2)


@model(normal(3, 16, 16))
class MomentumContrast(nn.Module):
    """A queue and a slow copy of the encoder, both written in forward under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_q = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.encoder_k = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for slow, fast in zip(self.encoder_k.parameters(), self.encoder_q.parameters(), strict=True):
            slow.data.copy_(fast.data)
            slow.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(8, 32), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.encoder_q(x), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.encoder_k.parameters(), self.encoder_q.parameters(), strict=True):
                slow.mul_(0.999).add_(fast, alpha=0.001)
            k = F.normalize(self.encoder_k(x.flip(3)), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1)
        with torch.no_grad():
            self.queue.copy_(torch.cat([k.T, self.queue[:, : -k.shape[0]]], 1))
        return logits / 0.07


class Detection(NamedTuple):
    boxes: Tensor
    scores: Tensor


@model(normal(3, 32, 32))
class AnchorFree(nn.Module):
    """A detector's dense head, and a result that is a named tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 4, 1), nn.ReLU())
        self.boxes, self.scores, self.center = nn.Conv2d(16, 4, 3, 1, 1), nn.Conv2d(16, 5, 3, 1, 1), nn.Conv2d(16, 1, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, image: Tensor) -> Detection:
        x = self.stem(image)
        ys, xs = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
        points = torch.stack([xs, ys], -1).reshape(1, -1, 2).to(x)
        ltrb = F.softplus(self.boxes(x) * self.scale).flatten(2).transpose(1, 2)
        boxes = torch.cat([points - ltrb[..., :2], points + ltrb[..., 2:]], -1)
        scores = (self.scores(x).sigmoid() * self.center(x).sigmoid()).flatten(2).transpose(1, 2)
        top, index = scores.amax(-1).topk(10, dim=1)
        return Detection(boxes.gather(1, index[..., None].expand(-1, -1, 4)), top)
