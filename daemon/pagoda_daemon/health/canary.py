"""The deep check: a canary token every so often through tokenizer, scheduler, device and detokeniser, whose answer is known.

Runs in the front's loop, started by `api/front/front.py`. The answer sheet is written once, as soon as the model is loaded: of a few fixed
prompts the one whose first token is furthest ahead of the second, so that another batch's rounding cannot change it. One process serves one
model, in one quantisation, on one device: the sheet needs no other key than being this process's.

What it finds goes into the replica's state (`health.DeepCheck`) and leaves every probe alone: a wrong sheet must not turn a fleet NotReady.
A device that was wrong from the beginning writes a wrong sheet and is not found out.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple, Protocol

import structlog

from pagoda_daemon.health.replica import Replica
from pagoda_daemon.nouns.errors import EngineDied
from pagoda_daemon.nouns.messages import CanaryAnswer

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


class Singer(Protocol):
    """The engine's side, as `engine.client.EngineLink` has it."""

    def sing(self, prompt: tuple[int, ...], *, margin: bool = False) -> asyncio.Future[CanaryAnswer]: ...


class Text(Protocol):
    """Of `tokens.ModelText`."""

    def encode(self, text: str, context: int) -> tuple[int, ...]: ...

    def decode(self, ids: tuple[int, ...]) -> str: ...


class Sheet(NamedTuple):
    """The known answer: the whole text that prompt and token come to. `exact` False: this model is sure of none of the prompts, so that
    only an answer is wanted and not which."""

    prompt: str
    answer: str
    margin: float
    exact: bool


class Canary:
    """Made per front; `run` until cancelled."""

    def __init__(self, singer: Singer, text: Text, replica: Replica, every_s: float) -> None:
        self._singer = singer
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
            sheet = await self._record()
            while sheet is not None:
                await asyncio.sleep(self._every_s)
                await self._check(sheet)
        except EngineDied:
            return
        except Exception:
            log.exception("deep_check_broken")  # our own bug: the replica serves on, and the age of the last right answer tells

    async def _record(self) -> Sheet | None:
        answers = [(prompt, await self._ask(prompt, margin=True)) for prompt in PROMPTS]
        sheets = [
            Sheet(prompt, self._spelt(prompt, answer.token_id), answer.margin, answer.margin >= MIN_MARGIN)
            for prompt, answer in answers
            if answer.token_id is not None and answer.margin is not None
        ]
        if not sheets:
            log.error("deep_check_without_an_answer", errors=[answer.error for _, answer in answers])
            return None
        sheet = max(sheets, key=lambda one: one.margin)
        self._replica.deep.good_at = time.monotonic()
        log.info("deep_check_recorded", prompt=sheet.prompt, margin=round(min(sheet.margin, 1e3), 3), exact=sheet.exact)
        return sheet

    async def _ask(self, prompt: str, *, margin: bool = False) -> CanaryAnswer:
        return await self._singer.sing(self._ids(prompt), margin=margin)

    def _ids(self, prompt: str) -> tuple[int, ...]:
        """As many as fit into the canary's block."""
        limits = self._replica.limits
        if limits is None:
            raise EngineDied("the engine is not loaded")
        return self._text.encode(prompt, limits.max_model_len)[: limits.block_size]

    def _spelt(self, prompt: str, token: int) -> str:
        return self._text.decode((*self._ids(prompt), token))

    async def _check(self, sheet: Sheet) -> None:
        """One canary. A late one is said to be late when it is, and then waited for: another one would only queue behind it."""
        answering = self._singer.sing(self._ids(sheet.prompt))
        late_s = max(self._every_s, _STEPS_LATE * self._replica.predicted_step_ms / 1000)
        await asyncio.wait({answering}, timeout=late_s)
        if not answering.done():
            self._note("late", why=f"no answer for {late_s:.1f} s")
        answer = await answering
        if answer.error is None and answer.token_id is not None:
            right = not sheet.exact or self._spelt(sheet.prompt, answer.token_id) == sheet.answer
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
