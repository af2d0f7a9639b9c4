"""LoRA adapters of every family against peft on the same weights: logits unmerged and merged, any number of adapters in one step."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_daemon.lora.load import Bounds, load_adapter, load_native
from pagoda_daemon.model.config import read_spec
from pagoda_daemon.model.lowrank import Adapter
from pagoda_daemon.model.packed_lowrank import NativeAdapter
from pagoda_daemon.runner.forward import NativeForward, TorchForward
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_daemon.scheduler.plan import plan
from pagoda_kernels.cpu.choice import missing
from support.engine.drive import Drive
from support.engine.tiny_adapters import ATTENTION, make_adapter
from support.engine.tiny_families import FAMILIES, VOCAB, make_model

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4
DENSE = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "attention": {},
    "all linear": {"target_modules": "all-linear"},
    "some": {"target_modules": ["v_proj", "q_proj"], "r": 7, "lora_alpha": 3},
    "rslora": {"use_rslora": True, "r": 6},
    "patterns": {"rank_pattern": {"q_proj": 2, "layers.1.self_attn.o_proj": 5}, "alpha_pattern": {"v_proj": 1, "layers.[02].*k_proj": 9}},
    "regex": {"target_modules": r".*\.(0|2)\.self_attn\.(q|o)_proj"},
    "excluded": {"target_modules": "all-linear", "exclude_modules": ["k_proj"]},
    "layers": {"layers_to_transform": [0, 2]},
    "one layer": {"layers_to_transform": 1, "layers_pattern": "layers"},
}
SPARSE = ("qwen3_moe", "mixtral")
CASES = {(family, name) for family in FAMILIES for name in ("attention", "all linear") if family not in SPARSE or name == "attention"}
CASES |= {("llama", name) for name in CONFIGS}


def load(directory: Path, dtype: str = "float32") -> ModelWorker:
    engine = EngineConfig.model_validate({"dtype": dtype, "threads": 1, "max_model_len": 256, "max_concurrency": 32})
    return ModelWorker.load(DaemonConfig(model=ModelConfig(path=str(directory), served_names=("m",)), engine=engine), lambda _: None)


def adapter_of(worker: ModelWorker, directory: Path, rank: int = 16) -> Adapter | NativeAdapter:
    if isinstance(worker.forward, NativeForward):
        return load_native(directory, read_spec(directory.parent / "model"), Bounds(rank))
    assert isinstance(worker.forward, TorchForward)
    return load_adapter(directory, worker.forward.model.spec, worker.forward.kv.data, Bounds(rank))


def prompt_of(seed: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (40 + seed,), generator=torch.Generator().manual_seed(seed))


def logits_of(worker: ModelWorker, held: Sequence[Adapter | NativeAdapter | None]) -> torch.Tensor:
    """The last token's logits of one prompt for each, all in one step."""
    assert isinstance(worker.forward, TorchForward | NativeForward)
    slots: MutableMapping[int, Any] = worker.forward.adapters
    slots.clear()
    drive = Drive(worker, token_budget=1024)
    for slot, adapter in enumerate(held, 1):
        if adapter is not None and (free := drive.state.adapters.hold(adapter.digest)) is not None:
            slots[free] = adapter
        drive.submit(f"r{slot}", prompt_of(slot).tolist(), 1, adapter="" if adapter is None else adapter.digest)
    step = plan(drive.state, 0.0)
    assert step is not None
    assert step.rows.size == len(held)
    return worker.logits(step)


@pytest.mark.parametrize(("family", "name"), sorted(CASES))
def test_logits_equal_pefts(tmp_path: Path, family: str, name: str) -> None:
    model = make_model(tmp_path / "model", family)
    tuned = make_adapter(model, tmp_path / "adapter", **CONFIGS[name])
    worker = load(tmp_path / "model")
    ours = logits_of(worker, [adapter_of(worker, tmp_path / "adapter")])[0]
    with torch.inference_mode():
        prompt = prompt_of(1)[None]
        base, unmerged = model(prompt).logits[0, -1], tuned(prompt).logits[0, -1]
        merged = copy.deepcopy(tuned).merge_and_unload()(prompt).logits[0, -1]
    assert (unmerged - base).abs().max() > 0.1
    assert (ours - unmerged).abs().max() < TOLERANCE
    assert (ours - merged).abs().max() < TOLERANCE


@pytest.mark.skipif(missing() is not None, reason=f"native ops: {missing()}")
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in SPARSE])
def test_the_native_ops_answer_as_peft_does(tmp_path: Path, family: str) -> None:
    """With the rounding of bf16; every row of a mixed step as if it were alone."""
    model = make_model(tmp_path / "model", family, initializer_range=0.1)
    tuned = [
        make_adapter(model, tmp_path / str(seed), seed, r=3 + 14 * seed, lora_alpha=3, target_modules="all-linear") for seed in range(2)
    ]
    worker = load(tmp_path / "model", "bfloat16")
    held = [adapter_of(worker, tmp_path / str(seed), 32) for seed in range(2)]
    ours = logits_of(worker, [held[0], None, held[1], held[0]])
    for at, judge in enumerate((tuned[0], model, tuned[1], tuned[0])):
        with torch.inference_mode():
            wanted, other = (one(prompt_of(at + 1)[None]).logits[0, -1] for one in (judge, tuned[0] if judge is tuned[1] else tuned[1]))
        assert torch.nn.functional.cosine_similarity(ours[at], wanted, dim=0) > 0.99
        assert torch.nn.functional.cosine_similarity(ours[at], other, dim=0) < 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_a_mixed_step_has_its_own_adapter(tmp_path: Path, family: str) -> None:
    """And rows without one compute the same bits as in a step without adapters. In a sparse model a row's last bits depend on how many
    others share its experts, which their adapters change."""
    model = make_model(tmp_path / "model", family)
    tuned = [make_adapter(model, tmp_path / str(seed), seed, r=2 + seed) for seed in range(3)]
    worker = load(tmp_path / "model")
    one, two, three = (adapter_of(worker, tmp_path / str(seed)) for seed in range(3))
    held = [None, two, one, None, three, one, None]
    ours = logits_of(worker, held)
    plain = logits_of(worker, [None] * len(held))
    judges = {None: model, one.digest: tuned[0], two.digest: tuned[1], three.digest: tuned[2]}
    for at, adapter in enumerate(held):
        if adapter is None:
            same = torch.allclose(ours[at], plain[at], rtol=0, atol=TOLERANCE) if family in SPARSE else torch.equal(ours[at], plain[at])
            assert same
            continue
        with torch.inference_mode():
            wanted = judges[adapter.digest](prompt_of(at + 1)[None]).logits[0, -1]
        assert (ours[at] - wanted).abs().max() < TOLERANCE
