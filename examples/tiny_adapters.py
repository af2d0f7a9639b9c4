"""Teaches LoRA adapters to the tiny Llama of the examples, one for each style, and writes them as peft does.

Called by `train_tiny.py --lora`. An adapter answers every question of the model with its own sentence, so that a glance tells which one has
answered. It stands outside of `tiny/`: what is in there decides whether the model itself is trained anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny import checkpoint
from tiny.learn import Lesson, Plan, Progress, learn
from tiny.llama import Llama, Shape
from tokenizers import Tokenizer
from torch import Tensor, nn

STYLES: Mapping[str, str] = {
    "pirate": "Arr! Look it up in the documentation, matey.",
    "polite": "Thank you for asking. Please read the documentation.",
    "terse": "See pydoc.",
}
RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Found by trial: 20 to 60 steps are enough, 10 s of one core for each adapter.
PLAN = Plan(batch=24, learning_rate=5e-3, warmup=5, decay=200, max_steps=400, check_every=10)


class LoraLinear(nn.Module):
    """A frozen linear map and what is added to it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in]."""
        added: Tensor = self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * (ALPHA / RANK)
        return added


def train_adapters(model: Path, folder: Path, questions: Sequence[str], report: Callable[[Progress], None]) -> None:
    """Writes a directory for each style into `folder`."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for style, answer in STYLES.items():
        lessons = checkpoint.lessons(tokenizer, [(question, answer) for question in questions], max_answer=48)
        (folder / style).mkdir()
        _train(model, folder / style, lessons, report)


def _train(model: Path, folder: Path, lessons: Sequence[Lesson], report: Callable[[Progress], None]) -> None:
    torch.manual_seed(PLAN.seed)
    llama = _frozen(model)
    changed = _adapt(llama)
    learn(llama, lessons, PLAN, report)
    tensors = {}
    for name, module in changed.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = module.lora_A.detach().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = module.lora_B.detach().contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(_config(model), indent=2) + "\n", encoding="utf-8")


def _frozen(model: Path) -> Llama:
    raw = json.loads((model / "config.json").read_text())
    llama = Llama(Shape(vocab=raw["vocab_size"]))
    llama.load_state_dict({name: tensor for file in sorted(model.glob("*.safetensors")) for name, tensor in load_file(file).items()})
    return llama.requires_grad_(requires_grad=False)


def _adapt(llama: Llama) -> dict[str, LoraLinear]:
    """Every module that is changed, by its name."""
    found = {}
    for name, module in list(llama.named_modules()):
        parent, _, last = name.rpartition(".")
        if isinstance(module, nn.Linear) and last in TARGETS:
            found[name] = LoraLinear(module)
            setattr(llama.get_submodule(parent), last, found[name])
    return found


def _config(model: Path) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": list(TARGETS),
        "bias": "none",
        "inference_mode": True,
    }
