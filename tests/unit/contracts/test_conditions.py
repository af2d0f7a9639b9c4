"""The table of reasons: complete entries, found by name however it is typed, printed on one page."""

import re
from pathlib import Path

from pagoda_contracts.conditions.table import named, reasons, similar, warns
from pagoda_contracts.conditions.types import STALLED, TYPES
from pagoda_contracts.generate import conditiondocs
from support.judges.words import page

ROOT = Path(__file__).parents[3]
# A reason that something else than Python compares with, and the way in which docs write one under its condition.
ELSEWHERE = re.compile(r"reason == \"(\w+)\"|`(?:Stalled|Reconciling|Degraded): (\w+)`")


def test_each_kind_has_a_reason_once():
    names = [(reason.kind, reason.name) for reason in reasons()]
    assert len(set(names)) == len(names)


def test_each_reason_says_in_sentences_what_it_means_and_what_to_do():
    for reason in reasons():
        assert re.fullmatch("[A-Z][A-Za-z]+", reason.name)
        for text in (reason.meaning, reason.action):
            assert re.fullmatch(r"\S.*\.", text), reason.name
            assert page(text) == []
    assert all(kind.meaning.endswith(".") for kind in TYPES)


def test_what_only_a_person_can_fix_is_stalled_and_says_how():
    for reason in reasons():
        assert reason.person_only == (reason.condition == STALLED and reason.name != "NotStalled"), reason.name
        assert not reason.person_only or reason.action != "Nothing.", reason.name


def test_a_reason_is_found_in_any_case_for_each_kind_that_has_it():
    assert [(reason.name, reason.kind) for reason in named("DRAINING")] == [("Draining", "InferenceService"), ("Draining", "TenantQuota")]
    assert named("Drain") == ()


def test_a_mistyped_reason_has_close_ones():
    assert similar("nameconflit")[0] == "NameConflict"
    assert similar("zzzz") == []


def test_events_warn_of_what_may_need_a_person_though_nothing_is_stalled():
    assert {reason.name for reason in reasons() if warns(reason.name)} == {
        "Restarting",
        "CrashLooping",
        "ImagePull",
        "Container",
        "FailedMount",
        "NotReady",
        "Forbidden",
    }
    assert not warns("Unheard")


def test_the_page_has_a_row_for_each_reason():
    rows = re.findall(r"^\| `(\w+)` \|", conditiondocs.text(), re.MULTILINE)
    assert rows == [reason.name for reason in reasons()]


def test_chart_and_docs_know_no_other_reason():
    """Argo CD's health in Lua, examples with jq, and prose."""
    paths = [*(ROOT / "charts").rglob("*.lua"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = {word for path in paths for found in ELSEWHERE.findall(path.read_text()) for word in found if word}
    assert "ScaledToZero" in named
    assert named - {reason.name for reason in reasons()} == set()
