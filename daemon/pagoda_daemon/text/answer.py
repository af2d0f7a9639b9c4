"""AnswerText: one request's tokens → text that may be sent, with the log-probabilities of exactly that text. Pure; no HTTP.

Called by `generation`. What may yet become a stop string is kept back, and so are the log-probabilities of its tokens: they spell it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from pagoda_daemon.core.messages import TokenLogprob
from pagoda_daemon.text.detokenize import Detokenizer
from pagoda_daemon.text.stops import StopMatcher


class Scored(NamedTuple):
    """A token, where its text begins, and its log-probability; None for the first of a prompt."""

    token_id: int
    offset: int
    logprob: TokenLogprob | None


class Piece(NamedTuple):
    """Text that is final, and the tokens that it is made of where log-probabilities are wanted. `token_ids` are those that came with it,
    if the request asks for ids."""

    text: str
    scored: tuple[Scored, ...] = ()
    token_ids: tuple[int, ...] = ()


class AnswerText:
    """Joined pieces are the answer, whatever the steps that its tokens came in. `offset`: characters before it."""

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher, min_tokens: int = 0, offset: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._tokens = 0
        self._read = self._sent = offset  # characters out of the detokenizer, and of them those handed out
        self._waiting: list[tuple[Scored, int]] = []  # with the end of the token's text
        self._unread: list[Scored] = []  # no character of theirs is whole yet

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.matched

    def push(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> Piece:
        """What became final with these tokens; nothing once stopped."""
        if not logprobs and not self._stops.strings:  # as most are: nothing but the text is of interest
            return Piece(self._detokenizer.push(token_ids))
        text = ""
        for token_id, logprob in zip_longest(token_ids, logprobs):
            if logprob is not None:
                self._unread.append(Scored(token_id, self._read, logprob))
            self._tokens += 1
            text += self._matched(self._detokenizer.push((token_id,)))
        return self._piece(text)

    def end(self) -> Piece:
        """What is left when no token follows."""
        text = self._matched(self._detokenizer.flush()) + self._stops.flush()
        return self._piece(text, last=True)

    def end_at(self, stop_id: int, logprobs: Sequence[TokenLogprob]) -> Piece:
        """What is left before a stop id, which is a token of the answer and shows no text: it stands where its text would begin."""
        piece = self.end()
        if self.stopped:  # a stop string came first
            return piece
        return Piece(piece.text, (*piece.scored, *(Scored(stop_id, self._sent, one) for one in logprobs)))

    def _matched(self, text: str) -> str:
        """Up to min_tokens no stop string is complete, as no stop id counts; one that begins there and ends later is (vLLM's rule)."""
        self._read += len(text)
        if text:
            self._waiting += [(scored, self._read) for scored in self._unread]
            self._unread.clear()
        return self._stops.push(text, ends=self._tokens > self._min_tokens)

    def _piece(self, text: str, *, last: bool = False) -> Piece:
        self._sent += len(text)
        if self.stopped:
            done = [scored for scored, _ in self._waiting if scored.offset < self._sent]
            self._waiting.clear()
            self._unread.clear()
        elif last:
            done = [*(scored for scored, _ in self._waiting), *self._unread]
        else:
            done = [scored for scored, end in self._waiting if end <= self._sent]
            self._waiting = self._waiting[len(done) :]
        return Piece(text, tuple(done))


def echo(text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprob], detokenizer: Detokenizer) -> Piece:
    """The prompt as the beginning of an answer; `logprobs` are those of all but its first token, or empty."""
    if not logprobs and len(ids) > 1:
        return Piece(text)
    offset, scored = 0, []
    for token_id, logprob in zip(ids, (None, *logprobs), strict=True):
        scored.append(Scored(token_id, min(offset, len(text)), logprob))
        offset += len(detokenizer.push((token_id,)))
    return Piece(text, tuple(scored))
