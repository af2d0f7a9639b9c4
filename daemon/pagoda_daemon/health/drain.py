"""Drain: whether this replica is to take requests, by whose word, and until when running ones may go on. Pure: time is a parameter.

Two voices: orders over gRPC (`api/grpc/control.py`), which are fenced by an epoch and can be turned back, and SIGTERM
(`api/front/front.py`), which is neither. There is one deadline, from the first word that began the drain; a later word never moves it
further away, and no order brings it nearer. It is fixed by this machine's own steady clock: those who give orders may have clocks that are
minutes off, each by another amount.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from pagoda_daemon.core.errors import StaleOrder


class Until(NamedTuple):
    """A deadline in milliseconds: by our steady clock, which decides, and by the wall's as it stood then, for those who watch."""

    at_ms: int = 0
    unix_ms: int = 0


@dataclass(frozen=True, slots=True)
class Drain:
    """`until` is nothing where nothing is drained. `final`: SIGTERM was heard. `epoch`: the highest obeyed."""

    draining: bool = False
    final: bool = False
    until: Until = field(default=Until())
    epoch: int = 0

    def begin(self, until: Until, epoch: int) -> Self:
        """An order to drain; StaleOrder from an operator that leads no more. If it drains already, the first deadline stays."""
        self._fence(epoch)
        if self.draining:
            return replace(self, epoch=epoch)
        return replace(self, draining=True, until=until, epoch=epoch)

    def turn_back(self, epoch: int) -> Self:
        """An order to serve; StaleOrder from an operator that leads no more, or after SIGTERM: kubelet will not wait for us again."""
        self._fence(epoch)
        if self.final:
            raise StaleOrder("this replica was told to end (SIGTERM), which is not turned back")
        return replace(self, draining=False, until=Until(), epoch=epoch)

    def obeyed(self, epoch: int) -> Self:
        """An order that is not about the drain; StaleOrder from an operator that leads no more."""
        self._fence(epoch)
        return replace(self, epoch=epoch)

    def end(self, until: Until) -> Self:
        """SIGTERM, at whose deadline we are killed: an order's later one cannot hold, an earlier one does."""
        first = min(self.until, until) if self.draining else until
        return replace(self, draining=True, final=True, until=self.until if self.final else first)

    def left_s(self, now_ms: float) -> float:
        """Until running requests are ended; `now_ms` by the steady clock."""
        return max(0.0, (self.until.at_ms - now_ms) / 1000)

    def _fence(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleOrder(f"epoch {epoch} is over: an order of epoch {self.epoch} was obeyed")
