"""What all gateways admitted under each quota: their reports, summed. Pure; fed by client/listen.py, asked by status.py."""

from __future__ import annotations

from collections.abc import Iterable

from pagoda_contracts.pb.demand_pb2 import QuotaReport
from pagoda_contracts.resources.tenant import TenantQuotaSpec, WindowLimit, WindowUsage
from pagoda_contracts.units import parse_duration


class QuotaUsages:
    """The last report of each gateway. One that ended takes its counts along, so usage within a window may shrink then."""

    def __init__(self) -> None:
        self._reports: dict[str, QuotaReport] = {}

    def hear(self, gateway: str, report: QuotaReport) -> None:
        """A gateway reported what it admitted."""
        self._reports[gateway] = report

    def forget(self, gateway: str) -> None:
        """A gateway is gone for good."""
        self._reports.pop(gateway, None)

    def of(self, quota: str, spec: TenantQuotaSpec, now_s: float) -> tuple[WindowUsage, ...] | None:
        """Returns what was used of each window of a quota; None while no gateway has reported anything."""
        if not self._reports:
            return None
        return tuple(_window(limit, self._sums(quota, limit, now_s)) for limit in spec.limits)

    def _sums(self, quota: str, limit: WindowLimit, now_s: float) -> tuple[int, int]:
        """Requests and tokens of the newest window that a gateway reported, if it is not over: clocks differ a little."""
        length_ms = round(parse_duration(limit.window) * 1000)
        rows = [row for report in self._reports.values() for row in report.windows if (row.quota, row.window_ms) == (quota, length_ms)]
        newest = max((row.start_unix_ms for row in rows), default=0)
        rows = [row for row in rows if row.start_unix_ms == newest and newest + length_ms > now_s * 1000]
        return sum(row.requests for row in rows), sum(row.tokens for row in rows)


def _window(limit: WindowLimit, sums: tuple[int, int]) -> WindowUsage:
    requests, tokens = (used if most is not None else None for used, most in zip(sums, (limit.requests, limit.tokens), strict=True))
    return WindowUsage(
        window=limit.window,
        requests=requests,
        tokens=tokens,
        requests_left=_left(limit.requests, requests),
        tokens_left=_left(limit.tokens, tokens),
    )


def _left(most: int | None, used: int | None) -> int | None:
    return None if most is None or used is None else max(0, most - used)


def summary(windows: Iterable[WindowUsage], limits: Iterable[WindowLimit]) -> str | None:
    """Returns usage in words, `20/600 requests, 1200/100000 tokens in 1m`; None without windows. A window without a limit of its length is
    of an earlier spec. Used and left do not add up to a limit that is exceeded, so they do not tell it."""
    known = {limit.window: limit for limit in limits}
    said = [(_words(one, known[one.window]), one.window) for one in windows if one.window in known]
    return "; ".join(f"{', '.join(words)} in {window}" for words, window in said if words) or None


def _words(window: WindowUsage, limit: WindowLimit) -> list[str]:
    kinds = (("requests", window.requests, limit.requests), ("tokens", window.tokens, limit.tokens))
    return [f"{used}/{most} {kind}" for kind, used, most in kinds if used is not None and most is not None]
