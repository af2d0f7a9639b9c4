"""Ledger: counts of requests and tokens against the limits of tenants. Pure: time is a parameter.

A gateway without a store keeps one for its own requests. Its semantics are those of the store's script (script.py), which tests compare.

A request reserves an upper bound of its tokens in the windows of its admission. What it used at last is charged to these windows, and the
rest goes back. `claim` is what counts as used already: the gateway raises it before it passes tokens on. If a gateway loses its lease,
its requests are charged their claims. A request that ends after that is charged what it used beyond its claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pagoda_gateway.limits.rules import Slot, needs, refusing

WindowKey = tuple[str, int, int]  # quota, length and start in ms


class WindowCount(NamedTuple):
    """What was admitted under a quota within a window that is not over."""

    quota: str
    length_ms: int
    start_ms: int
    requests: int
    tokens: int


class Ask(NamedTuple):
    """A request that wants to be admitted, under these limits. `id` is unique among all gateways."""

    id: str
    tenant: str
    slots: tuple[Slot, ...]
    tokens: int
    claim: int


class Verdict(NamedTuple):
    """Whether it was admitted. `used`: of each limit, with this request if it was admitted."""

    granted: bool
    used: tuple[int, ...]
    now_ms: int


@dataclass(slots=True)
class _Record:
    tokens: int
    claim: int
    windows: tuple[tuple[WindowKey, int], ...]  # with the limit of tokens
    quotas: tuple[str, ...]  # whose concurrency it takes


@dataclass(slots=True)
class _Count:
    requests: int = 0
    tokens: int = 0


class _Tenant:
    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.windows: dict[WindowKey, _Count] = {}
        self.open: dict[str, dict[str, _Record]] = {}  # by gateway
        self.leases: dict[str, int] = {}
        self.reaped: dict[str, _Record] = {}


class Ledger:
    """`lease_ms`: how long the requests of a silent gateway count."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._tenants: dict[str, _Tenant] = {}

    def reserve(self, ask: Ask, gateway: str, now_ms: int, *, force: bool = False) -> Verdict:
        """Admits a request if every limit has room for it; with `force` in any case."""
        tenant = self._tenants.setdefault(ask.tenant, _Tenant())
        _reap(tenant, now_ms)
        keys = [_key(slot, now_ms) for slot in ask.slots]
        used = [_used(tenant, slot, key) for slot, key in zip(ask.slots, keys, strict=True)]
        if ask.id in tenant.open.get(gateway, {}):  # it is asked again, because its answer was lost
            return Verdict(True, tuple(used), now_ms)
        if not force and refusing(ask.slots, used, ask.tokens) is not None:
            return Verdict(False, tuple(used), now_ms)
        _forget_past(tenant, now_ms)
        for slot, key in zip(ask.slots, keys, strict=True):
            _take(tenant, slot, key, needs(slot, ask.tokens))
        windows = tuple((key, slot.limit) for slot, key in zip(ask.slots, keys, strict=True) if slot.kind == "tokens")
        quotas = tuple(slot.rule for slot in ask.slots if slot.kind == "concurrency")
        tenant.open.setdefault(gateway, {})[ask.id] = _Record(ask.tokens, min(ask.claim, ask.tokens), windows, quotas)
        tenant.leases[gateway] = now_ms + self._lease_ms
        return Verdict(True, tuple(one + needs(slot, ask.tokens) for one, slot in zip(used, ask.slots, strict=True)), now_ms)

    def adjust(self, ask: Ask, gateway: str, now_ms: int) -> bool:
        """Changes what an admitted request reserves and claims. False if a window has no room for more; nothing changes then."""
        tenant = self._tenants.setdefault(ask.tenant, _Tenant())
        _reap(tenant, now_ms)
        record = tenant.open.get(gateway, {}).get(ask.id)
        if record is None:
            _charge_late(tenant, ask.id, ask.claim)
            return True
        more = ask.tokens - record.tokens
        known = [(tenant.windows[key], limit) for key, limit in record.windows if key in tenant.windows]
        if more > 0 and any(count.tokens + more > limit for count, limit in known):
            return False
        _add(tenant, record, more)
        record.tokens, record.claim = ask.tokens, min(ask.claim, ask.tokens)
        return True

    def settle(self, ask: Ask, gateway: str, now_ms: int) -> None:
        """Ends a request that used `ask.tokens`."""
        tenant = self._tenants.setdefault(ask.tenant, _Tenant())
        _reap(tenant, now_ms)
        record = tenant.open.get(gateway, {}).pop(ask.id, None)
        if record is None:
            _charge_late(tenant, ask.id, ask.tokens)
            tenant.reaped.pop(ask.id, None)
        else:
            _close(tenant, record, ask.tokens)

    def renew(self, tenant: str, gateway: str, now_ms: int) -> None:
        """A gateway is alive."""
        known = self._tenants.setdefault(tenant, _Tenant())
        _reap(known, now_ms)
        known.leases[gateway] = now_ms + self._lease_ms

    def windows(self, now_ms: int) -> list[WindowCount]:
        """Returns the counts of all windows that are not over, sorted."""
        counts = (entry for tenant in self._tenants.values() for entry in tenant.windows.items())
        return sorted(WindowCount(*key, count.requests, count.tokens) for key, count in counts if key[1] + key[2] > now_ms)

    def under_way(self, tenant: str) -> int:
        """Returns how many requests of a tenant are admitted and not ended."""
        known = self._tenants.get(tenant)
        return sum(map(len, known.open.values())) if known else 0


def _key(slot: Slot, now_ms: int) -> WindowKey:
    return slot.rule, slot.length_ms, now_ms - now_ms % slot.length_ms if slot.length_ms else 0


def _used(tenant: _Tenant, slot: Slot, key: WindowKey) -> int:
    if slot.kind == "concurrency":
        return tenant.running.get(slot.rule, 0)
    count = tenant.windows.get(key)
    return 0 if count is None else count.tokens if slot.kind == "tokens" else count.requests


def _take(tenant: _Tenant, slot: Slot, key: WindowKey, amount: int) -> None:
    if slot.kind == "concurrency":
        tenant.running[slot.rule] = tenant.running.get(slot.rule, 0) + amount
        return
    count = tenant.windows.setdefault(key, _Count())
    if slot.kind == "tokens":
        count.tokens += amount
    else:
        count.requests += amount


def _add(tenant: _Tenant, record: _Record, tokens: int) -> None:
    """To the windows of the admission that still count."""
    for key, _ in record.windows:
        if key in tenant.windows:
            tenant.windows[key].tokens += tokens


def _close(tenant: _Tenant, record: _Record, tokens: int) -> None:
    _add(tenant, record, tokens - record.tokens)
    for quota in record.quotas:
        tenant.running[quota] -= 1


def _charge_late(tenant: _Tenant, request: str, tokens: int) -> None:
    """A request whose gateway lost its lease: it was charged its claim."""
    record = tenant.reaped.get(request)
    if record is not None and tokens > record.claim:
        _add(tenant, record, tokens - record.claim)
        record.claim = tokens


def _reap(tenant: _Tenant, now_ms: int) -> None:
    for gateway in [gateway for gateway, until in tenant.leases.items() if until <= now_ms]:
        del tenant.leases[gateway]
        for request, record in tenant.open.pop(gateway, {}).items():
            _close(tenant, record, record.claim)
            tenant.reaped[request] = record


def _forget_past(tenant: _Tenant, now_ms: int) -> None:
    if any(start + length <= now_ms for _, length, start in tenant.windows):
        tenant.windows = {key: count for key, count in tenant.windows.items() if key[1] + key[2] > now_ms}
