"""Bytes of bodies: bounded for all and for each tenant, so that one that floods leaves room for others."""

from contextlib import ExitStack

import pytest
from pagoda_gateway.requests.budget import Budget
from pagoda_gateway.requests.errors import QueueFull


def flood(budget, tenant, size, stack):
    """Requests of this size until one is refused. Returns how many bytes they have."""
    count = 0
    while True:
        with ExitStack() as one:
            take = one.enter_context(budget.account(tenant))
            try:
                take(size)
            except QueueFull:
                return count * size
            stack.push(one.pop_all())
            count += 1


def test_a_tenant_that_floods_leaves_a_fifth_and_gives_all_back():
    budget = Budget(1000)
    with ExitStack() as stack:
        assert flood(budget, "flood", 10, stack) == 800
        assert flood(budget, "second", 10, stack) == 160
        with budget.account("third") as take:
            take(40)
            with pytest.raises(QueueFull, match="of 1000 bytes"):
                take(1)
    assert budget.used == 0
    with ExitStack() as stack:
        assert flood(budget, "flood", 10, stack) == 800


def test_a_tenants_only_request_may_use_all_that_is_free():
    with Budget(1000).account("t") as take:
        for _ in range(10):
            take(100)
