"""`engine.deterministic` in bf16: the same bits of every logit, hence the same tokens, in any company, chunking and after preemption.

Matrices of 512 columns: there products of one row and of several do round differently, so that the check can fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_daemon.core.batch import StepPlan, StepResult
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.model.config import read_spec
from pagoda_daemon.runner.answer import wanted_logits
from pagoda_daemon.runner.fixed import passes
from pagoda_daemon.runner.model_worker import ModelWorker
from support.engine.drive import Drive
from support.engine.tiny_families import VOCAB, make_model

pytestmark = pytest.mark.parity

COUNT, REQUESTS = 14, 6


@pytest.fixture(scope="module", params=[("llama", 64), ("llama", 72), ("qwen3_moe", 64)], ids=["native", "torch", "experts"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wide")
    family, head_dim = request.param  # heads of 72 are not for the native ops
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": head_dim}
    make_model(directory, family, initializer_range=0.05, num_key_value_heads=2, **shape)
    return directory


def load(directory: Path, *, deterministic: bool = True, **engine: Any) -> ModelWorker:
    settings = {"dtype": "bfloat16", "threads": 1, "max_model_len": 128, "max_concurrency": 16, "deterministic": deterministic, **engine}
    config = DaemonConfig(model=ModelConfig(path=str(directory), served_names=("m",)), engine=EngineConfig.model_validate(settings))
    return ModelWorker.load(config, lambda _: None)


class Recording:
    """A worker that keeps the logits from which each token of each request was drawn, by the request's first token."""

    def __init__(self, worker: ModelWorker) -> None:
        self.limits, self._worker = worker.limits, worker
        self.seen: dict[tuple[int, int], torch.Tensor] = {}
        self.first: dict[int, int] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._worker, "logits", self._noted)
            patch.setattr(self._worker.forward, "likeliest", None)  # a choice made in the pass shows no logits
            return self._worker.execute(plan)

    def _noted(self, plan: StepPlan) -> torch.Tensor:
        starts = plan.starts[:-1]
        self.first |= {int(r): int(t) for r, t, p in zip(plan.rows, plan.token_ids[starts], plan.positions[starts], strict=True) if p == 0}
        logits = ModelWorker.logits(self._worker, plan)
        for row, place, found in zip(plan.rows[plan.sample].tolist(), plan.lengths[plan.sample].tolist(), logits, strict=True):
            before = self.seen.setdefault((self.first[row], place), found.clone())
            assert before.equal(found), "the same context gave other bits within one run"
        return logits

    def probe(self) -> None:
        self._worker.probe()


Run = tuple[dict[str, list[int]], dict[tuple[int, int], torch.Tensor]]


def run(worker: ModelWorker, *, preempts: bool = False, **limits: int) -> Run:
    recording = Recording(worker)
    drive = Drive(recording, prefix_caching=False, **limits)
    draw = torch.Generator().manual_seed(1)
    for i in range(REQUESTS):
        prompt = (i, *torch.randint(0, VOCAB, (20 + i,), generator=draw).tolist())
        drive.submit(f"r{i}", prompt, Sampling(COUNT, temperature=float(i % 2), top_p=0.9, seed=i))
    drive.drain()
    assert (drive.state.preemptions > 0) is preempts
    return drive.tokens, recording.seen


def same_bits(one: Run, other: Run) -> bool:
    return one[0] == other[0] and all(logits.equal(other[1][key]) for key, logits in one[1].items())


def test_every_logit_has_the_same_bits_in_any_company_chunking_and_after_preemption(model: Path) -> None:
    roomy, tight = load(model), load(model, kv_bytes=128 * read_spec(model).kv_token_bytes(2))
    alone = run(roomy, max_concurrency=1)
    assert len(alone[1]) == REQUESTS * COUNT
    for other in (
        run(roomy, max_concurrency=16, token_budget=256),
        run(roomy, max_concurrency=16, token_budget=16),
        run(roomy, max_concurrency=3, token_budget=21),
        run(roomy, max_concurrency=16, depth=2),
        run(tight, preempts=True, max_concurrency=16),
    ):
        assert same_bits(alone, other)


def test_a_cached_beginning_gives_the_tokens_that_its_own_computation_gave(model: Path) -> None:
    drive = Drive(load(model), depth=2)
    prompt = tuple(range(100, 140))
    for name, ids in (("short", prompt[:20]), ("cold", prompt), ("warm", prompt)):
        drive.submit(name, ids, Sampling(COUNT, temperature=1.0, seed=3))
        drive.drain()
    assert drive.state.stats().reused_tokens > len(prompt) // 2
    assert drive.tokens["warm"] == drive.tokens["cold"]


def test_the_bits_are_close_to_those_of_the_fast_path(model: Path) -> None:
    plan = _prompt(40)
    fast, fixed = (load(model, deterministic=on).logits(plan).float() for on in (False, True))
    assert torch.nn.functional.cosine_similarity(fast, fixed).min() > 0.999


def _prompt(count: int) -> StepPlan:
    ids = np.arange(count, dtype=np.int32)
    blocks = np.arange(-(-count // 16), dtype=np.int32)
    return StepPlan(0, ids[:1], np.asarray([0, count], np.int32), ids, ids, blocks[None], np.ones(1, np.bool_))


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_every_pass_has_one_shape_and_each_token_is_in_one(count: int, size: int) -> None:
    plan = _prompt(count)
    cut = list(passes(plan, wanted_logits(plan), 99, size))
    assert {part.plan.tokens for part in cut} == {size}
    fed = np.concatenate([part.plan.token_ids for part in cut])
    assert fed[:count].tolist() == plan.token_ids.tolist()
    assert (np.concatenate([part.plan.block_tables for part in cut])[count:] == 99).all()
    assert [(part.wanted.tolist(), part.taken.tolist()) for part in cut][-1] == ([0], [(count - 1) % size])
    assert [bool(part.plan.sample.any()) for part in cut] == [False] * (len(cut) - 1) + [True]
