"""Models of text and signals, with recurrences, masks and ties."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _models.registry import model, normal, tokens


@model(tokens(10))
class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.convs = nn.ModuleList(nn.Conv2d(1, 8, (k, 16)) for k in (2, 3, 4))
        self.dropout, self.fc = nn.Dropout(0.5), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x).unsqueeze(1)
        pooled = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        pooled = [F.max_pool1d(i, int(i.size(2))).squeeze(2) for i in pooled]
        return F.log_softmax(self.fc(self.dropout(torch.cat(pooled, 1))), dim=1)


@model(tokens(10))
class BiLstmTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, (hidden, _) = self.lstm(self.embedding(x))
        return self.fc(states) + hidden[-1].mean(-1)[:, None, None]


@model(
    lambda batch, generator: {
        "x": torch.randint(1, 50, (batch, 8), generator=generator),
        "lengths": torch.tensor([8, 5, 3][:batch]),
    }
)
class PackedGru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.fc = nn.Embedding(50, 16), nn.GRU(16, 12, batch_first=True), nn.Linear(12, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(x), lengths.cpu(), batch_first=True)
        _, hidden = self.gru(packed)
        return self.fc(hidden[-1])


@model(
    lambda batch, generator: {
        "source": torch.randint(1, 50, (batch, 7), generator=generator),
        "target": torch.randint(1, 50, (batch, 5), generator=generator),
    }
)
class Seq2SeqAttention(nn.Module):
    """Teacher forcing in a loop over time; each output is written into a tensor of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.encoder, self.cell = nn.GRU(16, 16, batch_first=True), nn.GRUCell(32, 16)
        self.attention, self.out = nn.Linear(32, 7), nn.Linear(32, 50)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, hidden = self.encoder(self.embedding(source))
        hidden = hidden[0]
        outputs = torch.zeros(source.size(0), target.size(1), 50, device=source.device)
        for t in range(target.size(1)):
            word = self.embedding(target[:, t])
            weights = F.softmax(self.attention(torch.cat([word, hidden], 1)), dim=1)
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            hidden = self.cell(torch.cat([word, context], 1), hidden)
            outputs[:, t] = self.out(torch.cat([hidden, context], 1))
        return outputs


@model(
    lambda batch, generator: {
        "src": torch.randint(1, 50, (batch, 6), generator=generator),
        "tgt": torch.randint(1, 50, (batch, 4), generator=generator),
    }
)
class Translator(nn.Module):
    """torch's own transformer, with masks made in forward and the output tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        position = torch.arange(20).unsqueeze(1)
        angle = position * torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
        table = torch.zeros(20, 16)
        table[:, 0::2], table[:, 1::2] = torch.sin(angle), torch.cos(angle)
        self.register_buffer("table", table)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
        self.generator = nn.Linear(16, 50)
        self.generator.weight = self.embedding.weight

    def encode(self, x: Tensor) -> Tensor:
        return self.embedding(x) * math.sqrt(16) + self.table[: x.size(1)]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        padding = src == 0
        h = self.transformer(
            self.encode(src), self.encode(tgt), tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding
        )
        return self.generator(h)


@model(tokens(8))
class NanoGpt(nn.Module):
    """A decoder as in the well-known short repositories: a mask in a buffer, a weight shared with the head."""

    def __init__(self, width: int = 16, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.wte, self.wpe, self.drop = nn.Embedding(50, width), nn.Embedding(16, width), nn.Dropout(0.1)
        self.attn = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.proj = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.lm_head = nn.Linear(width, 50, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def attend(self, x: Tensor, layer: int) -> Tensor:
        batch, length, width = x.size()
        q, k, v = self.attn[layer](x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        return self.proj[layer](y.transpose(1, 2).contiguous().view(batch, length, width))

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for layer, mlp in enumerate(self.mlp):
            x = x + self.attend(self.norms[2 * layer](x), layer)
            x = x + mlp(self.norms[2 * layer + 1](x))
        logits = self.lm_head(self.norms[-1](x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, 50), targets.view(-1))
        return logits, loss


@model(normal(1, 64))
class WaveNet(nn.Module):
    """Dilated convolutions with gates; skips are summed, residuals go on."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, 8, 1)
        self.filters = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(4))
        self.gates = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(4))
        self.residual = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))
        self.skip = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))
        self.end = nn.Conv1d(8, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skip = self.start(x), 0
        for f, g, r, s in zip(self.filters, self.gates, self.residual, self.skip, strict=True):
            h = torch.tanh(f(x)) * torch.sigmoid(g(x))
            new = s(h)
            try:
                skip = skip[:, :, -new.size(2) :]
            except TypeError:
                skip = 0
            skip = new + skip
            x = r(h) + x[:, :, -h.size(2) :]
        return self.end(F.relu(skip))


@model(normal(1, 16, 40))
class CtcRecognizer(nn.Module):
    """CRNN: convolutions, then a recurrent layer over columns."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, (4, 1), 1))
        self.rnn, self.fc = nn.LSTM(16, 8, bidirectional=True), nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        h = self.cnn(x)
        b, c, height, width = h.size()
        h = h.view(b, c * height, width).permute(2, 0, 1)
        h, _ = self.rnn(h)
        t, b, d = h.size()
        return F.log_softmax(self.fc(h.view(t * b, d)).view(t, b, -1), dim=2)


@model(normal(12, 6))
class LinearStateSpace(nn.Module):
    """A recurrence over time with a list of states, stacked at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.log_a, self.b, self.c = nn.Parameter(torch.randn(8)), nn.Linear(6, 8), nn.Linear(8, 6)
        self.d = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        a, u = torch.exp(-F.softplus(self.log_a)), self.b(x)
        h = x.new_zeros(x.size(0), 8)
        states = []
        for step in u.unbind(1):
            h = a * h + step
            states.append(h)
        return self.c(torch.stack(states, 1)) + x * self.d
