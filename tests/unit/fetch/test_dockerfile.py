"""The Dockerfile says what the contracts say. That the image runs so confined is shown by tests/e2e/fetch."""

from pathlib import Path

from pagoda_contracts.names import PORT_FETCH_PROBES

LINES = (Path(__file__).parents[3] / "fetch/Dockerfile").read_text().splitlines()


def values(word):
    return [line.removeprefix(f"{word} ") for line in LINES if line.startswith(f"{word} ")]


def test_it_exposes_the_probes_alone_since_grpc_is_on_loopback():
    assert values("EXPOSE") == [str(PORT_FETCH_PROBES)]


def test_it_runs_as_a_numbered_user_and_fetches_nothing():
    (user,) = values("USER")
    assert all(int(part) > 0 for part in user.split(":")), "a name could not be checked by runAsNonRoot"
    assert [copied.split()[0] for copied in values("COPY")] == ["deps/", "app/"]
    assert not [word for word in ("ADD", "RUN", "HEALTHCHECK") if values(word)]
