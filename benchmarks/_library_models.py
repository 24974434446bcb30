"""Models of packages that build them of their own layers, where these are installed: small ones, of each kind.

    pip install x-transformers vit-pytorch diffusers segmentation-models-pytorch torch_geometric open_clip_torch
    python benchmarks/corpus.py --family library

A package is imported when one of its models is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Draw = torch.Generator
Part = Callable[[int, Draw], Tensor]
Inputs = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


def normal(*shape: int) -> Part:
    """Normal numbers, of this shape behind the rows."""
    return lambda batch, draw: torch.randn(batch, *shape, generator=draw)


def whole(most: int, *shape: int) -> Part:
    """Whole numbers below ``most``."""
    return lambda batch, draw: torch.randint(most, (batch, *shape), generator=draw)


def called(*parts: Part, **named: Part) -> Inputs:
    """Arguments by position and by name; rows are ``batch``."""

    def inputs(batch: int = 2, seed: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        draw = torch.Generator().manual_seed(seed)
        return tuple(part(batch, draw) for part in parts), {name: part(batch, draw) for name, part in named.items()}

    return inputs


DECODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "gated": {"ff_glu": True, "ff_swish": True},
    "rms_norm": {"use_rmsnorm": True},
    "macaron": {"macaron": True},
    "relative_positions": {"rel_pos_bias": True},
    "gated_residual": {"gate_residual": True},
    "one_key": {"attn_one_kv_head": True},
    "qk_norm": {"attn_qk_norm": True},
    "flash": {"attn_flash": True},
    "talking_heads": {"attn_pre_talking_heads": True},
    "shifted": {"shift_tokens": 1},
    "sparse": {"attn_sparse_topk": 4},
    "hyper_connections": {"num_residual_streams": 2},
    "layer_dropout": {"layer_dropout": 0.2},
}

VITS: dict[str, tuple[str, dict[str, Any]]] = {
    "t2t": ("T2TViT", {"t2t_layers": ((3, 2), (3, 2))}),
    "simple_vit": ("SimpleViT", {"patch_size": 8}),
    "parallel_vit": ("ViT", {"patch_size": 8, "num_parallel_branches": 2}),
    "vit_for_small_dataset": ("ViT", {"patch_size": 8}),
}

SEGMENTATION = ("Unet", "UnetPlusPlus", "Linknet", "FPN", "DeepLabV3Plus")

GRAPHS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "gcn": ("GCN", (8, 16, 2, 4)),
    "gat": ("GAT", (8, 16, 2, 4)),
    "sage": ("GraphSAGE", (8, 16, 3, 4)),
    "transformer": ("TransformerConv", (8, 8)),
    "chebyshev": ("ChebConv", (8, 8, 2)),
    "u_net": ("GraphUNet", (8, 8, 4, 2)),
    "appnp": ("APPNP", (2, 0.1)),
}


def _diffusion() -> dict[str, tuple[dict[str, Any], Inputs]]:
    time, text, image = whole(100), normal(5, 16), normal(4, 16, 16)
    net = {"block_out_channels": (32, 32), "layers_per_block": 1, "norm_num_groups": 8}
    reading = {**net, "cross_attention_dim": 16, "attention_head_dim": 8}
    down = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
    two = {"block_out_channels": (16, 16), "down_block_types": ("DownEncoderBlock2D",) * 2}
    return {
        "UNet2DModel": (
            {"sample_size": 16, **net, "down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
            | {"up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
            called(normal(3, 16, 16), timestep=time),
        ),
        "UNet2DConditionModel": (
            {"sample_size": 16, **reading, **down, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
            called(image, timestep=time, encoder_hidden_states=text),
        ),
        "ControlNetModel": (
            {**reading, **down, "conditioning_embedding_out_channels": (8, 8)},
            called(image, timestep=time, encoder_hidden_states=text, controlnet_cond=normal(3, 32, 32)),
        ),
        "AutoencoderKL": (
            {**two, "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 8},
            called(normal(3, 16, 16)),
        ),
        "VQModel": (
            {"block_out_channels": (16,), "norm_num_groups": 8, "num_vq_embeddings": 16},
            called(normal(3, 16, 16)),
        ),
        "SD3Transformer2DModel": (
            {"sample_size": 8, "patch_size": 1, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8}
            | {"num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32}
            | {"pooled_projection_dim": 64, "out_channels": 4},
            called(normal(4, 8, 8), normal(6, 32), normal(64), time),
        ),
    }


def made(module: str, name: str, *args: Any, **options: Any) -> nn.Module:
    """What a class or function of a package gives."""
    model: nn.Module = getattr(importlib.import_module(module), name)(*args, **options)
    return model


def decoder(options: dict[str, Any]) -> nn.Module:
    """Two layers of a language model."""
    layers = made("x_transformers", "Decoder", **{"dim": 32, "depth": 2, "heads": 2, "attn_dim_head": 16, **options})
    return made("x_transformers", "TransformerWrapper", num_tokens=50, max_seq_len=16, attn_layers=layers)


def library_models() -> Iterator[tuple[str, str, Callable[[], nn.Module], Inputs]]:
    """Name, package, what builds it, and its inputs."""
    for name, options in DECODERS.items():
        yield f"x_transformers/{name}", "x_transformers", partial(decoder, options), called(whole(50, 12))
    vit = {"image_size": 32, "num_classes": 10, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}
    for name, (kind, options) in VITS.items():
        yield (
            f"vit_pytorch/{name}",
            "vit_pytorch",
            partial(made, f"vit_pytorch.{name}", kind, **vit, **options),
            called(normal(3, 32, 32)),
        )
    for name, (options, inputs) in _diffusion().items():
        yield f"diffusers/{name}", "diffusers", partial(made, "diffusers", name, **options), inputs
    package = "segmentation_models_pytorch"
    for name in SEGMENTATION:
        yield (
            f"{package}/{name}",
            package,
            partial(made, package, name, "resnet18", encoder_weights=None),
            called(normal(3, 64, 64)),
        )
    edges: Part = lambda _, draw: torch.randint(10, (2, 30), generator=draw)  # noqa: E731 - a part of a call
    nodes: Part = lambda _, draw: torch.randn(10, 8, generator=draw)  # noqa: E731
    for name, (kind, args) in GRAPHS.items():
        yield (
            f"torch_geometric/{name}",
            "torch_geometric",
            partial(made, "torch_geometric.nn", kind, *args),
            called(nodes, edges),
        )
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 16}
    words = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2}
    yield (
        "open_clip/clip",
        "open_clip",
        partial(made, "open_clip.model", "CLIP", 32, vision, words),
        called(normal(3, 32, 32), whole(50, 8)),
    )
