"""A daemon with adapters computes with the native ops, as without: which way is taken, and what requests get of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import AdapterModule, AdaptersConfig, EngineConfig
from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.lora.modules import modules_of
from pagoda_daemon.model.weights import destinations
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.load import Loaded, load_forward
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_kernels.cpu.choice import missing
from safetensors.torch import save_file
from support.engine.adapter_files import matrices, write_adapter
from support.engine.drive import Drive
from support.engine.native_reference import BASE, CONFIG, weights_of

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"native ops: {missing()}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two adapters of every module, `one` and `two`."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(destinations(BASE, weights_of(BASE)), folder / "model.safetensors")
    sizes = {name: (module.inputs, module.outputs) for name, module in modules_of(BASE).items()}
    for name, rank in (("one", 3), ("two", 20)):
        # The files' matrices are of size 1: alpha makes the product as large as that of the model's own.
        write_adapter(folder / name, matrices(sizes, rank, rank), r=rank, lora_alpha=0.1, target_modules="all-linear")
    return folder


def load(model: Path, **engine: Any) -> Loaded:
    settings = {"threads": torch.get_num_threads(), "max_model_len": 128, "max_concurrency": 8, **engine}
    modules = tuple(AdapterModule(name=name, path=str(model / name)) for name in ("one", "two"))
    return load_forward(model, EngineConfig.model_validate(settings), Host(), lambda _: None, AdaptersConfig(max_rank=32, modules=modules))


def last_logits(loaded: Loaded, slots: list[int]) -> torch.Tensor:
    """Of a prompt of 30 tokens for each slot, in one step."""
    rows = len(slots)
    plan = StepPlan(
        step=0,
        rows=np.arange(rows, dtype=np.int32),
        starts=np.arange(0, 30 * rows + 1, 30, dtype=np.int32),
        token_ids=np.tile(np.random.default_rng(1).integers(0, 200, 30), rows).astype(np.int32),
        positions=np.tile(np.arange(30, dtype=np.int32), rows),
        block_tables=np.arange(2 * rows, dtype=np.int32).reshape(rows, 2),
        sample=np.ones(rows, np.bool_),
        adapters=np.array(slots, np.int32),
    )
    with torch.inference_mode():
        return loaded.forward.logits(plan, np.arange(29, 30 * rows, 30)).float()


@pytest.mark.parametrize(("quantization", "least"), [(None, 0.999), ("int8", 0.99)])
def test_every_row_gets_its_own_adapter_as_with_torch(model: Path, quantization: str | None, least: float) -> None:
    ours, torchs = load(model, quantization=quantization), load(model, block_size=32)
    assert (ours.by, torchs.by) == ("native ops", "torch: blockSize 32")
    found, wanted = (last_logits(loaded, [2, 0, 1]) for loaded in (ours, torchs))
    assert torch.nn.functional.cosine_similarity(found, wanted).min() > least
    assert torch.nn.functional.cosine_similarity(found, wanted[[0, 1, 1]]).min() < 0.95
    plain = load_forward(
        model, EngineConfig(quantization=quantization, max_model_len=128, max_concurrency=8, threads=1), Host(), lambda _: None
    )
    assert ours.weight_bytes > plain.weight_bytes


def test_answers_are_the_same_alone_and_among_others(model: Path) -> None:
    """In small pieces, after preemptions, and from cached beginnings of prompts."""
    prompts = {f"r{at}": np.random.default_rng(at % 5).integers(0, 200, 40 + at).tolist() for at in range(8)}

    def answers(together: int, budget: int, **engine: Any) -> tuple[dict[str, list[int]], int]:
        loaded = load(model, deterministic=True, **engine)
        assert loaded.adapters is not None
        drive = Drive(ModelWorker(loaded.forward, loaded.limits, loaded.adapters), max_concurrency=together, token_budget=budget)
        digests = ["", *loaded.adapters.first]
        assert [drive.state.adapters.hold(digest) for digest in digests[1:]] == list(loaded.adapters.held)
        for at, (name, prompt) in enumerate(prompts.items()):
            drive.submit(name, prompt, 24, adapter=digests[at % 3])
        drive.drain()
        return drive.tokens, drive.state.preemptions

    alone, _ = answers(1, 512)
    among, preempted = answers(8, 24, kv_bytes=16 * 4096)
    assert among == alone
    assert preempted > 0


def test_deterministic_with_adapters_is_refused_where_torch_computes(model: Path) -> None:
    with pytest.raises(ConfigRejected, match=r"deterministic and adapters need the CPU's native ops.*: dtype float32"):
        load(model, deterministic=True, dtype="float32")
