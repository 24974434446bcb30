"""The corpus: every model that `corpus.py` runs, by name. The test suite's zoo, more of torchvision, `user_models.py`, and,
where they are installed, timm and the packages of `_library_models.py`.

A name is ``<family>/<model>``. Building needs no network: weights are random, the same every time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]  # zoo.py serves the tests and the benchmarks

from _library_models import called, library_models, normal  # noqa: E402
from user_models import USER_MODELS  # noqa: E402

import zoo  # noqa: E402

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """One model of the corpus. ``build`` gives it in eval mode; ``inputs`` takes ``batch`` and ``seed``."""

    name: str
    family: str
    library: str
    build: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    large: bool = False

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.library) is not None


def _built(make: Callable[[Any], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(zoo.import_torchvision().models).eval()


def _named(name: str, **options: Any) -> Callable[[Any], nn.Module]:
    return lambda models: models.get_model(name, weights=None, **options)


def _backbone(kind: str, name: str) -> Callable[[Any], nn.Module]:
    def make(models: Any) -> nn.Module:
        utils = models.detection.backbone_utils
        if kind == "mobilenet":
            return utils.mobilenet_backbone(backbone_name=name, weights=None, fpn=True)
        return utils.resnet_fpn_backbone(backbone_name=name, weights=None, trainable_layers=5)

    return make


SEGMENTATION = """deeplabv3_mobilenet_v3_large deeplabv3_resnet50 deeplabv3_resnet101 fcn_resnet50 fcn_resnet101
lraspp_mobilenet_v3_large""".split()

VIDEO = {
    "mc3_18": (3, 4, 32, 32),
    "r2plus1d_18": (3, 4, 32, 32),
    "r3d_18": (3, 4, 32, 32),
    "s3d": (3, 16, 224, 224),
    "swin3d_t": (3, 4, 32, 32),
    "mvit_v2_s": (3, 16, 224, 224),
}
"""Clips as small as each model takes."""

BACKBONES = {
    "resnet18_fpn": ("resnet", "resnet18"),
    "resnet50_fpn": ("resnet", "resnet50"),
    "mobilenet_v3_large_fpn": ("mobilenet", "mobilenet_v3_large"),
}

HEADS: dict[str, Callable[[Any], nn.Module]] = {
    "ssd_vgg16": lambda models: models.detection.ssd._vgg_extractor(models.vgg16(weights=None), False, 5),
    "ssdlite_mobilenet_v3": lambda models: models.detection.ssdlite._mobilenet_extractor(
        models.mobilenet_v3_large(weights=None), 6, functools.partial(nn.BatchNorm2d, eps=0.001)
    ),
}
"""Feature extractors of the one-stage detectors."""


def _torchvision() -> Iterator[Entry]:
    """What the zoo, which holds classifiers, leaves out."""
    for name in SEGMENTATION:
        auxiliary = {} if name.startswith("lraspp") else {"aux_loss": True}
        yield _entry("segmentation", name, _named(name, weights_backbone=None, **auxiliary), (3, 64, 64))
    for name, shape in VIDEO.items():
        yield _entry("video", name, _named(name), shape)
    for name, (kind, backbone) in BACKBONES.items():
        yield _entry("detection", name, _backbone(kind, backbone), (3, 64, 64))
    for name, make in HEADS.items():
        yield _entry("detection", name, make, (3, 300, 300))
    yield _entry("optical-flow", "raft_small", _named("raft_small"), (3, 128, 128), images=2)


def _entry(kind: str, name: str, make: Callable[[Any], nn.Module], shape: tuple[int, ...], images: int = 1) -> Entry:
    inputs = called(*(normal(*shape),) * images)
    return Entry(f"torchvision/{kind}/{name}", kind, "torchvision", functools.partial(_built, make), inputs)


def _zoo() -> Iterator[Entry]:
    for name, model in zoo.ZOO.items():
        # At the size that the zoo chose, inception's auxiliary head has nothing left to pool in train mode.
        inputs = called(normal(3, 299, 299)) if name == "torchvision/inception_v3" else model.inputs
        yield Entry(name, model.family, model.family, model.build, inputs, "large" in model.tags)


TIMM: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"depth": 2, "img_size": 64},
        """test_vit cait_xxs24_224 convit_tiny visformer_tiny vit_srelpos_small_patch16_224 vit_tiny_r_s16_p8_224
        vit_tiny_patch16_dinov3_qkvb deit_tiny_patch16_224 tnt_s_legacy_patch16_224 xcit_nano_12_p8_224 vitamin_small_224
        beit_base_patch16_224 naflexvit_base_patch16_gap qwen3_vit_88m samvit_base_patch16""",
    ),
    (
        {"img_size": 64},
        """test_byobnet coat_lite_tiny mobilevitv2_050 mixer_s16_224 nest_tiny hiera_tiny_224 gcvit_xxtiny botnet26t_256
        efficientvit_m0 levit_128s mvitv2_tiny pit_ti_224 repvit_m0_9 sequencer2d_s swiftformer_xs volo_d1_224""",
    ),
    (
        {"depths": (1, 1, 1, 1)},
        """test_mambaout lcnetv2_small pvt_v2_b0 efficientvit_b0 inception_next_atto test_convnext3 fasternet_t0 starnet_s050
        cspnext_tiny edgenext_xx_small nf_resnet26 davit_tiny tiny_vit_5m_224""",
    ),
    (
        {"img_size": 64, "depths": (1, 1, 1, 1)},
        """efficientformerv2_s0 coatnet_pico_rw_224 swin_tiny_patch4_window7_224 swinv2_tiny_window16_256 swinv2_cr_tiny_384
        twins_pcpvt_small""",
    ),
    (
        {"layers": (1, 1, 1, 1)},
        "tresnet_m fastvit_t8 resnet10t skresnet18 resnest14d legacy_seresnet18 resnetv2_18 res2net50_26w_4s",
    ),
    (
        {},
        """test_efficientnet_evos cpubone_nano hardcorenas_a iformer_t darknet17 regnetx_002 dpn48b ese_vovnet19b_slim dla34
        poolformer_s12 hgnet_tiny selecsls42 focalnet_tiny_srf repghostnet_050 rdnet_tiny sam2_hiera_tiny crossvit_tiny_240
        csatv2 densenet121 efficientvim_m1 ghostnet_050 mobilenetv3_small_050 hrnet_w18_small lowformer_b0 nasnetalarge
        nextvit_small rexnet_100 shvit_s1 legacy_xception xception41""",
    ),
)
"""One of each family of timm that takes images of 64 x 64, and what makes it as small as it can be made."""


def _timm() -> Iterator[Entry]:
    for options, names in TIMM:
        for name in names.split():
            build = functools.partial(_built, functools.partial(_timm_model, name, options))
            yield Entry(f"timm/{name}", "timm", "timm", build, called(normal(3, 64, 64)))


def _timm_model(name: str, options: dict[str, Any], _models: Any) -> nn.Module:
    """Called once torchvision is imported, which timm imports too."""
    model: nn.Module = importlib.import_module("timm").create_model(name, num_classes=10, **options)
    return model


def _user() -> Iterator[Entry]:
    for name, model in USER_MODELS.items():
        yield Entry(f"user/{name}", "user", "torch", model.build, model.inputs)


def _libraries() -> Iterator[Entry]:
    for name, package, build, inputs in library_models():
        yield Entry(name, "library", package, functools.partial(_built, lambda _models, build=build: build()), inputs)


CORPUS: dict[str, Entry] = {entry.name: entry for entry in (*_user(), *_zoo(), *_torchvision(), *_timm(), *_libraries())}

SAMPLE = """user/unet user/dlrm user/nano_gpt user/ensemble user/graph_convolution user/triplet_network user/step_counter
user/in_place_editing torchvision/squeezenet1_1 transformers/distilbert""".split()
"""The fixed sample that the quick tests run: both front ends, nested inputs, ties, buffers, random numbers, views."""
