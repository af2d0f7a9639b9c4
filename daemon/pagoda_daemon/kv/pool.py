"""BlockPool: which KV blocks are free and how often each is used. Pure accounts; the bytes are the runner's.

Called by `kv.tables` and `kv.accounts`. A block with more than one reference is shared (prefix reuse, forks); it is free again when the
last one goes. A free block may still be *kept*: it has content that may be wanted again, so it waits at the end of the queue and
can be shared once more; taking it for other content evicts it.

The queue is a doubly linked ring in two arrays: taking, releasing and pulling a kept block out of its middle cost the same whatever the
pool's size. `array` and not numpy: reading one element costs 30 ns instead of 100.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from pagoda_daemon.core.errors import DaemonError
from pagoda_daemon.kv.residency import Residency


class BrokenAccountsError(DaemonError):
    """Blocks were lost, taken twice or freed twice: our own bug, never a user's."""


class BlockPool:
    """Blocks 0..total-1; node `total` joins the ring's ends. `evict` hears of the kept blocks that are taken for something else."""

    def __init__(self, total: int, evict: Callable[[list[int]], None] | None = None) -> None:
        self.total = total
        self.kept = 0
        self.resting = 0  # kept ones without references
        self._evict = evict or _nobody
        self._refs = array("i", bytes(4 * total))
        self._is_kept = bytearray(total)
        self._next = array("i", [*range(1, total + 1), 0])
        self._prev = array("i", [total, *range(total)])
        self._free = total
        self.residency = Residency(total)

    @property
    def free(self) -> int:
        """Blocks without references, kept or not."""
        return self._free

    @property
    def used(self) -> int:
        return self.total - self._free

    def refs(self, block: int) -> int:
        """How many references `block` has."""
        return self._refs[block]

    def take(self, count: int) -> list[int]:
        """`count` blocks with one reference each: those without content first, then the kept ones that rested longest. The caller
        has asked `free` before."""
        if count > self._free:
            raise BrokenAccountsError(f"{count} blocks taken, {self._free} are free")
        following, refs, is_kept, head = self._next, self._refs, self._is_kept, self.total
        taken, evicted = [], []
        block = following[head]
        for _ in range(count):
            taken.append(block)
            refs[block] = 1
            if is_kept[block]:
                is_kept[block] = 0
                evicted.append(block)
            block = following[block]
        following[head] = block
        self._prev[block] = head
        self._free -= count
        if evicted:
            self.kept -= len(evicted)
            self.resting -= len(evicted)
            self._evict(evicted)
            self.residency.evicted(evicted)
        self.residency.taken(taken)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """One more reference to each of `blocks`, which are in use or kept."""
        refs, taken = self._refs, list(blocks)
        for block in taken:
            if refs[block] == 0:
                self._revive(block)
            refs[block] += 1
        self.residency.taken_up(taken)

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less to each of `blocks`; a chain's last block first, so that it is also evicted first."""
        refs, is_kept, following, before, end = self._refs, self._is_kept, self._next, self._prev, self.total
        for block in blocks:
            left = refs[block] - 1
            if left < 0:
                raise BrokenAccountsError(f"free block {block} is released")
            refs[block] = left
            if left == 0:
                at = before[end] if is_kept[block] else end
                after = following[at]
                following[at] = before[after] = block
                before[block], following[block] = at, after
                self._free += 1
                self.resting += is_kept[block]

    def keep(self, blocks: Iterable[int]) -> None:
        """`blocks`, which are in use, hold content that may be wanted again."""
        refs, is_kept = self._refs, self._is_kept
        for block in blocks:
            if not refs[block]:
                raise BrokenAccountsError(f"free block {block} is to be kept")
            if not is_kept[block]:
                is_kept[block] = 1
                self.kept += 1

    def forget(self, block: int) -> None:
        """The content of `block` is wanted no more."""
        self.kept -= self._is_kept[block]
        if not self._refs[block]:
            self.resting -= self._is_kept[block]
        self._is_kept[block] = 0

    def _revive(self, block: int) -> None:
        if not self._is_kept[block]:
            raise BrokenAccountsError(f"block {block} is free and without content, but a request is about to share it")
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._free -= 1
        self.resting -= 1

    def queue(self) -> list[int]:
        """The free blocks in the order in which they would be taken."""
        found: list[int] = []
        block = self._next[self.total]
        while block != self.total and len(found) <= self.total:
            found.append(block)
            block = self._next[block]
        return found

    def check(self, counted: Sequence[int]) -> None:
        """Raise unless each block has as many references as `counted` says and the others are queued as free, exactly once."""
        queued = self.queue()
        if list(counted) != list(self._refs):
            wrong = [(b, self._refs[b], counted[b]) for b in range(self.total) if self._refs[b] != counted[b]]
            raise BrokenAccountsError(f"blocks (number, references, found): {wrong[:8]}")
        if len(queued) != self._free or set(queued) != {b for b in range(self.total) if not self._refs[b]}:
            raise BrokenAccountsError(f"{len(queued)} blocks are queued, {self._free} are counted as free")


def _nobody(_blocks: list[int]) -> None:
    """Without an index nothing is kept, so nothing is evicted."""
