"""Caller: the identity of a request, and which of its own statements are trusted. Pure; made by `auth.py`, read by every interface.

A gateway, which has proven that it is one, speaks for its clients: tenant, weight, tier, priority, cache salt and prefix hashes are its
word. From anybody else they are not read at all. A deadline is taken from everybody, since it only shortens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from msgspec import structs
from pagoda_contracts.names import (
    HEADER_ANSWERED,
    HEADER_CACHE_SALT,
    HEADER_CONTINUABLE,
    HEADER_DEADLINE,
    HEADER_DEFAULT_MAX_TOKENS,
    HEADER_MAX_CONTEXT,
    HEADER_PREFIX_HASHES,
    HEADER_PRIORITY,
    HEADER_REPORT_USAGE,
    HEADER_RESERVED_TOKENS,
    HEADER_TENANT,
    HEADER_TIER,
    HEADER_WEIGHT,
    ROLE_ADMIN,
    ROLE_GATEWAY,
    ROLE_METRICS,
    ROLE_OPERATOR,
)
from pagoda_contracts.prefix import MAX_TEXT_HASHES, TEXT_CHUNK_BYTES, from_header

from pagoda_daemon.core.errors import BadRequest, shown
from pagoda_daemon.core.messages import Prefix, Submit
from pagoda_daemon.scheduler.request import MAX_PRIORITY

ROLE_CLIENT: Final = "client"  # holds a bearer key
ROLE_ANYBODY: Final = "anybody"  # where callers are not told apart: stand-alone
ROLES: Final = frozenset((ROLE_CLIENT, ROLE_ANYBODY, ROLE_GATEWAY, ROLE_OPERATOR, ROLE_METRICS, ROLE_ADMIN))

_N = TypeVar("_N", int, float)
Tier = Literal["interactive", "batch"]
_TIERS: Final[Mapping[str, Tier]] = {"interactive": "interactive", "batch": "batch"}
MAX_TENANT: Final = 253  # a namespace or a key's name
MAX_SALT: Final = 128
MAX_WEIGHT: Final = 1e6
MAX_DEADLINE_MS: Final = 7 * 24 * 3600 * 1000
HEADER_API_KEY: Final = "x-api-key"  # of Anthropic's clients
_NAME: Final = re.compile(r"[A-Za-z0-9._:/@=+-]*")


@dataclass(frozen=True, slots=True)
class Principal:
    """Proven: a role, and the subject or key it was proven by (its name, never the secret)."""

    role: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Bounds of the tenant's quota, in tokens: `reserved` for all prompts and answers, `context` for prompt and answer, `default` for an
    answer whose request sets no bound. None: not bounded. `reports`: the gateway gets what was used (contracts, `notes.py`)."""

    reserved: int | None = None
    context: int | None = None
    default: int | None = None
    reports: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request is to be treated. `deadline_ms` is on this machine's monotonic clock; `prefixes` name the text's beginnings.
    `continuable`: the caller can continue the stream elsewhere, by the tokens in its notes. The last `answered` bytes of the body are
    those of a stream that goes on here."""

    tenant: str = ""
    weight: float = 1.0
    tier: Tier = "interactive"
    priority: int = 0
    cache_salt: str = ""
    deadline_ms: int | None = None
    prefixes: tuple[bytes, ...] = ()
    continuable: bool = False
    answered: int = 0
    allowance: Allowance = Allowance()

    def until(self, deadline_ms: int) -> Terms:
        """The same, with this deadline."""
        return replace(self, deadline_ms=deadline_ms)

    def stamp(self, message: Submit, text_bytes: int | None = None) -> Submit:
        """The request as the engine is to see it. `text_bytes` of the text that `prefixes` name, where it is known."""
        return structs.replace(
            message,
            tenant=self.tenant,
            weight=self.weight,
            tier=self.tier,
            priority=self.priority,
            cache_salt=self.cache_salt,
            deadline_ms=self.deadline_ms,
            prefixes=located(self.prefixes, len(message.prompt), text_bytes),
        )


PLAIN: Final = Terms()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who made this request, and on which terms."""

    principal: Principal
    terms: Terms = PLAIN

    @property
    def role(self) -> str:
        return self.principal.role


ANYBODY: Final = Principal(ROLE_ANYBODY)


def caller(principal: Principal, headers: Mapping[str, str], arrived_s: float) -> Caller:
    """From an HTTP request's headers; BadRequest where one that is trusted makes no sense."""
    deadline = _deadline(headers.get(HEADER_DEADLINE), arrived_s)
    if principal.role != ROLE_GATEWAY:
        return Caller(principal, own_terms(principal, deadline))
    terms = Terms(
        tenant=named(HEADER_TENANT, headers.get(HEADER_TENANT, ""), MAX_TENANT),
        weight=checked_weight(_number(HEADER_WEIGHT, headers.get(HEADER_WEIGHT, "1"), float)),
        tier=_tier(headers.get(HEADER_TIER, "interactive")),
        priority=checked_priority(_number(HEADER_PRIORITY, headers.get(HEADER_PRIORITY, "0"), int)),
        cache_salt=named(HEADER_CACHE_SALT, headers.get(HEADER_CACHE_SALT, ""), MAX_SALT),
        deadline_ms=deadline,
        prefixes=_prefixes(headers.get(HEADER_PREFIX_HASHES, "")),
        continuable=HEADER_CONTINUABLE in headers,
        answered=_number(HEADER_ANSWERED, headers.get(HEADER_ANSWERED, "0"), int),
        allowance=_allowance(headers),
    )
    return Caller(principal, terms)


def authorization(headers: Mapping[str, str]) -> str | None:
    """Returns the value of the header Authorization, or what it would be for the key in Anthropic's header. If both are there, the first
    one counts, so that no request is tried with two keys."""
    given, key = headers.get("authorization"), headers.get(HEADER_API_KEY)
    return f"Bearer {key}" if given is None and key is not None else given


def own_terms(principal: Principal, deadline_ms: int | None) -> Terms:
    """A client that calls directly: each key is a tenant of its own, so that keys share no cached beginnings."""
    return Terms(tenant=f"key:{principal.name}" if principal.role == ROLE_CLIENT else "", deadline_ms=deadline_ms)


def located(hashes: tuple[bytes, ...], tokens: int, text_bytes: int | None) -> tuple[Prefix, ...]:
    """How many of the prompt's tokens each named beginning takes, in proportion to the text's bytes (the gateway does not tokenise).

    Where the bytes are unknown the last hash stands for the whole prompt: too long rather than too short, so that what is called
    resident is.
    """
    if not hashes:
        return ()
    whole = len(hashes) if text_bytes is None else max(len(hashes), text_bytes / TEXT_CHUNK_BYTES)
    return tuple(Prefix(one, min(tokens, math.ceil(tokens * (at + 1) / whole))) for at, one in enumerate(hashes))


def named(what: str, value: str, most: int) -> str:
    """A word that becomes a key of ours; BadRequest where it could be taken for something else."""
    if len(value) > most or not _NAME.fullmatch(value):
        raise BadRequest(f"{what} must be at most {most} letters, digits and ._:/@=+-, got {shown(value)}", what)
    return value


def checked_weight(value: float) -> float:
    """A tenant's share against others."""
    if not (math.isfinite(value) and 0 < value <= MAX_WEIGHT):
        raise BadRequest(f"{HEADER_WEIGHT} must be above 0 and at most {MAX_WEIGHT:.0f}, got {value}", HEADER_WEIGHT)
    return value


def checked_priority(value: int) -> int:
    """Larger first."""
    if abs(value) > MAX_PRIORITY:
        raise BadRequest(f"{HEADER_PRIORITY} must be {-MAX_PRIORITY} to {MAX_PRIORITY}, got {shown(value)}", HEADER_PRIORITY)
    return value


def deadline_at(left_ms: int, arrived_s: float) -> int:
    """When it passes, on the monotonic clock, in milliseconds."""
    return int(arrived_s * 1000) + min(left_ms, MAX_DEADLINE_MS)


def _deadline(header: str | None, arrived_s: float) -> int | None:
    if header is None:
        return None
    left = _number(HEADER_DEADLINE, header, int)
    if left < 1:
        raise BadRequest(f"{HEADER_DEADLINE} must be at least 1, got {shown(header)}", HEADER_DEADLINE)
    return deadline_at(left, arrived_s)


def _number(header: str, value: str, kind: Callable[[str], _N]) -> _N:
    try:
        return kind(value[:32])
    except ValueError:
        raise BadRequest(f"{header} must be a number, got {shown(value)}", header) from None


def _allowance(headers: Mapping[str, str]) -> Allowance:
    names = (HEADER_RESERVED_TOKENS, HEADER_MAX_CONTEXT, HEADER_DEFAULT_MAX_TOKENS)
    reserved, context, default = (None if (given := headers.get(name)) is None else _number(name, given, int) for name in names)
    return Allowance(reserved, context, default, reports=headers.get(HEADER_REPORT_USAGE) == "true")


def _tier(value: str) -> Tier:
    known = _TIERS.get(value)
    if known is None:
        raise BadRequest(f"{HEADER_TIER} must be one of {', '.join(_TIERS)}, got {shown(value)}", HEADER_TIER)
    return known


def _prefixes(value: str) -> tuple[bytes, ...]:
    try:
        return from_header(value)[:MAX_TEXT_HASHES]
    except ValueError as error:
        raise BadRequest(f"{HEADER_PREFIX_HASHES}: {error}", HEADER_PREFIX_HASHES) from None
