"""Language models as users call them: generated text, caches, hidden states now and then, encoders beside decoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from .program import Run, Steps, program

TOKENS = 17


SPECIAL: dict[str, Any] = {"vocab_size": TOKENS, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
LAYERS: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=8, n_layer=1, n_head=2, **SPECIAL))


def llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, max_position_embeddings=32, **LAYERS, **SPECIAL))


def bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(max_position_embeddings=32, **LAYERS, **SPECIAL))


def t5() -> nn.Module:
    return T5ForConditionalGeneration(
        T5Config(
            d_model=8, d_kv=4, d_ff=16, num_layers=1, num_decoder_layers=1, num_heads=2, decoder_start_token_id=0, **SPECIAL
        )
    )


def tokens(rows: int = 2, length: int = 4) -> Tensor:
    return torch.arange(rows * length).remainder(TOKENS - 2).view(rows, length) + 2


WITHOUT_CACHE = {"input_ids": tokens, "use_cache": lambda: False}


@program(gpt2, kwargs={"input_ids": tokens})
def text_is_generated(run: Run) -> Steps:
    run.module.eval()
    yield run.module.generate(tokens(), max_new_tokens=4, do_sample=False)
    yield run.module.generate(tokens(), max_new_tokens=3, do_sample=False, use_cache=False)


@program(gpt2, kwargs={"input_ids": tokens}, slow=True)
def text_is_sampled(run: Run) -> Steps:
    run.module.eval()
    yield run.module.generate(tokens(), max_new_tokens=4, do_sample=True, top_k=5)
    yield run.module.generate(tokens(1), max_new_tokens=3, num_beams=2, do_sample=False)


@program(gpt2, kwargs=WITHOUT_CACHE)
def hidden_states_now_and_then(run: Run) -> Steps:
    for wanted in (False, True, False):
        result = run(input_ids=tokens(), use_cache=False, output_hidden_states=wanted)
        yield type(result).__name__, list(result), result.logits, result.hidden_states


@program(gpt2, kwargs=WITHOUT_CACHE)
def steps_of_training(run: Run) -> Steps:
    optimizer = torch.optim.AdamW(run.module.parameters(), lr=0.01)
    for length in (4, 5, 4):
        result = run(input_ids=tokens(2, length), labels=tokens(2, length), use_cache=False)
        yield result.loss, result.logits
        if run.training:
            result.loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@program(llama, kwargs={"input_ids": tokens})
def cache_is_handed_on(run: Run) -> Steps:
    with torch.no_grad():
        first = run(input_ids=tokens())
        yield first.logits, type(first.past_key_values).__name__, first.past_key_values.get_seq_length()
        second = run(input_ids=tokens(2, 1), past_key_values=first.past_key_values)
        yield second.logits, second.past_key_values is first.past_key_values, second.past_key_values.get_seq_length()


@program(llama, kwargs=WITHOUT_CACHE)
def padding_and_tuples(run: Run) -> Steps:
    mask = torch.ones(2, 4, dtype=torch.long)
    yield run(input_ids=tokens(), attention_mask=mask, use_cache=False).logits
    mask[0, :2] = 0
    yield run(input_ids=tokens(), attention_mask=mask, use_cache=False).logits
    yield run(input_ids=tokens(), use_cache=False, return_dict=False)
    yield run(tokens(3, 5), use_cache=False).logits


@program(bert, kwargs={"input_ids": tokens})
def classes_of_texts(run: Run) -> Steps:
    for rows in (2, 1, 3):
        result = run(input_ids=tokens(rows), labels=torch.zeros(rows, dtype=torch.long))
        yield result.loss, result.logits
        if run.training:
            result.loss.backward()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        yield run(input_ids=tokens()).logits


@program(t5, kwargs={"input_ids": tokens, "labels": tokens}, slow=True)
def encoder_and_decoder(run: Run) -> Steps:
    result = run(input_ids=tokens(), labels=tokens())
    yield result.loss, result.logits, result.encoder_last_hidden_state
    if run.training:
        result.loss.backward()
    run.module.eval()
    yield run.module.generate(tokens(), max_new_tokens=3)


@program(gpt2, kwargs=WITHOUT_CACHE, slow=True)
def checkpointed_layers(run: Run) -> Steps:
    run.module.gradient_checkpointing_enable()
    result = run(input_ids=tokens(), labels=tokens(), use_cache=False)
    yield result.loss
    if run.training:
        result.loss.backward()
    run.module.gradient_checkpointing_disable()
    yield run(input_ids=tokens(), use_cache=False).logits


@program(gpt2, kwargs=WITHOUT_CACHE, slow=True)
def vocabulary_resized(run: Run) -> Steps:
    yield run(input_ids=tokens(), use_cache=False).logits
    run.module.resize_token_embeddings(TOKENS + 3, mean_resizing=False)
    yield run(input_ids=tokens(), use_cache=False).logits.shape, list(run.module.state_dict())
