"""The end of a replica: SIGTERM, its deadline, a second SIGTERM, a killed engine, a fault no restart cures."""

import json
import os
import re
import signal
import threading
import time
from contextlib import contextmanager

import grpc
import httpx
import openai
import pytest
from pagoda_contracts.names import (
    ERROR_ENGINE_DIED,
    EXIT_PERMANENT,
    GRPC_WATCH_STATE,
    HEADER_RETRY_AFTER,
    HEADER_SHOULD_RETRY,
    PATH_LIVE,
    PATH_READY,
)
from pagoda_contracts.pb.daemon_pb2 import Phase, State, WatchStateRequest
from pagoda_daemon.simulated.device.worker import expected_tokens
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import VOCAB
from support.servers.replica import NAME, PATIENCE_S, replica_config, start_daemon, start_replica

pytestmark = pytest.mark.deep  # real processes, seconds each

# Outlives a test's patience at 50 ms a step: it ends only by being ended.
ENDLESS = {"model": NAME, "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
LONG = {"model": NAME, "prompt": "x", "max_tokens": 400, "stream": True, "ignore_eos": True}


def completions(replica):
    return f"http://{replica.http}/v1/completions"


def events(lines):
    return [line.removeprefix("data: ") for line in lines if line]


def text_of(payloads):
    return "".join(json.loads(payload)["choices"][0]["text"] for payload in payloads if payload != "[DONE]")


def metric(replica, name):
    body = httpx.get(f"http://{replica.http}/metrics", timeout=PATIENCE_S).text
    return float(re.search(rf"^{name}\{{[^}}]*}} ([0-9.]+)$", body, re.MULTILINE)[1])


def wait_until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Watcher:
    """A gateway's view: every frame, in order."""

    def __init__(self, replica):
        self.frames = []
        self._channel = grpc.insecure_channel(replica.grpc)
        call = self._channel.unary_stream(
            GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
        )
        self._call = call(WatchStateRequest(watcher="test"))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            for state in self._call:
                self.frames.append(state)
        except grpc.RpcError as error:
            self.ended = error

    def close(self):
        self._call.cancel()
        self._thread.join()
        self._channel.close()


@contextmanager
def watching(replica):
    watcher = Watcher(replica)
    try:
        wait_until(lambda: watcher.frames)
        yield watcher
    finally:
        watcher.close()


def test_a_drain_refuses_new_requests_until_those_in_flight_are_whole(tmp_path):
    with start_replica(replica_config(tmp_path, step_ms=15, drain_timeout="10m", engine={"max_model_len": 4096})) as replica:
        # 6 s of steps: longer than any grace of the servers, so that only the drain can have waited for it.
        text = ModelText(tmp_path / "toy-model")
        whole = text.decode(expected_tokens(text.encode(LONG["prompt"], 512), LONG["max_tokens"], VOCAB))
        with (
            watching(replica) as watcher,
            httpx.stream("POST", completions(replica), json=ENDLESS, timeout=PATIENCE_S) as holds_it,
            httpx.stream("POST", completions(replica), json=LONG, timeout=PATIENCE_S) as answer,
        ):
            lines = answer.iter_lines()
            got = [next(lines)]
            replica.terminate()
            wait_until(lambda: replica.probe(PATH_READY)[0] == 503)
            assert replica.probe(PATH_LIVE)[0] == 200
            wait_until(lambda: watcher.frames[-1].phase == Phase.PHASE_DRAINING)
            wait_until(lambda: httpx.post(completions(replica), json={**LONG, "max_tokens": 1}, timeout=PATIENCE_S).status_code == 503)
            refused = [httpx.post(completions(replica), json=LONG, timeout=PATIENCE_S) for _ in range(5)]
            got += list(lines)
            holds_it.close()  # until here it is refused in words, also where all of this takes longer than the answer
        assert events(got)[-1] == "[DONE]"
        assert text_of(events(got)) == whole
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
            assert (answer.headers[HEADER_SHOULD_RETRY], answer.headers["connection"]) == ("true", "close")
            assert float(answer.headers[HEADER_RETRY_AFTER]) <= 120
        assert replica.wait() == 0
        phases = [frame.phase for frame in watcher.frames]
        assert phases == sorted(phases)
        draining = [frame for frame in watcher.frames if frame.phase == Phase.PHASE_DRAINING]
        assert draining[0].in_flight == 2


def test_at_the_drain_deadline_each_stream_ends_with_one_clean_error(tmp_path):
    with start_replica(replica_config(tmp_path, step_ms=50, drain_timeout="500ms", engine={"max_concurrency": 1})) as replica:
        answers = {}

        def wait_in_line():
            answers["waiting"] = httpx.post(completions(replica), json=LONG, timeout=PATIENCE_S)

        with httpx.stream("POST", completions(replica), json=LONG, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            got = [next(lines)]
            waiting = threading.Thread(target=wait_in_line)
            waiting.start()
            wait_until(lambda: metric(replica, "vllm:num_requests_waiting") == 1)
            replica.terminate()
            got += list(lines)
        waiting.join()
        *texts, error, done = events(got)
        assert (json.loads(error)["error"]["code"], done) == ("draining", "[DONE]")
        assert not any("error" in json.loads(text) for text in texts)
        # No byte was sent for the one in line: it may go elsewhere.
        assert (answers["waiting"].status_code, answers["waiting"].headers[HEADER_SHOULD_RETRY]) == (503, "true")
        assert replica.wait() == 0


def test_a_second_signal_ends_it_without_waiting_for_streams(tmp_path):
    with start_replica(replica_config(tmp_path, step_ms=200, drain_timeout="10m")) as replica:
        with httpx.stream("POST", completions(replica), json=LONG, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            got = [next(lines)]
            replica.terminate()
            wait_until(lambda: replica.probe(PATH_READY)[0] == 503)
            replica.terminate()
            got += list(lines)
        assert len(events(got)) < 100
        assert json.loads(events(got)[-2])["error"]["code"] == "draining"
        assert replica.wait() in (0, 1)  # 1 where a busy machine takes more than two seconds for it


def test_a_killed_engine_ends_every_stream_with_one_error_and_the_process_with_code_1(tmp_path):
    with start_replica(replica_config(tmp_path, step_ms=20, engine={"max_concurrency": 4, "max_model_len": 4096})) as replica:
        clients = [openai.OpenAI(base_url=f"http://{replica.http}/v1", api_key="none", max_retries=0) for _ in range(5)]
        body = {key: value for key, value in ENDLESS.items() if key != "ignore_eos"}
        open_streams = [one.completions.create(**body, extra_body={"ignore_eos": True}) for one in clients[:4]]
        for one in open_streams:
            next(one)
        outcome = []

        def wait_in_line():
            with pytest.raises(openai.InternalServerError) as caught:
                clients[4].completions.create(**body)
            outcome.append(caught.value)

        waiting = threading.Thread(target=wait_in_line)
        waiting.start()
        wait_until(lambda: metric(replica, "vllm:num_requests_waiting") == 1)
        os.kill(replica.engine_pid(), signal.SIGKILL)
        for one in open_streams:
            with pytest.raises(openai.APIError, match="engine"):
                list(one)
        waiting.join()
        assert (outcome[0].status_code, outcome[0].code, outcome[0].response.headers[HEADER_SHOULD_RETRY]) == (
            503,
            ERROR_ENGINE_DIED,
            "true",
        )
        assert replica.wait() == 1
        assert "signal 9" in replica.lines[-1]["message"]
        for one in clients:
            one.close()


def test_frames_come_by_heartbeat_and_show_a_stopped_engine_by_its_age(tmp_path):
    with start_replica(replica_config(tmp_path)) as replica, watching(replica) as watcher:
        os.kill(replica.engine_pid(), signal.SIGSTOP)
        try:
            wait_until(lambda: watcher.frames[-1].engine_heartbeat_age_ms > 1500)
            known = len(watcher.frames)
            wait_until(lambda: len(watcher.frames) >= known + 2)  # nothing changes: they come by heartbeat alone
        finally:
            os.kill(replica.engine_pid(), signal.SIGCONT)
        wait_until(lambda: watcher.frames[-1].engine_heartbeat_age_ms < 500)
        frames = list(watcher.frames)
        first = frames[0]
        assert (first.phase, list(first.served_names), first.max_concurrency, first.block_size) == (Phase.PHASE_READY, [NAME], 64, 16)
        assert (first.blocks_total, first.blocks_used + first.blocks_free) == (first.blocks_total, first.blocks_total)
        assert [frame.sequence for frame in frames] == list(range(1, len(frames) + 1))


def test_an_impossible_config_exits_78_and_says_why_where_the_operator_reads(tmp_path):
    reason = tmp_path / "termination-log"
    reason.touch()
    config = replica_config(tmp_path, engine={"kv_bytes": 1})
    with start_daemon(config, {"PAGODA_TERMINATION_LOG": str(reason)}) as replica:
        assert replica.wait() == EXIT_PERMANENT
    line = reason.read_text()
    assert line.startswith("ConfigRejected: ")
    assert "kvBytes" in line
    assert line.count("\n") == 1


def test_a_model_without_a_tokenizer_exits_78_and_names_the_file(tmp_path):
    reason = tmp_path / "termination-log"
    reason.touch()
    config = replica_config(tmp_path)
    (tmp_path / "toy-model/tokenizer.json").unlink()
    with start_daemon(config, {"PAGODA_TERMINATION_LOG": str(reason)}) as replica:
        assert replica.wait() == EXIT_PERMANENT
    assert reason.read_text().startswith("ModelRejected: tokenizer.json is missing")
