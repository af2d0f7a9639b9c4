"""BlockLedger: what becomes of blocks, for those outside who keep a picture of this cache. Made by the engine where events are wanted,
fed by `kv.accounts`; pure. Without a reader of events there is no ledger, and nothing is done for them.

A content is stored when its first block is known and removed with its last one. Hashes are the last 8 bytes of the blocks' names as a
number, the form that vLLM's readers expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.kv.chain import Chain


class Stored(NamedTuple):
    """A chain of blocks became known, after `parent` (None: a prompt begins with them). `adapter`: the digest of the adapter that computed
    them."""

    hashes: tuple[int, ...]
    parent: int | None
    token_ids: tuple[int, ...]
    adapter: str = ""


class Removed(NamedTuple):
    """No block holds these contents any more."""

    hashes: tuple[int, ...]


class BlockLedger:
    """Events since the last `take`, in order."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._hash_of: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self._events: list[Stored | Removed] = []

    def stored(self, chain: Chain, blocks: Sequence[int], first: int, tokens: Ints) -> None:
        """`blocks`, from number `first` on, hold what `tokens`, the whole context so far, has there."""
        chain.extend(tokens)
        begin = first
        for number, block in enumerate(blocks, first):
            if self._hold(block, _number(chain.names[number])):
                continue
            self._say(chain, begin, number, tokens)
            begin = number + 1
        self._say(chain, begin, first + len(blocks), tokens)

    def _hold(self, block: int, content: int) -> bool:
        """Whether that content is new."""
        if block in self._hash_of:
            return False
        self._hash_of[block] = content
        self._holders[content] = self._holders.get(content, 0) + 1
        return self._holders[content] == 1

    def _say(self, chain: Chain, begin: int, end: int, tokens: Ints) -> None:
        if begin < end:
            hashes = tuple(_number(name) for name in chain.names[begin:end])
            ids = tuple(tokens[begin * self.block_size : end * self.block_size].tolist())
            self._events.append(Stored(hashes, _number(chain.names[begin - 1]) if begin else None, ids, chain.adapter))

    def removed(self, blocks: Iterable[int]) -> None:
        """`blocks` are taken for other content."""
        gone = []
        for block in blocks:
            content = self._hash_of.pop(block, None)
            if content is None:
                continue
            self._holders[content] -= 1
            if not self._holders[content]:
                del self._holders[content]
                gone.append(content)
        if gone:
            self._events.append(Removed(tuple(gone)))

    def take(self) -> list[Stored | Removed]:
        """The reader has them from here on."""
        events, self._events = self._events, []
        return events


def _number(name: bytes) -> int:
    return int.from_bytes(name[-8:], "big")
