"""Tiny quantised checkpoints, written by the published formulas of each format, with the numbers that they stand for.

Sources: AutoAWQ's gemm (a word holds columns 0 2 4 6 1 3 5 7), AutoGPTQ (version 1 stores zeros minus 1), compressed-tensors 0.17 (levels
and zeros are offset by 8; zeros are packed along outputs), DeepSeek-V3 (blocks of 128 x 128). Nothing is the daemon's: this is its judge.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 200,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
IN_ORDER = tuple(range(8))

Stored = tuple[dict[str, Tensor], Tensor]
"""The parts of a matrix by their suffixes, and the numbers [outputs, inputs] that they stand for, in float64."""
Write = Callable[[Tensor], Stored]


@dataclass(frozen=True)
class Format:
    """A `quantization_config`, and how it stores a float32 matrix [outputs, inputs]."""

    config: dict[str, Any]
    write: Write
    form: str
    """What a GPU is to hold the matrices in."""


def words(levels: np.ndarray, order: tuple[int, ...]) -> Tensor:
    """int32 [rows, columns / 8] of 0..15 [rows, columns]: the lowest 4 bits of a word are column order[0] of its eight."""
    eights = levels.astype(np.uint32).reshape(len(levels), -1, 8)
    packed = np.zeros(eights.shape[:2], np.uint32)
    for place, column in enumerate(order):
        packed |= eights[:, :, column] << np.uint32(4 * place)
    return torch.from_numpy(packed.view(np.int32))


def levels4(
    weight: Tensor, group: int, *, symmetric: bool, kind: torch.dtype = torch.float16
) -> tuple[np.ndarray, np.ndarray, Tensor, Tensor]:
    """Levels [outputs, inputs] and zeros [outputs, groups], 0..15, scales [outputs, groups], and what they stand for."""
    outputs, inputs = weight.shape
    grouped = weight.double().reshape(outputs, -1, group)
    if symmetric:
        scales = (grouped.abs().amax(2) / 7).to(kind)
        zeros = torch.full(scales.shape, 8.0, dtype=torch.float64)
    else:
        low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
        scales = ((high - low) / 15).to(kind)
        zeros = (-low / scales.double()).round().clamp(0, 15)
    levels = (grouped / scales.double()[:, :, None] + zeros[:, :, None]).round().clamp(0, 15)
    exact = (levels - zeros[:, :, None]) * scales.double()[:, :, None]
    return levels.reshape(outputs, inputs).numpy(), zeros.numpy(), scales, exact.reshape(outputs, inputs)


def awq(group: int) -> Write:
    def write(weight: Tensor) -> Stored:
        levels, zeros, scales, exact = levels4(weight, group, symmetric=False)
        parts = {".qweight": words(levels.T, AWQ_ORDER), ".qzeros": words(zeros.T, AWQ_ORDER), ".scales": scales.T.contiguous()}
        return parts, exact

    return write


def gptq(group: int, *, symmetric: bool, one_less: bool = True, bias: bool = False) -> Write:
    def write(weight: Tensor) -> Stored:
        outputs, inputs = weight.shape
        size = inputs if group == -1 else group
        levels, zeros, scales, exact = levels4(weight, size, symmetric=symmetric)
        parts = {
            ".qweight": words(levels, IN_ORDER).T.contiguous(),
            ".qzeros": words((zeros.T - one_less) % 16, IN_ORDER),
            ".scales": scales.T.contiguous(),
            ".g_idx": (torch.arange(inputs) // size).int(),
        }
        return parts | ({".bias": torch.zeros(outputs).half()} if bias else {}), exact

    return write


def packed(group: int | None, *, symmetric: bool) -> Write:
    def write(weight: Tensor) -> Stored:
        levels, zeros, scales, exact = levels4(weight, group or weight.shape[1], symmetric=symmetric, kind=torch.bfloat16)
        parts = {".weight_packed": words(levels, IN_ORDER), ".weight_scale": scales, ".weight_shape": torch.tensor(weight.shape)}
        return parts | ({} if symmetric else {".weight_zero_point": words(zeros.T, IN_ORDER).T.contiguous()}), exact

    return write


def _eight(weight: Tensor, scales: Tensor, kind: torch.dtype) -> Tensor:
    steps = weight.double() / scales.double()
    return steps.float().to(kind) if kind.is_floating_point else steps.round().clamp(-127, 127).to(kind)


def per_output(kind: torch.dtype, name: str = ".weight_scale") -> Write:
    def write(weight: Tensor) -> Stored:
        scales = (weight.abs().amax(1, keepdim=True) / (448 if kind.is_floating_point else 127)).bfloat16()
        levels = _eight(weight, scales, kind)
        return {".weight": levels, name: scales}, levels.double() * scales.double()

    return write


def per_matrix(shape: tuple[int, ...], *, static: bool) -> Write:
    def write(weight: Tensor) -> Stored:
        scale = (weight.abs().max() / 448).reshape(shape)
        levels = _eight(weight, scale, torch.float8_e4m3fn)
        parts = {".weight": levels, ".weight_scale": scale} | ({".input_scale": torch.ones(shape)} if static else {})
        return parts, levels.double() * scale.double()

    return write


def per_block(name: str, kind: torch.dtype, high: int = 128, wide: int = 128) -> Write:
    def write(weight: Tensor) -> Stored:
        outputs, inputs = weight.shape
        scales = torch.empty(-(-outputs // high), -(-inputs // wide), dtype=kind)
        spread = torch.empty(outputs, inputs, dtype=torch.float64)
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                at = slice(row * high, (row + 1) * high), slice(column * wide, (column + 1) * wide)
                scales[row, column] = weight[at].abs().max() / 448
                spread[at] = scales[row, column].double()
        levels = _eight(weight, spread, torch.float8_e4m3fn)
        return {".weight": levels, name: scales}, levels.double() * spread

    return write


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {"symmetric": True, "dynamic": False, "actorder": None, **weights},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*(a+)+$"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
    }


_FP8 = {"num_bits": 8, "type": "float"}
_INT4 = {"num_bits": 4, "type": "int"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
FORMATS = {
    "fp8": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, per_matrix((), static=True), "fp8"
    ),
    "fp8-rows": Format({"quant_method": "fp8", "activation_scheme": "dynamic"}, per_output(torch.float8_e4m3fn), "fp8"),
    "fp8-blocks": Format(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        per_block(".weight_scale_inv", torch.bfloat16),
        "fp8",
    ),
    "fp8-uneven": Format(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [48, 80]},
        per_block(".weight_scale_inv", torch.float32, 48, 80),
        "fp8",
    ),
    "compressed-fp8": Format(_compressed("float-quantized", strategy="channel", **_FP8), per_output(torch.float8_e4m3fn), "fp8"),
    "compressed-fp8-tensor": Format(_compressed("float-quantized", strategy="tensor", **_FP8), per_matrix((1,), static=True), "fp8"),
    "compressed-fp8-block": Format(
        _compressed("float-quantized", strategy="block", block_structure=[128, 128], **_FP8),
        per_block(".weight_scale", torch.bfloat16),
        "fp8",
    ),
    "compressed-int8": Format(_compressed("int-quantized", strategy="channel", num_bits=8, type="int"), per_output(torch.int8), "int8"),
    "awq": Format(
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm", "modules_to_not_convert": None},
        awq(128),
        "int4",
    ),
    "awq-64": Format({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, awq(64), "bf16"),
    "gptq": Format(_GPTQ, gptq(128, symmetric=True), "int4"),
    "gptq-asymmetric": Format(_GPTQ | {"sym": False}, gptq(128, symmetric=False, bias=True), "int4"),
    "gptq-v2": Format(_GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, gptq(128, symmetric=False, one_less=False), "int4"),
    "gptq-whole": Format(_GPTQ | {"group_size": -1}, gptq(-1, symmetric=True), "int4"),
    "gptq-32": Format(_GPTQ | {"group_size": 32}, gptq(32, symmetric=True), "bf16"),
    "compressed-int4": Format(
        _compressed("pack-quantized", strategy="group", group_size=128, **_INT4), packed(128, symmetric=True), "int4"
    ),
    "compressed-int4-asymmetric": Format(
        _compressed("pack-quantized", strategy="group", group_size=128, **_INT4 | {"symmetric": False}),
        packed(128, symmetric=False),
        "int4",
    ),
    "compressed-int4-channel": Format(_compressed("pack-quantized", strategy="channel", **_INT4), packed(None, symmetric=True), "int4"),
}
"""As they are published; `-uneven`, `-64` and `-32` have other blocks and groups than the usual ones."""


def plain_tensors(seed: int = 0, **changes: Any) -> dict[str, Tensor]:
    """A random model of CONFIG in float32, by the names of a checkpoint."""
    config = CONFIG | changes
    hidden, middle, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes = {"self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden)}
    shapes |= {"self_attn.o_proj": (hidden, heads), "mlp.gate_proj": (middle, hidden), "mlp.up_proj": (middle, hidden)}
    shapes |= {"mlp.down_proj": (hidden, middle)}
    chance = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(config["vocab_size"], hidden, generator=chance) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    found["model.norm.weight"] = 1 + 0.1 * torch.randn(hidden, generator=chance)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            found[f"model.layers.{layer}.{name}.weight"] = torch.randn(shape, generator=chance) * shape[1] ** -0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{name}.weight"] = 1 + 0.1 * torch.randn(hidden, generator=chance)
    return found


def quantised_tensors(
    form: Format, plain: dict[str, Tensor], kept: tuple[str, ...] = ("lm_head",)
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the file has, and what it stands for in float64. `kept`: modules whose matrices stay as they are, in bf16."""
    stored: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        if tensor.dim() == 1 or module in kept or "embed" in name:
            stored[name] = tensor.bfloat16()
            exact[name] = stored[name].double()
            continue
        parts, exact[name] = form.write(tensor)
        stored |= {module + suffix: part.contiguous() for suffix, part in parts.items()}
    return stored, exact


def write_model(folder: Path, tensors: dict[str, Tensor], form: Format | None, **changes: Any) -> Path:
    """A directory with both files; `form` None: not quantised."""
    folder.mkdir(parents=True, exist_ok=True)
    quantisation = {} if form is None else {"quantization_config": form.config}
    (folder / "config.json").write_text(json.dumps(CONFIG | changes | quantisation))
    save_file(tensors, folder / "model.safetensors")
    return folder
