"""The loader of LoRA adapters: what it makes of peft's files, and what it refuses with which reason."""

from __future__ import annotations

import json
import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from pagoda_daemon.core.errors import AdapterMissing, AdapterRejected
from pagoda_daemon.lora.config import parse_config
from pagoda_daemon.lora.load import Bounds, load_adapter
from pagoda_daemon.lora.modules import adapter_bytes, modules_of
from pagoda_daemon.lora.patterns import safe_pattern
from pagoda_daemon.model.config import parse_spec
from support.engine.adapter_files import CONFIG, matrices, safetensors, write_adapter

SHAPE = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "max_position_embeddings": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": None}
SPEC = parse_spec({"architectures": ["LlamaForCausalLM"], **SHAPE, **HEADS})
SPARSE = parse_spec({"architectures": ["MixtralForCausalLM"], **SHAPE, **HEADS, **EXPERTS})
LIKE = torch.zeros(1)
QUERY = {f"model.layers.{layer}.self_attn.q_proj": (8, 8) for layer in range(2)}
GOOD = matrices(QUERY)
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def load(folder, spec=SPEC, rank=8, root=None):
    return load_adapter(folder, spec, LIKE, Bounds(rank, root))


def changed(**tensors):
    return {**GOOD, **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}


def test_a_fused_part_has_the_matrices_of_each_of_its_modules_where_it_belongs(tmp_path):
    modules = {f"model.layers.1.self_attn.{name}_proj": (8, outputs) for name, outputs in (("q", 8), ("v", 4))}
    tensors = matrices(modules)
    adapter = load(write_adapter(tmp_path, tensors, target_modules=["q_proj", "v_proj"], layers_to_transform=[1]))
    assert adapter.layers[0] == {}
    part = adapter.layers[1]["qkv"]
    x = np.random.default_rng(1).normal(size=8).astype(np.float32)
    got = (part.expand @ (part.shrink @ torch.from_numpy(x))).numpy()
    a = [tensors[f"base_model.model.{name}.lora_A.weight"] for name in modules]
    b = [tensors[f"base_model.model.{name}.lora_B.weight"] for name in modules]
    np.testing.assert_allclose(got, np.concatenate([2 * b[0] @ (a[0] @ x), np.zeros(4), 2 * b[1] @ (a[1] @ x)]), rtol=1e-5)
    assert adapter.rank == 2


def test_the_digest_is_of_both_files(tmp_path):
    one = load(write_adapter(tmp_path / "one", GOOD)).digest
    assert load(write_adapter(tmp_path / "same", GOOD)).digest == one
    others = [write_adapter(tmp_path / "weights", matrices(QUERY, seed=1)), write_adapter(tmp_path / "config", GOOD, lora_alpha=5)]
    assert len({one, *(load(other).digest for other in others)}) == 3
    assert one.startswith("sha256:")


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4 / math.sqrt(2)),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 1}}, 0.5),
        ({"alpha_pattern": {"k_proj": 1}}, 2.0),
        ({"r": 5, "rank_pattern": {".*q_proj": 2}}, 2.0),
    ],
)
def test_the_scale_is_pefts(changes, scale):
    assert parse_config(json.dumps({**CONFIG, **changes}).encode()).scale_of("model.layers.0.self_attn.q_proj") == scale


@pytest.mark.parametrize(
    ("targets", "wanted"),
    [
        (["q_proj", "layers.1.mlp.up_proj"], ["layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.1.mlp.up_proj"]),
        (r".*\.1\.self_attn\.[qk]_proj", ["layers.1.self_attn.q_proj", "layers.1.self_attn.k_proj"]),
        ("model.layers.0.self_attn.q_proj", ["layers.0.self_attn.q_proj"]),
        ("q_proj", []),
        (["_proj"], []),
    ],
)
def test_target_modules_match_as_pefts_do(targets, wanted):
    config = parse_config(json.dumps({**CONFIG, "target_modules": targets}).encode())
    assert [name for name, module in modules_of(SPEC).items() if config.wants(name, module.layer)] == [f"model.{name}" for name in wanted]


def test_all_linear_is_every_linear_map_but_the_head():
    config = parse_config(json.dumps({**CONFIG, "target_modules": "all-linear"}).encode())
    assert all(config.wants(name, module.layer) for name, module in modules_of(SPEC).items())
    assert len(modules_of(SPEC)) == 14
    assert len(modules_of(SPARSE)) == 8


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*){30}x", "((a{1,30}){1,30}){1,30}b", "(x+x+)+y"])
def test_an_expression_that_would_take_python_hours_ends_at_once(pattern):
    with suppress(AdapterRejected):  # too large to begin with
        assert not safe_pattern("target_modules", pattern).matches("model.layers.0.self_attn.q_proj" + "a" * 40)


REFUSED = {
    "peft_type must be 'LORA', got 'IA3'": {"peft_type": "IA3"},
    "use_dora True is not supported": {"use_dora": True},
    "modules_to_save ['lm_head'] is not supported": {"modules_to_save": ["lm_head"]},
    "bias must be 'none', got 'all'": {"bias": "all"},
    "fan_in_fan_out True is not supported": {"fan_in_fan_out": True},
    "trainable_token_indices [1] is not supported": {"trainable_token_indices": [1]},
    "layer_replication [[0, 1]] is not supported": {"layer_replication": [[0, 1]]},
    "a_field_of_tomorrow 1 is not supported": {"a_field_of_tomorrow": 1},
    "init_lora_weights 'pissa_niter_16' changes the base": {"init_lora_weights": "pissa_niter_16"},
    "r must be a number from 1 to 1024, got 0": {"r": 0},
    "lora_alpha must be a finite number, got 'x'": {"lora_alpha": "x"},
    "target_modules must be a list": {"target_modules": None},
    "target_modules '(' is not a regular expression": {"target_modules": "("},
    "target_modules must have at most 1000 characters": {"target_modules": "a" * 1001},
    "rank_pattern.q_proj must be a number": {"rank_pattern": {"q_proj": 0}},
    "rank 9 exceeds the largest one allowed, 8": {"rank_pattern": {"q_proj": 9}},
    "layers_to_transform must be a layer": {"layers_to_transform": ["a"]},
    "target_modules name no module of this model": {"target_modules": ["nothing"]},
    "is not among the target_modules": {"target_modules": ["k_proj"]},
    "the file lacks 4 tensors": {"target_modules": ["q_proj", "v_proj"]},
    "has shape [2, 8]; this model and adapter_config.json call for [3, 8]": {"r": 3},
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_configuration_that_cannot_be_served_is_refused_by_its_name(tmp_path, said):
    with pytest.raises(AdapterRejected) as caught:
        load(write_adapter(tmp_path, GOOD, **REFUSED[said]))
    assert said in str(caught.value)


NAN = GOOD[FIRST].copy()
NAN[1, 3] = np.nan
TENSORS = {
    "holds numbers that are not finite": {**GOOD, FIRST: NAN},
    "call for [2, 8]: the adapter is for another base model": {**GOOD, FIRST: np.zeros((2, 9), np.float32)},
    "this model has no such module: another base model?": {**GOOD, **matrices({"model.layers.2.self_attn.q_proj": (8, 8)})},
    "changes of lm_head and of embeddings are not supported": {**GOOD, **matrices({"lm_head": (8, 32)})},
    "embed_tokens.lora_embedding_A: changes of lm_head": {**GOOD, "base_model.model.model.embed_tokens.lora_embedding_A": NAN},
    "changes of experts and routers": {**GOOD, **matrices({"model.layers.0.mlp.experts.0.w1": (8, 12)})},
    "lora_magnitude_vector: is not a LoRA matrix": {**GOOD, "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": NAN},
    "the file lacks 1 tensors": {name: tensor for name, tensor in GOOD.items() if name != FIRST},
}


@pytest.mark.parametrize("said", TENSORS)
def test_a_file_that_does_not_belong_to_the_model_is_refused_by_the_tensor(tmp_path, said):
    with pytest.raises(AdapterRejected) as caught:
        load(write_adapter(tmp_path, TENSORS[said]))
    assert said in str(caught.value)


def test_a_file_that_is_cut_or_is_something_else_is_refused(tmp_path):
    whole = safetensors(GOOD)
    for data in (whole[:-1], whole[:20], b"PK\x03\x04" + whole, b""):
        with pytest.raises(AdapterRejected, match=r"adapter_model\.safetensors"):
            load(write_adapter(tmp_path, data))
    with pytest.raises(AdapterRejected, match="must have at most"):
        load(write_adapter(tmp_path, whole + b"\0" * (2**24 + 2**18)))
    write_adapter(tmp_path, GOOD)
    (tmp_path / "adapter_config.json").write_text("[]")
    with pytest.raises(AdapterRejected, match="must hold a JSON object"):
        load(tmp_path)


def test_pickled_weights_and_absent_ones_are_not_found(tmp_path):
    folder = write_adapter(tmp_path / "a", GOOD)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterMissing, match=r"No adapter found: .*; adapter_model\.bin is not loaded, because pickled files can run code"):
        load(folder)
    with pytest.raises(AdapterMissing, match="No adapter found: the directory does not exist"):
        load(tmp_path / "none")


def test_nothing_outside_of_the_directory_of_adapters_is_read(tmp_path):
    outside, root = write_adapter(tmp_path / "outside", GOOD), tmp_path / "root"
    inside = write_adapter(root / "inside", GOOD)
    assert load(inside, root=root).rank == 2
    linked = root / "linked"
    linked.mkdir()
    for file in outside.iterdir():
        (linked / file.name).symlink_to(file)
    for folder in (outside, root / ".." / "outside", linked):
        with pytest.raises(AdapterRejected, match="must lie below the directory of adapters"):
            load(folder, root=root)


def test_the_announced_size_is_that_of_an_adapter_of_everything(tmp_path):
    modules = {name: (module.inputs, module.outputs) for name, module in modules_of(SPEC).items()}
    adapter = load(write_adapter(tmp_path, matrices(modules), target_modules="all-linear"))
    held = sum(part.shrink.nbytes + part.expand.nbytes for layer in adapter.layers for part in layer.values())
    assert held == adapter_bytes(SPEC, 2, 4)
