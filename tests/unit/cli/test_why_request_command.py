"""`pagoda why request/ID` as a user types it, over lines as a gateway makes them; kubectl is a script that prints them."""

import json
import os
import stat

import pytest
from pagoda_cli.commands import run
from pagoda_cli.why_request import meaning
from pagoda_contracts import route
from pagoda_contracts.usage import Used
from pagoda_gateway.requests.errors import ModelNotFound
from pagoda_gateway.requests.limiter import Account
from pagoda_gateway.requests.observed import Observed, access_line
from pagoda_gateway.routing.request import RoutingRequest
from support.harness.gateway import GatewayHarness

WHEN, LATER = "2026-11-26T10:00:00Z", "2026-11-26T10:00:01Z"
KUBECTL = """#!/bin/sh
echo "$@" > "{folder}/asked"
cat "{folder}/log" 2>/dev/null || {{ echo 'Error from server (Forbidden): no' >&2; exit 1; }}
"""


class Answered:
    status = 200


async def answer(*_where, **_how):
    return Answered()


@pytest.fixture
async def logs(tmp_path, monkeypatch):
    """A kubectl that prints the lines of two requests: one was served at its second attempt, and one was refused."""
    harness = GatewayHarness()
    harness.service()
    harness.synced()
    harness.frame(address="10.1.0.7:8000")
    good = Observed("POST", "/v1/chat/completions", 5_000.0, "r1", tenant="team-a", key_id="first", account=Account(used=Used(7, 4, 2)))
    async with harness.in_flight.begin("r1") as life:
        good.life, life.request, life.held_ms = life, RoutingRequest("m", tenant="team-a"), 1_500.0
        life.repicked("draining")
        await harness.router.serve(life, answer)
    good.end(200, 8_000.0)
    bad = Observed("POST", "/v1/chat/completions", 5_000.0, "r2", tenant="team-a", key_id="first", error=ModelNotFound("x"))
    bad.end(404, 5_001.0)
    lines = [{"event": "request", **access_line(one), "timestamp": LATER, "level": "info"} for one in (good, bad)]
    moved = {
        "event": "a stream goes on at another replica",
        "request_id": "r1",
        "numbers": "the\x1b same",
        "timestamp": WHEN,
        "level": "info",
    }
    other = {"event": "usage", "request_id": "r10", "timestamp": WHEN}
    (tmp_path / "log").write_text("\n".join(["not JSON r1", '"r1"', *map(json.dumps, [*lines, other, moved])]) + "\n")
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def ask(capsys):
    def call(*arguments):
        code = run(("why", *arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


async def test_it_says_where_a_request_went_and_why(ask, logs):
    code, out, err = ask("request/r1")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{WHEN}  a stream goes on at another replica: numbers the  same",
        f"request r1: 200 after 3.000 s, {LATER}",
        "  route /v1/chat/completions, tenant team-a, key first, model m, service ns/s",
        "  replica: 10.1.0.7:8000",
        "  reason: repick-draining: another replica did not answer it: draining",
        "  held for 1.500 s",
        "  further attempts: 1",
        "  tokens: 7 of the prompt, 4 of them cached, 2 of the answer",
    ]
    assert (logs / "asked").read_text().split() == [
        *("logs", "--selector=app.kubernetes.io/name=pagoda,app.kubernetes.io/component=gateway", "--since=1h", "--tail=-1"),
        *("--container=gateway", "--namespace=pagoda-system"),
    ]


async def test_it_says_why_a_request_was_refused(ask, logs):
    assert ask("request/r2", "-n", "team", "--since", "5m", "--context", "c")[1].splitlines() == [
        f"request r2: 404 after 0.001 s, {LATER}",
        "  route /v1/chat/completions, tenant team-a, key first",
        "  refused: model_not_found (model)",
    ]
    assert {"--since=5m", "--namespace=team", "--context=c"} < set((logs / "asked").read_text().split())


async def test_scripts_get_the_lines(ask, logs):
    code, out, _ = ask("request/r1", "-o", "json")
    assert code == 0
    assert [line.get("reason") for line in json.loads(out)] == [None, "repick-draining"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("request/r3",), "no gateway in pagoda-system has logged the request r3 within 1h"),
        (("request/",), "a request's id is up to 128 letters"),
        (("request/a b",), "a request's id is up to 128 letters"),
        (("request/r1", "--since", "soon"), "--since: "),
    ],
)
async def test_what_cannot_be_told_is_one_line(ask, logs, words, says):
    code, out, err = ask(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


async def test_kubectls_refusal_is_passed_on(ask, logs):
    (logs / "log").unlink()
    assert ask("request/r1") == (2, "", "pagoda: kubectl logs: Error from server (Forbidden): no\n")


@pytest.mark.parametrize("word", [value for name, value in vars(route).items() if name.startswith("REASON_")])
def test_every_reason_of_a_route_has_a_meaning(word):
    assert "does not know" not in meaning(word)
    assert "does not know" in meaning(word + "-new")


def test_the_verdict_behind_a_wait_is_named():
    assert meaning("held-loading").endswith("the most hopeful one was: loading")
    assert meaning("held-full") == "the request waited because all replicas were full"
