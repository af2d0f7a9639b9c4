"""Weights: single and sharded files fill their places; a wrong directory is refused by the name of what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pagoda_daemon.errors import ModelRejected
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.loader import INDEX, SINGLE, load_tensors
from pagoda_daemon.model.weights import allocate, destinations
from safetensors.torch import save_file

SPEC = ModelSpec(
    vocab_size=11,
    hidden=8,
    intermediate=12,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    norm_eps=1e-5,
    max_positions=32,
    rope_theta=1e4,
    rope_scaling=None,
    tied=False,
    attention_bias=True,
    mlp_bias=False,
)


def checkpoint() -> dict[str, torch.Tensor]:
    """Every tensor filled with its own number."""
    places = destinations(SPEC, allocate(SPEC, torch.float32))
    return {name: torch.full(places[name].shape, float(number)) for number, name in enumerate(sorted(places))}


def load(directory: Path) -> tuple[dict[str, torch.Tensor], list[float]]:
    places, progress = destinations(SPEC, allocate(SPEC, torch.float32)), []
    load_tensors(directory, places, progress.append)
    return places, progress


def shard(directory: Path, tensors: dict[str, torch.Tensor], parts: int = 3) -> dict[str, str]:
    weight_map = {name: f"part{i % parts}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, directory / file)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


@pytest.mark.parametrize("sharded", [False, True])
def test_every_place_is_filled_with_its_tensor(tmp_path: Path, sharded: bool) -> None:
    tensors = checkpoint()
    if sharded:
        shard(tmp_path, tensors)
    else:
        save_file(tensors, tmp_path / SINGLE)
    places, progress = load(tmp_path)
    assert all(torch.equal(places[name], tensor) for name, tensor in tensors.items())
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_fused_parts_lie_behind_each_other(tmp_path: Path) -> None:
    weights = allocate(SPEC, torch.float32)
    save_file(checkpoint(), tmp_path / SINGLE)
    load_tensors(tmp_path, destinations(SPEC, weights), lambda _: None)
    qkv = weights.layers[1].qkv.weight[:, 0].tolist()
    numbers = {name: float(number) for number, name in enumerate(sorted(checkpoint()))}
    wanted = [numbers[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert qkv == [wanted[0]] * 16 + [wanted[1]] * 8 + [wanted[2]] * 8


def test_weights_are_cast_to_the_dtype_of_their_place(tmp_path: Path) -> None:
    save_file({name: tensor.half() for name, tensor in checkpoint().items()}, tmp_path / SINGLE)
    assert load(tmp_path)[0]["model.norm.weight"].dtype == torch.float32


def refused(directory: Path) -> str:
    with pytest.raises(ModelRejected) as error:
        load(directory)
    return str(error.value)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = checkpoint()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / SINGLE)
    assert "model.layers.1.mlp.up_proj.weight" in refused(tmp_path)


def test_a_tensor_that_the_config_does_not_call_for_is_named(tmp_path: Path) -> None:
    save_file(checkpoint() | {"model.layers.0.self_attn.q_norm.weight": torch.ones(4)}, tmp_path / SINGLE)
    assert "q_norm" in refused(tmp_path)


def test_buffers_of_old_exports_are_passed_over(tmp_path: Path) -> None:
    save_file(checkpoint() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, tmp_path / SINGLE)
    load(tmp_path)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_file(checkpoint() | {"model.norm.weight": torch.ones(9)}, tmp_path / SINGLE)
    assert "model.norm.weight has shape [9], config.json calls for [8]" in refused(tmp_path)


def test_a_directory_with_pickles_only_is_refused_naming_them(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert "pytorch_model.bin cannot be loaded, only safetensors can" in refused(tmp_path)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    assert SINGLE in refused(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    save_file(checkpoint(), tmp_path / SINGLE)
    whole = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[: len(whole) // 2])
    assert SINGLE in refused(tmp_path)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    weight_map = shard(tmp_path, checkpoint())
    gone = sorted(set(weight_map.values()))[1]
    (tmp_path / gone).unlink()
    assert gone in refused(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {"a": "../outside.safetensors"}}', '{"weight_map": {"a": 3}}'])
def test_a_broken_or_escaping_index_is_refused(tmp_path: Path, text: str) -> None:
    save_file(checkpoint(), tmp_path.parent / "outside.safetensors")
    (tmp_path / INDEX).write_text(text)
    assert INDEX in refused(tmp_path)
