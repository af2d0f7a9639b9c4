"""Probes: what makes the process unhealthy, and how each one answers."""

import urllib.error
import urllib.request

import pytest
from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP
from pagoda_operator.serve.monitoring import Liveness, serve_probes


@pytest.fixture
def liveness():
    made = Liveness(queue_age=lambda: 0.0)
    assert made.unready(made._beat) == "the API server has not answered yet"
    made.expect(2)
    made._beat = 0.0
    return made


def test_it_is_ready_once_every_kind_is_watched(liveness):
    liveness.watched("/a", 1.0)
    assert liveness.unready(1.0) == "1 of 2 kinds watched"
    assert liveness.failure(1.0) is None
    liveness.watched("/b", 1.0)
    assert liveness.unready(1.0) is None


def test_a_silent_watch_fails_liveness(liveness):
    liveness._beat = 300.0
    liveness.watched("/a", 300.0)
    liveness.watched("/b", 100.0)
    assert liveness.failure(280.0) is None
    assert liveness.failure(281.0) == "watch silent: /b"


def test_a_blocked_loop_and_a_late_service_fail_liveness(liveness):
    assert liveness.failure(6.0) is None
    assert liveness.failure(6.1) == "event loop silent for 5 s"
    liveness._beat, liveness._queue_seconds = 10.0, 181.0
    assert liveness.failure(10.0) == "a service waits for 181 s"


def test_a_lease_that_is_not_renewed_fails_liveness_only_in_a_leader():
    ages = [None, 12.0, 12.1]
    made = Liveness(queue_age=lambda: 0.0, lease_age=lambda: ages.pop(0))
    made._beat = 0.0
    assert [made.failure(0.0) for _ in range(3)] == [None, None, "Lease not renewed for 12 s"]


def ask(server, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def test_each_probe_answers_with_its_own_status():
    liveness = Liveness(queue_age=lambda: 0.0)
    liveness._beat += 3600.0  # no loop turns here, and this process may be stopped for longer than one may be silent
    liveness.expect(1)
    server = serve_probes(liveness, 0)
    try:
        assert [ask(server, path)[0] for path in (PATH_LIVE, PATH_STARTUP, PATH_READY, "/other")] == [200, 503, 503, 404]
        liveness.watched("/a", liveness._beat)
        assert ask(server, PATH_READY) == (200, "ok")
    finally:
        server.shutdown()
        server.server_close()
