"""The Dockerfile says what the contracts say. That the image runs as strictly as it claims is shown by tests/e2e/daemon_image."""

from pathlib import Path

from pagoda_contracts.names import PORT_DAEMON_GRPC, PORT_DAEMON_HTTP, PORT_PROBES

LINES = (Path(__file__).parents[3] / "daemon/Dockerfile").read_text().splitlines()


def values(word: str) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in LINES if line.startswith(f"{word} ")]


def test_it_exposes_the_ports_of_the_contract():
    assert values("EXPOSE") == [f"{PORT_DAEMON_HTTP} {PORT_PROBES} {PORT_DAEMON_GRPC}"]


def test_it_runs_as_a_numbered_user_and_fetches_nothing():
    (user,) = values("USER")
    assert all(int(part) > 0 for part in user.split(":")), "a name could not be checked by runAsNonRoot"
    assert [copied.split()[0] for copied in values("COPY")] == ["deps/", "app/"]
    assert not [word for word in ("ADD", "RUN", "HEALTHCHECK") if values(word)]
