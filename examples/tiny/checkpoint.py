"""The tokenizer, and a model directory as Hugging Face lays it out: what the daemon and transformers read.

Called by `train_tiny.py`. Trains no weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from tiny.learn import Lesson
from tiny.llama import Llama, Shape
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

BOS, USER, ASSISTANT, END = SPECIAL = ("<|bos|>", "<|user|>", "<|assistant|>", "<|end|>")
VOCAB = 2048
# Two shards, so that a loader has to read the index.
SHARDS = 2

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('role ' ~ message['role'] ~ ' is not known to this model; accepted: user, assistant') }}"
    "{% endif %}"
    "{{ '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(corpus: Iterable[str]) -> Tokenizer:
    """Byte-level BPE: any text can be asked, whatever it was trained on."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def prompt(question: str) -> str:
    """What `CHAT_TEMPLATE` makes of one question."""
    return f"{BOS}{USER}{question}{END}{ASSISTANT}"


def lessons(tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]], max_answer: int) -> list[Lesson]:
    """Questions and answers as token ids; an answer over `max_answer` tokens, its end included, is refused."""
    encoded = [Lesson(tokenizer.encode(prompt(question)).ids, tokenizer.encode(answer + END).ids) for question, answer in pairs]
    for lesson in encoded:
        if len(lesson.answer) > max_answer:
            raise ValueError(f"answer of {len(lesson.answer)} tokens, accepted: {max_answer}: {tokenizer.decode(lesson.answer)!r}")
    return encoded


def write(folder: Path, model: Llama, tokenizer: Tokenizer) -> None:
    """Every file of a model directory."""
    # The trainer gives its special tokens the first ids, in their order.
    ids = {name: at for at, name in enumerate(SPECIAL)}
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(model.shape))
    _write_json(folder / "config.json", _config(model.shape, ids))
    # Learned by heart means greedy: both words for it, since servers read one or the other.
    generation = {"bos_token_id": ids[BOS], "eos_token_id": ids[END], "pad_token_id": ids[END], "do_sample": False, "temperature": 0.0}
    _write_json(folder / "generation_config.json", generation)
    _write_weights(folder, {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()})


def _config(shape: Shape, ids: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[END],
        "torch_dtype": "float32",
    }


def _tokenizer_config(shape: Shape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": END,
        "model_max_length": shape.positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    names = sorted(tensors)
    files = [f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors" for shard in range(SHARDS)]
    for shard, file in enumerate(files):
        save_file({name: tensors[name] for name in names[shard::SHARDS]}, folder / file, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = {name: files[at % SHARDS] for at, name in enumerate(names)}
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
