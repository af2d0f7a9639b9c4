"""The HTTP application on a real port, in the test's own loop, over an engine that says what the test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.access.auth import Guard
from pagoda_daemon.api.http.app import Parts, application
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition
from pagoda_daemon.nouns.messages import Life, Ready, Refusal, RowOutput, Submit
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import tiny_model_dir

CONTEXT, VOCABULARY = 4096, 1024
Line = Callable[[str], Sequence[Any]]


def says(text: str, reason: str | None = "stop", cached: int = 0) -> Line:
    """A row for each byte of `text`, which is a token of the toy model."""

    def line(request_id: str) -> Sequence[RowOutput]:
        life = Life(cached_tokens=cached)
        rows = [RowOutput(request_id, (byte,), life=life if at == 0 else None) for at, byte in enumerate(text.encode())]
        return [*rows, RowOutput(request_id, (), reason)] if reason else rows

    return line


def refuses(reason: Any, after_s: float = 0.01) -> Line:
    return lambda request_id: [RowOutput(request_id, (), "refused", refusal=Refusal(reason, after_s, "not now"))]


def fails(text: str = "") -> Line:
    return lambda request_id: [*says(text, None)(request_id), RowOutput(request_id, (), "error", "the device said no")]


@dataclass
class ScriptedEngine:
    """Answers the k-th submission with the k-th line of the script, and further ones with the last line."""

    script: list[Line] = field(default_factory=lambda: [says("hello")])
    submitted: list[Submit] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    closed: list[tuple[str, bool]] = field(default_factory=list)

    def submit(self, message: Submit, joined: Stream | None = None) -> Stream:
        line = self.script[min(len(self.submitted), len(self.script) - 1)]
        self.submitted.append(message)
        stream = joined or Stream(message.request_id)
        self.streams.append(stream)
        for item in line(message.request_id):
            stream.put(item)
        return stream

    def close_stream(self, request_id: str, *, finished: bool) -> None:
        self.closed.append((request_id, finished))


@dataclass
class ScriptedFront:
    """`url` is without a path."""

    url: str
    engine: ScriptedEngine
    replica: Replica
    text: ModelText

    def prompt(self, at: int = -1) -> str:
        """Returns the text of a prompt that reached the engine."""
        return self.text.decode(self.engine.submitted[at].prompt, skip_special=False)


@asynccontextmanager
async def scripted_front(folder: Path, template: str | None = None, **parts: Any) -> AsyncIterator[ScriptedFront]:
    """Serves the model "m". `template` replaces its chat template, `parts` are further fields of `Parts`."""
    directory = tiny_model_dir(folder)
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    text, engine = ModelText(directory), ScriptedEngine()
    await asyncio.to_thread(text.warm)
    replica = Replica(born=0.0, phase=Phase.PHASE_READY, limits=Ready(CONTEXT, VOCABULARY, 16, 40, 8))
    generator = Generator(engine, text, Counts())  # type: ignore[arg-type]
    exposition = Exposition("m", replica, generator.counts)
    app = application(Parts(replica, Admission(replica), generator, exposition, ("m",), "0", **{"guard": Guard(None), **parts}))
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield ScriptedFront(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", engine, replica, text)
    finally:
        server.should_exit = True
        await serving
