"""What the gateway's log says of a fault of its own: clients are sent there for the cause."""

import json

import pytest
import structlog
from pagoda_gateway.__main__ import configure_log


@pytest.fixture
def configured():
    configure_log()
    yield
    structlog.reset_defaults()


def test_a_fault_is_logged_with_its_traceback_in_one_line(configured, capsys):
    try:
        raise ValueError("the cause")
    except ValueError:
        structlog.get_logger().exception("a request failed")
    (line,) = capsys.readouterr().out.splitlines()
    entry = json.loads(line)
    assert entry["event"] == "a request failed"
    assert entry["exception"].startswith("Traceback")
    assert "ValueError: the cause" in entry["exception"]


def test_a_traceback_for_a_person_shows_no_values_of_a_request(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    configure_log()
    key = "pagoda-" + "secret"
    try:
        raise ValueError(len(key))
    except ValueError:
        structlog.get_logger().exception("a request failed")
    structlog.reset_defaults()
    shown = capsys.readouterr().out
    assert "ValueError" in shown
    assert key not in shown
