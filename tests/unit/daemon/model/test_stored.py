"""Quantised checkpoints: each format stands for exactly the numbers of its formula, and what is wrong is refused by its name."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model import stored as stored_module
from pagoda_daemon.model.config import parse_spec
from pagoda_daemon.model.loader import INDEX, Reading, load_tensors
from pagoda_daemon.model.weights import allocate, destinations
from safetensors.torch import save_file
from support.engine.quantised_files import CONFIG, FORMATS, plain_tensors, quantised_tensors, write_model
from torch import Tensor


def load(folder: Path, name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> dict[str, Tensor]:
    spec = parse_spec(CONFIG | changes | {"quantization_config": FORMATS[name].config})
    places = destinations(spec, allocate(spec, dtype))
    load_tensors(folder, places, lambda _: None, Reading(stored=spec.stored))
    return places


@pytest.mark.parametrize("name", FORMATS)
def test_each_matrix_is_what_its_format_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_module, "_AT_ONCE", 40 * 256)  # several pieces of each matrix
    tensors, exact = quantised_tensors(FORMATS[name], plain_tensors())
    found = load(write_model(tmp_path, tensors, FORMATS[name]), name)
    assert found.keys() == exact.keys()
    assert [one for one, tensor in found.items() if not torch.equal(tensor, exact[one].float())] == []


def test_numbers_are_rounded_once_to_the_type_that_they_are_served_in(tmp_path: Path) -> None:
    tensors, exact = quantised_tensors(FORMATS["awq"], plain_tensors())
    found = load(write_model(tmp_path, tensors, FORMATS["awq"]), "awq", torch.bfloat16)
    assert all(torch.equal(found[one], tensor.float().bfloat16()) for one, tensor in exact.items())


def test_matrices_that_are_exceptions_are_told_by_their_tensors(tmp_path: Path) -> None:
    """No list of config.json names them, and the head is quantised."""
    tensors, exact = quantised_tensors(
        FORMATS["gptq"], plain_tensors(), kept=("model.layers.1.mlp.down_proj", "model.layers.0.self_attn.k_proj")
    )
    assert "lm_head.qweight" in tensors
    found = load(write_model(tmp_path, tensors, FORMATS["gptq"]), "gptq")
    assert all(torch.equal(found[one], tensor.float()) for one, tensor in exact.items())


def test_each_place_is_told_once_when_it_is_filled(tmp_path: Path) -> None:
    tensors, exact = quantised_tensors(FORMATS["compressed-int4"], plain_tensors())
    write_model(tmp_path, tensors, FORMATS["compressed-int4"])
    spec = parse_spec(CONFIG | {"quantization_config": FORMATS["compressed-int4"].config})
    places, told = destinations(spec, allocate(spec, torch.float32)), []

    def filled(name: str) -> None:
        assert torch.equal(places[name], exact[name].float())
        told.append(name)

    load_tensors(tmp_path, places, lambda _: None, Reading(filled, spec.stored))
    assert sorted(told) == sorted(exact)


UNUSED = ("k_scale", "v_scale", "q_scale", "kv_scale", "k_proj.output_scale", "o_proj.activation_scale", "o_proj.input_zero_point")


def test_scales_of_keys_values_and_rows_are_passed_over(tmp_path: Path) -> None:
    tensors, _ = quantised_tensors(FORMATS["fp8"], plain_tensors())
    more = {f"model.layers.0.self_attn.{name}": torch.ones(1) for name in UNUSED}
    assert load(write_model(tmp_path, tensors | more, FORMATS["fp8"]), "fp8")


def test_parts_of_a_matrix_may_lie_in_two_files(tmp_path: Path) -> None:
    tensors, exact = quantised_tensors(FORMATS["awq"], plain_tensors())
    write_model(tmp_path, tensors, FORMATS["awq"])
    (tmp_path / "model.safetensors").unlink()
    weight_map = {name: f"part{len(name.rpartition('.')[2]) % 2}.safetensors" for name in tensors}
    for file in set(weight_map.values()):
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert len({weight_map[f"model.layers.0.mlp.up_proj.{part}"] for part in ("qweight", "scales")}) == 2
    found = load(tmp_path, "awq")
    assert all(torch.equal(found[one], tensor.float()) for one, tensor in exact.items())


UP = "model.layers.0.mlp.up_proj"


WORDS = {
    "UP": UP,
    "WANTED": "config.json calls for",
    "ONE OF": "it must be one of",
    "UNKNOWN": "has 1 tensors that config.json does not call for, such as",
}


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("fp8", {".weight_scale": None}, "UP.weight is stored as F8_E4M3, but UP.weight_scale is missing"),
        ("fp8", {".weight_scale_inv": lambda: torch.ones(())}, "UP has both .weight_scale and .weight_scale_inv; it must have one of them"),
        ("fp8", {".weight_scale": lambda: torch.ones(3)}, "UP.weight_scale has shape [3], WANTED [] or [1] or [384] or [384, 1]"),
        ("fp8", {".weight_scale": lambda: torch.ones((), dtype=torch.int32)}, "UP.weight_scale is stored as I32; ONE OF F32, F16, BF16"),
        ("fp8", {".weight": lambda: torch.zeros(384, 256).bfloat16()}, "UP.weight is stored as BF16; ONE OF F8_E4M3"),
        ("fp8", {".weight": lambda: torch.zeros(384, 128).to(torch.float8_e4m3fn)}, "UP.weight has shape [384, 128], WANTED [384, 256]"),
        ("fp8-blocks", {".weight_scale_inv": lambda: torch.ones(3, 3)}, "UP.weight_scale_inv has shape [3, 3], WANTED [3, 2]"),
        ("compressed-fp8", {".weight_zero_point": lambda: torch.zeros(384, 1)}, "UNKNOWN UP.weight_zero"),
        ("compressed-int8", {".weight": lambda: torch.zeros(384, 256).to(torch.float8_e4m3fn)}, "UP.weight is stored as F8_E4M3; ONE OF I"),
        ("fp8", {".weight_scale": lambda: torch.tensor(torch.nan)}, "UP.weight_scale has values that are not finite"),
        ("awq", {".scales": lambda: torch.full((2, 384), torch.inf).half()}, "UP.scales has values that are not finite"),
        ("awq", {".qzeros": None}, "UP is stored as awq, but UP.qzeros is missing"),
        ("awq", {".qweight": None}, "lacks 1 tensors, such as UP.weight"),
        ("awq", {".qweight": lambda: torch.zeros(32, 384).int()}, "UP.qweight has shape [32, 384], WANTED [256, 48]"),
        ("awq", {".scales": lambda: torch.ones(4, 384).half()}, "UP.scales has shape [4, 384], WANTED [2, 384]"),
        ("awq", {".qweight": lambda: torch.zeros(256, 48).long()}, "UP.qweight is stored as I64; ONE OF I32"),
        ("awq", {".g_idx": lambda: torch.zeros(256).int()}, "UNKNOWN UP.g_idx"),
        ("gptq", {".g_idx": lambda: (torch.arange(256) // 128).flip(0).int()}, "UP.g_idx must count up in groups of 128: weights in"),
        ("gptq", {".bias": lambda: torch.eye(384)[3]}, "UP.bias is not 0, and WANTED no bias"),
        ("gptq", {".bias": lambda: torch.ones(3)}, "UP.bias has shape [3], WANTED [384]"),
        ("gptq", {".qzeros": lambda: torch.zeros(3, 48).int()}, "UP.qzeros has shape [3, 48], WANTED [2, 48]"),
        ("compressed-int4", {".weight_shape": lambda: torch.tensor([256, 384])}, "UP.weight_shape is [256, 384], WANTED [384, 256]"),
        ("compressed-int4", {".weight_zero_point": lambda: torch.zeros(48, 2).int()}, "UNKNOWN UP.weight_zero_point"),
        ("compressed-int4", {".weight_g_idx": lambda: torch.zeros(256).int()}, "UNKNOWN UP.weight_g_idx"),
        ("compressed-int4-asymmetric", {".weight_zero_point": None}, "compressed-tensors, but UP.weight_zero_point is missing"),
    ],
)  # fmt: skip
def test_a_tensor_that_contradicts_the_format_is_named(
    name: str, changes: dict[str, Callable[[], Tensor] | None], told: str, tmp_path: Path
) -> None:
    """Nothing is computed while tests are collected: PyTorch would start threads, which no worker would have."""
    tensors, _ = quantised_tensors(FORMATS[name], plain_tensors())
    gone = {UP + suffix for suffix, make in changes.items() if make is None}
    changed = tensors | {UP + suffix: make() for suffix, make in changes.items() if make is not None}
    write_model(tmp_path, {one: tensor for one, tensor in changed.items() if one not in gone}, FORMATS[name])
    with pytest.raises(ModelRejected) as refused:
        load(tmp_path, name)
    for word, words in WORDS.items():
        told = told.replace(word, words)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("name", "section"),
    [("fp8-blocks", {"weight_block_size": [128, 2**21]}), ("gptq", {"group_size": 2**21})],
)
def test_a_group_that_is_longer_than_any_matrix_takes_no_more_memory(name: str, section: dict[str, Any], tmp_path: Path) -> None:
    """A repetition of 2^21 would be 2 GiB for these 256 outputs."""
    tensors, _ = quantised_tensors(FORMATS[name], plain_tensors())
    short = {
        one: tensor[:, :1] if one.endswith("_inv") else tensor[:1]
        for one, tensor in tensors.items()
        if one.endswith(("_inv", ".qzeros", ".scales"))
    }
    order = {one: torch.zeros_like(tensor) for one, tensor in tensors.items() if one.endswith("g_idx")}
    write_model(tmp_path, {one: tensor.contiguous() for one, tensor in (tensors | short | order).items()}, FORMATS[name])
    spec = parse_spec(CONFIG | {"quantization_config": FORMATS[name].config | section})
    places = destinations(spec, allocate(spec, torch.float32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    load_tensors(tmp_path, places, lambda _: None, Reading(stored=spec.stored))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_outputs_that_fill_no_word_are_refused(tmp_path: Path) -> None:
    tensors, _ = quantised_tensors(FORMATS["awq"], plain_tensors())
    write_model(tmp_path, tensors, FORMATS["awq"], intermediate_size=380)
    with pytest.raises(ModelRejected, match="8 numbers in a word; 380 is not a multiple of 8"):
        load(tmp_path, "awq", intermediate_size=380)


def test_a_header_that_claims_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    """A bias that the model does not have is bounded by the matrix that config.json calls for."""
    tensors, _ = quantised_tensors(FORMATS["fp8"], plain_tensors())
    write_model(tmp_path, tensors, FORMATS["fp8"])
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole.replace(b"[384,256]", b"[384,257]", 1))
    with pytest.raises(ModelRejected, match="has another number"):
        load(tmp_path, "fp8")
