"""TorchWorker: a model and its KV pool on the CPU. Built by `runner.build` and called by the engine on one thread.

The pool has one block more than the core knows of: `probe` computes into it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from pagoda_contracts.launch import DaemonConfig

from pagoda_daemon.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.model.attention import KvCache, attention_batch
from pagoda_daemon.model.config import read_spec
from pagoda_daemon.model.decoder import Decoder, Flat
from pagoda_daemon.model.loader import load_tensors
from pagoda_daemon.model.weights import allocate, destinations, weight_bytes
from pagoda_daemon.runner.answer import answer, wanted_logits
from pagoda_daemon.runner.feedback import Feedback
from pagoda_daemon.runner.fixed import pass_size, passes
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.kv_size import kv_shape, needs
from pagoda_daemon.runner.sampler import Sampler

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

_log = structlog.get_logger(__name__)


class TorchWorker:
    """Executes plans in eager PyTorch."""

    def __init__(self, model: Decoder, kv: KvCache, limits: WorkerLimits, *, deterministic: bool = False) -> None:
        self.limits = limits
        self._model = model
        self._kv = kv
        self._feedback = Feedback()
        self._sampler = Sampler()
        self._deterministic = deterministic

    @classmethod
    def load(cls, config: DaemonConfig, progress: Callable[[float], None], host: Host | None = None) -> TorchWorker:
        """Read the model, size the pool, run one token. Must run on the thread that will compute: thread counts are per thread."""
        host = host or Host()
        engine, directory = config.engine, Path(config.model.path)
        torch.set_num_threads(engine.threads or host.cores())
        spec, dtype = read_spec(directory), DTYPES[engine.dtype]
        model = needs(spec, engine, weight_bytes(spec, dtype), dtype.itemsize)
        shape = kv_shape(engine, model, host.memory())
        spec = spec.within(shape.max_model_len)
        weights = allocate(spec, dtype)
        load_tensors(directory, destinations(spec, weights), progress)
        kv = KvCache(spec, shape.blocks + 1, engine.block_size, dtype)
        limits = WorkerLimits(shape.blocks, engine.block_size, spec.vocab_size, shape.max_model_len, spec.sliding_window)
        worker = cls(Decoder(spec, weights, shape.max_model_len), kv, limits, deterministic=bool(engine.deterministic))
        worker.probe()
        _log.info("loaded", weight_bytes=model.weight_bytes, blocks=shape.blocks, max_model_len=shape.max_model_len)
        return worker

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        plan = self._feedback.complete(plan)
        result = answer(self._sampler, plan, self.logits(plan), plan.token_ids)
        self._feedback.note(result.rows, result.token_ids)
        return result

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """[sampling rows and then scored prompt tokens, vocab]; what `execute` answers from."""
        if plan.copies.size:
            self._kv.copy_blocks(plan.copies)
        wanted = wanted_logits(plan)
        if not self._deterministic:
            return self._forward(plan, wanted)
        found = torch.empty(wanted.size, self.limits.vocab_size, dtype=self._kv.data.dtype)
        for cut, places, taken in passes(plan, wanted, self.limits.blocks_total, pass_size(self._model.spec)):
            found[places] = self._forward(cut, wanted_logits(cut))[taken]
        return found

    def _forward(self, plan: StepPlan, wanted: NDArray[np.int64]) -> torch.Tensor:
        flat = Flat(
            token_ids=torch.from_numpy(plan.token_ids.astype(np.int64)),
            positions=torch.from_numpy(plan.positions.astype(np.int64)),
            wanted=torch.from_numpy(wanted),
            attention=attention_batch(plan, self._kv, self._model.spec, alone=self._deterministic),
        )
        return self._model.logits(flat, self._kv)

    def probe(self) -> None:
        self.execute(_one_token(block=self.limits.blocks_total))


def _one_token(block: int) -> StepPlan:
    """Token 0 at position 0 of `block`, greedy."""
    zero = np.zeros(1, np.int32)
    return StepPlan(
        step=0,
        rows=zero,
        starts=np.array([0, 1], np.int32),
        token_ids=zero,
        positions=zero,
        block_tables=np.array([[block]], np.int32),
        sample=np.ones(1, np.bool_),
    )
