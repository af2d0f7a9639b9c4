"""Which way a model is computed: by the native ops, by torch and why, or refused by name; and what the native way answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import SamplingRows, ScoredTokens, StepPlan
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import parse_spec
from pagoda_daemon.model.decoder import Decoder
from pagoda_daemon.model.weights import allocate, destinations
from pagoda_daemon.runner.answer import wanted_logits
from pagoda_daemon.runner.forward import TorchForward
from pagoda_daemon.runner.host import Host, Memory
from pagoda_daemon.runner.load import Loaded, load_forward
from pagoda_daemon.runner.place import memory_at, place_of
from pagoda_kernels.cpu.choice import chosen, missing
from safetensors.torch import save_file
from support.engine.native_reference import weights_of
from torch._subclasses import fake_tensor

native = pytest.mark.skipif(missing() is not None, reason=f"native ops: {missing()}")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 200,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
EXPERTS = {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "sliding_window": None,
}


def load(folder: Path, changes: dict[str, Any] | None = None, **engine: Any) -> Loaded:
    config = {**CONFIG, **(changes or {})}
    spec = parse_spec(config)
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps(config))
        save_file(destinations(spec, weights_of(spec)), folder / "model.safetensors")
    settings = {"threads": torch.get_num_threads(), "max_model_len": 128, "max_concurrency": 4, **engine}
    return load_forward(folder, EngineConfig.model_validate(settings), Host(), lambda _: None)


def prompt(count: int, scored: ScoredTokens | None = None) -> StepPlan:
    """Two rows of `count` tokens each."""
    return StepPlan(
        step=0,
        rows=np.arange(2, dtype=np.int32),
        starts=np.array([0, count, 2 * count], np.int32),
        token_ids=np.random.default_rng(1).integers(0, 200, 2 * count).astype(np.int32),
        positions=np.tile(np.arange(count, dtype=np.int32), 2),
        block_tables=np.arange(2 * -(-count // 16), dtype=np.int32).reshape(2, -1),
        sample=np.ones(2, np.bool_),
        sampling=SamplingRows(scored=scored),
    )


def test_block_names_are_those_of_the_weights_and_their_types(tmp_path: Path) -> None:
    names = []
    for folder, changes in (("a", {}), ("b", {}), ("c", {"vocab_size": 208})):
        (tmp_path / folder).mkdir()
        names.append(load(tmp_path / folder, changes, dtype="float32").limits.model)
    assert names[0] == names[1] != ""
    assert names[2] != names[0]
    assert load(tmp_path / "a", dtype="bfloat16").limits.model != names[0]
    file = tmp_path / "b" / "model.safetensors"
    written = bytearray(file.read_bytes())
    written[-4096:] = bytes(4096)
    file.write_bytes(written)
    assert load(tmp_path / "b", dtype="float32").limits.model != names[0]


def test_a_device_that_is_not_there_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigRejected, match=r"engine\.device is cuda, .* use cpu or auto"):
        load(tmp_path, device="cuda")
    assert [place_of(device).type for device in (None, "auto", "cpu")] == ["cpu"] * 3


def test_auto_takes_the_device_that_is_there_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 80))
    assert [place_of(device).type for device in (None, "auto", "cpu", "cuda")] == ["cuda", "cuda", "cpu", "cuda"]
    assert memory_at(place_of("auto"), Host()) == Memory(80, 60, limited=True, kind="device")
    assert memory_at(place_of("cpu"), Host()).place != "device"


def test_int8_on_a_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigRejected, match="native ops: device cuda"):
        load(tmp_path, device="cuda", quantization="int8")


@pytest.mark.deep  # importing the fake tensors takes 4 s
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("changes", [{}, {"sliding_window": 4, "architectures": ["MistralForCausalLM"]}])
def test_nothing_of_a_step_is_left_on_the_cpu_where_the_model_lives_on_a_device(
    changes: dict[str, Any], deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: tensors with a device and a shape but no bytes. An operation on tensors of two devices raises, as it does there."""
    monkeypatch.setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1)  # a tensor of one number would be moved for real
    place, spec = torch.device("cuda"), parse_spec({**CONFIG, **changes})
    with fake_tensor.FakeTensorMode(), torch.inference_mode():
        with place:
            kv = KvCache(spec, 17, 16, torch.bfloat16)
            forward = TorchForward(Decoder(spec, allocate(spec, torch.bfloat16), 128), kv, 16 if deterministic else None)
        forward.copy_blocks(np.array([[1, 2]], np.int32))
        for plan in (prompt(20), prompt(1), prompt(20, ScoredTokens(*(np.zeros(2, np.int32) for _ in range(4))))):
            wanted = wanted_logits(plan)
            logits = forward.logits(plan, wanted)
            assert (logits.device.type, tuple(logits.shape)) == ("cuda", (wanted.size, spec.vocab_size))


@native
def test_what_computes_is_told_with_its_instructions(tmp_path: Path) -> None:
    ours, torchs = load(tmp_path, {}), load(tmp_path, {}, block_size=32)
    assert chosen().instructions in ours.limits.computed_by
    assert torchs.limits.computed_by.endswith("PyTorch")


@native
@pytest.mark.parametrize(
    "changes",
    [{"tie_word_embeddings": False}, {"tie_word_embeddings": True}, {**EXPERTS, "num_experts_per_tok": 2}],
    ids=["two tables", "one table", "experts"],
)
def test_int8_answers_as_bf16_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    step, wanted = prompt(40), np.arange(80)
    exact, narrow = (load(tmp_path, changes, quantization=kind) for kind in (None, "int8"))
    assert (exact.by, narrow.by) == ("native ops", "native ops")
    assert narrow.weight_bytes < 0.7 * exact.weight_bytes
    found = torch.nn.functional.cosine_similarity(exact.forward.logits(step, wanted), narrow.forward.logits(step, wanted))
    assert found.mean() > 0.999
    assert found.min() > 0.997


@native
def test_tokens_are_answered_in_the_order_in_which_they_are_asked_for(tmp_path: Path) -> None:
    forward = load(tmp_path).forward
    scored = ScoredTokens(*(np.zeros(3, np.int32) for _ in range(4)))
    every = forward.logits(prompt(40), np.arange(80))
    asked = np.array([39, 79, 3, 17, 50])  # what samples first, then the prompt's
    assert torch.equal(forward.logits(prompt(40, scored), asked), every[torch.from_numpy(asked)])


@pytest.mark.parametrize(
    ("changes", "engine", "why"),
    [
        ({}, {"dtype": "float32"}, "dtype float32"),
        ({}, {"block_size": 32}, "blockSize 32"),
        pytest.param({**EXPERTS, "intermediate_size": 720}, {}, "intermediate 720", marks=native),
        pytest.param({"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16}, {}, "3 heads of 16", marks=native),
    ],
)
def test_what_the_native_ops_cannot_do_torch_does_and_int8_is_refused(
    tmp_path: Path, changes: dict[str, Any], engine: dict[str, Any], why: str
) -> None:
    assert why in load(tmp_path, changes, **engine).by
    with pytest.raises(ConfigRejected, match=rf"quantization int8 needs the CPU's native ops: .*{why}"):
        load(tmp_path, changes, quantization="int8", **engine)


@pytest.mark.parametrize("name", ["fp8", "int4", "nvfp4"])
def test_formats_that_are_not_built_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigRejected, match=f"quantization {name} is not built for CPU; available there is int8"):
        load(tmp_path, quantization=name)
