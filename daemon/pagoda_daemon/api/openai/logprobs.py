"""Log-probabilities as OpenAI's two endpoints write them, and vLLM's `prompt_logprobs`. Pure; called by `replies`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from pagoda_daemon.core.messages import TokenLogprob
from pagoda_daemon.text.answer import Scored

Spell = Callable[[int], bytes]
"""The bytes that a token stands for."""


class BestToken(msgspec.Struct, frozen=True):
    """A token that might have been chosen, and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(BestToken, frozen=True):
    """A token of the answer, with the best beside it."""

    top_logprobs: list[BestToken]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Of a chat choice."""

    content: list[ChatToken]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Of a text choice; four lists of one length. What lm-eval reads."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token of the prompt, or one that might have stood there."""

    logprob: float
    decoded_token: str
    rank: int | None = None


PromptLogprobs = list[dict[str, PromptToken] | None]
"""vLLM's: per prompt token null or, by id, the token itself and the best."""


def shown(spelled: bytes) -> str:
    """A token as text; one that ends in mid-character is written as its bytes, so that no two look alike."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def chat_logprobs(scored: Sequence[Scored], spell: Spell) -> ChatLogprobs:
    def best(token_id: int, logprob: float) -> BestToken:
        spelled = spell(token_id)
        return BestToken(shown(spelled), logprob, list(spelled))

    content = []
    for token_id, _, found in scored:
        if found is not None:
            own = best(token_id, found.logprob)
            content.append(ChatToken(own.token, own.logprob, own.bytes, [best(*entry) for entry in found.top]))
    return ChatLogprobs(content)


def text_logprobs(scored: Sequence[Scored], spell: Spell) -> TextLogprobs:
    """The chosen token is listed with the best also where it is none of them."""
    return TextLogprobs(
        [entry.offset for entry in scored],
        [None if entry.logprob is None else entry.logprob.logprob for entry in scored],
        [shown(spell(entry.token_id)) for entry in scored],
        [None if entry.logprob is None else _named(entry.token_id, entry.logprob, spell) for entry in scored],
    )


def _named(token_id: int, found: TokenLogprob, spell: Spell) -> dict[str, float]:
    """Tokens that look alike keep the better number."""
    named: dict[str, float] = {}
    for other, logprob in (*found.top, (token_id, found.logprob)):
        named.setdefault(shown(spell(other)), logprob)
    return named


def prompt_logprobs(prompt: Sequence[int], found: Sequence[TokenLogprob], top: int, spell: Spell) -> PromptLogprobs:
    """`found` begins with the second token; `top` are listed, though more may have been computed."""
    entries: PromptLogprobs = [None]
    for token_id, own in zip(prompt[1:], found, strict=True):
        ranked = {str(other): PromptToken(logprob, shown(spell(other)), at) for at, (other, logprob) in enumerate(own.top[:top], 1)}
        entries.append({str(token_id): PromptToken(own.logprob, shown(spell(token_id)), own.rank), **ranked})
    return entries
