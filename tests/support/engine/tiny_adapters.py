"""Random LoRA adapters of the tiny models, made and saved by peft itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def make_adapter(model: PreTrainedModel, directory: Path, seed: int = 0, **changes: Any) -> PeftModel:
    """Save an adapter into `directory` and return the model with it. Its matrices are wide enough to change every answer."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION, "task_type": "CAUSAL_LM", **changes}
    torch.manual_seed(seed)
    adapted = get_peft_model(copy.deepcopy(model), LoraConfig(**settings)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2)
    adapted.save_pretrained(directory)
    return adapted
