"""What bench/engine.py measures with: random models as checkpoints, a decode loop without an engine, a read of memory."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pagoda_daemon.model.config import read_spec
from pagoda_daemon.model.loader import load_tensors
from pagoda_daemon.model.rope import rope_table, rotate
from pagoda_daemon.model.weights import Mlp, Weights, allocate, destinations
from pagoda_daemon.text.spelling import byte_of_character
from pagoda_kernels.cpu.native import read_bytes
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional


@dataclass(frozen=True)
class Model:
    """Sizes of a Llama, and what it is asked: `rows` requests at once of `prompt` tokens in, `answer` out."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    prompt: int
    answer: int
    rows: tuple[int, ...]


MODELS = {
    "19m": Model(8192, 384, 1024, 8, 6, 2, 128, 128, (1, 32)),
    "160m": Model(32000, 768, 2048, 18, 12, 4, 256, 128, (1, 32)),
    "1.1b": Model(32000, 2048, 5632, 22, 32, 4, 128, 64, (1, 16)),
}
CONTEXT = 512
PROBE_BYTES = 2**29


def make_model(model: Model, directory: Path) -> None:
    """A checkpoint as transformers would write it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    write_model(config, directory)
    write_tokenizer(model.vocab, directory)


def write_model(config: dict[str, Any], directory: Path) -> None:
    """Random weights for any config."""
    (directory / "config.json").write_text(json.dumps(config))
    spec = read_spec(directory)
    torch.manual_seed(0)
    places = destinations(spec, allocate(spec, torch.bfloat16))
    tensors = {name: torch.ones_like(place) if "norm" in name else torch.randn_like(place) * 0.02 for name, place in places.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(vocab: int, directory: Path) -> None:
    """Byte-level, as most models have it: three special ids, the bytes, then words; what a server needs and the bare engine does not."""
    special = ("<unk>", "<s>", "</s>")
    tokens = [*special, *byte_of_character(), *(f"\u0120w{at}" for at in range(vocab))][:vocab]
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))


@dataclass
class Bare:
    """A decode loop without an engine: eager torch, contiguous keys and values."""

    weights: Weights
    directory: Path
    steps: int = 12

    @classmethod
    def of(cls, directory: Path) -> Bare:
        spec = read_spec(directory)
        weights = allocate(spec, torch.bfloat16)
        load_tensors(directory, destinations(spec, weights), lambda _done: None)
        return cls(weights, directory)

    @torch.inference_mode()
    def step_ms(self, rows: int, context: int) -> float:
        spec = read_spec(self.directory)
        kv = torch.randn(spec.layers, 2, rows, spec.kv_heads, context + self.steps, spec.head_dim).to(torch.bfloat16)
        cos, sin = rope_table(spec, CONTEXT, torch.bfloat16)
        ids, times = torch.zeros(rows, dtype=torch.long), []
        for at in range(context, context + self.steps):
            begun = time.perf_counter()
            ids = self._step(ids, kv, at, (cos[at], sin[at]))
            times.append((time.perf_counter() - begun) * 1000)
        return statistics.median(times)

    def _step(self, ids: torch.Tensor, kv: torch.Tensor, at: int, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        weights, (_, _, rows, kv_heads, _, dim) = self.weights, kv.shape
        hidden = weights.embedding[ids]
        for layer, (keys, values) in zip(weights.layers, kv, strict=True):
            assert isinstance(layer.mlp, Mlp)
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.attention_norm, 1e-5)
            fused = functional.linear(normed, layer.qkv.weight).view(rows, -1, dim)
            turned = rotate(fused[:, :-kv_heads], *turn)
            keys[:, :, at], values[:, :, at] = turned[:, -kv_heads:], fused[:, -kv_heads:]
            query, seen = turned[:, :-kv_heads].unsqueeze(2), slice(at + 1)
            mixed = functional.scaled_dot_product_attention(query, keys[:, :, seen], values[:, :, seen], enable_gqa=True)
            hidden = hidden + functional.linear(mixed.reshape(rows, -1), layer.output.weight)
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.mlp_norm, 1e-5)
            gate, up = functional.linear(normed, layer.mlp.gate_up.weight).chunk(2, -1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.mlp.down.weight)
        return functional.linear(functional.rms_norm(hidden, hidden.shape[-1:], weights.norm, 1e-5), weights.head).argmax(-1)


def bandwidth(threads: int) -> float:
    """GB/s of reading memory, the best of three."""
    memory = np.ones(PROBE_BYTES, np.uint8)

    def once() -> float:
        begun = time.perf_counter()
        read_bytes(memory, threads)
        return PROBE_BYTES / (time.perf_counter() - begun) / 1e9

    return max(once() for _ in range(3))
