"""Real models for tests and benchmarks: built from configs with random weights, so that no network is needed.

    ZOO["torchvision/resnet18"].build()           an nn.Module in eval mode, the same values every time
    ZOO["torchvision/resnet18"].inputs()          (args, kwargs) for one call, the same values every time
    ZOO["torchvision/resnet18"].inputs(batch=3)   the same for another batch size; ``seed`` draws other values
    zoo("quick", family="transformers")           the models with this tag, for parametrised tests and loops

Tags: ``quick`` models belong to the quick test suite. ``large`` ones hold more than a gibibyte of parameters.
``eval-only`` ones do not take these small inputs in training mode. The rest say what kind of model it is: ``text``,
``vision``, ``audio``, ``two-tower``, ``encoder-decoder``, ``mixture-of-experts``, ``state-space``, ``convolutional``,
``time-series``.

Nothing is imported or built before it is asked for: this file costs nothing to import.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 2
"""Examples in a call's batch; always dimension 0 of every input."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class ZooModel:
    """One model: how to build it, and what to call it with. ``family`` is the library it comes from.

    ``inputs`` takes ``batch`` and ``seed``, both optional.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    family: str
    tags: frozenset[str] = frozenset()

    @property
    def installed(self) -> bool:
        """Whether the library that this model comes from is there."""
        return importlib.util.find_spec(self.family) is not None

    def __str__(self) -> str:
        return self.name


def zoo(*tags: str, family: str | None = None) -> list[ZooModel]:
    """The models that carry all of ``tags``, in the order of the tables below."""
    return [model for model in ZOO.values() if model.tags.issuperset(tags) and family in (None, model.family)]


# --- making random weights behave like trained ones ------------------------------------------------------------------


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _settled(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """``model`` in eval mode, with an output that depends on its inputs.

    Fresh weights can make a comparison of outputs say nothing: the head of a ViT starts at zero, and without trained
    statistics the activations of an EfficientNet fade to 1e-15. So zero matrices are drawn anew, and one pass gives
    each batch norm the statistics of its own input.
    """
    for parameter in model.parameters():
        if parameter.ndim >= 2 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            model(*args, **kwargs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()


# --- torchvision -----------------------------------------------------------------------------------------------------


@functools.cache
def import_torchvision() -> ModuleType:
    """torchvision, also when its compiled ops cannot be loaded, as with a CUDA wheel beside a CPU-only torch.

    ``torchvision/_meta_registrations.py`` describes the ops ``nms`` and ``qnms`` to torch whether or not they exist,
    and fails when they do not. Declaring them first lets the import pass. No classification model calls them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torchvision is not installed: pip install --no-deps -r requirements/torchvision.txt")
    folder = Path(spec.origin).parent
    try:
        for library in [*folder.glob("_C*.so"), *folder.glob("_C*.pyd")]:
            torch.ops.load_library(library)
    except OSError:
        _declare_ops(re.findall(r'register_fake\("torchvision::(\w+)"\)', (folder / "_meta_registrations.py").read_text()))
    return importlib.import_module("torchvision")


def _declare_ops(names: list[str]) -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in names:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)


_LIBRARIES: list[torch.library.Library] = []
"""A library's ops vanish with it, so it is kept."""

# The smallest image, in pixels a side, that each model takes in eval mode; 32 where nothing is said. The larger
# EfficientNets take 32 too, but with a single pixel left in their last layers their values run away.
IMAGE_SIZES = {"alexnet": 64, "inception_v3": 75, "maxvit_t": 224, "vit_b_32": 64, "vit_h_14": 28, "vit_l_32": 64}
IMAGE_SIZES |= {"efficientnet_b5": 64, "efficientnet_b6": 64, "efficientnet_v2_l": 64, "efficientnet_v2_m": 64}

QUICK_TORCHVISION = """
googlenet mobilenet_v3_small resnet18 shufflenet_v2_x0_5 squeezenet1_1
"""
"""One or two of each kind; the largest of a kind, and one that is made like another, are left to the slow tests."""

TORCHVISION = """
alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf
regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34
resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn
vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2
wide_resnet50_2
"""


def _images(size: int, batch: int = BATCH, seed: int = 1) -> Inputs:
    return (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed)),), {}


def _build_torchvision(name: str, size: int) -> nn.Module:
    options: dict[str, Any] = {}
    if name.startswith("vit_"):
        options["image_size"] = size
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False  # a truncated normal, which is slow to draw
    with _seeded(0):
        model = import_torchvision().models.get_model(name, weights=None, **options)
        return _settled(model, *_images(size, batch=32 if size < 128 else 4, seed=2))


def _torchvision_model(name: str) -> ZooModel:
    size = IMAGE_SIZES.get(name, 32)
    tags = {"vision"}
    tags |= {"quick"} if name in QUICK_TORCHVISION.split() else set()
    tags |= {"large"} if name in ("regnet_y_128gf", "vit_h_14", "vit_l_16", "vit_l_32") else set()
    tags |= {"eval-only"} if name == "inception_v3" else set()
    tags |= set() if name.startswith(("swin", "vit")) else {"convolutional"}
    build = functools.partial(_build_torchvision, name, size)
    inputs = functools.partial(_images, size)
    return ZooModel(f"torchvision/{name}", build, inputs, "torchvision", frozenset(tags))


# --- Hugging Face transformers ---------------------------------------------------------------------------------------


@functools.cache
def import_transformers() -> ModuleType:
    """transformers, told to stay off the network, and quiet. It looks for torchvision, which must then import."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


Field = Callable[[int, torch.Generator], Tensor]
"""Makes one input for a batch size."""

Fields = dict[str, Field]
"""A call's keyword arguments."""

Config = dict[str, Any]


def _ids(length: int) -> Field:
    return lambda batch, generator: torch.randint(3, 64, (batch, length), generator=generator)


def _normal(*shape: int) -> Field:
    return lambda batch, generator: torch.randn(batch, *shape, generator=generator)


def _uniform(*shape: int) -> Field:
    return lambda batch, generator: torch.rand(batch, *shape, generator=generator)


def _filled(value: int, *shape: int, dtype: torch.dtype = torch.long) -> Field:
    return lambda batch, generator: torch.full((batch, *shape), value, dtype=dtype)


def _mask(length: int) -> Field:
    """Attention to everything but the last two tokens of every second example."""

    def make(batch: int, generator: torch.Generator) -> Tensor:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[1::2, -2:] = 0
        return mask

    return make


def _fields() -> dict[str, Fields]:
    ids: Fields = {"input_ids": _ids(8)}
    answer: Fields = {"decoder_input_ids": _ids(6)}
    text: Fields = ids | {"attention_mask": _mask(8)}
    image: Fields = {"pixel_values": _normal(3, 32, 32)}
    video: Fields = {"pixel_values": _normal(2, 3, 32, 32)}
    episode: Fields = {"states": _normal(4, 5), "actions": _normal(4, 2), "timesteps": _filled(1, 4)}
    past: Fields = {"past_values": _normal(16), "past_time_features": _normal(16, 2)}
    past |= {"past_observed_mask": _filled(1, 16, dtype=torch.float32)}
    return {
        "array": {"inputs": _normal(8, 16)},
        "boxes": text | {"bbox": _filled(7, 8, 4)},
        "characters": {"input_ids": _ids(16), "attention_mask": _mask(16)},
        "episode": episode | {"rewards": _normal(4, 1), "returns_to_go": _normal(4, 1)},
        "frames": {"input_features": _normal(32, 16)} | answer,
        "ids": ids,
        "image": image,
        "image_text": image | text,
        "mel": {"input_features": _normal(16, 32)} | answer,
        "noisy_image": image | {"noise": _uniform(16)},
        "pair": text | answer,
        "patches": {"past_values": _normal(16, 3)},
        "regions": text | {"visual_feats": _normal(5, 16), "visual_pos": _uniform(5, 4)},
        "series": past | {"future_values": _normal(4), "future_time_features": _normal(4, 2)},
        "sound_text": text | {"input_features": _normal(1, 256, 16), "is_longer": _filled(0, 1, dtype=torch.bool)},
        "spectrum": {"input_values": _normal(32, 16)},
        "speech": {"input_values": _normal(1000)} | answer,
        "text": text,
        "video": video,
        "video_text": video | text,
        "visual_text": text | {"visual_embeds": _normal(4, 16)},
        "wave": {"input_values": _normal(400)},
    }


def _text_configs() -> dict[str, Config]:
    # The usual 0.02 suits a width of 768; at a width of 32 it lets activations fade from layer to layer.
    scale = {"initializer_range": 0.2, "init_std": 0.2}
    sizes = scale | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = scale | {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    encoder = sizes | words | {"max_position_embeddings": 64}
    decoder = encoder | {"num_key_value_heads": 2, "head_dim": 8}
    experts = decoder | {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
    experts |= {"moe_intermediate_size": 32}
    latent = experts | {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
    latent |= {"num_key_value_heads": 4}
    latent |= {"v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    hybrid = decoder | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 4}
    seq2seq = words | {"d_model": 32, "max_position_embeddings": 64, "decoder_start_token_id": 2}
    seq2seq |= {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
    seq2seq |= {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    t5 = words | {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2}
    return {
        "sizes": sizes,
        "special": words,
        "encoder": encoder,
        "narrow": encoder | {"embedding_size": 16},
        "decoder": decoder,
        "experts": experts,
        "latent": latent | {"head_dim": 4},
        "hybrid": hybrid | {"mamba_d_ssm": 64},
        "gpt": words | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_ctx": 64},
        "seq2seq": seq2seq,
        "t5": t5 | {"decoder_start_token_id": 0},
        "state": words | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    }


def _configs() -> dict[str, Config]:
    text = _text_configs()
    encoder, sizes, seq2seq = text["encoder"], text["sizes"], text["seq2seq"]
    sight = sizes | {"image_size": 32, "patch_size": 8}
    towers = {"text_config": encoder, "vision_config": sight, "projection_dim": 16}
    stages = {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "initializer_range": 0.2}
    stages |= {"embedding_size": 8}
    pyramid = stages | {
        "num_encoder_blocks": 2,
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [1, 2],
    }
    shifted = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}
    shifted |= {"window_size": 4, "initializer_range": 0.2}
    speech = sizes | {"vocab_size": 32, "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4]}
    speech |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    forecast = seq2seq | {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2, 3, 4]}
    backbone = stages | {"model_type": "resnet", "layer_type": "basic", "out_features": ["stage2"]}
    thin = stages | {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 80}
    cross = encoder | {"encoder_hidden_size": 32, "use_qformer_text_input": True}
    wide = {"hidden_size": 64}
    groups = {"depths": [1, 1, 0], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 0]}
    mit = {"num_frames": 2, "mit_hidden_size": 32, "mit_intermediate_size": 64, "mit_num_attention_heads": 4}
    sound = {"spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], "hidden_size": 16}
    sound |= {"patch_embeds_hidden_size": 8, "depths": [1, 1], "num_attention_heads": [2, 2], "window_size": 4}
    return text | {
        "align": towers | {"vision_config": thin, "projection_dim": 80},
        "blip": towers | {"text_config": cross},
        "blip_2": towers | {"qformer_config": cross, "num_query_tokens": 4, "image_text_hidden_size": 16},
        "bridgetower": encoder | wide | {"text_config": encoder | wide, "vision_config": sight | wide},
        "clap": towers | {"audio_config": sound | {"enable_fusion": False}},
        "detr": seq2seq | {"num_queries": 4, "backbone": None, "backbone_config": backbone, "use_timm_backbone": False},
        "flava": towers | {"image_config": sight, "multimodal_config": sizes, "hidden_size": 32},
        "forecast": forecast | {"num_time_features": 2},
        "git": text["decoder"] | {"vision_config": sight},
        "groupvit": towers | {"vision_config": sight | groups, "projection_intermediate_dim": 32},
        "patches": {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16},
        "pyramid": pyramid,
        "shifted": shifted,
        "siglip": towers | {"text_config": encoder | {"projection_size": 32}},
        "sight": sight,
        "speech": speech,
        "stages": stages,
        "towers": towers,
        "xclip": towers | {"vision_config": sight | mit, "projection_dim": 32, "prompt_num_attention_heads": 4},
    }


# [tags], and below it a line for each model: name, class, inputs (a key of _fields), config (a key of _configs), and
# the settings that differ from that config. A line that begins with spaces continues the one above.
TRANSFORMERS = """
[quick text]
bert BertModel text encoder
gpt2 GPT2Model text gpt

[quick text encoder-decoder]
t5 T5Model pair t5

[quick text vision two-tower]
clip CLIPModel image_text towers
lxmert LxmertModel regions encoder l_layers=2 x_layers=1 r_layers=2 visual_feat_dim=16

[quick text mixture-of-experts]
mixtral MixtralModel text experts

[quick vision]
vit ViTModel image sight

[audio encoder-decoder]
whisper WhisperModel mel seq2seq num_mel_bins=16 max_source_positions=16 max_target_positions=32

[quick text state-space]
mamba MambaModel ids state

[text]
distilbert DistilBertModel text gpt dim=32 n_layers=2 n_heads=4 hidden_dim=64 max_position_embeddings=64
llama LlamaForCausalLM text decoder
albert AlbertModel text narrow
arcee ArceeModel text decoder
big_bird BigBirdModel text encoder attention_type=original_full
biogpt BioGptModel text decoder
bitnet BitNetModel text decoder
bloom BloomModel text gpt hidden_size=32
camembert CamembertModel text encoder
codegen CodeGenModel text gpt rotary_dim=4
cohere CohereModel text decoder
ctrl CTRLModel text gpt dff=64
deberta DebertaModel text encoder relative_attention=true pos_att_type=["c2p","p2c"]
deberta_v2 DebertaV2Model text encoder relative_attention=true pos_att_type=["c2p","p2c"]
diffllama DiffLlamaModel text decoder
dpr DPRQuestionEncoder text encoder
electra ElectraModel text narrow
ernie ErnieModel text encoder
ernie4_5 Ernie4_5Model text decoder
esm EsmModel text encoder mask_token_id=3
exaone4 Exaone4Model text decoder
falcon FalconModel text encoder
fnet FNetModel ids encoder
funnel FunnelModel text special block_sizes=[1,1] d_model=32 n_head=4 d_head=8 d_inner=64
gemma GemmaModel text decoder
gemma2 Gemma2Model text decoder
gemma3 Gemma3TextModel text decoder
glm GlmModel text decoder
gpt_bigcode GPTBigCodeModel text gpt
gpt_neo GPTNeoModel text decoder num_layers=2 num_heads=4 attention_types=[[["global","local"],1]] window_size=4
gpt_neox GPTNeoXModel text decoder
gptj GPTJModel text gpt rotary_dim=4
granite GraniteModel text decoder
helium HeliumModel text decoder
ibert IBertModel text encoder
layoutlm LayoutLMModel boxes encoder
megatron_bert MegatronBertModel text encoder
mistral MistralModel text decoder
mobilebert MobileBertModel text narrow intra_bottleneck_size=16 true_hidden_size=16
modernbert ModernBertModel text encoder local_attention=4
mpnet MPNetModel text encoder
mpt MptModel text gpt d_model=32 n_layers=2 n_heads=4 max_seq_len=64
nemotron NemotronModel text decoder
olmo OlmoModel text decoder
olmo2 Olmo2Model text decoder
opt OPTModel text decoder ffn_dim=64 word_embed_proj_dim=32
perceiver PerceiverModel array sizes num_latents=4 d_latents=32 d_model=16 num_self_attends_per_block=2
    num_self_attention_heads=4 num_cross_attention_heads=4
persimmon PersimmonModel text decoder
phi PhiModel text decoder
phi3 Phi3Model text decoder
qwen2 Qwen2Model text decoder
qwen3 Qwen3Model text decoder
reformer ReformerModel text encoder attention_head_size=8 feed_forward_size=64 attn_layers=["local","local"]
    local_attn_chunk_length=4 axial_pos_shape=[4,2] axial_pos_embds_dim=[16,16]
rembert RemBertModel text encoder input_embedding_size=16 output_embedding_size=16
roberta RobertaModel text encoder
roformer RoFormerModel text encoder embedding_size=32
smollm3 SmolLM3Model text decoder
splinter SplinterModel text encoder
stablelm StableLmModel text decoder
starcoder2 Starcoder2Model text decoder
trocr TrOCRForCausalLM ids seq2seq
x_mod XmodModel text encoder languages=["en"] default_language=en
xlm XLMModel text special emb_dim=32 n_layers=2 n_heads=4 max_position_embeddings=64 n_words=64
xlm_roberta XLMRobertaModel text encoder
xlnet XLNetModel text special d_model=32 n_layer=2 n_head=4 d_inner=64 use_mems_eval=false
yoso YosoModel text encoder use_expectation=true

[text convolutional]
canine CanineModel characters encoder num_hash_buckets=16 local_transformer_stride=8
convbert ConvBertModel text narrow
squeezebert SqueezeBertModel text encoder embedding_size=32

[text]
longformer LongformerModel text encoder attention_window=[4,4]

[text mixture-of-experts]
deepseek_v2 DeepseekV2Model text latent
deepseek_v3 DeepseekV3Model text latent
ernie4_5_moe Ernie4_5_MoeModel text experts
glm4_moe Glm4MoeModel text experts
gpt_oss GptOssModel text experts
granitemoe GraniteMoeModel text experts
jetmoe JetMoeModel text experts
llama4 Llama4TextModel text experts
minimax MiniMaxModel text experts
olmoe OlmoeModel text experts
phimoe PhimoeModel text experts
qwen2_moe Qwen2MoeModel text experts
qwen3_moe Qwen3MoeModel text experts

[text mixture-of-experts encoder-decoder]
nllb_moe NllbMoeModel pair seq2seq num_experts=4 expert_capacity=8 encoder_sparse_step=2 decoder_sparse_step=2
switch_transformers SwitchTransformersModel pair t5 num_experts=4 expert_capacity=8 num_sparse_encoder_layers=1
    num_sparse_decoder_layers=1

[text encoder-decoder]
bart BartModel pair seq2seq
bigbird_pegasus BigBirdPegasusModel pair seq2seq attention_type=original_full
blenderbot BlenderbotModel pair seq2seq
blenderbot_small BlenderbotSmallModel pair seq2seq
longt5 LongT5Model pair t5 local_radius=3
m2m_100 M2M100Model pair seq2seq
marian MarianModel pair seq2seq
mbart MBartModel pair seq2seq
mt5 MT5Model pair t5
mvp MvpModel pair seq2seq
pegasus PegasusModel pair seq2seq
plbart PLBartModel pair seq2seq
prophetnet ProphetNetModel pair special hidden_size=32 encoder_ffn_dim=64 num_encoder_layers=2
    num_encoder_attention_heads=4 decoder_ffn_dim=64 num_decoder_layers=2 num_decoder_attention_heads=4
    max_position_embeddings=64
umt5 UMT5Model pair t5

[text encoder-decoder]
fsmt FSMTModel pair seq2seq src_vocab_size=64 tgt_vocab_size=64 langs=["en","de"]
led LEDModel pair seq2seq attention_window=4 max_encoder_position_embeddings=64 max_decoder_position_embeddings=64

[text state-space]
bamba BambaModel text hybrid attn_layer_indices=[1]
falcon_h1 FalconH1Model text hybrid
falcon_mamba FalconMambaModel ids state
mamba2 Mamba2Model ids state num_heads=8 head_dim=8 n_groups=1 chunk_size=4
recurrent_gemma RecurrentGemmaModel text decoder lru_width=32 block_types=["recurrent","attention"]
    attention_window_size=8
rwkv RwkvModel ids state
xlstm xLSTMModel ids state num_blocks=2 num_heads=4 chunk_size=8

[text state-space mixture-of-experts]
jamba JambaModel text experts attn_layer_period=2 attn_layer_offset=1 expert_layer_period=2 expert_layer_offset=1
    mamba_d_state=8 use_mamba_kernels=false
qwen3_next Qwen3NextModel text experts linear_num_key_heads=2 linear_num_value_heads=4 linear_key_head_dim=8
    linear_value_head_dim=8 shared_expert_intermediate_size=32

[text state-space convolutional]
lfm2 Lfm2Model text decoder full_attn_idxs=[1]

[vision]
beit BeitModel image sight
data2vec_vision Data2VecVisionModel image sight
deit DeiTModel image sight
dinov2 Dinov2Model image sight
dinov2_with_registers Dinov2WithRegistersModel image sight
dinov3_vit DINOv3ViTModel image sight
dpt DPTModel image sight
glpn GLPNModel image pyramid sr_ratios=[2,1] mlp_ratios=[2,2]
hiera HieraModel image stages image_size=[32,32] embed_dim=8 num_heads=[1,2] masked_unit_size=[4,4] num_query_pool=1
ijepa IJepaModel image sight
mgp_str MgpstrModel image sight image_size=[32,32] max_token_length=8
pvt PvtModel image pyramid patch_sizes=[4,2] sequence_reduction_ratios=[2,1] mlp_ratios=[2,2]
pvt_v2 PvtV2Model image stages depths=[1,1,1,1] hidden_sizes=[8,16,16,16] num_attention_heads=[1,2,2,2]
    mlp_ratios=[2,2,2,2]
sam_vision SamVisionModel image sight output_channels=16 window_size=2 global_attn_indexes=[1] mlp_dim=64
segformer SegformerModel image pyramid sr_ratios=[2,1] mlp_ratios=[2,2]
swin SwinModel image shifted
swinv2 Swinv2Model image shifted
timesformer TimesformerModel video sight num_frames=2
videomae VideoMAEModel video sight num_frames=2
vit_mae ViTMAEModel noisy_image sight
vit_msn ViTMSNModel image sight
vitdet VitDetModel image sight pretrain_image_size=32
vivit VivitModel video sight num_frames=2 tubelet_size=[2,8,8]
yolos YolosModel image sight image_size=[32,32] num_detection_tokens=4

[vision convolutional]
bit BitModel image stages num_groups=4
convnext ConvNextModel image stages patch_size=4
convnextv2 ConvNextV2Model image stages patch_size=4
efficientnet EfficientNetModel image stages width_coefficient=0.25 depth_coefficient=0.25 hidden_dim=320
focalnet FocalNetModel image stages patch_size=4 embed_dim=8 focal_levels=[2,2] focal_windows=[3,3]
levit LevitModel image sight patch_size=16 hidden_sizes=[16,32,48] num_attention_heads=[2,2,2] depths=[1,1,1]
    key_dim=[8,8,8]
mobilenet_v1 MobileNetV1Model image sight depth_multiplier=0.25
mobilenet_v2 MobileNetV2Model image sight depth_multiplier=0.25
mobilevit MobileViTModel image sight patch_size=2 hidden_sizes=[16,24,32] neck_hidden_sizes=[8,8,8,16,24,32,32]
poolformer PoolFormerModel image pyramid padding=[2,1] mlp_ratio=2.0
regnet RegNetModel image stages groups_width=4
resnet ResNetModel image stages layer_type=basic
swiftformer SwiftFormerModel image stages depths=[1,1,1,1] embed_dims=[8,8,16,16]

[vision convolutional encoder-decoder]
detr DetrModel image detr

[audio convolutional]
data2vec_audio Data2VecAudioModel wave speech
hubert HubertModel wave speech
sew SEWModel wave speech
unispeech UniSpeechModel wave speech
unispeech_sat UniSpeechSatModel wave speech
wav2vec2 Wav2Vec2Model wave speech
wavlm WavLMModel wave speech

[audio]
audio_spectrogram_transformer ASTModel spectrum sizes patch_size=4 frequency_stride=4 time_stride=4 max_length=32
    num_mel_bins=16

[audio encoder-decoder]
moonshine MoonshineModel speech decoder encoder_num_hidden_layers=2 decoder_num_hidden_layers=2
    encoder_num_attention_heads=4 decoder_num_attention_heads=4
speech_to_text Speech2TextModel frames seq2seq max_source_positions=64 max_target_positions=64
    input_feat_per_channel=16 conv_channels=16

[text vision two-tower]
blip BlipModel image_text blip
altclip AltCLIPModel image_text towers
blip_2 Blip2ForImageTextRetrieval image_text blip_2
bridgetower BridgeTowerModel image_text bridgetower
chinese_clip ChineseCLIPModel image_text towers
clipseg CLIPSegModel image_text towers
flava FlavaModel image_text flava
groupvit GroupViTModel image_text groupvit
metaclip_2 MetaClip2Model image_text towers
owlv2 Owlv2Model image_text towers
owlvit OwlViTModel image_text towers
siglip SiglipModel image_text siglip
xclip XCLIPModel video_text xclip

[text vision two-tower convolutional]
align AlignModel image_text align

[text audio two-tower]
clap ClapModel sound_text clap

[text vision]
git GitModel image_text git
visual_bert VisualBertModel visual_text encoder visual_embedding_dim=16

[time-series encoder-decoder]
autoformer AutoformerModel series forecast label_length=4 moving_average=3

[time-series]
decision_transformer DecisionTransformerModel episode gpt state_dim=5 act_dim=2 hidden_size=32 max_ep_len=16
patchtsmixer PatchTSMixerModel patches patches num_layers=2
patchtst PatchTSTModel patches patches num_attention_heads=2 num_hidden_layers=2 ffn_dim=32

[time-series encoder-decoder]
informer InformerModel series forecast encoder_layers=1
time_series_transformer TimeSeriesTransformerModel series forecast
"""


def _make(fields: Fields, batch: int = BATCH, seed: int = 1) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return (), {name: field(batch, generator) for name, field in fields.items()}


def _build_transformers(class_name: str, fields: Fields, config: Config) -> nn.Module:
    model_class = getattr(import_transformers(), class_name)
    with _seeded(0):
        # A copy, because a config class may edit the dicts that it is given.
        model = model_class._from_config(model_class.config_class(**copy.deepcopy(config)))
        return _settled(model, *_make(fields, batch=8, seed=2))


def _setting(text: str) -> tuple[str, Any]:
    key, value = text.split("=")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _transformers_models() -> Iterator[ZooModel]:
    fields, configs = _fields(), _configs()
    tags: frozenset[str] = frozenset()
    for row in TRANSFORMERS.replace("\n    ", " ").strip().splitlines():
        if row.startswith("["):
            tags = frozenset(row.strip("[]").split())
        elif row:
            name, class_name, inputs, config, *settings = row.split()
            values = configs[config] | dict(map(_setting, settings))
            build = functools.partial(_build_transformers, class_name, fields[inputs], values)
            make = functools.partial(_make, fields[inputs])
            yield ZooModel(f"transformers/{name}", build, make, "transformers", tags)


ZOO: dict[str, ZooModel] = {
    model.name: model for model in (*map(_torchvision_model, TORCHVISION.split()), *_transformers_models())
}
