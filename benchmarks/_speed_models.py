"""The models of `speed.py`: a model and one call of it for any batch size, and the batches that are timed by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from _branched import Branched, Calls, Cells, Ensemble, Experts, Recommender, Towers, small_net
from _corpus_models import zoo
from cpu_lanes import Case, Last, convolution_towers, linear_towers
from torch import Tensor, nn

WIDTH = 256
"""Of the small transformers."""

WORDS = {"vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4}


@dataclass(frozen=True)
class Model:
    """A model for any batch size, the batch sizes that are timed unless others are named, and the library it needs."""

    case: Callable[[int], Case]
    batches: tuple[int, ...]
    library: str = "torch"


class Clip(Branched):
    """Two towers of transformers' CLIP, for images and for words, that meet in a product."""

    def __init__(self) -> None:
        super().__init__()
        library = zoo.import_transformers()
        sight = SIZES | {"image_size": 96, "patch_size": 16}
        config = library.CLIPConfig(text_config=SIZES | WORDS, vision_config=sight, projection_dim=128)
        self.clip = library.CLIPModel(config)

    def branches(self, *inputs: Tensor) -> Calls:
        pixels, words = inputs
        return [(self.see, (pixels,)), (self.read, (words,))]

    def see(self, pixels: Tensor) -> Tensor:
        return self.clip.visual_projection(self.clip.vision_model(pixel_values=pixels).pooler_output)

    def read(self, words: Tensor) -> Tensor:
        return self.clip.text_projection(self.clip.text_model(input_ids=words).pooler_output)

    def join(self, *parts: Tensor) -> Tensor:
        images, texts = (nn.functional.normalize(part, dim=-1) for part in parts)
        return images @ texts.T


class Named(nn.Module):
    """A model of transformers that takes positional arguments and gives tensors."""

    def __init__(self, model: nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, tuple(inputs), tuple(outputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        found = self.model(**dict(zip(self.inputs, inputs, strict=True)))
        return tuple(found[name] for name in self.outputs)


# The models -----------------------------------------------------------------------------------------------------------


def linear(width: int) -> Callable[[int], Case]:
    return lambda batch: linear_towers(width, batch, Towers)


def convolutional(channels: int, side: int) -> Callable[[int], Case]:
    return lambda batch: convolution_towers(channels, side, batch, Towers)


def on_images(build: Callable[[], nn.Module], side: int) -> Callable[[int], Case]:
    return lambda batch: Case(build, lambda: (torch.randn(batch, 3, side, side),))


def torchvision(name: str, side: int = 224) -> Model:
    def build() -> nn.Module:
        options = {} if name == "resnet50" else {"init_weights": False}
        model: nn.Module = zoo.import_torchvision().models.get_model(name, weights=None, **options)
        return model

    return Model(on_images(build, side), (1,), "torchvision")


def recommender(batch: int) -> Case:
    return Case(Recommender, lambda: (torch.randn(batch, 13), torch.randint(20_000, (batch, 8, 16))))


def clip(batch: int) -> Case:
    return Case(Clip, lambda: (torch.randn(batch, 3, 96, 96), torch.randint(3, 1000, (batch, 32))))


def lxmert(batch: int) -> Case:
    """Words and 36 regions of an image: streams that are apart at first, and then look at each other."""

    def build() -> nn.Module:
        library = zoo.import_transformers()
        layers = {"l_layers": 3, "r_layers": 3, "x_layers": 2, "visual_feat_dim": 512}
        model = library.LxmertModel(library.LxmertConfig(**SIZES, **WORDS, **layers))
        return Named(model, ("input_ids", "visual_feats", "visual_pos"), ("language_output", "vision_output"))

    return Case(build, lambda: (torch.randint(3, 1000, (batch, 20)), torch.randn(batch, 36, 512), torch.rand(batch, 36, 4)))


def llama(batch: int) -> Case:
    def build() -> nn.Module:
        library = zoo.import_transformers()
        model = library.LlamaModel(library.LlamaConfig(**SIZES, **WORDS, num_key_value_heads=2, use_cache=False))
        return Named(model, ("input_ids",), ("last_hidden_state",))

    return Case(build, lambda: (torch.randint(3, 1000, (batch, 64)),))


MODELS: dict[str, Model] = {
    "towers-64": Model(linear(64), (1, 8, 64)),
    "towers-256": Model(linear(256), (1, 8, 64)),
    "towers-1024": Model(linear(1024), (1, 8, 64)),
    "conv-16-32": Model(convolutional(16, 32), (1, 8)),
    "conv-64-56": Model(convolutional(64, 56), (1, 8)),
    "lstm": Model(lambda batch: Case(lambda: Towers(lambda: Last(128)), lambda: (torch.randn(batch, 32, 128),)), (1, 8)),
    "ensemble-2": Model(on_images(lambda: Ensemble(small_net, 2), 32), (1, 8)),
    "ensemble-4": Model(on_images(lambda: Ensemble(small_net, 4), 32), (1, 8)),
    "mmoe-8": Model(lambda batch: Case(lambda: Experts(256), lambda: (torch.randn(batch, 256),)), (1, 64)),
    "dlrm": Model(recommender, (1, 64)),
    "clip": Model(clip, (1, 8), "transformers"),
    "lxmert": Model(lxmert, (1,), "transformers"),
    "nasnet": Model(on_images(Cells, 56), (1,)),
    "googlenet": torchvision("googlenet"),
    "inception_v3": torchvision("inception_v3", 299),
    "resnet50": torchvision("resnet50"),
    "llama": Model(llama, (1,), "transformers"),
}
