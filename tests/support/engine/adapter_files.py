"""LoRA adapters of a small Llama as files, written without peft or torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "org/tiny"}


def safetensors(tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """As the format lays them out."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (at, at + tensor.nbytes)}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.tobytes() for tensor in tensors.values())


def matrices(modules: Mapping[str, tuple[int, int]], rank: int = 2, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Both of each module, whose inputs and outputs are given."""
    draw, found = np.random.default_rng(seed), {}
    for name, (inputs, outputs) in modules.items():
        found[f"base_model.model.{name}.lora_A.weight"] = draw.normal(size=(rank, inputs)).astype(np.float32)
        found[f"base_model.model.{name}.lora_B.weight"] = draw.normal(size=(outputs, rank)).astype(np.float32)
    return found


def write_adapter(folder: Path, tensors: Mapping[str, np.ndarray[Any, Any]] | bytes, **config: Any) -> Path:
    """`config` over CONFIG; None takes a key out."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(tensors if isinstance(tensors, bytes) else safetensors(tensors))
    return folder
