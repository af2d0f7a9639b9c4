"""The application on a real port, in the test's own process, over an engine that says what each test tells it to."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.http.app import Parts, application
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.core.messages import Life, Ready, Refusal, RowOutput, TokenLogprob
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import tiny_model_dir

Line = Callable[[str], list[Any]]


class Engine:
    """Answers the k-th submission with the k-th line of the script, the last one again and again; each line makes rows of an id."""

    def __init__(self) -> None:
        self.script: list[Line] = [says("hello")]
        self.submitted: list[Any] = []
        self.streams: list[Stream] = []
        self.closed: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

    def submit(self, message: Any, joined: Stream | None = None) -> Stream:
        line = self.script[min(len(self.submitted), len(self.script) - 1)]
        self.submitted.append(message)
        stream = joined or Stream(message.request_id)
        self.streams.append(stream)
        for item in line(message.request_id):
            stream.put(item)
        return stream

    def close_stream(self, request_id: str, *, finished: bool) -> None:
        self.closed.put_nowait((request_id, finished))


def says(text: str, reason: str | None = "stop", *, scored: bool = False, cached: int = 0) -> Line:
    """A token for each byte; `scored`: with its log-probability, and the best beside it. `cached`: tokens of the prompt that were known."""

    def line(request_id: str) -> list[RowOutput]:
        letters = [RowOutput(request_id, (byte,), logprobs=_scores(byte) if scored else ()) for byte in text.encode()]
        if cached:
            letters[0] = msgspec.structs.replace(letters[0], life=Life(cached_tokens=cached))
        return [*letters, RowOutput(request_id, (), reason)] if reason else letters

    return line


def _scores(byte: int) -> tuple[TokenLogprob, ...]:
    return (TokenLogprob(-byte / 256, 1, ((byte, -byte / 256), (0, -9.0))),)


def refuses(reason: Any, after_s: float = 0.01) -> Line:
    return lambda request_id: [RowOutput(request_id, (), "refused", refusal=Refusal(reason, after_s, "not now"))]


def fails(text: str = "") -> Line:
    return lambda request_id: [*says(text, None)(request_id), RowOutput(request_id, (), "error", "the device said no")]


def ready_replica(context: int = 64) -> Replica:
    return Replica(born=0.0, phase=Phase.PHASE_READY, limits=Ready(context, 1024, 16, 40, 8))


@functools.cache
def _text(template: str | None) -> ModelText:
    """One for all tests of a process: to start the processes of its template takes a second, and it keeps nothing of a request."""
    with tempfile.TemporaryDirectory(prefix="pagoda-test-") as folder:
        model = tiny_model_dir(Path(folder))
        if template is not None:
            (model / "chat_template.jinja").write_text(template)
        text = ModelText(model)
        text.warm()
        return text


@asynccontextmanager
async def replica_with_scripted_engine(engine: Any, replica: Replica, template: str | None = None, **parts: Any) -> AsyncIterator[str]:
    """Its URL. `template` replaces the toy model's, `parts` are further fields of the application's."""
    text = await asyncio.to_thread(_text, template)
    generator = Generator(engine, text, Counts())
    exposition = Exposition("m", replica, generator.counts)
    app = application(Parts(replica, Admission(replica), generator, exposition, ("m",), "0", **parts))
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await serving
