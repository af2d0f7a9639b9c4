"""What a person who starts `pagoda-daemon serve` reads."""

import json
import shlex

import pytest
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.front.startup_text import StartupText, leaving, welcome
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.health.replica import Replica

URL = "http://127.0.0.1:8000"


def started(**state):
    replica, lines = Replica(born=0.0, phase=Phase.PHASE_LOADING, **state), []
    StartupText(replica, URL, "tiny", lines.append).begin()
    return replica, lines


def test_a_load_is_reported_by_tenths_and_its_end_once():
    replica, lines = started()
    for progress in range(0, 101, 2):
        replica.load_progress = progress / 100
        replica.changed()
    assert [line for line in lines if "%" in line][:3] == ["loading tiny: 0%\n", "loading tiny: 10%\n", "loading tiny: 20%\n"]
    assert len(lines) == 11
    replica.limits = Ready(1024, 8, 16, 40, 2)
    replica.enter(Phase.PHASE_READY)
    for _ in range(3):
        replica.changed()
    assert len(lines) == 12
    assert lines[-1].startswith("ready: Ctrl-C ends it\n  model        tiny\n")


def test_a_load_that_was_over_before_the_first_listener_is_reported_at_once():
    replica, lines = started(limits=Ready(64, 8, 16, 40, 2), listening=False)
    assert lines == []
    replica.enter(Phase.PHASE_READY)
    replica.listening = True
    replica.changed()
    assert [line.split(":")[0] for line in lines] == ["ready"]


def test_leaving_is_reported_once():
    replica, lines = started(limits=Ready(64, 8, 16, 40, 2))
    replica.enter(Phase.PHASE_READY)
    replica.in_flight = 2
    replica.enter(Phase.PHASE_DRAINING)
    replica.changed()
    replica.enter(Phase.PHASE_STOPPED)
    assert lines[1:] == ["draining: 2 requests are finishing; Ctrl-C again ends them\n"]


@pytest.mark.parametrize(
    ("in_flight", "line"),
    [(0, "draining: nothing is in flight\n"), (1, "draining: 1 request is finishing; Ctrl-C again ends it\n")],
)
def test_a_drain_counts_as_people_do(in_flight, line):
    assert leaving(in_flight) == line


def test_what_is_to_be_typed_is_a_request_whatever_the_name():
    line = welcome(URL, 'it\'s "odd"', None).splitlines()[-1]
    words = shlex.split(line)
    assert words[:3] == ["curl", "-N", f"{URL}/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == 'it\'s "odd"'
    encrypted = shlex.split(welcome(URL, "tiny", None, "my cert.pem").splitlines()[-1])
    assert encrypted[:4] == ["curl", "-N", "--cacert", "my cert.pem"]


def test_it_says_what_it_is_and_how_much_it_holds():
    limits = Ready(max_model_len=1024, vocab_size=8, block_size=16, blocks_total=4096, max_concurrency=8, computed_by="CPU, 2 threads")
    first, *table, _ = welcome(URL, "tiny", limits).splitlines()
    assert first == "ready: Ctrl-C ends it"
    assert {row[2:14].strip(): row[15:] for row in table} == {
        "model": "tiny",
        "device": "CPU, 2 threads",
        "context": "1,024 tokens",
        "KV cache": "65,536 tokens",
        "concurrency": "64.0 requests at the whole context; at most 8 requests decode together",
        "OpenAI API": f"{URL}/v1",
        "pages": f"{URL}/docs, {URL}/metrics",
    }
