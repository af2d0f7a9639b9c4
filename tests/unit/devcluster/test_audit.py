"""Which events of an audit log are chosen, and what the `audit` command says of them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pagoda_devcluster.__main__ import main
from pagoda_devcluster.client import audit
from pagoda_devcluster.cluster.errors import UsageError
from pagoda_devcluster.cluster.spec import ClusterSpec, Nodes, to_json

NOW = datetime(2026, 1, 1, 1, 0, 0, tzinfo=UTC)


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
    json.dumps(json.loads(event("delete")) | {"responseStatus": {"code": 409}}),
    event("delete")[:-20],
    event("delete").partition("}")[0] + "}",
    "",
]


def verbs(**filters) -> list[str]:
    chosen = {"user": None, "since": None, "verbs": "write"} | filters
    return [entry["verb"] for entry in audit.select(LOG, **chosen)]


def test_writes_are_what_would_change_something_refused_or_not():
    assert verbs() == ["create", "patch", "update", "delete"]
    assert verbs(user="op") == ["create", "update", "delete"]


def test_since_takes_a_time_or_seconds():
    at = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert verbs(since=at) == verbs(since=at.timestamp()) == ["update"]


def test_verbs_may_be_named():
    assert verbs(verbs="read") == ["get"]
    assert verbs(verbs={"patch"}) == ["patch"]
    assert len(verbs(verbs="all")) == 7


def test_the_verb_of_a_question_still_counts_when_it_is_asked_for_by_name():
    assert verbs(verbs={"create"}) == ["create", "create", "create"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("2h", NOW - timedelta(hours=2)),
        ("2026-01-01T00:00:05Z", datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)),
        ("2026-01-01T02:00:05+02:00", datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)),
        ("1767225605.5", datetime(2026, 1, 1, 0, 0, 5, 500000, tzinfo=UTC)),
    ],
)
def test_a_beginning_may_be_an_age_a_number_or_a_time(text, expected):
    assert audit.parse_since(text, NOW) == expected


@pytest.mark.parametrize("text", ["yesterday", "5w", "", "-5m", "99999999999999999999"])
def test_a_beginning_that_is_none_is_refused_with_the_accepted_ways(text):
    with pytest.raises(UsageError, match=r"--since .*90s, 5m or 2h"):
        audit.parse_since(text, NOW)


def test_a_time_without_a_zone_is_refused_because_it_could_mean_two_moments():
    with pytest.raises(UsageError, match="no time zone"):
        audit.parse_since("2026-01-01T00:00:05", NOW)


def test_verbs_are_one_word_or_a_list_and_nothing_else():
    assert audit.parse_verbs("write") == "write"
    assert audit.parse_verbs("patch,delete") == {"patch", "delete"}
    with pytest.raises(UsageError, match=r"--verbs must be write, read, all"):
        audit.parse_verbs("patch,post")
    with pytest.raises(UsageError, match="empty"):
        audit.parse_verbs(",")


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGODA_DEVCLUSTER_HOME", str(tmp_path))
    spec = ClusterSpec("dev", 0, Nodes.CONTROL_PLANE, tmp_path / "clusters" / "dev", tmp_path / "bin")
    spec.paths.logs.mkdir(parents=True)
    spec.paths.state.write_text(to_json(spec))
    spec.paths.audit_log.write_text("\n".join(LOG))
    return spec.root


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["pagoda-devcluster", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_the_command_counts_what_the_selection_chooses(logged, monkeypatch, capsys):
    assert run(monkeypatch, "audit", "--count", "--user", "op", "--since", "2026-01-01T00:00:05Z") == 0
    assert capsys.readouterr().out == "1\n"


def test_the_command_prints_a_line_for_each_and_the_number_beside_it(logged, monkeypatch, capsys):
    assert run(monkeypatch, "audit", "--verbs", "patch,update") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "2026-01-01T00:00:00.000000Z other patch pods - -",
        "2026-01-01T00:00:09.000000Z op update pods - -",
    ]
    assert printed.err == "2 events\n"


def test_the_events_come_out_as_they_went_in(logged, monkeypatch, capsys):
    assert run(monkeypatch, "audit", "--json") == 0
    assert [json.loads(line)["verb"] for line in capsys.readouterr().out.splitlines()] == verbs()
