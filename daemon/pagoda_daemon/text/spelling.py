"""Speller: the bytes that one token stands for, also where they are no whole character. Made by `tokens.ModelText`, used for logprobs.

Joined bytes of a text's tokens are the text's, but for what a tokenizer adds or strips at its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tokenizers import Tokenizer

_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "\u2581"  # how SentencePiece writes a space


def byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte: itself where printable, else the next free character from 256."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in plain)
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + at): byte for at, byte in enumerate(others)}}


class Speller:
    """What the tokenizer's decoder does to single tokens is found out by asking it: there are many kinds, chained in many ways."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        decode: Callable[[list[str]], str] = "".join if tokenizer.decoder is None else tokenizer.decoder.decode
        self._token = tokenizer.id_to_token
        self._added = {token_id: added.content.encode() for token_id, added in tokenizer.get_added_tokens_decoder().items()}
        self._bytes = byte_of_character() if decode(["\u0120"]) == " " else None
        self._fallback = decode(["<0x41>"]) == "A"
        self._spaced = decode(["a", _SPACE + "b"]) == "a b"

    def __call__(self, token_id: int) -> bytes:
        """Nothing for an id that the model has and the tokenizer has not: vocabularies are padded."""
        if (added := self._added.get(token_id)) is not None:
            return added
        token: str = self._token(token_id) or ""
        if self._bytes is not None:
            table = self._bytes
            return b"".join(bytes((table[c],)) if c in table else c.encode() for c in token)
        if self._fallback and (byte := _BYTE.fullmatch(token)):
            return bytes((int(byte[1], 16),))
        return (token.replace(_SPACE, " ") if self._spaced else token).encode()
