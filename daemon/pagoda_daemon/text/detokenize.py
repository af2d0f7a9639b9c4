"""Detokenizers: one answer's ids in as they come, its text out, never half a character. Joined, what comes out is `decode` of all ids.

Made by `tokens.ModelText` for `text/answer.py`. Pure; each holds one answer's state. Two kinds of vocabulary are read from a table of their
tokens, which costs a look-up per token; every other one from the tokenizer's own `decode` of a window, which costs two calls (5 to 10 us).
"""

from __future__ import annotations

import json
import re
from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from tokenizers import Tokenizer

from pagoda_daemon.text.spelling import byte_of_character

_REPLACEMENT: Final = "\ufffd"
_MAX_HELD: Final = 64  # ids or bytes that may yet turn out to be something else
_MAX_CHARACTER: Final = 4  # bytes of UTF-8, so ids too
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FUSED: Final = ({"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})
_STRIP: Final = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

Decode = Callable[[Sequence[int]], str]


class Detokenizer(Protocol):
    """What an answer is read by."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that is final with these ids."""
        ...

    def flush(self) -> str:
        """What is still kept back, at the end of the answer."""
        ...


def detokenizers(tokenizer: Tokenizer, decode: Decode, *, skip_special: bool = True) -> Callable[[], Detokenizer]:
    """What makes one for each answer; `decode` skips special ids or not, too. The decoder's own description says which kind: equal to a
    known one, or the window."""
    described = None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())
    if described is not None and described["type"] == "ByteLevel":
        spelled = _ByteLevelTokens(tokenizer, skip_special)
        return lambda: ByteLevelDetokenizer(spelled)
    if described == _sequence(*_FUSED) or described == _sequence(*_FUSED, _STRIP):
        tokens = _FallbackTokens(tokenizer, skip_special)
        strip = described != _sequence(*_FUSED)
        return lambda: FallbackDetokenizer(tokens, strip=strip)
    return lambda: WindowDetokenizer(decode)


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(parts)}


class _Tokens(dict[int, str | bytes]):
    """By id, filled as ids come: what a token is written as, "" where it shows nothing, bytes where it may be a part of a character."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._token = tokenizer.id_to_token
        added = tokenizer.get_added_tokens_decoder().values() if skip_special else ()
        self._special = {token.content for token in added if token.special}

    def __missing__(self, token_id: int) -> str | bytes:
        token = self._token(token_id)
        found = self[token_id] = "" if token is None or token in self._special else self._written(token)
        return found

    def _written(self, token: str) -> str | bytes:
        raise NotImplementedError


class _ByteLevelTokens(_Tokens):
    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        super().__init__(tokenizer, skip_special)
        self._bytes = byte_of_character()

    def _written(self, token: str) -> str | bytes:
        """As the decoder does: one character that stands for no byte, and the token is taken as it is."""
        found = [self._bytes.get(character) for character in token]
        spelled = token.encode() if None in found else bytes(byte for byte in found if byte is not None)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return spelled


class _FallbackTokens(_Tokens):
    def _written(self, token: str) -> str | bytes:
        byte = _BYTE.fullmatch(token)
        return bytes((int(byte[1], 16),)) if byte else token.replace("\u2581", " ")


class ByteLevelDetokenizer:
    """Tokens are bytes (GPT-2, Llama 3, Qwen): what is no UTF-8 becomes U+FFFD, as soon as it cannot become a character any more."""

    def __init__(self, tokens: _ByteLevelTokens) -> None:
        self._tokens = tokens
        self._begun = b""  # of a character

    def push(self, ids: Iterable[int]) -> str:
        out = ""
        for token_id in ids:
            token = self._tokens[token_id]
            if type(token) is str and not self._begun:
                out += token
            elif token:
                out += self._bytes(token.encode() if isinstance(token, str) else token)
        return out

    def _bytes(self, token: bytes) -> str:
        data = self._begun + token
        out, read = utf_8_decode(data, "replace", False)
        self._begun = data[read:]
        return out

    def flush(self) -> str:
        out, self._begun = self._begun.decode(errors="replace"), b""
        return out


class FallbackDetokenizer:
    """Tokens are text, or single bytes for what the vocabulary lacks (Llama 2, Mistral, Gemma). A run of bytes is UTF-8 as a whole or
    U+FFFD for each byte of it, so text in a run is final when the run ends; one longer than 64 bytes is let go at a whole character.
    `strip`: the text's first space is left out."""

    def __init__(self, tokens: _FallbackTokens, *, strip: bool) -> None:
        self._tokens = tokens
        self._strip = strip
        self._run = b""
        self._broken = False  # the run is no UTF-8, whatever follows

    def push(self, ids: Iterable[int]) -> str:
        out = ""
        for token_id in ids:
            token = self._tokens[token_id]
            if isinstance(token, bytes):
                out += self._byte(token)
            elif token:
                out += self._end_run() + token if self._run or self._broken else token
        return self._stripped(out) if self._strip else out

    def _byte(self, byte: bytes) -> str:
        if self._broken:
            return _REPLACEMENT
        self._run += byte
        try:
            text, read = utf_8_decode(self._run, "strict", False)
        except UnicodeDecodeError:
            self._broken = True
            return self._let_go(_REPLACEMENT * len(self._run), len(self._run))
        return self._let_go(text, read) if len(self._run) > _MAX_HELD else ""

    def _let_go(self, text: str, read: int) -> str:
        self._run = self._run[read:]
        return text

    def _end_run(self) -> str:
        run, self._run, self._broken = self._run, b"", False
        try:
            return run.decode()
        except UnicodeDecodeError:  # its last character is not whole
            return _REPLACEMENT * len(run)

    def _stripped(self, out: str) -> str:
        self._strip = not out
        return out.removeprefix(" ")

    def flush(self) -> str:
        out = self._end_run()
        return self._stripped(out) if self._strip else out


class WindowDetokenizer:
    """Any tokenizer's `decode`.

    A decoder shows bytes that do not make a character yet as U+FFFD, and one with byte fallback then shows all bytes of the run so:
    while text ends in U+FFFD nothing of that run is final. The window decoded goes back to the last point but one where text was
    whole, for two reasons: decoders treat the first id apart (leading space), and a run must not start in mid-character.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._whole = 0  # ids of the window up to the last point where text was whole
        self._sent = 0  # characters of the window's text that are out

    def push(self, ids: Iterable[int]) -> str:
        self._window += ids
        text = self._decode(self._window)
        new = text.rstrip(_REPLACEMENT)[self._sent :]
        self._sent += len(new)
        if not text.endswith(_REPLACEMENT):
            self._shorten()
        elif len(self._window) - self._whole > _MAX_HELD:  # decoded anew with each token: unbounded it is quadratic
            new += self._let_go(text)
        return new

    def _shorten(self) -> None:
        tail = self._window[self._whole :]
        if shown := self._decode(tail):  # special ids alone show nothing and are no context
            self._window, self._whole, self._sent = tail, len(tail), len(shown)
        elif len(tail) > _MAX_HELD:
            del self._window[self._whole :]

    def _let_go(self, text: str) -> str:
        """Ends a long run that forms no character, where that splits none: its last ids may yet become one."""
        last = len(self._window) - _MAX_CHARACTER
        cuts = range(last, last - _MAX_CHARACTER, -1)
        at = next((at for at in cuts if self._decode(self._window[:at]) + self._decode(self._window[at:]) == text), last)
        shown = self._decode(self._window[:at])
        new = shown[self._sent :]
        self._window, self._whole, self._sent = self._window[at:], 0, max(0, self._sent - len(shown))
        return new

    def flush(self) -> str:
        new = self._decode(self._window)[self._sent :]
        self._sent += len(new)
        return new
