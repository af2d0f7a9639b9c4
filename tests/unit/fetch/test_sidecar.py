"""The sidecar as a process, as the kubelet runs it: probes, link, termination message, SIGTERM, kill -9 and the next start."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest
from pagoda_contracts.names import EXIT_PERMANENT
from support.clients.fetching import LARGE, TAKEN, contents, model_files
from support.servers.fetch_hub import Fault, running_hub

FILES = model_files(8_000_000)
pytestmark = [pytest.mark.deep]


@pytest.fixture
def hub():
    with running_hub(dict(FILES)) as running:
        yield running


class Sidecar:
    """One start of the container."""

    def __init__(self, root, hub, *more, token=""):
        self.root = root
        self.message = root / "termination-log"
        self.message.touch()
        store = ["--to", str(root / "models"), "--link", str(root / "run/model"), "--reserve", "0"]
        argv = [
            "-P",
            "-m",
            "pagoda_fetch",
            "serve",
            "--model",
            "hf://org/model",
            "--hub",
            hub.url,
            *store,
            "--port",
            "0",
            "--probes-port",
            "0",
        ]
        environment = {**os.environ, "PAGODA_TERMINATION_LOG": str(self.message), "PAGODA_POD_UID": "uid-1", "HF_TOKEN": token}
        self.process = subprocess.Popen([sys.executable, *argv, *more], stderr=subprocess.PIPE, text=True, env=environment)
        self.said = []

    def until(self, event):
        """Reads the log up to an event."""
        for text in self.process.stderr:
            self.said.append(json.loads(text))
            if self.said[-1]["event"] == event:
                return self.said[-1]
        raise AssertionError(f"ended before {event}: {self.said}")

    def probe(self, path):
        port = next(entry["probes"] for entry in self.said if entry["event"] == "listening")
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=60)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        rest = self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(300), rest


@pytest.fixture
def start(tmp_path, hub):
    started = []

    def begin(*more, **words):
        started.append(Sidecar(tmp_path, hub, *more, **words))
        return started[-1]

    yield begin
    for sidecar in started:
        if sidecar.process.poll() is None:
            sidecar.process.kill()
            sidecar.process.wait()
        sidecar.process.stderr.close()


def test_startup_passes_once_the_model_is_complete_and_term_ends_it_cleanly(start, hub, tmp_path):
    hub.faults[LARGE] = Fault(trickle_after=2_000_000)
    sidecar = start()
    sidecar.until("listening")
    hub.faults[LARGE].begun.wait()
    waiting = sidecar.probe("/startupz")
    assert (waiting.status_code, waiting.text.split()[0]) == (503, "fetching")
    assert sidecar.probe("/livez").status_code == 200
    assert not (tmp_path / "run/model").exists()
    hub.faults[LARGE].released.set()
    sidecar.until("complete")
    # The log line comes just before the link and the probe's change.
    while sidecar.probe("/startupz").status_code != 200:
        assert sidecar.process.poll() is None
    assert contents(tmp_path / "run/model") == {name: FILES[name] for name in TAKEN}
    assert sidecar.end()[0] == 0
    assert sidecar.message.read_text() == ""


def test_after_kill_9_the_next_start_goes_on_where_it_was(start, hub, tmp_path):
    hub.faults[LARGE] = Fault(trickle_after=6_000_000)
    first = start()
    hub.faults[LARGE].begun.wait()
    partial = tmp_path / "models/.staging"
    while not [path for path in partial.glob(f"*/{LARGE}.partial") if path.stat().st_size >= 5_000_000]:
        assert first.process.poll() is None
        time.sleep(0.02)  # leaves the core to the process
    first.end(signal.SIGKILL)
    hub.faults[LARGE].released.set()
    hub.faults[LARGE].ended.wait()
    kept = sum(path.stat().st_size for path in partial.glob(f"*/{LARGE}.partial"))
    hub.sent.clear()
    second = start()
    second.until("complete")
    assert hub.sent[LARGE] == len(FILES[LARGE]) - kept
    while not (tmp_path / "run/model").exists():
        assert second.process.poll() is None
        time.sleep(0.02)
    assert contents(tmp_path / "run/model")[LARGE] == FILES[LARGE]
    assert second.end()[0] == 0
    hub.sent.clear()
    third = start()
    third.until("complete")
    assert not hub.sent, "a finished model is not fetched again"


def test_term_in_the_middle_keeps_what_is_there(start, hub, tmp_path):
    hub.faults[LARGE] = Fault(trickle_after=6_000_000)
    sidecar = start()
    sidecar.until("listening")
    hub.faults[LARGE].begun.wait()
    assert sidecar.end()[0] == 0
    assert list((tmp_path / "models/.locks").iterdir()) == []
    assert [path.name for path in (tmp_path / "models/.staging").glob(f"*/{LARGE}*")] == [f"{LARGE}.partial"]


@pytest.mark.parametrize(
    ("status", "code", "word"), [(404, EXIT_PERMANENT, "NotFound"), (403, EXIT_PERMANENT, "Forbidden"), (503, 1, "Unreachable")]
)
def test_what_keeps_the_model_from_coming_is_the_last_word(start, hub, status, code, word):
    hub.status = status
    sidecar = start("--attempts", "1", token="hf_s3cret")
    rest = sidecar.process.stderr.read()
    assert sidecar.process.wait(300) == code
    assert sidecar.message.read_text().startswith(f"{word}: ")
    assert "s3cret" not in rest + sidecar.message.read_text()


async def test_an_inspection_leaves_its_line_where_the_operator_reads_it(tmp_path, hub):
    message = tmp_path / "termination-log"
    message.touch()
    argv = ["-P", "-m", "pagoda_fetch", "inspect", "hf://org/model", "--hub", hub.url]
    environment = {**os.environ, "PAGODA_TERMINATION_LOG": str(message)}
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=asyncio.subprocess.PIPE, env=environment)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert out == message.read_bytes()
    assert json.loads(out)["config"]["model_type"] == "llama"
