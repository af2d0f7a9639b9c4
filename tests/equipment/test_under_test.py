"""Operator and gateway with something changed: what may be changed, and that each change finds its place in today's code."""

import sys

import pytest
from pagoda_gateway import __main__ as gateway
from pagoda_operator import __main__ as operator
from support.kube import operator_under_test
from support.servers import gateway_under_test

CHANGES = {
    operator_under_test: {"die_after_writes": 1, "haste": 2, "skew_s": 300, "key_settle_s": 1, "missing_s": 1, "key_look_s": 1},
    gateway_under_test: {"patience_ms": 1, "key_settle_s": 1},
}
PLACES = {
    operator_under_test: "SETTLE_S MISSING_S _call configure MAX_WATCH_AGE SILENT_S time time datetime datetime LOOK_EVERY_S READ_EVERY_S",
    gateway_under_test: "STATE_SUSPECT_MS STATE_DEAD_MS SETTLE_S",
}
MODULES = pytest.mark.parametrize("module", CHANGES, ids=lambda module: module.__name__)


@pytest.fixture
def started(monkeypatch):
    """How often operator or gateway were started."""
    found = []
    monkeypatch.setattr(operator, "main", lambda: found.append(operator))
    monkeypatch.setattr(gateway, "main", lambda: found.append(gateway))
    return found


@MODULES
def test_every_change_finds_its_place_before_the_start(module, started, monkeypatch):
    put = []
    monkeypatch.setattr(module, "_put", lambda owner, name, _: put.append((name, hasattr(owner, name), len(started))))
    monkeypatch.setattr(sys, "argv", [*module.under_test(**CHANGES[module])[-2:], "--resync", "1s"])
    module.main()
    assert put == [(name, True, 0) for name in PLACES[module].split()]
    assert len(started) == 1
    assert sys.argv[1:] == ["--resync", "1s"]


@MODULES
def test_without_changes_it_runs_as_installed(module, started, monkeypatch):
    monkeypatch.setattr(module, "_put", lambda *_: pytest.fail("changed"))
    monkeypatch.setattr(sys, "argv", list(module.under_test()[-2:]))
    module.main()
    assert len(started) == 1


@MODULES
def test_an_unknown_change_is_refused(module, monkeypatch):
    with pytest.raises(TypeError, match="unexpected keyword argument 'hast'"):
        module.under_test(hast=10)
    monkeypatch.setattr(sys, "argv", ["program", '{"hast": 10}'])
    with pytest.raises(TypeError, match="unexpected keyword argument 'hast'"):
        module.main()


@pytest.mark.parametrize("module", CHANGES)
def test_a_place_that_is_gone_is_reported(module):
    with pytest.raises(AssertionError, match="no gone by now"):
        module._put(operator, "gone", 1)
