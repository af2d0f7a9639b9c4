"""Observed: what is known of one request, from its arrival to its last byte; and the line of the access log that is made of it.

Filled on the request's way by proxy/; proxy/observe.py reads it once, at the end. Counts, times and names only: no text of a prompt or an
answer, no key. Fields have the daemon's names where both have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pagoda_gateway.requests.errors import GatewayError
from pagoda_gateway.requests.finish_reasons import FinishReasons
from pagoda_gateway.requests.lifecycle import RequestLife
from pagoda_gateway.requests.limiter import Account

LEFT: Final = 499
_REFUSED: Final = 400
_MOST: Final = 128


@dataclass(slots=True)
class Observed:
    """One request. Times are milliseconds of the gateway's clock; `route` is the pattern of its path, "none" without one. `error` is what
    ended it; `why` is a word on that, such as why a key is not valid. `traceparent` is what a replica gets, "" for the client's own."""

    method: str
    route: str
    began_ms: float
    request_id: str = ""
    traceparent: str = ""
    tenant: str = ""
    key_id: str = ""
    life: RequestLife | None = None
    finish: FinishReasons | None = None
    account: Account | None = None
    error: GatewayError | None = None
    why: str = ""
    status: int = LEFT
    ended_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """From its first byte to its last."""
        return self.ended_ms - self.began_ms

    @property
    def ttft_ms(self) -> float | None:
        """To the first byte of a stream, the time in the hold queue included."""
        return self.life.first_ms - self.began_ms if self.life is not None and self.life.first_ms else None

    def end(self, status: int | None, now_ms: float) -> None:
        """The last byte was sent, or the client left (None). A stream that broke has the status that is counted for it, not its 200."""
        self.ended_ms = now_ms
        counted = self.life.status if self.life is not None else status
        self.status = LEFT if status is None or counted is None else counted


def is_logged(observed: Observed) -> bool:
    """Requests that cost something, and whatever was refused."""
    return observed.method == "POST" or observed.status >= _REFUSED


def access_line(observed: Observed) -> dict[str, Any]:
    """Returns the fields of the line `request`. What is not known is absent."""
    fields: dict[str, Any] = {
        "id": observed.request_id,
        "route": observed.route,
        "status": observed.status,
        "total_ms": round(observed.total_ms, 3),
        "tenant": observed.tenant or None,
        "key": observed.key_id or None,
        **_served(observed),
        **_refusal(observed),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _served(observed: Observed) -> dict[str, Any]:
    life = observed.life
    if life is None:
        return {}
    used = None if observed.account is None else observed.account.used
    return {
        "model": _shown(life.request.model) or None,
        "service": life.service or None,
        "endpoint": life.endpoint if life.asked_ms else None,
        "reason": life.reason or None,
        "held_ms": round(life.held_ms, 3),
        "retries": life.attempt - 1,
        "prompt_tokens": None if used is None else used.prompt,
        "cached_tokens": None if used is None else used.cached,
        "completion_tokens": None if used is None else used.answer,
        "ttft_ms": None if observed.ttft_ms is None else round(observed.ttft_ms, 3),
        "finish": (sorted(observed.finish.found) or None) if observed.finish is not None else None,
    }


def _refusal(observed: Observed) -> dict[str, Any]:
    error = observed.error
    return {} if error is None else {"refusal": error.code, "param": error.param, "why": observed.why or None}


def _shown(text: str) -> str:
    """A name of a client's, for a line of a terminal too."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST])
