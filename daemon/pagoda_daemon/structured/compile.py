"""A grammar as clients write it → llguidance's. Called by `worker`, under its limits: nothing here is trusted to end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from pagoda_daemon.structured import limits
from pagoda_daemon.structured.protocol import Kind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LIMITS = LLParserLimits(
    initial_lexer_fuel=limits.START_FUEL,
    step_lexer_fuel=limits.STEP_FUEL,
    step_max_items=limits.STEP_ITEMS,
    max_lexer_states=limits.LEXER_STATES,
    max_grammar_size=limits.GRAMMAR_SYMBOLS,
    verbose_errors=False,
)


def matcher_of(tokenizer: LLTokenizer, kind: Kind, text: str) -> LLMatcher:
    """ValueError says what is wrong with the grammar."""
    matcher = LLMatcher(tokenizer, _grammar(kind, text), log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def _grammar(kind: Kind, text: str) -> str:
    match kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(text, overrides=cast("JsonCompileOptions", limits.JSON_OPTIONS))
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in json.loads(text))
        case "grammar":
            return grammar_from("grammar", text)
