"""Chain: the names of one request's blocks, made when first wanted. Made by `scheduler.admission`, read by `kv.index`; pure."""

from __future__ import annotations

from functools import lru_cache

from pagoda_contracts.prefix import Scope, packed_hashes, root

from pagoda_daemon.core.arrays import Ints


class Chain:
    """The names of one request's blocks, made when first wanted. Survives preemption with the request."""

    __slots__ = ("_block_size", "adapter", "names", "root", "text_prefixes")

    def __init__(self, root: bytes, block_size: int, adapter: str = "") -> None:
        self.root = root
        self.adapter = adapter  # the digest that is in `root`, for readers of events
        self.names: list[bytes] = []
        self.text_prefixes: tuple[
            tuple[int, bytes], ...
        ] = ()  # what `kv.text_prefixes` will enter: (block number, name of a text), by number
        self._block_size = block_size

    @classmethod
    def of(cls, scope: Scope, block_size: int) -> Chain:
        """Nothing named yet, among those that share `scope`."""
        return cls(_root(scope, block_size), block_size, scope.adapter)

    def copy(self) -> Chain:
        """For another answer to the same prompt, which goes on differently."""
        twin = Chain(self.root, self._block_size, self.adapter)
        twin.names = list(self.names)
        return twin

    def extend(self, tokens: Ints) -> None:
        """Name every full block of `tokens`, which go on from those named before."""
        full = tokens.size // self._block_size
        if full > len(self.names):
            fresh = tokens[len(self.names) * self._block_size : full * self._block_size]
            self.names += packed_hashes(self.parent(len(self.names)), packed(fresh), self._block_size)

    def name(self, block: int, piece: bytes) -> bytes:
        """Of block number `block`, which holds `piece`; those before it are named."""
        if block == len(self.names):
            self.names += packed_hashes(self.parent(block), piece, self._block_size)
        return self.names[block]

    def parent(self, block: int) -> bytes:
        """The name before block number `block`."""
        return self.names[block - 1] if block else self.root


@lru_cache(maxsize=1024)
def _root(scope: Scope, block_size: int) -> bytes:
    """A pure function of few values: one for each tenant and adapter at work."""
    return root(scope, "tokens", block_size)


def packed(tokens: Ints) -> bytes:
    """As the contracts pack them."""
    return tokens.astype("<i4", copy=False).tobytes()
