"""Results of the offline engine, frozen, and how they are made of what the engine says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_daemon.api.openai.logprobs import Spell, shown
from pagoda_daemon.api.routes.generation import Delta, Submission
from pagoda_daemon.core.messages import TokenLogprob


@dataclass(frozen=True, slots=True)
class Logprob:
    """The model's log-probability of a token, its rank (1 is the best), and the best tokens at its place: id, text, log-probability."""

    token_id: int
    token: str
    logprob: float
    rank: int
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. `token_ids` are all that were generated: an end token or the tokens of a stop string are among them, and not in `text`.
    `logprobs`, where they were asked for, are of the tokens that `text` is made of and of the end token."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one prompt. `cached_tokens` of it were not computed again. `prompt_logprobs`, where they were asked for, have one
    entry for each token of the prompt; the first one is None. `text` and the others are of the first choice."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    cached_tokens: int = 0
    prompt_logprobs: tuple[Logprob | None, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[Logprob, ...]:
        return self.choices[0].logprobs


def result_of(job: Submission, answers: Sequence[Sequence[Delta]], spell: Spell) -> Result:
    """`answers` are the deltas of each choice, in the order of the choices."""
    prompt, scores = job.message.prompt, answers[0][0].prompt_scores
    known = [delta.life.cached_tokens for delta in answers[0] if delta.life is not None]
    asked = job.sampling.prompt_logprobs is not None
    scored = tuple(_logprob(token_id, found, spell) for token_id, found in zip(prompt[1:], scores, strict=True)) if asked else ()
    return Result(prompt, tuple(_choice(deltas, spell) for deltas in answers), known[-1] if known else 0, (None, *scored) if asked else ())


def _choice(deltas: Sequence[Delta], spell: Spell) -> Choice:
    scored = (one for delta in deltas for one in delta.piece.scored)
    return Choice(
        "".join(delta.piece.text for delta in deltas),
        tuple(token_id for delta in deltas for token_id in delta.piece.token_ids),
        deltas[-1].finish_reason or "stop",
        tuple(_logprob(one.token_id, one.logprob, spell) for one in scored if one.logprob is not None),
    )


def _logprob(token_id: int, found: TokenLogprob, spell: Spell) -> Logprob:
    top = tuple((other, shown(spell(other)), logprob) for other, logprob in found.top)
    return Logprob(token_id, shown(spell(token_id)), found.logprob, found.rank, top)
