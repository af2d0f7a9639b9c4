"""safe_pattern: a regular expression of an adapter's author, matched without backtracking and within bounds. Called by `lora.config`.

It is the same library as for grammars: it derives automata, so no expression takes exponential time, and its fuel ends a large one with a
sentence. Python's own `re` would take hours over `(a+)+b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pagoda_daemon.core.errors import AdapterRejected

MAX_PATTERN: Final = 1000
_LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=100_000, step_lexer_fuel=50_000, step_max_items=5_000, max_lexer_states=2_000, max_grammar_size=20_000
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled expression."""

    key: str
    matcher: LLMatcher

    def matches(self, name: str) -> bool:
        """The whole of `name`; AdapterRejected where that takes too much."""
        fresh, data = self.matcher.deep_copy(), list(name.encode())
        taken = fresh.try_consume_tokens(data)
        if fresh.is_error():
            raise AdapterRejected(f"{self.key}: the regular expression is too large")
        return taken == len(data) and fresh.is_accepting()


def safe_pattern(key: str, text: str) -> Pattern:
    """AdapterRejected says what is wrong with `text`, which stands at `key`."""
    if len(text) > MAX_PATTERN:
        raise AdapterRejected(f"{key:.128} must have at most {MAX_PATTERN} characters, got {len(text)}")
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_regex(text), log_level=0, limits=_LIMITS)
    if matcher.is_error():
        why = " ".join(str(matcher.get_error()).split())
        raise AdapterRejected(f"{key:.128} {text!r:.128} is not a regular expression that can be used here: {why:.200}")
    return Pattern(f"{key:.128}", matcher)
