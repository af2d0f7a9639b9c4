"""Counting against limits, in one process. tests/controlplane/gateway/test_store_script.py compares the store's script with it."""

from pagoda_gateway.limits.ledger import Ask, Ledger
from pagoda_gateway.limits.rules import Slot

LEASE_MS = 30_000
HOUR = 3_600_000
START = 500_000 * HOUR
SLOTS = (
    Slot("q", "concurrency", 3),
    Slot("q", "requests", 40, "1h", HOUR),
    Slot("q", "tokens", 3000, "1h", HOUR),
    Slot("r", "tokens", 900, "20m", HOUR // 3),
)


def ask(name: str, tokens: int = 100, claim: int = 10, slots=SLOTS, tenant: str = "t") -> Ask:
    return Ask(name, tenant, slots, tokens, claim)


def used(ledger: Ledger, now: int = START, slots=SLOTS) -> tuple[int, ...]:
    """By a request that no limit admits."""
    found = ledger.reserve(ask("look", 10**9, slots=slots), "eye", now)
    assert not found.granted
    return found.used


def test_a_request_takes_its_bound_and_leaves_what_it_used():
    ledger = Ledger(LEASE_MS)
    assert ledger.reserve(ask("a", 100), "g", START).used == (1, 1, 100, 100)
    assert ledger.adjust(ask("a", 60), "g", START)
    assert used(ledger) == (1, 1, 60, 60)
    ledger.settle(ask("a", 42), "g", START)
    assert used(ledger) == (0, 1, 42, 42)


def test_the_first_limit_without_room_refuses_and_nothing_is_taken():
    ledger = Ledger(LEASE_MS)
    assert not ledger.reserve(ask("a", 901), "g", START).granted
    assert ledger.reserve(ask("b", 900), "g", START).granted
    assert not ledger.reserve(ask("c", 1), "g", START).granted
    assert not ledger.adjust(ask("b", 901), "g", START), "growth needs room too"
    assert used(ledger) == (1, 1, 900, 900)


def test_what_was_admitted_is_reported_by_window_until_that_is_over():
    ledger = Ledger(HOUR)
    assert ledger.windows(START) == []
    ledger.reserve(ask("a", 100), "g", START)
    ledger.settle(ask("a", 42), "g", START)
    assert ledger.windows(START) == [("q", HOUR, START, 1, 42), ("r", HOUR // 3, START, 0, 42)]
    assert ledger.windows(START + HOUR // 3) == [("q", HOUR, START, 1, 42)]
    assert ledger.windows(START + HOUR) == []


def test_a_window_begins_anew_and_a_late_end_does_not_touch_it():
    ledger = Ledger(HOUR)
    ledger.reserve(ask("a", 900), "g", START)
    later = START + HOUR // 3
    assert used(ledger, later)[2:] == (900, 0)
    assert ledger.reserve(ask("b", 500), "g", later).granted
    ledger.settle(ask("a", 10), "g", later)
    assert used(ledger, later)[1:] == (2, 510, 500)


def test_requests_of_a_silent_gateway_are_charged_their_claims():
    ledger = Ledger(LEASE_MS)
    ledger.reserve(ask("a", 500, claim=100), "g", START)
    ledger.renew("t", "g", START + 20_000)
    assert used(ledger, START + 49_999) == (1, 1, 500, 500)
    assert used(ledger, START + 50_000) == (0, 1, 100, 100)
    ledger.settle(ask("a", 160), "g", START + 51_000)
    assert used(ledger, START + 51_000) == (0, 1, 160, 160), "it was only paused, and its request went on"


def test_a_claim_is_never_more_than_what_is_reserved():
    """Else a gateway that is killed takes again what its corrections had given to others."""
    ledger = Ledger(LEASE_MS)
    ledger.reserve(ask("a", 500, claim=500), "g", START)
    ledger.adjust(ask("a", 60, claim=500), "g", START)
    ledger.reserve(ask("b", 840, claim=0), "h", START)
    ledger.renew("t", "h", START + 20_000)
    assert used(ledger, START + LEASE_MS) == (1, 2, 900, 900)


def test_a_call_that_is_repeated_changes_nothing():
    ledger = Ledger(LEASE_MS)
    for _ in range(2):
        assert ledger.reserve(ask("a"), "g", START).granted
    assert used(ledger) == (1, 1, 100, 100)
    for _ in range(2):
        ledger.settle(ask("a", 7), "g", START)
    assert used(ledger) == (0, 1, 7, 7)


def test_limits_of_one_tenant_are_not_another_s():
    ledger = Ledger(LEASE_MS)
    assert ledger.reserve(ask("a", 900), "g", START).granted
    assert ledger.reserve(ask("b", 900, tenant="u"), "g", START).granted
