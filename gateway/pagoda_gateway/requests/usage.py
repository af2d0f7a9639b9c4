"""Usage: tokens that replicas counted, by tenant, key, service, adapter and class; as metrics, and as a line of JSON for each request.

Called by proxy/handlers.py when a request has ended, however it ended. A request that no replica counted is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pagoda_contracts.usage import Used

from pagoda_gateway.requests.lifecycle import RequestLife
from pagoda_gateway.requests.metrics import Metrics

# Five series each. More have `other` as their key and adapter, and beyond twice as many all is `other`, as in llm-d's endpoint picker.
MAX_PAYERS: Final = 1000
_OTHER: Final = "other"


class Payer(NamedTuple):
    """Whose tokens they are, and of what. An anonymous client has no tenant and no key."""

    tenant: str
    key: str
    service: str
    adapter: str
    tier: str


def payer_of(life: RequestLife, key: str) -> Payer:
    """Returns who pays for a request, by what is known of it at its end."""
    return Payer(life.request.tenant, key, life.service, life.adapter, life.request.tier)


class Ended(NamedTuple):
    """A request's end, for its line. `status` 0: it was cut, by its client or by a fault. `target`: the API outside that answered."""

    request_id: str
    model: str
    status: int
    target: str = ""


def ended(life: RequestLife, status: int) -> Ended:
    """Returns a request's end."""
    return Ended(life.request_id, life.request.model, status, life.target)


class Usage:
    """`write` takes the fields of a line; None: no lines are written."""

    def __init__(self, metrics: Metrics, write: Callable[..., Any] | None) -> None:
        self._metrics, self._write = metrics, write
        self._known: set[Payer] = set()

    def record(self, payer: Payer, used: Used, end: Ended) -> None:
        """A request has ended."""
        self._metrics.used(self._bounded(payer), used)
        if self._write is not None:
            labels = {"tenant": payer.tenant, "key": payer.key, "service": payer.service, "adapter": payer.adapter, "class": payer.tier}
            tokens = {"prompt_tokens": used.prompt - used.cached, "cached_tokens": used.cached, "answer_tokens": used.answer}
            self._write("usage", **labels, model=end.model, target=end.target, **tokens, request_id=end.request_id, status=end.status)

    def _bounded(self, payer: Payer) -> Payer:
        folded = payer._replace(key=_OTHER, adapter=_OTHER)
        for one, most in ((payer, MAX_PAYERS), (folded, 2 * MAX_PAYERS)):
            if one in self._known or len(self._known) < most:
                self._known.add(one)
                return one
        return Payer(*[_OTHER] * len(payer))
