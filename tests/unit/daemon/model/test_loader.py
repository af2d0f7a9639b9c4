"""Weights: single and sharded files fill their places; a wrong directory is refused by the name of what is wrong."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model.config import parse_spec
from pagoda_daemon.model.files import read_header, read_into
from pagoda_daemon.model.loader import INDEX, SINGLE, load_tensors
from pagoda_daemon.model.weights import allocate, destinations, weight_bytes
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "attention_bias": True,
    "max_position_embeddings": 32,
}
SPEC = parse_spec(CONFIG)


def checkpoint() -> dict[str, torch.Tensor]:
    """Every tensor filled with its own number."""
    places = destinations(SPEC, allocate(SPEC, torch.float32))
    return {name: torch.full(places[name].shape, float(number)) for number, name in enumerate(sorted(places))}


FAMILIES = {
    "LlamaForCausalLM": {"tie_word_embeddings": True, "mlp_bias": True},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {},
    "Qwen3MoeForCausalLM": {"num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 5, "mlp_only_layers": [1]},
    "MixtralForCausalLM": {"num_local_experts": 3, "num_experts_per_tok": 1},
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_places_of_a_family_fill_every_byte_once(architecture: str) -> None:
    spec = parse_spec({**CONFIG, "architectures": [architecture], **FAMILIES[architecture]})
    weights = allocate(spec, torch.float32)
    places = destinations(spec, weights)
    whole = {id(t): t for layer in weights.layers for t in tensors_in(layer)}
    whole |= {id(t): t for t in (weights.embedding, weights.norm, weights.head)}
    for tensor in whole.values():
        tensor.fill_(0)
    for place in places.values():
        place.add_(1)
    assert all(bool((tensor == 1).all()) for tensor in whole.values())
    assert weight_bytes(spec, torch.float32) == sum(tensor.nbytes for tensor in whole.values())


def tensors_in(value: object) -> list[torch.Tensor]:
    """Every tensor in a tree of dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not dataclasses.is_dataclass(value):
        return []
    return [tensor for entry in dataclasses.fields(value) for tensor in tensors_in(getattr(value, entry.name))]


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


def test_casting_goes_through_a_buffer_of_any_size(tmp_path: Path) -> None:
    source = torch.randn(3, 100).half()
    save_file({"a": source}, tmp_path / SINGLE)
    stored = read_header(tmp_path / SINGLE)["a"]
    place = torch.zeros(3, 100)
    with stored.file.open("rb") as handle:
        read_into(place, stored, handle, torch.empty(64, dtype=torch.uint8))
    assert torch.equal(place, source.float())


def peak_kib() -> int:
    """The most that this process has had resident since `clear_refs` was last written 5 to."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_are_in_memory_once_while_they_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({f"part{i}": torch.ones(8 * 2**20, dtype=dtype) for i in range(3)}, tmp_path / SINGLE)
    places = {f"part{i}": torch.zeros(8 * 2**20) for i in range(3)}
    for place in places.values():
        place.fill_(0.5)  # resident before the reading begins: 96 MiB
    # The buffer is 8 MiB and one tensor is 32 or 16: neither the file nor a tensor of it may be there beside its place. Of three times:
    # pages of libraries that the kernel took back under pressure come again, and are no part of it.
    assert any(grown_kib(lambda: load_tensors(tmp_path, places, lambda _: None)) < 14 * 1024 for _ in range(3))
    assert all(bool((place == 1).all()) for place in places.values())


def grown_kib(work: Callable[[], object]) -> int:
    """How much more than before `work` is resident at its peak; what earlier work freed is the kernel's again."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_kib()
    work()
    return peak_kib() - before


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


def test_a_file_format_that_is_not_known_is_named(tmp_path: Path) -> None:
    save_file(checkpoint() | {"model.norm.weight": torch.ones(8, dtype=torch.int8)}, tmp_path / SINGLE)
    assert "model.norm.weight is stored as I8; it must be one of F32, F16, BF16" in refused(tmp_path)


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    shard(tmp_path, checkpoint(), parts=2)
    save_file(checkpoint(), tmp_path / "part1.safetensors")
    assert "is both in part0.safetensors and in part1.safetensors" in refused(tmp_path)


def test_a_damaged_header_is_refused_and_never_a_crash(tmp_path: Path) -> None:
    save_file(checkpoint(), tmp_path / SINGLE)
    whole, draw = (tmp_path / SINGLE).read_bytes(), random.Random(0)
    length = 8 + int.from_bytes(whole[:8], "little")
    failed = 0
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            broken[draw.randrange(length)] = draw.randrange(256)
        (tmp_path / SINGLE).write_bytes(broken)
        try:
            load(tmp_path)
        except ModelRejected:  # anything else would end the test
            failed += 1
    assert failed > 200


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
