"""What is said past a loop that stands still, and log lines that nobody can keep."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from typing import Any

import pytest
from pagoda_contracts.names import ERROR_ENGINE_DIED
from pagoda_daemon.api.http.final_errors import final_bytes, send_final_errors
from pagoda_daemon.core.errors import EngineDied
from pagoda_daemon.process.logs import SteadyLogger

ERROR = EngineDied("this replica stands still")


@dataclass
class Cycle:
    response_started: bool = False
    response_complete: bool = False
    chunked_encoding: bool | None = None
    scope: dict[str, Any] = field(default_factory=lambda: {"path": "/v1/completions"})


OF_A_MESSAGE = {"path": "/v1/messages", "state": {"request_id": "r1"}}


@dataclass
class Transport:
    """Of uvicorn's connection: a socket, and what the loop has not sent."""

    raw: socket.socket
    unsent: int = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    encrypted: bool = False

    def get_extra_info(self, name: str) -> object:
        return self.raw if name == "socket" else name if self.encrypted else None


@dataclass
class Connection:
    serving: Cycle | None
    transport: Any
    begun: bool = False
    cycle: Cycle | None = None  # the one that came last: sent ahead, it waits behind the answer under way


def test_a_client_that_had_no_byte_gets_a_whole_answer_that_may_be_retried():
    said = final_bytes(Cycle(), ERROR)
    assert said is not None
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"x-should-retry: true" in head
    assert b"connection: close" in head
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)["error"]["code"] == ERROR_ENGINE_DIED


def test_a_stream_gets_one_error_event_and_its_end():
    said = final_bytes(Cycle(response_started=True, chunked_encoding=True), ERROR)
    assert said is not None
    size, _, rest = said.partition(b"\r\n")
    chunk, end = rest[: int(size, 16)], rest[int(size, 16) :]
    assert end == b"\r\n0\r\n\r\n"
    event, done, _ = chunk.split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == ERROR_ENGINE_DIED
    assert done == b"data: [DONE]"


def test_a_message_gets_an_error_in_the_shape_of_its_own_api():
    said = final_bytes(Cycle(scope=OF_A_MESSAGE), ERROR)
    assert said is not None
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 529 \r\n")
    assert b"x-should-retry: true" in head
    error = {"type": "error", "error": {"type": "overloaded_error", "message": str(ERROR)}, "request_id": "r1"}
    assert json.loads(body) == error
    said = final_bytes(Cycle(response_started=True, chunked_encoding=True, scope=OF_A_MESSAGE), ERROR)
    assert said is not None
    name, data = said.split(b"\r\n")[1].removesuffix(b"\n\n").split(b"\n")
    assert (name, json.loads(data.removeprefix(b"data: "))) == (b"event: error", error)


@pytest.mark.parametrize("cycle", [None, Cycle(True, True, True), Cycle(response_started=True, chunked_encoding=False)])
def test_where_nothing_fits_nothing_is_said(cycle: Cycle | None):
    assert final_bytes(cycle, ERROR) is None


def test_a_request_sent_ahead_is_not_answered_in_the_midst_of_the_one_before_it():
    here, there = socket.socketpair()
    streaming, ahead = Cycle(response_started=True, chunked_encoding=True), Cycle()
    assert send_final_errors([Connection(streaming, Transport(here), ahead)], ERROR) == 1
    assert not there.recv(1000).startswith(b"HTTP/1.1")
    here.close()
    there.close()


def test_every_client_is_answered_unless_it_is_gone_or_has_bytes_to_come_or_reads_ciphertext():
    pairs = [socket.socketpair() for _ in range(4)]
    gone = socket.socketpair()
    gone[0].close()
    connections = [
        Connection(Cycle(), Transport(pairs[0][0])),
        Connection(Cycle(), Transport(pairs[1][0], unsent=7)),
        Connection(None, Transport(pairs[2][0])),
        Connection(Cycle(), Transport(gone[0])),
        Connection(Cycle(), Transport(pairs[3][0], encrypted=True)),
    ]
    assert send_final_errors(connections, ERROR) == 1
    assert pairs[0][1].recv(12) == b"HTTP/1.1 503"
    for one in (pairs[1][1], pairs[2][1], pairs[3][1]):
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.recv(1)
    for one in (*pairs, gone):
        one[0].close()
        one[1].close()


def test_a_line_that_cannot_be_written_is_dropped_and_the_next_one_is_not():
    reader, writer = os.pipe()
    logger = SteadyLogger(writer)
    logger.info("a ü")
    full = os.open("/dev/full", os.O_WRONLY)
    lossy = SteadyLogger(full)
    lossy.msg("lost")
    assert (logger.lost, lossy.lost) == (0, 1)
    assert os.read(reader, 100) == "a ü\n".encode()
    for descriptor in (reader, writer, full):
        os.close(descriptor)


def test_a_request_that_the_loop_never_began_is_answered_too():
    said = final_bytes(Cycle(scope={"path": "/v1/messages", "state": {}}), ERROR)
    assert said is not None
    assert json.loads(said.partition(b"\r\n\r\n")[2])["request_id"] == ""
