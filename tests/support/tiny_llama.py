"""Tiny random Llama directories made by transformers, and what transformers itself generates from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 512


def make_llama(directory: Path, *, seed: int = 0, shard: str | None = None, **changes: Any) -> LlamaForCausalLM:
    """Save a random model into `directory` and return it. Weights are wide, so that the logits' margins are."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        **changes,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(directory, **({"max_shard_size": shard} if shard else {}))
    return model


def greedy(model: LlamaForCausalLM, prompt: Sequence[int], count: int) -> tuple[tuple[int, ...], float]:
    """transformers' greedy continuation and the smallest margin between the best two logits on the way."""
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    best = torch.stack(out.logits)[:, 0].float().topk(2, dim=-1).values
    return tuple(out.sequences[0, len(prompt) :].tolist()), float((best[:, 0] - best[:, 1]).min())
