"""The store's script counts as the ledger of one process does: both are given the same calls, the script on a real server."""

import random

import redis
from pagoda_gateway.limits.ledger import Ask, Ledger
from pagoda_gateway.limits.rules import Slot
from pagoda_gateway.limits.script import SCRIPT, arguments, key, verdict
from support.servers.redis_server import redis_server

LEASE_MS = 30_000
HOUR = 3_600_000
START = 500_000 * HOUR
SLOTS = (
    Slot("q", "concurrency", 3),
    Slot("q", "requests", 40, "1h", HOUR),
    Slot("q", "tokens", 3000, "1h", HOUR),
    Slot("r", "tokens", 900, "20m", HOUR // 3),
)


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
                    asked = Ask(f"{seed}-{step}", both.tenant, SLOTS, chance.randrange(400), chance.randrange(200))
                    verb = verb if verb in ("force", "renew") else "reserve"
                    known.append((gateway, asked))
                both.do(verb, asked, gateway, now)
