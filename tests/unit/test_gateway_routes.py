"""A client finds at the gateway what it finds at a replica: the two tables of routes are compared, and each difference has a reason."""

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from pagoda_contracts.absent_routes import NOT_BUILT, STORED
from pagoda_daemon.api.access.roles import PATH_LOAD, PATH_UNLOAD, ROUTES
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.requests.errors import NotBuilt, ResponseNotFound
from support.harness.gateway import GatewayHarness

OF_ONE_REPLICA = {
    PATH_LOAD: "LoraAdapters are the operator's",
    PATH_UNLOAD: "LoraAdapters are the operator's",
    "/load": "of one replica",
    "/metrics": "of one replica; the gateway has its own, on a port of their own",
    "/openapi.json": "a page of one replica",
    "/docs": "a page of one replica",
}


@pytest.fixture
async def app():
    return GatewayHarness().api(None, Limits(1, 1)).application()


def example(pattern):
    """A path of this pattern."""
    return pattern.replace("{rest:path}", "x/y").replace("{name:path}", "org/m").replace("{id:path}", "resp_1").replace("{id}", "1")


async def resolved(app, method, path):
    return await app.router.resolve(make_mocked_request(method, path, app=app))


@pytest.mark.parametrize("pattern", sorted(ROUTES.keys() - OF_ONE_REPLICA.keys()))
async def test_every_route_of_a_replica_is_one_of_the_gateway(app, pattern):
    found = [await resolved(app, method, example(pattern)) for method in ("GET", "POST")]
    assert any(match.http_exception is None for match in found)


@pytest.mark.parametrize("pattern", OF_ONE_REPLICA)
async def test_what_one_replica_says_of_itself_is_not_at_the_gateway(app, pattern):
    match = await resolved(app, "GET", example(pattern))
    assert isinstance(match.http_exception, web.HTTPNotFound)


@pytest.mark.parametrize(("pattern", "error"), [*dict.fromkeys(NOT_BUILT, NotBuilt).items(), (STORED, ResponseNotFound)])
async def test_what_a_replica_refuses_by_name_the_gateway_refuses_alike(app, pattern, error):
    for method in ("GET", "POST", "DELETE"):
        match = await resolved(app, method, example(pattern))
        with pytest.raises(error) as caught:
            await match.handler(_request(method, pattern, match))
        assert (caught.value.status, caught.value.should_retry) == (501 if error is NotBuilt else 404, False)


def _request(method, pattern, match):
    return make_mocked_request(method, example(pattern), match_info=dict(match))
