"""Counting against limits: the ledger by itself, and the store's script beside it on a real server."""

import random

import pytest
import redis
from pagoda_gateway.limits.ledger import Ask, Ledger
from pagoda_gateway.limits.rules import Slot
from pagoda_gateway.limits.script import SCRIPT, arguments, key, verdict
from support.servers.redis_server import MISSING, PROGRAM, redis_server

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


def test_what_was_admitted_is_told_by_window_until_that_is_over():
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


class Both:
    """The ledger and the script, told the same."""

    def __init__(self, client: redis.Redis, tenant: str) -> None:
        self.ledger, self.client, self.tenant = Ledger(LEASE_MS), client, tenant
        self.script = client.register_script(SCRIPT)

    def do(self, verb: str, asked: Ask, gateway: str, now: int) -> None:
        answer = verdict(self.script(keys=[key(self.tenant)], args=arguments(verb, asked, gateway, LEASE_MS, now)))
        if verb in ("reserve", "force"):
            assert answer == self.ledger.reserve(asked, gateway, now, force=verb == "force")
        elif verb == "adjust":
            assert answer.granted == self.ledger.adjust(asked, gateway, now)
        elif verb == "settle":
            self.ledger.settle(asked, gateway, now)
        else:
            self.ledger.renew(asked.tenant, gateway, now)


@pytest.mark.deep
@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_the_store_s_script_does_what_the_ledger_does(tmp_path):
    """Random orders of four gateways, some of which fall silent for longer than their lease. Each admission compares every count."""
    with redis_server(tmp_path) as server, redis.Redis(unix_socket_path=str(server.socket)) as client:
        for seed in range(40):
            chance = random.Random(seed)
            both, now, known = Both(client, f"t{seed}"), START + chance.randrange(60) * 60_000, []
            for step in range(60):
                now += chance.choice((0, 0, 0, 60_000, 7_000, 31_000, 600_000))
                verb = chance.choices(("reserve", "force", "adjust", "settle", "renew"), (6, 1, 3, 4, 2))[0]
                gateway = f"g{chance.randrange(4)}"
                if verb in ("adjust", "settle") and known:
                    gateway, asked = chance.choice(known)
                    asked = asked._replace(tokens=chance.randrange(600), claim=chance.randrange(600))
                else:
                    asked = ask(f"{seed}-{step}", chance.randrange(400), chance.randrange(200), tenant=both.tenant)
                    verb = verb if verb in ("force", "renew") else "reserve"
                    known.append((gateway, asked))
                both.do(verb, asked, gateway, now)
