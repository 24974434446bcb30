"""What `gpu.py` runs: each model at the size that is measured and at one for a CPU, with a call of any batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from _gpu_images import NasNet, googlenet, inception_v3, randwire, resnet50
from _gpu_sequences import Bert, Clip, EncoderDecoder, HostAndGpu, Mmoe
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Model:
    """A model and a call of it, as they are measured, and small."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    small: Callable[[], nn.Module]
    small_inputs: Callable[[int], Inputs]

    def made(self, device: str, small: bool) -> nn.Module:
        """The model in eval mode."""
        torch.manual_seed(0)
        return (self.small() if small else self.build()).eval().to(device)

    def call(self, batch: int, device: str, small: bool) -> Inputs:
        """Arguments of a call."""
        torch.manual_seed(batch)
        given = self.small_inputs(batch) if small else self.inputs(batch)
        return tuple(tensor.to(device) for tensor in given)


def image(side: int) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, 3, side, side),)


def words(*lengths: int, vocabulary: int = 1000) -> Callable[[int], Inputs]:
    return lambda batch: tuple(torch.randint(0, vocabulary, (batch, length)) for length in lengths)


def clip_inputs(side: int, length: int) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, 3, side, side), torch.randint(0, 1000, (batch, length)))


def table(width: int) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, width),)


def lookups(width: int, tables: int, rows: int, bag: int = 32) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, width), torch.randint(0, rows, (tables, batch, bag)))


MODELS: Mapping[str, Model] = {
    "googlenet": Model(googlenet, image(224), partial(googlenet, 16), image(64)),
    "inception_v3": Model(inception_v3, image(299), partial(inception_v3, 16), image(96)),
    "nasnet_a": Model(NasNet, image(224), partial(NasNet, 11, 1), image(64)),
    "randwire": Model(randwire, image(224), partial(randwire, 20, 8), image(32)),
    "resnet50": Model(resnet50, image(224), partial(resnet50, 16, (1, 1, 1, 1)), image(64)),
    "clip": Model(Clip, clip_inputs(224, 77), partial(Clip, (64, 64), 1, 64, 1000), clip_inputs(64, 16)),
    "mmoe": Model(Mmoe, table(1024), partial(Mmoe, 64, 3, 2), table(64)),
    "bert": Model(Bert, words(128), partial(Bert, 64, 1, 32, 1000), words(16)),
    "t5": Model(EncoderDecoder, words(128, 64), partial(EncoderDecoder, 64, 1, 32, 1000), words(16, 8)),
}
"""By name, in the order in which they are measured."""

HOST = Model(HostAndGpu, lookups(1024, 8, 200_000), partial(HostAndGpu, 32, 3, 50, 2), lookups(32, 2, 50, 4))
"""Part of it is for the host."""
