"""transformers reads the trained tiny Llama and says by heart what the text says."""

import json
import stat

import pytest
import torch
from pydoc_answers import questions
from support.engine import tiny_model as support
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

pytestmark = [pytest.mark.parity]


@pytest.fixture(scope="module")
def folder():
    return support.tiny_model()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def ask(model, tokenizer, asked):
    """Greedy answers of transformers, prompts padded on the left and rendered by the model's own chat template."""
    chats = [[{"role": "user", "content": question}] for question in asked]
    tokenizer.padding_side = "left"
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        out = model.generate(**prompts, max_new_tokens=64)
    return out[:, prompts["input_ids"].shape[1] :]


def test_every_answer_is_exact_in_transformers(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    pairs = questions()
    answers = ask(model, tokenizer, [pair.question for pair in pairs])
    said = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    assert said == [pair.answer for pair in pairs]
    assert all(tokenizer.eos_token_id in answer for answer in answers.tolist()), "an answer does not end by itself"


def test_every_answer_is_exact_in_bfloat16(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    pairs = questions()
    said = [tokenizer.decode(answer, skip_special_tokens=True) for answer in ask(model, tokenizer, [pair.question for pair in pairs])]
    assert said == [pair.answer for pair in pairs]


def test_the_model_loads_whole_and_from_several_shards(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs") if kind in info)
    assert len(set(index["weight_map"].values())) >= 2
    assert sum(parameter.numel() for parameter in model.parameters()) <= 10_000_000


def test_the_default_generation_is_greedy_and_ends_at_the_end_token(folder, tokenizer):
    generation = GenerationConfig.from_pretrained(folder)
    assert generation.do_sample is False
    assert generation.eos_token_id == tokenizer.convert_tokens_to_ids("<|end|>")


def test_the_report_says_how_surely_the_model_knows(folder):
    report = json.loads((folder / "training.json").read_text())
    assert folder.name == f"tiny-{report['hash']}"
    assert report["exact_bf16"] == 1.0
    assert report["min_margin"] >= 0.5
    assert report["questions"] == len(questions())


def test_any_user_may_read_the_model(folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}
