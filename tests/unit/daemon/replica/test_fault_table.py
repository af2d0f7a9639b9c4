"""Nine kinds of fault in a replica of real processes: each is noticed, every client is told once before he would give up, and either the
process ends with a code that is not 0 or one request ends and the others are whole. How soon is measured by bench/faults.py."""

from __future__ import annotations

import json
import signal

import httpx
import pytest
from pagoda_contracts.names import ERROR_ENGINE_DIED, PATH_READY
from pagoda_daemon.simulated.device.worker import expected_tokens
from pagoda_daemon.text.tokens import ModelText
from support.clients.fault_kinds import ANSWER, BODY, FATAL, FROZEN, LOCAL, config, full_disk, one_of_many, strike
from support.clients.outcomes import Outcome
from support.engine.toy_model import VOCAB
from support.servers.replica import start_replica

pytestmark = pytest.mark.deep

# Silence for so long is a fault to the watchdog, and it cannot know that it was the machine's: where a loop of ours, or the watchdog
# itself, stands still for a second or two, another fault than the planted one would be told, or nobody be told at all.
THRESHOLD_S = 8.0
LONG_S = 60.0  # where nothing is to be noticed


@pytest.mark.parametrize("case", FATAL, ids=[case.name for case in FATAL])
async def test_a_fault_of_the_replica_is_reported_to_every_client_and_ends_the_process(tmp_path, case):
    reason = tmp_path / "termination-log"
    reason.touch()
    with start_replica(config(tmp_path, THRESHOLD_S, *case.faults), env={"PAGODA_TERMINATION_LOG": str(reason)}) as replica:
        ended, _ = await strike(replica, case)
        for client in ended:
            assert client.clean, client
        codes = {client.error for client in ended}
        assert codes <= {ERROR_ENGINE_DIED, "internal_error"}, ended
        assert replica.wait() == 1
        # On a machine that stands still, a timer ends the interpreter, which then says nothing.
        told = any(line["event"] in ("stopped", "ended_abruptly") for line in replica.lines)
        assert reason.read_text().startswith("EngineDied: ") == told
        seen = [line for line in replica.lines if line["event"] == "no_progress"]
        assert [case.why in line["why"] for line in seen] == [True] * bool(case.why)


async def test_a_front_that_holds_the_interpreter_ends_all_the_same(tmp_path):
    with start_replica(config(tmp_path, THRESHOLD_S, *FROZEN.faults)) as replica:
        ended, _ = await strike(replica, FROZEN)
        assert {client.error for client in ended} == {"broken"}
        assert replica.wait() == 1


@pytest.mark.parametrize("case", LOCAL, ids=[case.name for case in LOCAL])
async def test_a_fault_of_one_request_ends_that_one_and_no_other(tmp_path, case):
    with start_replica(config(tmp_path, LONG_S, case.fault)) as replica:
        pid = replica.engine_pid()
        ended = await one_of_many(replica)
        (failed,) = [client for client in ended if client.error]
        # A client whose answer has begun gets the error within it; on a slow machine the fault may strike one that waits for all of it.
        status = 200 if failed.events else case.status
        assert (failed.status, failed.error) == (status, case.code)
        assert failed.retry == {503: "true", 500: "false"}.get(status)
        text = ModelText(tmp_path / "toy-model")
        for client in ended:
            if client is not failed and client.stream:
                assert said(client) == text.decode(expected_tokens(text.encode(client.name, 512), ANSWER, VOCAB))
        assert replica.engine_pid() == pid
        assert replica.probe(PATH_READY)[0] == 200
        replica.terminate()
        assert replica.wait() == 0


def said(client: Outcome) -> str:
    return "".join(json.loads(event)["choices"][0]["text"] for event in client.events if event != "[DONE]")


def test_a_full_disk_under_its_log_ends_nothing(tmp_path):
    with full_disk(config(tmp_path, LONG_S)) as (process, address):
        answer = httpx.post(f"http://{address}/v1/completions", json={**BODY, "prompt": "x", "max_tokens": 20}, timeout=300)
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
