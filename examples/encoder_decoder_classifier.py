"""One encoder, and two heads on top of it that need nothing of each other: a decoder and a classifier.

    python examples/encoder_decoder_classifier.py
    python -m partitioner inspect examples/encoder_decoder_classifier.py

The result is a dict, another batch size works, and a checkpoint of the partitioned model loads into the plain one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partitioner import partition


class EncoderDecoderClassifier(nn.Module):
    """An autoencoder that also says what it sees."""

    def __init__(self, channels: int, classes: int = 10) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1),
        )
        self.classifier = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, classes),
        )

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        code = self.encoder(image)
        return {"image": self.decoder(code), "logits": self.classifier(code)}


def build(channels: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return EncoderDecoderClassifier(channels).eval()


def example_inputs(size: int = 64, batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def main(channels: int = 64, size: int = 64) -> None:
    plain = build(channels)
    parallel = partition(build(channels), example_inputs=example_inputs(size))
    print(parallel, end="\n\n")

    images = example_inputs(size, batch=6)  # more than the plan was made with
    with torch.no_grad():
        wanted, found = plain(images), parallel(images)
    for name, value in wanted.items():
        print(f"{name}: the largest difference is {(found[name].to(value.device) - value).abs().max():.1e}")

    with torch.no_grad():
        parallel.classifier[-1].bias.add_(1.0)  # as training would; submodules are the model's own
    plain.load_state_dict({name: tensor.cpu() for name, tensor in parallel.state_dict().items()})
    gap = (plain(images)["logits"] - parallel(images)["logits"].cpu()).abs().max()
    print(f"after loading the checkpoint into the plain model: the largest difference is {gap:.1e}")


if __name__ == "__main__":
    main()
