"""Names of prompt beginnings: chained hashes over token blocks (the daemon's blocks) and over text chunks (the gateway does not tokenise).

Equal chains mean equal beginnings for the same tenant, model and adapter, on every machine and in every language: the vectors in
tests/data/v0.1/prefix-vectors.json are the specification's examples. Pure, no state.

    root    = BLAKE2b-128( "pagoda.prefix.v1" 00 kind 00 u32(size) str(salt) str(model) str(adapter) )
    hash(i) = BLAKE2b-128( hash(i-1) piece(i) ), hash(-1) = root

`kind` is "tokens" or "text"; u32 is 4 bytes, little endian; str is u32(length in bytes) and UTF-8. A piece is `size` tokens as u32 each, or
`size` bytes of the normalised text's UTF-8. Only full pieces are hashed: what may still grow has no name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

HASH_BYTES: Final = 16
TEXT_CHUNK_BYTES: Final = 512
# 64 chunks are 32 KiB of text: beyond it another chunk no longer changes which replica is best.
MAX_TEXT_HASHES: Final = 64
MAX_TOKEN: Final = 2**32 - 1
_MAX_HEADER: Final = -(-MAX_TEXT_HASHES * HASH_BYTES // 3) * 4

_VERSION: Final = b"pagoda.prefix.v1"
# As in Unicode's Stream-Safe Text Format: no language needs more marks on one character.
_MAX_MARKS: Final = 30
# The only characters of class 0 that NFC takes apart into marks; all are Tibetan.
_STACKED: Final = "\u0f73\u0f75\u0f81"
_STACKED_PART: Final = "\u0f71"
_ROLE_END: Final = "\x1f"
_MESSAGE_END: Final = "\x1e"


class Scope(NamedTuple):
    """Who may share: `salt` of the tenant (secret, so that hashes tell nothing about other tenants' prompts), model digest or name,
    and the adapter's content digest, empty without one."""

    salt: str
    model: str
    adapter: str = ""


def token_hashes(scope: Scope, tokens: Sequence[int], block_size: int, parent: bytes | None = None) -> list[bytes]:
    """One hash per full block of tokens. With `parent`, the hash of the block before, the chain goes on there."""
    if block_size < 1:
        raise ValueError(f"the block size must be at least 1, got {block_size}")
    full = len(tokens) - len(tokens) % block_size
    try:
        pieces = (struct.pack(f"<{block_size}I", *tokens[at : at + block_size]) for at in range(0, full, block_size))
        return list(_chain(parent if parent is not None else root(scope, "tokens", block_size), pieces))
    except struct.error:
        raise ValueError(f"a token id is outside 0 to {MAX_TOKEN}") from None


def packed_hashes(parent: bytes, packed: bytes, block_size: int) -> list[bytes]:
    """`token_hashes` of tokens that are packed already, 4 bytes each, little endian: what an array of them is in memory."""
    piece, found = 4 * block_size, []
    for at in range(0, len(packed) - piece + 1, piece):
        parent = hashlib.blake2b(parent + packed[at : at + piece], digest_size=HASH_BYTES).digest()
        found.append(parent)
    return found


def text_hashes(scope: Scope, text: str, most: int = MAX_TEXT_HASHES) -> list[bytes]:
    """One hash per full chunk of the normalised text, at most so many from the beginning."""
    data = normalise(text).encode("utf-8", errors="replace")
    count = min(len(data) // TEXT_CHUNK_BYTES, most)
    pieces = (data[at * TEXT_CHUNK_BYTES : (at + 1) * TEXT_CHUNK_BYTES] for at in range(count))
    return list(_chain(root(scope, "text", TEXT_CHUNK_BYTES), pieces))


def normalise(text: str) -> str:
    """Unicode NFC, and one line feed for each kind of line end. A text with more than 30 combining marks in a row keeps its characters:
    to sort n marks takes n * n steps, which would hold up all other requests."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return lines if not lines.isascii() and _has_many_marks(lines) else unicodedata.normalize("NFC", lines)


def _has_many_marks(text: str) -> bool:
    for stacked in _STACKED:
        text = text.replace(stacked, _STACKED_PART)
    return b"\1" * (_MAX_MARKS + 1) in bytes(map(bool, map(unicodedata.combining, text)))


def chat_text(messages: Iterable[tuple[str, str]]) -> str:
    """(role, content) of each message as one text, whose beginning is the text of the first messages."""
    return "".join(f"{role}{_ROLE_END}{content}{_MESSAGE_END}" for role, content in messages)


def to_header(hashes: Iterable[bytes]) -> str:
    """How hashes travel in `names.HEADER_PREFIX_HASHES`: joined, as URL-safe base64."""
    return base64.urlsafe_b64encode(b"".join(hashes)).decode()


def from_header(text: str) -> tuple[bytes, ...]:
    """Reads `to_header`; ValueError where it is none."""
    if len(text) > _MAX_HEADER:
        raise ValueError(f"must be at most {_MAX_HEADER} characters, got {len(text)}")
    try:
        data = base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {error}") from None
    if len(data) % HASH_BYTES:
        raise ValueError(f"must be a multiple of {HASH_BYTES} bytes, got {len(data)}")
    return tuple(data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES))


def root(scope: Scope, kind: str, size: int) -> bytes:
    """Where a chain begins; differs for every scope."""
    return _hash(b"\0".join((_VERSION, kind.encode(), struct.pack("<I", size) + b"".join(map(_prefixed, scope)))))


def _prefixed(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _chain(parent: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        parent = _hash(parent + piece)
        yield parent


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()
