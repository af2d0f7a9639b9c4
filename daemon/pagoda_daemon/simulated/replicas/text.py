"""A model directory without weights: byte-level tokenizer, chat template, configs. For replicas whose worker is simulated, and tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

VOCAB: Final = 1024
BOS, EOS = VOCAB - 2, VOCAB - 1
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in of each byte, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def vocabulary() -> dict[str, int]:
    """Ids 0..255 are the bytes, then words that only a model says, at the end the two special tokens."""
    words = [f"Ġw{number}" for number in range(256, BOS)]
    return {token: number for number, token in enumerate([*byte_characters(), *words, IM_START, IM_END])}


def tiny_model_dir(folder: Path, **generation: Any) -> Path:
    """Write the directory's files; `generation` goes into generation_config.json."""
    special = [
        {"id": number, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for number, text in ((BOS, IM_START), (EOS, IM_END))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary(), "merges": [], "unk_token": None, "byte_fallback": False},
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"chat_template": TEMPLATE, "bos_token": IM_START, "eos_token": {"content": IM_END}},
        "config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB},
        "generation_config.json": {"eos_token_id": EOS, **generation},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
