"""Every route of a replica is behind the guard by the table, whatever its path is spelled like."""

import hashlib

import httpx
import pytest
from pagoda_contracts.names import (
    HEADER_DEADLINE,
    HEADER_ERROR_CODE,
    HEADER_PRIORITY,
    HEADER_TENANT,
    ROLE_GATEWAY,
    ROLE_METRICS,
    ROLE_OPERATOR,
)
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.access.auth import Guard, guarded
from pagoda_daemon.api.access.caller import ROLE_ANYBODY, ROLE_CLIENT, ROLES
from pagoda_daemon.api.access.roles import METHODS, NOBODY, OPEN, PEER_ROUTES, ROUTES
from pagoda_daemon.api.http.app import Parts, application
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.core.errors import EngineDied
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition
from pagoda_daemon.text.tokens import ModelText
from starlette.responses import Response
from starlette.routing import Route
from support.engine.toy_model import tiny_model_dir
from support.kube.issuer import STRANGER, Issuer

KEY, SCRAPER = "sk-alice", "sk-prometheus"
ASK = {"model": "m", "prompt": "x"}


class Recorder:
    """An engine that remembers what it was asked and is gone then."""

    def __init__(self):
        self.heard = []

    def submit(self, message):
        self.heard.append(message)
        raise EngineDied("gone")


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auth")
    listed = [(KEY, "alice"), (SCRAPER, "prometheus role=metrics")]
    (folder / "keys").write_text("".join(f"{hashlib.sha256(key.encode()).hexdigest()} {rest}\n" for key, rest in listed))
    issuer = Issuer(folder)
    tokens = {role: issuer.token(role) for role in (ROLE_GATEWAY, ROLE_OPERATOR, ROLE_METRICS)}
    tokens |= {ROLE_CLIENT: KEY, "stranger": issuer.keys[0].token(STRANGER)}
    return issuer.config(keys_file=str(folder / "keys")), tokens, ModelText(tiny_model_dir(folder / "toy"))


@pytest.fixture
def engine():
    return Recorder()


def made(engine, text, config):
    replica = Replica(born=0.0, limits=Ready(64, 1024, 16, 40, 2), phase=Phase.PHASE_READY)
    generator = Generator(engine, text, Counts())
    parts = Parts(replica, Admission(replica), generator, Exposition("m", replica, generator.counts), ("m",), "0", guard=Guard(config))
    return application(parts)


def open_client(app, host="10.9.9.9"):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(host, 1)), base_url="http://replica")


@pytest.fixture
def app(engine, harness):
    return made(engine, harness[2], harness[0])


def as_(harness, role):
    return {"authorization": f"Bearer {harness[1][role]}"}


def routes_of(app):
    while not hasattr(app, "routes"):
        app = app._app
    return list(app.routes)


def test_every_route_stands_in_the_table(app):
    assert {route.path for route in routes_of(app)} <= ROUTES.keys()


def test_the_tables_name_known_roles_only():
    for roles in (*ROUTES.values(), *METHODS.values()):
        assert roles == OPEN or roles <= ROLES
        assert roles
    assert ROUTES.keys() >= PEER_ROUTES


def test_nobody_in_particular_gets_no_control():
    open_to_all = {name for name, roles in (ROUTES | METHODS).items() if roles == OPEN}
    assert open_to_all == {"/health", "/version", "/docs", "/openapi.json", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}
    assert {name for name, roles in METHODS.items() if ROLE_CLIENT in roles} == set()
    assert {name.rpartition("/")[2] for name, roles in METHODS.items() if ROLE_ANYBODY not in roles and roles != OPEN} == {
        "SetState",
        "SetAdapters",
    }


async def test_a_key_with_the_role_for_metrics_reads_them_and_nothing_that_costs(app, engine):
    async with open_client(app) as client:
        for path, status in (("/metrics", 200), ("/load", 200), ("/v1/models", 403), ("/openapi.json", 200)):
            assert (await client.get(path, headers={"authorization": f"Bearer {SCRAPER}"})).status_code == status
        refused = await client.post("/v1/completions", json=ASK, headers={"authorization": f"Bearer {SCRAPER}"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert "prometheus may not use this; its role is metrics" in refused.text
        assert (await client.get("/metrics", headers={"authorization": f"Bearer {KEY}"})).status_code == 403
        assert (await client.get("/metrics")).status_code == 401
    assert engine.heard == []


def concrete(path):
    return path.replace("{name:path}", "m").replace("{id}", "x")


def requests_of(app):
    return [(method, route.path) for route in routes_of(app) for method in sorted(route.methods or ())]


async def test_without_a_key_every_route_that_is_not_open_says_401(app):
    async with open_client(app) as client:
        for method, path in requests_of(app):
            answer = await client.request(method, concrete(path))
            if ROUTES[path] == OPEN:
                assert answer.status_code in (200, 503)
                continue
            assert (path, answer.status_code, answer.headers["www-authenticate"]) == (path, 401, "Bearer")
            if method != "HEAD":
                assert answer.headers[HEADER_ERROR_CODE] == "invalid_api_key"
                assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("role", [ROLE_GATEWAY, ROLE_OPERATOR, ROLE_METRICS, ROLE_CLIENT, "stranger"])
async def test_every_route_lets_in_the_roles_of_the_table_and_no_other(app, harness, role):
    async with open_client(app) as client:
        for method, path in requests_of(app):
            answer = await client.request(method, concrete(path), headers=as_(harness, role))
            refused = ROUTES[path] != OPEN and role not in ROUTES[path]
            assert (path, answer.status_code == 403) == (path, refused)
            if refused and method != "HEAD":
                assert answer.headers[HEADER_ERROR_CODE] == "permission_denied"


async def test_a_route_that_somebody_forgot_to_enter_is_nobodys(harness):
    async def answer(_request):
        return Response("secret")

    [route] = guarded([Route("/v1/new", answer)], Guard(harness[0]))
    assert route.app._roles == NOBODY


SPELLINGS = [
    "//metrics",
    "/metrics/",
    "/./metrics",
    "/%6detrics",
    "/METRICS",
    "/health/../metrics",
    "/health/%2e%2e/metrics",
    "",
    "metrics",
]
HOSTS = [b"replica", b"replica/health", b"a/v1", b"[::1]", b"\xe9", b""]


@pytest.mark.parametrize("path", [*SPELLINGS, "/metrics"])
@pytest.mark.parametrize("host", HOSTS)
async def test_no_spelling_of_a_path_or_host_goes_round_the_guard(app, path, host):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    await app({**scope, "headers": [(b"host", host)], "client": ("10.9.9.9", 1), "http_version": "1.1", "scheme": "http"}, None, send)
    assert sent[0]["status"] == (401 if path == "/metrics" else 404)
    assert not any(name == b"location" for name, _ in sent[0]["headers"])


async def test_metrics_are_read_by_the_configured_networks_and_by_the_role(engine, harness):
    config = harness[0].model_copy(update={"metrics_from": ("10.1.0.0/16",)})
    app = made(engine, harness[2], config)
    async with open_client(app, "10.1.2.3") as peer, open_client(app) as other:
        assert (await peer.get("/metrics")).status_code == 200
        assert (await peer.get("/v1/models")).status_code == 401
        assert (await other.get("/metrics")).status_code == 401
        assert (await other.get("/metrics", headers={"x-forwarded-for": "10.1.2.3"})).status_code == 401
        assert (await other.get("/metrics", headers=as_(harness, ROLE_METRICS))).status_code == 200


async def test_a_refused_caller_costs_the_engine_nothing_and_his_body_is_not_read(app, engine):
    async def body():
        raise AssertionError("read")
        yield b""

    async with open_client(app) as client:
        assert (await client.post("/v1/completions", content=body())).status_code == 401
    assert engine.heard == []


async def test_only_a_gateways_word_about_its_client_reaches_the_engine(app, engine, harness):
    said = {HEADER_TENANT: "team-a", HEADER_PRIORITY: "3", HEADER_DEADLINE: "60000"}
    async with open_client(app) as client:
        for role in (ROLE_GATEWAY, ROLE_CLIENT):
            await client.post("/v1/completions", json=ASK, headers={**said, **as_(harness, role)})
    assert [(one.tenant, one.priority) for one in engine.heard] == [("team-a", 3), ("key:alice", 0)]
    assert all(one.deadline_ms is not None for one in engine.heard)


async def test_a_gateways_senseless_word_is_a_400(app, engine, harness):
    async with open_client(app) as client:
        answer = await client.post("/v1/completions", json=ASK, headers={HEADER_PRIORITY: "x", **as_(harness, ROLE_GATEWAY)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, HEADER_PRIORITY)
    assert engine.heard == []


async def test_a_body_still_cannot_claim_what_headers_carry(app, engine, harness):
    async with open_client(app) as client:
        for field in ({"priority": 3}, {"cache_salt": "x"}):
            answer = await client.post("/v1/completions", json={**ASK, **field}, headers=as_(harness, ROLE_GATEWAY))
            assert answer.status_code == 400
    assert engine.heard == []


async def test_stand_alone_everybody_may_ask_and_nobody_is_trusted(engine, harness):
    async with open_client(made(engine, harness[2], None)) as client:
        await client.post("/v1/completions", json=ASK, headers={HEADER_TENANT: "team-a", "authorization": "Bearer none"})
        assert (await client.get("/metrics")).status_code == 200
    assert [one.tenant for one in engine.heard] == [""]
