"""The wording of limits for a client: headers of every answer, and why a request is refused and when to come back. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from pagoda_gateway.limits.ledger import Ask, Verdict
from pagoda_gateway.limits.rules import Slot, needs, refusing

Style = Literal["openai", "anthropic"]

# A request that ends gives its place back; a second is the shortest time that clients understand.
_CONCURRENCY_S: Final = 1
_CLIENTS_WAIT_S: Final = 120  # clients do not retry if the header says more
_OPENAI: Final = "x-ratelimit-{what}-{kind}"
_ANTHROPIC: Final = "anthropic-ratelimit-{kind}-{what}"


class Refusal(NamedTuple):
    """A refusal: the limit's kind and quota, the sentence, and seconds until the request may be admitted (None: never)."""

    kind: str
    quota: str
    message: str
    retry_after: int | None

    @property
    def worth_a_retry(self) -> bool:
        """Whether a client's own retry comes late enough and is of use."""
        return self.retry_after is not None and self.retry_after <= _CLIENTS_WAIT_S


def headers(slots: Sequence[Slot], verdict: Verdict, style: Style) -> dict[str, str]:
    """Returns limit, remaining and reset of the tightest window of requests and of tokens, in an API's own words."""
    found = {}
    form = _ANTHROPIC if style == "anthropic" else _OPENAI
    for kind in ("requests", "tokens"):
        windows = [(slot.limit - used, slot) for slot, used in zip(slots, verdict.used, strict=True) if slot.kind == kind]
        if not windows:
            continue
        remaining, slot = min(windows, key=lambda one: (one[0], -one[1].length_ms))
        reset = _reset(_left_ms(slot, verdict.now_ms), verdict.now_ms, style)
        for what, value in (("limit", str(slot.limit)), ("remaining", str(max(0, remaining))), ("reset", reset)):
            found[form.format(what=what, kind=kind)] = value
    return found


def refusal(ask: Ask, verdict: Verdict, gateways: int) -> Refusal:
    """Returns why a request was refused. `gateways`: how many share the limits without a store, 1 if the limits are not divided."""
    at = refusing(ask.slots, verdict.used, ask.tokens)
    slot, used = ask.slots[at or 0], verdict.used[at or 0]
    share = f" (this gateway's share: the limit is divided among {gateways} gateways, which have no common store)" if gateways > 1 else ""
    if slot.kind == "concurrency":
        terms = f"allows {slot.limit} requests at the same time{share}, and {used} are under way"
        return Refusal(slot.kind, slot.rule, f"TenantQuota {slot.rule} {terms}", _CONCURRENCY_S if slot.limit else None)
    allowed = f"TenantQuota {slot.rule} allows {slot.limit} {slot.kind} within {slot.window}{share}"
    if needs(slot, ask.tokens) > slot.limit:
        why = f"this request reserves {ask.tokens}, which never fits" if slot.kind == "tokens" else "which admits no request"
        return Refusal(slot.kind, slot.rule, f"{allowed}, and {why}; send a shorter prompt or a smaller max_tokens", None)
    seconds = max(1, math.ceil(_left_ms(slot, verdict.now_ms) / 1000))
    took = f"{used} are used or reserved, and this request reserves {ask.tokens}" if slot.kind == "tokens" else f"{used} were admitted"
    return Refusal(slot.kind, slot.rule, f"{allowed}: {took}. The window ends in {seconds} s", seconds)


def _left_ms(slot: Slot, now_ms: int) -> int:
    return slot.length_ms - now_ms % slot.length_ms


def _reset(left_ms: int, now_ms: int, style: Style) -> str:
    """OpenAI says how long as a Go duration, Anthropic says when as RFC 3339."""
    if style == "anthropic":
        return datetime.fromtimestamp((now_ms + left_ms) // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    minutes, seconds = divmod(math.ceil(left_ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"
