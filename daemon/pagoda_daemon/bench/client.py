"""One request against an OpenAI endpoint, streamed: when its events came, and what the server counted. Called by `load`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from pagoda_daemon.bench.datasets import Sample
from pagoda_daemon.bench.statistics import Outcome

CHAT: Final = "/chat/completions"
OK: Final = 200
_LONGEST_ERROR: Final = 500
_DONE: Final = b"[DONE]"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    @property
    def said(self) -> str:
        """Thinking is text too: its tokens are the first that a client sees."""
        delta = self.delta or _Delta()
        return self.text or delta.content or delta.reasoning_content or delta.reasoning or ""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    """What is read of an event of either endpoint."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


@dataclass(frozen=True)
class Target:
    """Where and how is asked. `body` are fields of each request; `headers` are sent with each."""

    url: str
    model: str
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        return self.url.endswith(CHAT)

    def body_of(self, sample: Sample) -> bytes:
        """Written before the clock runs: a prompt of a million ids takes a while."""
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": sample.prompt}]} if self.chat else {"prompt": sample.prompt}
        limit = "max_completion_tokens" if self.chat else "max_tokens"
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode({"model": self.model, **asked, limit: sample.output_tokens, **streamed, **self.body})


async def ask(session: aiohttp.ClientSession, target: Target, body: bytes, sample: Sample) -> Outcome:
    """Never raises for what the server or the network does: that is an outcome."""
    sent = time.perf_counter()
    answer = _Answer(sample.input_tokens)
    try:
        headers = {"content-type": "application/json", **target.headers}
        async with session.post(target.url, data=body, headers=headers) as response:
            if response.status != OK:
                said = (await response.text(errors="replace"))[:_LONGEST_ERROR]
                return answer.outcome(sent, f"HTTP {response.status}: {said}", response.status)
            async for event in _events(response.content):
                answer.take(event, time.perf_counter())
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        return answer.outcome(sent, f"{type(error).__name__}: {error}"[:_LONGEST_ERROR])
    return answer.outcome(sent, answer.missing())


class _Answer:
    """What has come of it."""

    def __init__(self, input_tokens: int) -> None:
        self._stamps: list[float] = []
        self._texts: list[str] = []
        self._input, self._output = input_tokens, 0
        self._counted = self._done = False
        self._error = ""

    def take(self, event: bytes, now: float) -> None:
        if event == _DONE:
            self._done = True
            return
        found = msgspec.json.decode(event, type=_Event)
        if found.error:
            self._error = self._error or str(found.error)[:_LONGEST_ERROR]
        for text in (choice.said for choice in found.choices or ()):
            if text:
                self._texts.append(text)
                self._stamps.append(now)
        if found.usage is not None:
            self._counted, self._input, self._output = True, found.usage.prompt_tokens, found.usage.completion_tokens

    def missing(self) -> str:
        """Why the answer is not whole; empty if it is."""
        if self._error:
            return self._error
        if not self._done:
            return "the stream ended before [DONE]"
        return "" if self._counted else "the server sent no usage, so its tokens are not known (stream_options.include_usage)"

    def outcome(self, sent: float, error: str, status: int = 0) -> Outcome:
        return Outcome(sent, time.perf_counter(), tuple(self._stamps), self._input, self._output, "".join(self._texts), error, status)


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Data of server-sent events. A line may be of any length, so they are not read by the reader's own lines."""
    rest = b""
    async for part in content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
