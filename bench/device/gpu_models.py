"""The models of bench/gpu.py and adapters for them: published shapes, random weights made on the device. Called by gpu_engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from pagoda_daemon.lora.load import Matrices, pooled_adapter
from pagoda_daemon.lora.modules import modules_of
from pagoda_daemon.model.config import ModelSpec, parse_spec
from pagoda_daemon.model.packed_lowrank import PooledAdapter
from pagoda_daemon.model.weights import Weights, allocate, destinations, weight_bytes

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
    "experts": {  # a fourth of the layers of Qwen3-30B-A3B
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
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
CONFIGS["tiny experts"] = {
    **CONFIGS["experts"],
    "vocab_size": 512,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@dataclass(frozen=True)
class Model:
    """On the device."""

    spec: ModelSpec
    weights: Weights
    weight_bytes: int

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
        return cls(spec, weights, weight_bytes(spec, torch.bfloat16))

    def quantised(self, name: str) -> Model:
        """With matrices in another format; these are given up."""
        from pagoda_daemon.model.quantised import FORMATS, quantised, quantised_bytes  # needs Triton

        kind = FORMATS[name]
        return Model(self.spec, quantised(self.weights, kind), quantised_bytes(self.spec, torch.bfloat16, kind))


def random_adapters(model: Model, count: int, rank: int) -> tuple[PooledAdapter, ...]:
    """On all modules, of the same numbers: each gets its own place on the device."""
    pairs = {
        name: (torch.randn(rank, module.inputs) * module.inputs**-0.5, torch.randn(module.outputs, rank) * 0.05)
        for name, module in modules_of(model.spec).items()
    }
    one = pooled_adapter(Matrices("", rank, pairs), model.spec, model.weights.norm)
    return tuple(replace(one, digest=digest(index)) for index in range(count))


def digest(index: int) -> str:
    """Of an adapter."""
    return f"sha256:{index}"
