"""Real daemons behind a real gateway that shows its token: a stream survives the replica that began it, and its client sees nothing of it.

Each answer is compared with an undisturbed one, event by event. What differs by nature (ids, times) is taken out first.
"""

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from pagoda_contracts.names import HEADER_CONTINUE, ROLE_GATEWAY
from pagoda_contracts.notes import NOTE
from support.kube.issuer import Issuer
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.real_replica import real_config
from support.servers.replica import NAME, Replica, replica_config, start_daemon

pytestmark = pytest.mark.deep  # real processes, seconds each

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "array", "items": {"type": "integer"}, "minItems": 6, "maxItems": 6}},
    "required": ["n"],
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}}
TOOLS = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "stream_options": {"include_usage": True}}
LONG = CHAT | {"ignore_eos": True}
CASES = {
    "greedy": ("/v1/chat/completions", LONG | {"temperature": 0}),
    "seeded": ("/v1/chat/completions", LONG | {"temperature": 1.0, "top_p": 0.9, "seed": 7, "frequency_penalty": 0.5}),
    "structured": ("/v1/chat/completions", CHAT | FORMAT | {"temperature": 0.8, "seed": 3}),
    "tools": ("/v1/chat/completions", CHAT | TOOLS | {"temperature": 0.8, "seed": 3}),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 200, "temperature": 0}),
    "message": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "temperature": 0}),
}
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} in <tool_call>{% endif %}"
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] }}"
    "{% for call in message.tool_calls %}{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}"
)
VARIES = re.compile(
    rb'"(?:id|item_id|call_id|created|created_at|completed_at)":("[^"]*"|\d+)|"(?:cached_tokens|cache_read_input_tokens|input_tokens)":\d+'
)


@dataclass
class Service:
    """Replicas with the same model, on file for a gateway. A replica that is killed has a successor at once."""

    replicas: list[Replica]
    config: object
    file: Path
    stack: ExitStack

    def publish(self) -> None:
        endpoints = [{"http": replica.http, "grpc": replica.grpc} for replica in self.replicas if replica.process.poll() is None]
        write_fleet(self.file, [{"name": "ns/s", "served_names": [NAME], "endpoints": endpoints}])

    def add(self) -> None:
        replica = start_daemon(self.config.model_copy(deep=True))
        self.stack.callback(replica.close)
        self.replicas.append(replica)

    def wait(self) -> None:
        for replica in self.replicas:
            replica.wait_listening()
            replica.wait_ready()
        self.publish()

    def by(self, address: str) -> Replica:
        return next(replica for replica in self.replicas if replica.http == address)

    def kill(self, replica: Replica) -> None:
        """kill -9 of both processes."""
        engine = replica.engine_pid()
        replica.process.kill()
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)
        replica.process.wait()
        self.replicas.remove(replica)


@contextmanager
def service_of(folder: Path, config, count: int) -> Iterator[tuple[Service, GatewayProcess]]:
    issuer = Issuer(folder)
    (folder / "token").write_text(issuer.token(ROLE_GATEWAY))
    (Path(config.model.path) / "chat_template.jinja").write_text(TEMPLATE)
    with ExitStack() as stack:
        service = Service([], config.model_copy(update={"auth": issuer.config()}), folder / "fleet.json", stack)
        for _ in range(count):
            service.add()
        service.wait()
        with start_gateway("--fleet", str(service.file), "--token", str(folder / "token"), "--hold-timeout", "60s") as gateway:
            yield service, gateway


async def read(client, gateway, path, fields, events=None, **headers):
    """The whole stream. `events` counts what has come, of all streams that share it."""
    stream = b""
    async with client.post(gateway.url + path, json={"model": NAME, "stream": True} | fields, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        async for chunk in answer.content.iter_any():
            stream += chunk
            if events is not None:
                events[path, str(fields)] += chunk.count(b"\n\n")
    return stream


async def all_of(gateway, cases, happen=None, least=None):
    """Every case at once; `happen` when each of them has said something and at least so many go on, which are most if it is not said."""
    events = Counter()
    async with aiohttp.ClientSession() as client:
        reading = [asyncio.ensure_future(read(client, gateway, path, fields, events)) for path, fields in cases.values()]
        while happen is not None and any(events[path, str(fields)] < 3 for path, fields in cases.values()):
            await asyncio.sleep(0.005)
        if happen is not None:
            assert sum(not task.done() for task in reading) >= (least or len(cases) // 2 + 1), "the answers are over before the event"
            happen()
        return dict(zip(cases, await asyncio.gather(*reading), strict=True))


def content(stream):
    assert NOTE not in stream
    return VARIES.sub(b"", stream)


def judge(streams, undisturbed):
    for name, stream in streams.items():
        assert (name, content(stream)) == (name, content(undisturbed[name]))


async def continued(gateway):
    """How many streams went on."""
    found = re.findall(r'continued_streams_total{[^}]*numbers="same"[^}]*} ([0-9.]+)', await asyncio.to_thread(gateway.scrape))
    return sum(map(float, found))


@pytest.fixture
def simulated(tmp_path):
    config = replica_config(tmp_path, step_ms=40.0, engine={"max_model_len": 2048})
    with service_of(tmp_path, config, 1) as running:
        yield running


async def test_streams_of_all_kinds_survive_a_kill(simulated):
    """All of them are on the one replica that is killed, and go on at the other, without a character more or less."""
    service, gateway = simulated
    undisturbed = await all_of(gateway, CASES)
    service.add()
    service.replicas[1].wait_listening()
    service.replicas[1].wait_ready()
    victim = service.replicas[0]

    def kill():
        service.publish()
        service.kill(victim)

    judge(await all_of(gateway, CASES, kill), undisturbed)
    assert await continued(gateway) > len(CASES) // 2


async def test_streams_on_a_frozen_replica_go_on_elsewhere_and_are_not_wanted_back(simulated):
    """Streams, and an answer without a stream. One that must not go on waits for its replica, which wakes up at the end."""
    service, gateway = simulated
    undisturbed = await all_of(gateway, CASES)
    service.add()
    service.replicas[1].wait_listening()
    service.replicas[1].wait_ready()
    victim = service.replicas[0]
    path, fields = CASES["greedy"]
    async with aiohttp.ClientSession() as client:
        never = asyncio.ensure_future(read(client, gateway, path, fields, **{HEADER_CONTINUE: "never"}))
        whole = asyncio.ensure_future(read(client, gateway, path, fields | {"stream": False, "stream_options": None}))

        def freeze():
            service.publish()
            for pid in (victim.process.pid, victim.engine_pid()):
                os.kill(pid, signal.SIGSTOP)

        judge(await all_of(gateway, CASES, freeze), undisturbed)
        assert b'"finish_reason":"length"' in await whole
        assert await continued(gateway) > len(CASES) // 2
        assert not never.done()
        for pid in (victim.engine_pid(), victim.process.pid):
            os.kill(pid, signal.SIGCONT)
        assert content(await never) == content(undisturbed["greedy"])


async def test_a_real_model_in_bf16_says_the_same(tmp_path):
    """Logits, sampler and kernels are real, the replica that dies and the one that goes on are two processes."""
    config = real_config(tmp_path)
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"dtype": "bfloat16"})})
    cases = {name: (path, fields | {"max_tokens": 450}) for name, (path, fields) in CASES.items() if name in ("greedy", "seeded")}
    with service_of(tmp_path, config, 1) as (service, gateway):
        undisturbed = await all_of(gateway, cases)
        service.add()
        service.replicas[1].wait_listening()
        service.replicas[1].wait_ready()
        victim = service.replicas[0]

        def kill():
            service.publish()
            service.kill(victim)

        # An engine this small ends an answer within a second, and a busy machine may keep us from looking for as long: one is enough.
        judge(await all_of(gateway, cases, kill, least=1), undisturbed)
        assert await continued(gateway) >= 1
