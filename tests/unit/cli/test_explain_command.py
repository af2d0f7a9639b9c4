"""`pagoda explain` as a user types it."""

import json

import pytest
from pagoda_cli.commands import run
from pagoda_contracts.conditions.table import named, reasons


@pytest.mark.parametrize("typed", ["NoAccelerator", "noaccelerator"])
def test_a_reason_is_explained_in_any_case(typed, capsys):
    (reason,) = named("NoAccelerator")
    assert run(["explain", typed]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NoAccelerator (Stalled of InferenceService)",
        f"  {reason.meaning}",
        f"  What to do: {reason.action}",
        "  Only a person can fix it: yes",
    ]


def test_a_reason_of_two_kinds_is_explained_for_both(capsys):
    assert run(["explain", "Draining"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Draining")]
    assert heads == ["Draining (Reconciling of InferenceService)", "Draining (Reconciling of TenantQuota)"]


def test_without_a_reason_each_has_one_line(capsys):
    assert run(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [[reason.name, reason.condition.name, reason.kind] for reason in reasons()]
    assert all(line.endswith(".") for line in lines)


def test_a_mistyped_reason_is_refused_with_the_closest_and_all_others(capsys):
    assert run(["explain", "NameConflit"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "'NameConflit' is not a reason of Pagoda. Did you mean NameConflict?" in err
    assert all(reason.name in err for reason in reasons())


def test_what_is_like_no_reason_gets_the_list_alone(capsys):
    assert run(["explain", "zzzz"]) == 2
    err = capsys.readouterr().err
    assert "Did you mean" not in err
    assert "If it is a service: `pagoda why zzzz`. Reasons: Accepted, AdapterRejected, AdaptersNotEnabled, Available, " in err


def test_scripts_get_the_fields(capsys):
    assert run(["explain", "wellknown", "--json"]) == 2
    assert capsys.readouterr().out == ""
    assert run(["explain", "QuotaExceeded", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["kind"], row["condition"], row["personOnly"]) == ("QuotaExceeded", "InferenceService", "Stalled", True)
    assert set(row) == {"name", "kind", "condition", "meaning", "action", "personOnly", "warning"}
