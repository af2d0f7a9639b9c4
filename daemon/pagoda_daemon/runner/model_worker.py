"""ModelWorker: a model and its KV pool on the CPU. Built by `engine.build` and called by the engine on one thread.

The pool has one block more than the core knows of: `probe` computes into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog
import torch
from pagoda_contracts.launch import DaemonConfig

from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.runner.answer import answer, answer_likeliest, wanted_logits
from pagoda_daemon.runner.feedback import Feedback
from pagoda_daemon.runner.forward import Choose, Forward
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.load import load_forward
from pagoda_daemon.runner.pool import pool
from pagoda_daemon.runner.probe import one_token
from pagoda_daemon.runner.sampler import Sampler

_log = structlog.get_logger(__name__)


class ModelWorker:
    """Executes plans: a forward pass, then sampling in torch."""

    def __init__(self, forward: Forward, limits: WorkerLimits, adapters: AdapterStore | None = None) -> None:
        self.limits = limits
        self.forward = forward
        self.adapters = adapters
        self._feedback = Feedback()
        self._sampler = Sampler()

    @classmethod
    def load(cls, config: DaemonConfig, progress: Callable[[float], None], host: Host | None = None) -> ModelWorker:
        """Read the model, size the pool, run one token. Must run on the thread that will compute: thread counts are per thread."""
        loaded = load_forward(Path(config.model.path), config.engine, host or Host(), progress, config.adapters)
        worker = cls(loaded.forward, loaded.limits, loaded.adapters)
        worker.probe()
        limits = loaded.limits
        _log.info("loaded", by=loaded.by, weight_bytes=loaded.weight_bytes, blocks=limits.blocks_total, max_model_len=limits.max_model_len)
        return worker

    def execute(self, plan: StepPlan) -> StepResult:
        plan = self._feedback.complete(plan)
        choose = self.forward.likeliest if plan.decodes else None  # most steps there are: all rows decode greedily
        result = self._sample(plan) if choose is None else self._take(plan, choose)
        self._feedback.note(result.rows, result.token_ids)
        return result

    def _take(self, plan: StepPlan, choose: Choose) -> StepResult:
        self._copy(plan)
        return answer_likeliest(plan, choose(plan))

    @torch.inference_mode()
    def _sample(self, plan: StepPlan) -> StepResult:
        tokens = plan.sampling.pooled
        if tokens is None:
            return answer(self._sampler, plan, self.logits(plan), plan.token_ids)
        self._copy(plan)
        wanted = wanted_logits(plan)
        logits, states = self.forward.states(plan, wanted)
        return replace(answer(self._sampler, plan, logits, plan.token_ids), pooled=pool(tokens, wanted, states))

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """[sampling rows and then scored prompt tokens, vocab]; what a step that does not only decode is answered from."""
        self._copy(plan)
        return self.forward.logits(plan, wanted_logits(plan))

    def _copy(self, plan: StepPlan) -> None:
        if plan.copies.size:
            self.forward.copy_blocks(plan.copies)

    def probe(self) -> None:
        self.execute(one_token(block=self.limits.blocks_total))
