"""TextPrefixes: which beginnings of texts, as a gateway names them, are resident in blocks. Called by `kv.accounts`; pure.

A gateway does not tokenise: it names chunks of text (contracts, `prefix.py`, kind "text"). A request brings such names and where in its
prompt each one ends; here each is tied to the last full block before that place, becomes resident when that block is known, and is
evicted with it. A hint for routing, never a reason to share: a entry decides nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagoda_daemon.kv.chain import Chain

MOST = 32_768
"""Names kept, a few MB: 512 beginnings of 32 KiB each. The oldest goes when there are more."""


class TextPrefixes:
    """Changes since the last `take` are kept by name, so that they are bounded too."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._block_of: dict[bytes, int] = {}
        self._names: dict[int, list[bytes]] = {}
        self._changes: dict[bytes, bool] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def settle(self, chain: Chain, blocks: Sequence[int], first: int) -> None:
        """`blocks`, from number `first` of the request on, hold known content: what `chain` has to entry to them is resident."""
        end = first + len(blocks)
        due = [entry for entry in chain.text_prefixes if entry[0] < end]
        chain.text_prefixes = chain.text_prefixes[len(due) :]
        for number, name in due:
            if number >= first and name not in self._block_of:
                self._add(name, blocks[number - first])

    def _add(self, name: bytes, block: int) -> None:
        if len(self._block_of) >= self._most:
            self._remove(next(iter(self._block_of)))
        self._block_of[name] = block
        self._names.setdefault(block, []).append(name)
        self._changes[name] = True

    def _remove(self, name: bytes) -> None:
        block = self._block_of.pop(name)
        names = self._names[block]
        names.remove(name)
        if not names:
            del self._names[block]
        self._changes[name] = False

    def lost(self, blocks: Iterable[int]) -> None:
        """`blocks` are taken for other content."""
        if not self._names:
            return
        for block in blocks:
            for name in self._names.pop(block, ()):
                del self._block_of[name]
                self._changes[name] = False

    def take(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """What became resident and what was evicted since it was last asked."""
        changes, self._changes = self._changes, {}
        return tuple(name for name, here in changes.items() if here), tuple(name for name, here in changes.items() if not here)


def block_ends(prefixes: Iterable[tuple[bytes, int]], block_size: int) -> tuple[tuple[int, bytes], ...]:
    """(block number, name) of each (name, tokens), by number; what ends within the first block has none to be tied to."""
    return tuple(sorted((tokens // block_size - 1, name) for name, tokens in prefixes if tokens >= block_size))
