"""A service at 0 replicas and a thousand requests: none is lost with the limits that a gateway has by default, and none is overtaken."""

import asyncio
from collections import Counter, defaultdict

import pytest
from pagoda_gateway.requests.hold_queue import claim_of
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.serve.settings import load
from support.harness.gateway import GatewayHarness

COUNT, ROWS = 1_000, 64


class Served:
    status = 200


class ColdStart(GatewayHarness):
    """Each request has the replica for as long as it takes to answer those that came with it."""

    def __init__(self):
        super().__init__(hold_limit=load(["--anonymous", "true"], {}).hold_limit)
        self.service()
        self.synced()
        self.served = []

    async def request(self, number, tenant):
        async with self.in_flight.begin() as life:
            life.request = RoutingRequest("m", tenant=tenant)
            life.claim = claim_of(life.request, life.policy)

            async def attempt(address, route, *, fresh):
                self.served.append((tenant, number, address))
                for _ in range(50):
                    await asyncio.sleep(0)
                return Served()

            return await self.router.serve(life, attempt)


@pytest.mark.deep
@pytest.mark.parametrize("tenants", [1, 4])
async def test_a_thousand_requests_of_a_service_at_zero_are_all_served_in_the_order_of_each_tenant_and_by_all_replicas(tenants):
    harness = ColdStart()
    tasks = [asyncio.create_task(harness.request(number, f"tenant-{number % tenants}")) for number in range(COUNT)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert harness.queue.total == COUNT, "some were refused"
    for name in ("ns/a", "ns/b", "ns/c"):
        harness.frame(name=name, rows=ROWS)
        await asyncio.sleep(0)  # the next one becomes ready while the first requests are released
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * COUNT
    of_tenant = defaultdict(list)
    for tenant, number, _ in harness.served:
        of_tenant[tenant].append(number)
    assert all(numbers == sorted(numbers) for numbers in of_tenant.values())
    assert sum(map(len, of_tenant.values())) == COUNT
    shares = Counter(address for _, _, address in harness.served)
    assert len(shares) == 3
    assert min(shares.values()) >= COUNT / 4
    assert harness.queue.total == 0
