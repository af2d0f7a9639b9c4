"""What the gateway's log says of a fault of its own: clients are sent there for the cause."""

import asyncio
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


async def test_the_lines_of_one_turn_of_the_loop_are_written_together_and_in_order(configured, monkeypatch):
    log, written = structlog.get_logger(), []
    monkeypatch.setattr(structlog.PrintLogger, "msg", lambda _output, text: written.append(text))
    configure_log()
    for number in range(3):
        log.info("request", number=number)
    assert written == []
    await asyncio.sleep(0)
    assert [json.loads(line)["number"] for text in written for line in text.splitlines()] == [0, 1, 2]
    assert len(written) == 1


def test_a_line_outside_of_the_loop_and_a_last_one_are_written(configured, capsys):
    lines = configure_log()
    structlog.get_logger().info("at once")

    async def last():
        structlog.get_logger().info("last")
        lines.flush()

    asyncio.run(last())
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == ["at once", "last"]


def test_a_closed_output_ends_nothing(configured, monkeypatch):
    def closed(_output, _text):
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(structlog.PrintLogger, "msg", closed)
    configure_log()
    structlog.get_logger().info("dropped")


def test_a_value_that_json_does_not_have_is_shown(configured, capsys):
    structlog.get_logger().info("shown", value=object)
    assert "object" in json.loads(capsys.readouterr().out)["value"]
