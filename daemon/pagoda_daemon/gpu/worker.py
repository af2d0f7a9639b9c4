"""GpuWorker: launches steps and says later what came of them. Built by `engine.build`, called by the engine's device.

The ordinary step (greedy, or drawn by temperature, top_k, top_p and min_p) is launched whole: its tokens stay on the device for the next
one, and its result is waited for by another thread. What needs the host (penalties, grammars, log-probabilities, embeddings) waits in
`launch`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from pagoda_kernels.gpu.launch import on_compile
from pagoda_kernels.gpu.sample import Draws, SampleScratch, greedy, sample
from torch import Tensor

from pagoda_daemon.core.arrays import Bools, Ints
from pagoda_daemon.core.batch import GREEDY, RowError, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.sampling import DRAW, OFF, DrawRows
from pagoda_daemon.gpu.forward import GpuForward
from pagoda_daemon.gpu.memory_pattern import MemoryPattern
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.runner.answer import Likeliest, answer, sampled, wanted_logits
from pagoda_daemon.runner.draw import draw
from pagoda_daemon.runner.feedback import Feedback
from pagoda_daemon.runner.pool import pool
from pagoda_daemon.runner.probe import one_token
from pagoda_daemon.runner.sampler import Sampler

_log = structlog.get_logger(__name__)

_DRAWN: Final = ("temperature", "top_k", "top_p", "min_p", "seed")
"""What the device draws by. A step with more is sampled by the host."""


class Launched:
    """A step on its way. `result` may be called by any thread, more than once."""

    def __init__(self, finish: Callable[[], StepResult]) -> None:
        self._finish = finish
        self._lock = threading.Lock()
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Waits for the device."""
        with self._lock:
            if self._result is None:
                self._result = self._finish()
            return self._result


class GpuWorker:
    """A `runner.worker.AsyncWorker`. `adapters` None: it takes none."""

    adapters: AdapterStore | None = None

    def __init__(self, forward: GpuForward, limits: WorkerLimits) -> None:
        self.forward = forward
        self.limits = limits
        self._feedback = Feedback()
        self._sampler = Sampler(self._draw)
        self._scratch = SampleScratch.of(forward.rows + 1, limits.vocab_size, forward.kv.data.device)
        # What a plan does not know yet is of the two steps before it: more are never in flight.
        self._unheard: deque[Launched] = deque(maxlen=2)
        self._memory = MemoryPattern(forward.kv.data.device)
        self._compiled: deque[str] = deque()

    def watch_compiler(self) -> None:
        """It is warm: a kernel that is compiled from now on makes a step wait. Called once in a process."""
        on_compile(self._note_compiled)

    def _note_compiled(self, kernel: str) -> None:
        _log.warning("A kernel was compiled after the load. The step that needed it waited.", kernel=kernel)
        self._compiled.append(kernel)

    def execute(self, plan: StepPlan) -> StepResult:
        """Launch and wait."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Compute `plan` behind the steps launched before."""
        if plan.copies.size:
            self.forward.copy_blocks(plan.copies)
        memory = self._memory.check() if self._holds_deep_check(plan) else None
        launched = self._later(plan) if _on_device(plan) else self._now(plan)
        if memory is not None:
            launched = self._with_memory(launched, memory)
        if self._compiled:
            count = len(self._compiled)
            self._compiled.clear()
            launched = _with_compiled(launched, count)
        self._unheard.append(launched)
        return launched

    def probe(self) -> None:
        self._unheard.clear()
        self.execute(one_token(block=self.limits.blocks_total))

    def _holds_deep_check(self, plan: StepPlan) -> bool:
        """It has the row behind all of the requests' (`scheduler.extra_row`)."""
        return bool(plan.rows.size and plan.rows[-1] == self.forward.rows)

    def _with_memory(self, launched: Launched, memory: Tensor) -> Launched:
        """What the pattern found becomes the deep check's error."""

        def finish() -> StepResult:
            result, why = launched.result(), self._memory.finding(memory)
            return result if why is None else replace(result, errors=(*result.errors, RowError(self.forward.rows, why)))

        return Launched(finish)

    def _later(self, plan: StepPlan) -> Launched:
        """Nothing of it is known when this returns."""
        rows = plan.rows[plan.sample]
        if not rows.size:
            self.forward.states(plan, np.zeros(0, np.int64))
            return Launched(_ended(self.forward.kv.data.device, lambda: StepResult(rows, rows)))
        logits = self.forward.logits(plan, wanted_logits(plan))
        sent = self.forward.send({"rows": rows.astype(np.int64), **_draws(plan.sampling.random, plan.lengths[plan.sample])})
        tokens, best = self._sampled(logits, plan.sampling.random, sent)
        self.forward.note(sent["rows"], tokens)
        return Launched(_arriving(tokens, best, plan))

    def _sampled(self, logits: Tensor, random: DrawRows | None, sent: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if random is None:
            return greedy(logits, scratch=self._scratch)
        draws = Draws(**{name: tensor for name, tensor in sent.items() if name != "rows"}, filtered=_filtered(random))
        return sample(logits, draws, scratch=self._scratch)

    def _draw(self, logits: Tensor, random: DrawRows, positions: Ints) -> Ints:
        """For the sampler on the host: the token that the device would draw, or a request's text would change with its neighbours."""
        tokens, known = np.empty(positions.size, np.int32), _known(random)
        for rows, mine in ((np.flatnonzero(known), True), (np.flatnonzero(~known), False)):
            if rows.size:
                part = logits[torch.from_numpy(rows).to(logits.device)]
                sent = self.forward.send(_draws(random[rows], positions[rows])) if mine else {}
                tokens[rows] = (
                    self._sampled(part, random[rows], sent)[0].cpu().numpy() if mine else draw(part, random[rows], positions[rows])
                )
        return tokens

    def _now(self, plan: StepPlan) -> Launched:
        """By the sampler on the host, which reads the tokens so far."""
        for launched in self._unheard:
            heard = launched.result()
            self._feedback.note(heard.rows, heard.token_ids)
        self._unheard.clear()
        plan = self._feedback.complete(plan)
        wanted = wanted_logits(plan)
        pooled = plan.sampling.pooled
        states = None if pooled is None else self.forward.states(plan, wanted)
        logits = self.forward.logits(plan, wanted) if states is None else self.forward.decoder.head(states)
        result = answer(self._sampler, plan, logits, plan.token_ids)
        if pooled is not None and states is not None:
            result = replace(result, pooled=pool(pooled, wanted, states))
        sent = self.forward.send({"rows": result.rows.astype(np.int64), "tokens": result.token_ids.astype(np.int32)})
        self.forward.note(sent["rows"], sent["tokens"])
        return Launched(lambda: result)


def _with_compiled(launched: Launched, count: int) -> Launched:
    return Launched(lambda: replace(launched.result(), compiled=count))


def _on_device(plan: StepPlan) -> bool:
    """Whether the device samples by itself all that this step asks for."""
    sampling = plan.sampling
    if sampling is GREEDY:
        return True
    alone = not sampling.shaped and all(part is None for part in (sampling.top_logprobs, sampling.scored, sampling.masks, sampling.pooled))
    return alone and (sampling.random is None or bool(_known(sampling.random).all()))


def _known(random: DrawRows) -> Bools:
    """Which rows the device can draw."""
    known: Bools = np.ones(random.size, np.bool_)
    for name in set(DRAW.names or ()) - set(_DRAWN):
        known &= random[name] == OFF[name]
    return known


def _draws(random: DrawRows | None, positions: Ints) -> dict[str, NDArray[np.generic]]:
    if random is None:
        return {}
    found = {name: np.ascontiguousarray(random[name]) for name in _DRAWN if name != "seed"}
    return {"seed": np.ascontiguousarray(random["seed"]).view(np.int64), "position": positions.astype(np.int32), **found}


def _filtered(random: DrawRows) -> bool:
    return bool(((random["top_k"] > 0) | (random["top_p"] < 1) | (random["min_p"] > 0)).any())


def _arriving(tokens: Tensor, best: Tensor, plan: StepPlan) -> Callable[[], StepResult]:
    """The copy to the host is under way; what waits for it and reads it."""
    words = torch.stack((tokens, best.view(torch.int32)))
    if words.device.type == "cpu":
        return lambda: _read(words, plan)
    host = torch.empty(words.shape, dtype=torch.int32, pin_memory=True)
    host.copy_(words, non_blocking=True)
    return _ended(words.device, lambda: _read(host, plan))


def _ended(place: torch.device, answer: Callable[[], StepResult]) -> Callable[[], StepResult]:
    """`answer`, once the device has done what it was given so far. Whoever waits sleeps: a thread that spins takes a core."""
    if place.type == "cpu":
        return answer
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record()

    def waited() -> StepResult:
        done.synchronize()
        return answer()

    return waited


def _read(words: Tensor, plan: StepPlan) -> StepResult:
    found = words.numpy()
    return sampled(plan.rows[plan.sample], Likeliest(found[0], found[1].view(np.float32)))
