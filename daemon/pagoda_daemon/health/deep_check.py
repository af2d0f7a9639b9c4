"""The deep check: at intervals, one token whose value is known goes through tokenizer, scheduler, device and detokeniser.

Runs in the front's loop, started by `api/front/front.py`. The known answer is recorded once, when the model is loaded. Of a few fixed
prompts, it takes the one whose first token is furthest ahead of the second, so that another batch's rounding cannot change it. One process
serves one model, in one quantisation, on one device, so the answer needs no key.

The result goes into the replica's state (`health.DeepCheck`) and changes no probe: a wrong record must not turn all replicas NotReady. A
device that was wrong from the beginning records a wrong answer, and is not found.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple, Protocol

import structlog

from pagoda_daemon.core.errors import EngineDied
from pagoda_daemon.core.messages import DeepCheckAnswer
from pagoda_daemon.health.replica import Replica

log = structlog.get_logger()

# Sequences that nearly every model goes on with alike; which of them this one is surest of is measured.
PROMPTS: Final = (
    "1, 2, 3, 4, 5, 6, 7,",
    "A B C D E F G H",
    "The capital of France is",
    "Monday, Tuesday, Wednesday,",
    "import numpy as",
    "Once upon a",
)
# In log-probability. bf16 rounds logits of 20 to 0.06: five times that is not rounding.
MIN_MARGIN: Final = 0.3
_STEPS_LATE: Final = 20


class CheckedEngine(Protocol):
    """The engine, as `engine.client.EngineLink` offers it."""

    def deep_check(self, prompt: tuple[int, ...], *, margin: bool = False) -> asyncio.Future[DeepCheckAnswer]: ...


class Text(Protocol):
    """Of `tokens.ModelText`."""

    def encode(self, text: str, context: int) -> tuple[int, ...]: ...

    def decode(self, ids: tuple[int, ...]) -> str: ...


class KnownAnswer(NamedTuple):
    """The whole text of prompt and token. `exact` False: this model is sure of none of the prompts, so any answer is right."""

    prompt: str
    answer: str
    margin: float
    exact: bool


class DeepChecks:
    """One for each front; `run` ends when it is cancelled."""

    def __init__(self, engine: CheckedEngine, text: Text, replica: Replica, every_s: float) -> None:
        self._engine = engine
        self._text = text
        self._replica = replica
        self._every_s = every_s
        self._loaded = asyncio.Event()
        replica.listeners.append(self._look)
        self._look()

    def _look(self) -> None:
        if self._replica.limits is not None:
            self._loaded.set()

    async def run(self) -> None:
        """Records, then checks for ever; returns where the engine is gone."""
        await self._loaded.wait()
        try:
            known = await self._record()
            while known is not None:
                await asyncio.sleep(self._every_s)
                await self._check(known)
        except EngineDied:
            return
        except Exception:
            log.exception("deep_check_broken")  # our own bug: the replica serves on, and the age of the last right answer shows it

    async def _record(self) -> KnownAnswer | None:
        answers = [(prompt, await self._ask(prompt, margin=True)) for prompt in PROMPTS]
        candidates = [
            KnownAnswer(prompt, self._spelt(prompt, answer.token_id), answer.margin, answer.margin >= MIN_MARGIN)
            for prompt, answer in answers
            if answer.token_id is not None and answer.margin is not None
        ]
        if not candidates:
            log.error("deep_check_without_an_answer", errors=[answer.error for _, answer in answers])
            return None
        known = max(candidates, key=lambda one: one.margin)
        self._replica.deep.good_at = time.monotonic()
        log.info("deep_check_recorded", prompt=known.prompt, margin=round(min(known.margin, 1e3), 3), exact=known.exact)
        return known

    async def _ask(self, prompt: str, *, margin: bool = False) -> DeepCheckAnswer:
        return await self._engine.deep_check(self._ids(prompt), margin=margin)

    def _ids(self, prompt: str) -> tuple[int, ...]:
        """As many as fit into one block."""
        limits = self._replica.limits
        if limits is None:
            raise EngineDied("the engine is not loaded")
        return self._text.encode(prompt, limits.max_model_len)[: limits.block_size]

    def _spelt(self, prompt: str, token: int) -> str:
        return self._text.decode((*self._ids(prompt), token))

    async def _check(self, known: KnownAnswer) -> None:
        """One check. A late answer is reported when it is late, and then awaited: another check would only queue behind it."""
        answering = self._engine.deep_check(self._ids(known.prompt))
        late_s = max(self._every_s, _STEPS_LATE * self._replica.predicted_step_ms / 1000)
        await asyncio.wait({answering}, timeout=late_s)
        if not answering.done():
            self._note("late", why=f"no answer for {late_s:.1f} s")
        answer = await answering
        if answer.error is None and answer.token_id is not None:
            right = not known.exact or self._spelt(known.prompt, answer.token_id) == known.answer
            self._note("right" if right else "wrong", why="another token than was recorded after loading")
        else:
            self._note("error", why=answer.error or "no token")

    def _note(self, outcome: str, why: str) -> None:
        deep, failed = self._replica.deep, outcome != "right"
        deep.outcomes[outcome] += 1
        if not failed:
            deep.good_at = time.monotonic()
        if failed != deep.failed:
            deep.failed = failed
            log.log(40 if failed else 20, "deep_check", outcome=outcome, why=why if failed else "")
            self._replica.changed()
