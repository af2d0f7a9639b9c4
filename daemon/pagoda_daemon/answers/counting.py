"""How many tokens of an answer are reasoning. Pure; one answer's state. Called by `routes.generation`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pagoda_daemon.answers.events import Thinker
from pagoda_daemon.text.detokenize import Detokenizer


class ThoughtTokens:
    """Counts each token whose text is, at least in part, reasoning. Marks are not counted. `detokenizer` shows special tokens."""

    def __init__(self, parser: Thinker, detokenizer: Detokenizer) -> None:
        self._parser = parser
        self._detokenizer = detokenizer
        self._waiting: deque[tuple[int, int, int]] = deque()  # begin and end of text that may be reasoning, in characters, and its tokens
        self._silent = 0  # tokens that are a part of a character: they belong to the token that completes it
        self._read = 0
        self.count = 0

    def take(self, token_ids: Sequence[int]) -> None:
        for token_id in () if self._parser.done else token_ids:
            text = self._detokenizer.push((token_id,))
            self._silent += 1
            if text:
                self._waiting.append((self._read, self._read + len(text), self._silent))
                self._read, self._silent = self._read + len(text), 0
                self._parser.push(text)
                self._settle()

    def finish(self) -> int:
        """Returns the count of an answer that has ended."""
        if self._parser.thinking:
            self.count += sum(tokens for _, end, tokens in self._waiting if end > self._parser.since) + self._silent
        self._waiting.clear()
        return self.count

    def _settle(self) -> None:
        since, reach = self._parser.since, self._parser.reach
        while self._waiting and (self._waiting[0][1] <= reach or not self._parser.thinking):
            begin, end, tokens = self._waiting.popleft()
            self.count += tokens if begin < reach and end > since else 0
