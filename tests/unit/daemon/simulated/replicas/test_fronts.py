"""Many replicas in one process: each on its own address with every wire of a real one, ended apart from the others."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pagoda_contracts.names import PATH_READY
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.simulated.replicas import fronts
from support.servers.loopback import own_net

PATIENCE_S = 300.0
HTTP, GRPC, PROBES = 18000, 19000, 18081
NAME = "toy"
ENDLESS = 60_000  # tokens of 2 ms each: it ends only by being ended


class Process:
    """`pagoda-daemon simulate-fronts` and its control socket."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "control.sock"
        argv = [sys.executable, "-P", "-m", "pagoda_daemon", fronts.SIMULATE_FRONTS, "--control", str(self.socket)]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        transport = httpx.HTTPTransport(uds=str(self.socket), retries=0)
        self.control = httpx.Client(transport=transport, base_url="http://fronts", timeout=PATIENCE_S)
        self._net, self._given = own_net(), 0
        self.until(self.answers)

    def answers(self) -> bool:
        """Its socket is there a moment before anybody listens on it."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.socket)) == 0

    def until(self, holds: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def address(self) -> str:
        """One of loopback's that no other test process uses."""
        self._given += 1
        return f"{self._net}.{self._given}"

    def order(self, name: str, address: str, load_s: float = 0.0, **config: Any) -> httpx.Response:
        listen = {"http": HTTP, "grpc": GRPC, "probes": PROBES}
        body = {"model": {"path": "/nowhere", "servedNames": [NAME]}, "listen": listen, "testing": {"simulated": {"stepMs": 2}}}
        body |= {"engine": {"maxModelLen": 65_536, "kvBytes": 2**22}} | config
        return self.control.put(f"/replicas/{name}", json={"address": address, "config": body, "load_s": load_s})

    def ready(self, name: str) -> str:
        """A replica's address, once it is ready."""
        address = self.address()
        assert self.order(name, address).status_code == 200
        self.until(lambda: self.replicas()[name]["ready"])
        return address

    def replicas(self) -> dict[str, Any]:
        found: dict[str, Any] = self.control.get("/replicas").json()
        return found


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    started = Process(tmp_path_factory.mktemp("fronts"))
    yield started
    started.control.close()
    started.process.terminate()
    assert started.process.wait(PATIENCE_S) == 0
    assert not started.socket.exists()


def url(address: str, path: str, port: int = HTTP) -> str:
    return f"http://{address}:{port}{path}"


def completed(address: str, tokens: int) -> Any:
    body = {"model": NAME, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return httpx.post(url(address, "/v1/completions"), json=body, timeout=PATIENCE_S)


def generated(address: str) -> float:
    lines = httpx.get(url(address, "/metrics"), timeout=PATIENCE_S).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:generation_tokens_total{"))


def test_two_replicas_answer_alike_and_count_apart(process):
    one, other = process.ready("a"), process.ready("b")
    short, long = completed(one, 4).json(), completed(other, 9).json()
    assert long["choices"][0]["text"].startswith(short["choices"][0]["text"][:4])
    assert (generated(one), generated(other)) == (4, 9)


@pytest.mark.deep
def test_a_replica_is_ready_only_when_it_has_loaded(process):
    address = process.address()
    process.order("slow", address, load_s=3600.0)
    process.until(lambda: process.replicas()["slow"]["why"].startswith("loading"))  # its phase is that before its ports are open
    answer = httpx.get(url(address, PATH_READY, PROBES), timeout=PATIENCE_S)
    assert (answer.status_code, completed(address, 1).status_code) == (503, 503)
    assert process.replicas()["slow"]["ready"] is False
    process.control.delete("/replicas/slow")
    process.until(lambda: "slow" not in process.replicas())


def stream_of(client: httpx.Client, address: str, tokens: int) -> Any:
    body = {"model": NAME, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return client.stream("POST", url(address, "/v1/completions"), json=body, timeout=PATIENCE_S)


@pytest.mark.deep
def test_one_that_is_told_to_end_finishes_its_stream_and_the_other_serves_on(process):
    leaving, staying = process.ready("leaving"), process.ready("staying")
    with (
        httpx.Client(timeout=PATIENCE_S) as client,
        stream_of(client, leaving, ENDLESS) as holds_it,
        stream_of(client, leaving, 200) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        assert process.control.delete("/replicas/leaving").status_code == 202
        assert process.control.delete("/replicas/leaving").status_code == 202
        assert completed(leaving, 1).json()["error"]["code"] == "draining"
        holds_it.close()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    process.until(lambda: "leaving" not in process.replicas())
    with pytest.raises(httpx.ConnectError):
        completed(leaving, 1)
    assert completed(staying, 1).status_code == 200


def test_one_that_is_killed_breaks_its_stream_off(process):
    address, staying = process.ready("victim"), process.ready("witness")
    with httpx.Client(timeout=PATIENCE_S) as client, stream_of(client, address, ENDLESS) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.control.delete("/replicas/victim", params={"kill": "true"})
        with pytest.raises(httpx.HTTPError):
            list(lines)
    # Told so again and again, as by somebody who only looks at what is there.
    process.until(lambda: process.control.delete("/replicas/victim", params={"kill": "true"}).status_code == 404)
    assert process.order("victim", address).status_code == 200
    assert completed(staying, 1).status_code == 200


def test_an_address_comes_free_with_its_replica_and_not_before(process):
    address = process.ready("first")
    assert process.order("second", address).status_code == 409
    process.control.delete("/replicas/first", params={"kill": "true"})
    process.until(lambda: process.order("second", address).status_code == 200)
    process.until(lambda: process.replicas()["second"]["ready"])
    assert generated(address) == 0


def test_one_that_could_not_listen_is_never_ready(process):
    address = process.address()
    with socket.create_server((address, HTTP)):
        assert process.order("deaf", address).status_code == 200
        seen = []
        process.until(lambda: seen.append(process.replicas()["deaf"]) or seen[-1]["failure"])
    assert f"listen.http: cannot listen on {address}" in seen[-1]["failure"]
    assert not any(one["ready"] for one in seen)


def test_one_that_could_not_start_leaves_its_address_free(process):
    """Its HTTP listener was there already when the next port turned out to be taken."""
    address = process.address()
    with socket.create_server((address, GRPC)):
        assert process.order("hindered", address).status_code == 200
        process.until(lambda: process.replicas()["hindered"]["failure"])
    assert f"listen.grpc: cannot listen on {address}" in process.replicas()["hindered"]["failure"]
    process.control.delete("/replicas/hindered")
    assert process.order("next", address).status_code == 200
    process.until(lambda: process.replicas()["next"]["ready"] or process.replicas()["next"]["failure"])
    assert process.replicas()["next"]["failure"] == ""
    assert completed(address, 1).status_code == 200


def test_an_order_is_confirmed_not_repeated(process):
    address = process.ready("same")
    completed(address, 3)
    assert process.order("same", address).json()["ready"] is True
    assert generated(address) == 3
    assert process.order("same", process.address()).status_code == 422


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        (b"{", "the order: "),
        (b'{"address": "127.0.0.1", "config": {}, "more": 1}', "unknown field `more`"),
        (b'{"address": "127.0.0.1", "config": {}}', "config.model: Field required"),
        (json.dumps({"address": "127.0.0.1", "config": {"model": {"path": "x", "servedNames": []}}}).encode(), "config.model.servedNames"),
    ],
)
def test_an_order_that_cannot_be_is_refused_by_the_field(order, complaint):
    with pytest.raises(ConfigRejected, match=complaint):
        fronts.parse(order)


def test_an_address_that_is_not_this_machines_is_refused(process):
    answer = process.order("far", "192.0.2.1")
    assert (answer.status_code, "192.0.2.1" in answer.json()["message"]) == (422, True)
    assert "far" not in process.replicas()


def test_nothing_to_end_is_said(process):
    assert process.control.delete("/replicas/nobody").status_code == 404
