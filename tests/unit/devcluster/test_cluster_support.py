"""The support module that other tests count audit events and talk to clusters with."""

import json
from datetime import UTC, datetime
from pathlib import Path

import cluster
import pytest


def event(verb: str, user: str = "op", second: int = 0, stage: str = "ResponseComplete", resource: str = "pods", uri: str = "/api") -> str:
    return json.dumps(
        {
            "verb": verb,
            "user": {"username": user},
            "stage": stage,
            "requestURI": uri,
            "requestReceivedTimestamp": f"2026-01-01T00:00:{second:02}.000000Z",
            "objectRef": {"resource": resource},
        }
    )


LOG = [
    event("create"),
    event("get"),
    event("patch", user="other"),
    event("update", second=9),
    event("watch", stage="ResponseStarted"),
    event("create", resource="tokenreviews"),
    event("create", uri="/api?dryRun=All"),
    event("delete")[:-20],
]


def verbs(**filters) -> list[str]:
    chosen = {"user": None, "since": None, "verbs": "write"} | filters
    return [entry["verb"] for entry in cluster.select(LOG, **chosen)]


def test_writes_are_what_was_stored():
    assert verbs() == ["create", "patch", "update"]
    assert verbs(user="op") == ["create", "update"]


def test_since_takes_a_time_or_seconds():
    at = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert verbs(since=at) == verbs(since=at.timestamp()) == ["update"]


def test_verbs_may_be_named():
    assert verbs(verbs="read") == ["get"]
    assert verbs(verbs={"patch"}) == ["patch"]
    assert len(verbs(verbs="all")) == 6


@pytest.mark.parametrize("argument", ["--context=x", "--kubeconfig", "-s", "--server=y", "--token=z"])
def test_another_cluster_is_refused(argument):
    with pytest.raises(ValueError, match="its own cluster only"):
        cluster.refuse_elsewhere(["get", "pods", argument])
    cluster.refuse_elsewhere(["exec", "pod", "--", "tool", argument])


def test_a_kubeconfig_of_another_context_is_refused(tmp_path: Path):
    (tmp_path / "k").write_text('{"current-context": "production"}')
    with pytest.raises(ValueError, match="production"):
        cluster.check_context(tmp_path / "k", "pagoda-dev")


def test_a_named_cluster_that_is_down_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PAGODA_DEVCLUSTER_HOME", str(tmp_path))
    monkeypatch.setenv("PAGODA_TEST_CLUSTER", "gone")
    with pytest.raises(RuntimeError, match="not up"), cluster.running_cluster():
        pass
