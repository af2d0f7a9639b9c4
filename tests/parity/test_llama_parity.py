"""Llama against transformers on the same weights: logits, greedy streams, and the same streams in any company or schedule.

Two correct fp32 programs differ by some 1e-6 in a logit, so greedy streams can be compared only where the best two logits stay further
apart than that: prompts are chosen by margin, and the margin is part of every failure's message.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_drive import Drive
from engine_front import engine_process
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_daemon.engine.messages import Loading, Ready, Sampling, Shutdown, StepOutput, Submit
from pagoda_daemon.runner.torch_worker import TorchWorker
from pagoda_daemon.scheduler.plan import plan
from tiny_llama import VOCAB, greedy, make_llama
from transformers import LlamaForCausalLM

pytestmark = pytest.mark.parity

COUNT = 64
MARGIN = 1e-3
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one head each": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True, "initializer_range": 0.1},
    "wide heads": {"head_dim": 32},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "sharded": {"shard": "200KB"},
}


def load(directory: Path, **engine: Any) -> TorchWorker:
    settings = EngineConfig.model_validate({"dtype": "float32", "threads": 1, "max_model_len": 256, "max_concurrency": 32, **engine})
    config = DaemonConfig(model=ModelConfig(path=str(directory), served_names=("m",)), engine=settings)
    return TorchWorker.load(config, lambda _: None)


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    stream: tuple[int, ...]
    margin: float


def cases(model: LlamaForCausalLM, wanted: int, lengths: tuple[int, ...] = (5, 20, 33)) -> list[Case]:
    """`wanted` prompts whose greedy streams have a wide margin all the way."""
    draw, found = torch.Generator().manual_seed(1), []
    for attempt in range(wanted * 8):
        length = lengths[attempt % len(lengths)]
        prompt = tuple(torch.randint(0, VOCAB, (length,), generator=draw).tolist())
        stream, margin = greedy(model, prompt, COUNT)
        if margin >= MARGIN:
            found.append(Case(prompt, stream, margin))
        if len(found) == wanted:
            return found
    raise AssertionError(f"only {len(found)} of {wanted} prompts have a margin of {MARGIN}")


def check(drive: Drive, expected: list[Case]) -> None:
    for i, case in enumerate(expected):
        got = tuple(drive.tokens[f"r{i}"])
        assert got == case.stream, f"prompt {i} differs; its margin is {case.margin:.2e}"


def run(worker: TorchWorker, expected: list[Case], **limits: int) -> Drive:
    drive = Drive(worker, **limits)
    for i, case in enumerate(expected):
        drive.submit(f"r{i}", case.prompt, COUNT)
    drive.drain()
    return drive


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_equal_transformers(tmp_path: Path, variant: str) -> None:
    model = make_llama(tmp_path, **VARIANTS[variant])
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) is (variant == "sharded")
    worker = load(tmp_path)
    prompt = torch.randint(0, VOCAB, (100,), generator=torch.Generator().manual_seed(2))
    drive = Drive(worker, token_budget=256)
    drive.submit("r", prompt.tolist(), 1)
    step = plan(drive.state, 0.0)
    assert step is not None
    with torch.inference_mode():
        difference = (worker.logits(step)[0] - model(prompt[None]).logits[0, -1]).abs().max().item()
    assert difference < 1e-4
    expected = cases(model, 2)
    for case in expected:
        check(run(worker, [case]), [case])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    """One model and 32 wide-margin prompts with what transformers makes of them."""
    directory = tmp_path_factory.mktemp("llama")
    return directory, cases(make_llama(directory), 32, lengths=(3, 17, 40, 90))


def test_32_concurrent_streams_equal_32_single_runs(served: tuple[Path, list[Case]]) -> None:
    directory, expected = served
    drive = run(load(directory), expected, token_budget=512)
    check(drive, expected)
    assert max(step.rows.size for step in drive.plans) == 32


def test_chunked_prompts_give_the_same_streams(served: tuple[Path, list[Case]]) -> None:
    directory, expected = served
    drive = run(load(directory), expected, token_budget=32)
    check(drive, expected)
    assert any(not step.sample.all() for step in drive.plans)


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_preempted_requests_give_the_same_streams(served: tuple[Path, list[Case]], block_size: int) -> None:
    directory, expected = served
    token_bytes = 2 * 3 * 2 * 16 * 4
    worker = load(directory, kv_bytes=512 * token_bytes, block_size=block_size)
    drive = run(worker, expected, max_concurrency=8)
    check(drive, expected)
    assert drive.state.preemptions > 0


def test_bfloat16_stays_close_to_transformers(tmp_path: Path) -> None:
    model = make_llama(tmp_path, initializer_range=0.05)
    worker = load(tmp_path, dtype="bfloat16")
    drive = Drive(worker)
    drive.submit("r", range(40), 1)
    step = plan(drive.state, 0.0)
    assert step is not None
    with torch.inference_mode():
        exact = model(torch.arange(40)[None]).logits[0, -1]
        ours = worker.logits(step)[0].float()
        theirs = model.to(torch.bfloat16)(torch.arange(40)[None]).logits[0, -1].float()
    # bf16 keeps 8 bits: no program is exact, ours may not be much further off than theirs.
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()


def test_a_request_that_meets_a_nan_ends_alone(served: tuple[Path, list[Case]]) -> None:
    directory, expected = served
    worker = load(directory)
    poison = next(t for t in range(VOCAB) if all(t not in case.prompt + case.stream for case in expected[:4]))
    worker._model.weights.embedding[poison] = torch.nan
    drive = Drive(worker)
    drive.submit("bad", (poison, 1, 2), 8)
    for i, case in enumerate(expected[:4]):
        drive.submit(f"r{i}", case.prompt, COUNT)
    drive.drain()
    assert [(end.finish_reason, end.error) for end in drive.ends["bad"]] == [("error", "the model's output is not finite")]
    check(drive, expected[:4])


def test_seeded_sampling_is_the_same_alone_together_chunked_and_preempted(served: tuple[Path, list[Case]]) -> None:
    directory, expected = served
    prompts = [case.prompt for case in expected[:12]]

    def streams(worker: TorchWorker, *, preempts: bool = False, **limits: int) -> list[list[int]]:
        drive = Drive(worker, **limits)
        for i, prompt in enumerate(prompts):
            drive.submit(f"r{i}", prompt, Sampling(40, temperature=1.0, top_k=50 * (i % 2), top_p=0.9 if i % 3 else 1.0, seed=i))
        drive.drain()
        assert (drive.state.preemptions > 0) is preempts
        return [drive.tokens[f"r{i}"] for i in range(len(prompts))]

    roomy, tight = load(directory), load(directory, kv_bytes=256 * 768)
    alone = streams(roomy, max_concurrency=1)
    assert streams(roomy, max_concurrency=12) == alone
    assert streams(roomy, token_budget=16, max_concurrency=12) == alone
    assert streams(tight, preempts=True, max_concurrency=12) == alone


def test_the_engine_process_serves_32_streams_as_transformers_would(served: tuple[Path, list[Case]], tmp_path: Path) -> None:
    directory, expected = served
    config = DaemonConfig(
        model=ModelConfig(path=str(directory), served_names=("m",)),
        engine=EngineConfig(dtype="float32", threads=1, max_model_len=256, max_concurrency=32, token_budget=64),
    )
    with engine_process(tmp_path, config) as (end, process):
        end.until(Ready)
        progress = [m.progress for m in end.heard if isinstance(m, Loading)]
        assert (progress, progress[0], progress[-1]) == (sorted(progress), 0.0, 1.0)
        end.send(*(Submit(f"r{i}", case.prompt, Sampling(COUNT)) for i, case in enumerate(expected)))
        still = {f"r{i}" for i in range(len(expected))}
        while still:
            still -= {o.request_id for o in end.until(StepOutput).outputs if o.finish_reason == "length"}
        for i, case in enumerate(expected):
            assert end.tokens(f"r{i}") == case.stream, f"prompt {i} differs; its margin is {case.margin:.2e}"
        end.send(Shutdown())
        assert process.wait() == 0
