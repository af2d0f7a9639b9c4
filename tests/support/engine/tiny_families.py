"""Tiny random model directories of every family, made by transformers, and what transformers itself generates from them.

Biases start at 0 and norms at 1 in transformers: here both are random, so that one that is left out, doubled or misplaced shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 512
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
QWEN3 = {"head_dim": 32}
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, **QWEN3}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24},
    "qwen2": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "qwen3": QWEN3,
    "qwen3_moe": {**MOE, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
}


def make_model(directory: Path, family: str = "llama", *, seed: int = 0, shard: str | None = None, **changes: Any) -> PreTrainedModel:
    """Save a random model into `directory` and return it. Weights are wide, so that the logits' margins are."""
    settings = {**SHAPE, "initializer_range": 0.2, **FAMILIES[family], **changes}
    torch.manual_seed(seed)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings)).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.6, 1.4) if name.endswith("norm.weight") else parameter.normal_(0.0, 0.3)
    model.generation_config.eos_token_id = None
    model.save_pretrained(directory, **({"max_shard_size": shard} if shard else {}))
    return model


def write_config_as_v4(directory: Path) -> None:
    """Rewrite config.json with the keys that transformers 4 wrote for rotary embedding and dtype."""
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["torch_dtype"] = config.pop("dtype")
    if rope["rope_type"] != "default":
        config["rope_scaling"] = rope
    (directory / "config.json").write_text(json.dumps(config))


@dataclass(frozen=True)
class Case:
    """A prompt, transformers' greedy continuation, and the smallest margin between the best two logits on the way."""

    prompt: tuple[int, ...]
    stream: tuple[int, ...]
    margin: float


def wide_cases(model: PreTrainedModel, wanted: int, lengths: Sequence[int], count: int, margin: float) -> list[Case]:
    """`wanted` prompts whose greedy streams of `count` tokens have at least `margin` all the way, their lengths in turn."""
    draw, found = torch.Generator().manual_seed(1), []
    per_length = -(-wanted // len(lengths))
    for length in lengths:
        # Twice as many as wanted, in one batch of equal lengths: no padding, and transformers' time is per call.
        prompts = torch.randint(0, VOCAB, (2 * per_length + 2, length), generator=draw)
        wide = [case for case in greedy(model, prompts, count) if case.margin >= margin][:per_length]
        if len(wide) < per_length:
            raise AssertionError(f"only {len(wide)} of {per_length} prompts of {length} tokens have a margin of {margin}")
        found += wide
    return found[:wanted]


def greedy(model: PreTrainedModel, prompts: torch.Tensor, count: int) -> list[Case]:
    """What transformers makes of `prompts` [rows, length]."""
    with torch.inference_mode():
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    best = torch.stack(out.logits).float().topk(2, dim=-1).values
    margins = (best[..., 0] - best[..., 1]).amin(dim=0).tolist()
    length = prompts.shape[1]
    rows = zip(out.sequences.tolist(), margins, strict=True)
    return [Case(tuple(ids[:length]), tuple(ids[length:]), margin) for ids, margin in rows]
