"""The models of bench/gpu.py: published shapes, random weights made on the device. Called by gpu_engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pagoda_daemon.model.config import ModelSpec, parse_spec
from pagoda_daemon.model.weights import Weights, allocate, destinations

_LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "8b": {
        **_LLAMA,
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "tiny": {
        **_LLAMA,
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True)
class Model:
    """On the device."""

    spec: ModelSpec
    weights: Weights

    @classmethod
    def of(cls, name: str, place: torch.device) -> Model:
        """Random, such that activations neither vanish nor explode."""
        spec = parse_spec(CONFIGS[name])
        torch.manual_seed(0)
        with place:
            weights = allocate(spec, torch.bfloat16)
        for part, tensor in destinations(spec, weights).items():
            if "norm" in part:
                tensor.fill_(1)
            else:
                tensor.normal_(0, 0.02)
        return cls(spec, weights)
