"""Embeddings against transformers: its last hidden state, pooled and brought to length 1, whatever the chunks, the company and the
preemptions of the prompt here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_kernels.cpu.choice import missing
from support.engine.drive import Drive
from support.engine.tiny_families import VOCAB, make_model
from transformers import PreTrainedModel

pytestmark = pytest.mark.parity

LENGTHS = (1, 2, 17, 40, 130)
POOLINGS = ("mean", "last")


def load(directory: Path, **engine: Any) -> ModelWorker:
    settings = EngineConfig.model_validate({"dtype": "float32", "threads": 1, "max_model_len": 256, "max_concurrency": 32, **engine})
    return ModelWorker.load(DaemonConfig(model=ModelConfig(path=str(directory), served_names=("m",)), engine=settings), lambda _: None)


def prompts() -> list[tuple[int, ...]]:
    draw = torch.Generator().manual_seed(3)
    return [tuple(torch.randint(0, VOCAB, (length,), generator=draw).tolist()) for length in LENGTHS]


def theirs(model: PreTrainedModel, prompt: tuple[int, ...], pooling: str) -> np.ndarray:
    with torch.inference_mode():
        states = model.base_model(torch.tensor([prompt])).last_hidden_state[0].double()
    pooled = states.mean(0) if pooling == "mean" else states[-1]
    return (pooled / pooled.norm()).numpy()


def ours(worker: ModelWorker, **limits: Any) -> dict[tuple[tuple[int, ...], str], np.ndarray]:
    """All prompts in both ways, twice, beside requests that generate."""
    drive = Drive(worker, **limits)
    wanted = {f"{turn}{pooling}{i}": (prompt, pooling) for turn in "ab" for i, prompt in enumerate(prompts()) for pooling in POOLINGS}
    for i, (name, (prompt, pooling)) in enumerate(wanted.items()):
        drive.submit(name, prompt, Sampling(1, pooling=pooling))
        drive.submit(f"plain{name}", prompt[:20], Sampling(9, prompt_logprobs=2 if i % 3 == 0 else None))
    drive.drain()
    found = {}
    for name, asked in wanted.items():
        (end,) = drive.ends[name]
        assert end.finish_reason == "length", end
        vector = np.frombuffer(end.embedding, "<f4")
        if asked in found:  # the second time, known beginnings and all
            np.testing.assert_allclose(vector, found[asked], atol=1e-5)
        found[asked] = vector
    assert not any(drive.ends[f"plain{name}"][0].embedding for name in wanted)
    return found


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "mixtral"])
@pytest.mark.parametrize("budget", [16, 256])
def test_embeddings_are_those_of_transformers(tmp_path: Path, family: str, budget: int) -> None:
    model = make_model(tmp_path, family)
    for (prompt, pooling), vector in ours(load(tmp_path), token_budget=budget, depth=2).items():
        np.testing.assert_allclose(vector, theirs(model, prompt, pooling), atol=1e-4, err_msg=f"{pooling} of {len(prompt)}")


def test_a_preempted_prompt_counts_each_token_once(tmp_path: Path) -> None:
    model = make_model(tmp_path, "llama")
    worker = load(tmp_path)
    drive = Drive(worker, token_budget=16, max_concurrency=1, depth=2)
    prompt = prompts()[4]
    drive.submit("e", prompt, Sampling(1, pooling="mean"), tier="batch")
    for _ in range(4):
        drive.step()
    drive.submit("urgent", prompt[:100], 40)
    drive.drain()
    assert drive.state.preemptions > 0, "nothing was preempted"
    np.testing.assert_allclose(np.frombuffer(drive.ends["e"][0].embedding, "<f4"), theirs(model, prompt, "mean"), atol=1e-4)


def test_a_deterministic_worker_pools_the_same(tmp_path: Path) -> None:
    model = make_model(tmp_path, "llama")
    for (prompt, pooling), vector in ours(load(tmp_path, deterministic=True), token_budget=64).items():
        np.testing.assert_allclose(vector, theirs(model, prompt, pooling), atol=1e-4)


@pytest.mark.skipif(missing() is not None, reason=f"native ops: {missing()}")
def test_the_native_ops_agree_within_what_bf16_keeps(tmp_path: Path) -> None:
    model = make_model(tmp_path, "llama", hidden_size=128, intermediate_size=256, num_attention_heads=4)
    worker = load(tmp_path, dtype="bfloat16")
    assert type(worker.forward).__name__ == "NativeForward"
    for (prompt, pooling), vector in ours(worker, token_budget=48).items():
        assert float(vector @ theirs(model, prompt, pooling)) > 0.999, (pooling, len(prompt))
