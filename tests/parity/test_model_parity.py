"""Every family against transformers on the same weights: logits, greedy streams, and the same streams in any company or schedule.

Two correct fp32 programs differ by some 1e-6 in a logit, so greedy streams can be compared only where the best two logits stay further
apart than that: prompts are chosen by margin, and the margin is part of every failure's message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_daemon.core.batch import LAST_SAMPLED, StepPlan, StepResult
from pagoda_daemon.core.messages import Loading, Ready, Shutdown, StepOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.scheduler.plan import plan
from support.engine.drive import Drive
from support.engine.front import engine_process
from support.engine.tiny_families import FAMILIES, VOCAB, Case, make_model, wide_cases, write_config_as_v4
from transformers import PreTrainedModel

pytestmark = pytest.mark.parity

COUNT = 64
MARGIN = 1e-3


def rope(kind: str, **keys: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **keys}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "one head each": ("llama", {"num_key_value_heads": 4}),
    "tied": ("llama", {"tie_word_embeddings": True, "initializer_range": 0.1}),
    "wide heads": ("llama", {"head_dim": 32}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "sharded": ("llama", {"shard": "200KB"}),
    "rope llama3": ("llama", LLAMA3),
    "rope llama3, keys of transformers 4": ("llama", LLAMA3),
    "rope linear": ("llama", rope("linear", factor=4.0)),
    "rope dynamic": ("llama", rope("dynamic", factor=4.0)),
    "rope yarn": ("llama", YARN),
    "rope yarn, all its keys": (
        "qwen2",
        rope("yarn", factor=2.0, original_max_position_embeddings=100, mscale=1.2, mscale_all_dim=0.7, truncate=False),
    ),
    "mistral": ("mistral", {}),
    "mistral without a window": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2 without windows": ("qwen2", {"use_sliding_window": False}),
    "qwen2 with layer types": ("qwen2", {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "qwen3": ("qwen3", {}),
    "qwen3 with windows and biases": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 2, "attention_bias": True},
    ),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, weights not normalised, some layers dense": (
        "qwen3_moe",
        {"norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_hidden_layers": 4},
    ),
    "qwen3_moe with windows": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 20}),
    "mixtral": ("mixtral", {}),
    "mixtral with a window, sharded": ("mixtral", {"sliding_window": 20, "shard": "300KB"}),
}


def load(directory: Path, **engine: Any) -> ModelWorker:
    settings = EngineConfig.model_validate({"dtype": "float32", "threads": 1, "max_model_len": 256, "max_concurrency": 32, **engine})
    config = DaemonConfig(model=ModelConfig(path=str(directory), served_names=("m",)), engine=settings)
    return ModelWorker.load(config, lambda _: None)


def cases(model: PreTrainedModel, wanted: int, lengths: Sequence[int] = (5, 40)) -> list[Case]:
    """`wanted` prompts whose greedy streams have a wide margin all the way."""
    return wide_cases(model, wanted, lengths, COUNT, MARGIN)


def check(drive: Drive, expected: list[Case]) -> None:
    for i, case in enumerate(expected):
        got = tuple(drive.tokens[f"r{i}"])
        assert got == case.stream, f"prompt {i} differs; its margin is {case.margin:.2e}"


def submit_all(drive: Drive, expected: list[Case]) -> None:
    for i, case in enumerate(expected):
        drive.submit(f"r{i}", case.prompt, COUNT)


def run(worker: ModelWorker, expected: list[Case], **limits: int) -> Drive:
    drive = Drive(worker, **limits)
    submit_all(drive, expected)
    drive.drain()
    return drive


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_equal_transformers(tmp_path: Path, variant: str) -> None:
    family, changes = VARIANTS[variant]
    model = make_model(tmp_path, family, **changes)
    if "transformers 4" in variant:
        write_config_as_v4(tmp_path)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) is ("shard" in changes)
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
    check(run(worker, expected), expected)


def test_the_core_knows_of_a_window_that_every_layer_has_and_some_context_exceeds(tmp_path: Path) -> None:
    make_model(tmp_path, "mistral", sliding_window=20)
    assert load(tmp_path).limits.sliding_window == 20
    assert load(tmp_path, max_model_len=20).limits.sliding_window is None
    make_model(tmp_path, "qwen2")
    assert load(tmp_path).limits.sliding_window is None


@pytest.mark.parametrize("block_size", [1, 16])
def test_blocks_behind_every_window_are_not_read(tmp_path: Path, block_size: int) -> None:
    expected = cases(make_model(tmp_path, "mistral"), 2, lengths=(90,))
    drive = Drive(load(tmp_path, block_size=block_size), token_budget=16)
    window = drive.worker.limits.sliding_window
    assert window == 24
    worker = PoisonBehind(drive.worker, window)
    drive.worker = worker
    submit_all(drive, expected)
    drive.drain()
    check(drive, expected)
    assert worker.poisoned > 0


class PoisonBehind:
    """A worker whose block tables lead, where they lie wholly behind the window of the next query, to a block that does not exist."""

    def __init__(self, worker: Worker, window: int) -> None:
        self.limits, self.probe = worker.limits, worker.probe
        self.poisoned = 0
        self._worker, self._window = worker, window

    def execute(self, step: StepPlan) -> StepResult:
        tables = step.block_tables.copy()
        seen_from = np.maximum(step.positions[step.starts[:-1]] - self._window + 1, 0)
        behind = np.arange(tables.shape[1]) < (seen_from // self.limits.block_size)[:, None]
        tables[behind] = 10**6
        self.poisoned += int(behind.sum())
        return self._worker.execute(replace(step, block_tables=tables))


@dataclass(frozen=True)
class Schedule:
    """A way to serve the same requests that must not change a token; `happened` proves that it was this way.

    `submit` may serve other requests first (to fill a cache) or make several of one, as long as r0, r1, … answer the cases.
    """

    happened: Callable[[Drive], bool]
    drive: dict[str, int] = field(default_factory=dict)
    kv_tokens: int | None = None
    block_size: int = 16
    submit: Callable[[Drive, list[Case]], None] = submit_all


def submit_as_batch(drive: Drive, expected: list[Case]) -> None:
    """And let others press in, for whom rows are given up: a window would leave blocks enough."""
    for i, case in enumerate(expected):
        drive.submit(f"r{i}", case.prompt, COUNT, tier="batch")
    for i in range(3):
        for _ in range(7):
            drive.step()
        drive.submit(f"urgent{i}", (i, 1, 2), 3)


def submit_twice(drive: Drive, expected: list[Case]) -> None:
    """The second time what the first left behind is known."""
    for i, case in enumerate(expected):
        drive.submit(f"first{i}", case.prompt, COUNT // 2)
    drive.drain()
    submit_all(drive, expected)


def submit_forked(drive: Drive, expected: list[Case]) -> None:
    for i, case in enumerate(expected):
        drive.submit(f"r{i}", case.prompt, COUNT, n=3)


def short_of_blocks(drive: Drive) -> bool:
    """Where every layer has a window, rows give blocks back as they go, and none has to yield."""
    return drive.state.totals.preemptions > 0 or drive.worker.limits.sliding_window is not None


def one_ahead(drive: Drive) -> bool:
    return sum(LAST_SAMPLED in step.token_ids for step in drive.plans) > COUNT // 2


def forked(drive: Drive) -> bool:
    answers = [tuple(tokens) for name, tokens in drive.tokens.items() if name.startswith("r")]
    return len(answers) == 12 and len(set(answers)) == 4 and any(step.copies.size for step in drive.plans)


SCHEDULES = {
    "alone": Schedule(lambda drive: max(step.rows.size for step in drive.plans) == 1, {"max_concurrency": 1}),
    "together": Schedule(lambda drive: max(step.rows.size for step in drive.plans) == 4, {"token_budget": 512}),
    "chunked": Schedule(lambda drive: any(not step.sample.all() for step in drive.plans), {"token_budget": 16}),
    "one ahead": Schedule(one_ahead, {"depth": 2}),
    "one ahead, chunked": Schedule(one_ahead, {"depth": 2, "token_budget": 16}),
    "from the cache": Schedule(lambda drive: drive.state.totals.reused_tokens > 100, submit=submit_twice),
    "forked": Schedule(forked, submit=submit_forked),
    "preempted": Schedule(lambda drive: drive.state.totals.preemptions > 1, {"max_concurrency": 4}, submit=submit_as_batch),
    "short of blocks": Schedule(short_of_blocks, kv_tokens=256),
    "short of blocks of one token": Schedule(short_of_blocks, kv_tokens=256, block_size=1),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    """A model of a family and 4 wide-margin prompts, longer and shorter than its window, with what transformers makes of them."""
    directory = tmp_path_factory.mktemp(request.param)
    return directory, cases(make_model(directory, request.param), 4, lengths=(3, 17, 40, 90))


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_changes_a_token(family: tuple[Path, list[Case]], name: str) -> None:
    (directory, expected), schedule = family, SCHEDULES[name]
    worker = load(directory, block_size=schedule.block_size)
    if schedule.kv_tokens is not None:
        token_bytes = worker.forward.model.spec.kv_token_bytes(4)
        worker = load(directory, block_size=schedule.block_size, kv_bytes=schedule.kv_tokens * token_bytes)
    drive = Drive(worker, **schedule.drive)
    schedule.submit(drive, expected)
    drive.drain()
    check(drive, expected)
    assert schedule.happened(drive) or worker.limits.sliding_window, "only a window gives back so much that nobody is short of blocks"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    """One model and 32 wide-margin prompts with what transformers makes of them."""
    directory = tmp_path_factory.mktemp("llama")
    return directory, cases(make_model(directory), 32, lengths=(3, 17, 40, 90))


def test_32_concurrent_streams_equal_32_single_runs(served: tuple[Path, list[Case]]) -> None:
    directory, expected = served
    drive = run(load(directory), expected, token_budget=512)
    check(drive, expected)
    assert max(step.rows.size for step in drive.plans) == 32


@pytest.mark.parametrize("family_name", FAMILIES)
def test_bfloat16_stays_as_close_to_fp32_as_transformers(tmp_path: Path, family_name: str) -> None:
    model = make_model(tmp_path, family_name, initializer_range=0.05)
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
    worker.forward.model.weights.embedding[poison] = torch.nan
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

    def streams(worker: ModelWorker, *, preempts: bool = False, **limits: int) -> list[list[int]]:
        drive = Drive(worker, **limits)
        for i, prompt in enumerate(prompts):
            drive.submit(f"r{i}", prompt, Sampling(40, temperature=1.0, top_k=50 * (i % 2), top_p=0.9 if i % 3 else 1.0, seed=i))
        drive.drain()
        assert (drive.state.totals.preemptions > 0) is preempts
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
