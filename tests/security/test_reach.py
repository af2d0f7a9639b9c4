"""Reproducers of advisories about what a request makes the server reach for: addresses that it names, and files."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.judges.refusals import CHAT, COMPLETIONS, chat, completion, error_of, refused
from support.servers.local_replica import HOST, NAME, LocalReplica, local_replica

CANARY = "canary-of-the-tests"


@asynccontextmanager
async def listener() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port that notes everybody who comes."""
    visits: list[bytes] = []

    async def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(b"somebody")
        writer.close()

    server = await asyncio.start_server(note, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], visits


def spellings(port: int) -> list[str]:
    """Of one address, as parsers read it differently."""
    hosts = (
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"127.1:{port}",
        f"2130706433:{port}",
        f"0x7f000001:{port}",
        f"0177.0.0.1:{port}",
        f"[::ffff:127.0.0.1]:{port}",
        f"example.com@127.0.0.1:{port}",
        f"127.0.0.1:{port}\\@example.com",
        f"127.0.0.1:{port}#@example.com",
        f"127.0.0.1:{port}/redirect?to=http://127.0.0.1:{port}",
        f"0:{port}",
    )
    schemes = ("http://", "HTTP://", "https://", "ftp://", "//")
    return [scheme + host for scheme in schemes for host in hosts]


async def nobody_comes(bodies: Any, path: str = CHAT, *, all_refused: bool = True) -> None:
    """Whatever is answered, nothing is fetched."""
    async with listener() as (port, visits), local_replica() as replica:
        for body in bodies(port):
            if all_refused:
                await refused(replica, body, path)
            else:
                await replica.post(path, body)
        await asyncio.sleep(0)
        assert visits == []


def part(kind: str, value: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "what is this?"}, {"type": kind, kind: value}]}])


async def test_an_image_is_not_fetched() -> None:
    await nobody_comes(lambda port: [part("image_url", {"url": f"http://127.0.0.1:{port}/a.png"})])


async def test_an_address_of_any_spelling_is_not_fetched() -> None:
    await nobody_comes(lambda port: [part("image_url", {"url": url}) for url in spellings(port)])


async def test_an_address_that_is_a_bare_string_or_a_file_is_not_fetched() -> None:
    await nobody_comes(lambda port: [part("image_url", f"http://127.0.0.1:{port}"), part("file", {"file_url": f"http://127.0.0.1:{port}"})])


async def test_audio_and_video_are_not_fetched() -> None:
    await nobody_comes(
        lambda port: [
            part("audio_url", {"url": f"http://127.0.0.1:{port}/a.wav"}),
            part("video_url", {"url": f"http://127.0.0.1:{port}/a.mp4"}),
            part("input_audio", {"data": "UklGRg==", "format": "wav", "url": f"http://127.0.0.1:{port}"}),
        ]
    )


async def test_an_image_in_the_text_is_text() -> None:
    await nobody_comes(
        lambda port: [
            chat(messages=[{"role": "user", "content": f"![](http://127.0.0.1:{port}/a.png)"}]),
            chat(messages=[{"role": "user", "content": [{"type": "text", "text": f"![x](http://127.0.0.1:{port})"}]}]),
        ],
        all_refused=False,
    )


async def test_a_batch_by_address_is_not_fetched() -> None:
    async with listener() as (port, visits), local_replica() as replica:
        for path in ("/v1/batches", "/v1/files", "/v1/chat/completions/batch"):
            status, answer = await replica.post(path, {"input_file_id": f"http://127.0.0.1:{port}", "url": f"http://127.0.0.1:{port}"})
            assert status in (404, 501)  # not a path, or one that is not built
            error_of(answer)
        status, answer = await replica.post(COMPLETIONS, completion(prompt=f"http://127.0.0.1:{port}/prompts.jsonl"))
        assert status == 200
        assert visits == []


OPENED: list[str] = []
_WATCHING = threading.Event()


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename") and _WATCHING.is_set():
        OPENED.append(str(arguments[0]))


def payloads(count: int) -> list[str]:
    """Names that are paths."""
    luck = random.Random(12)
    ups = ("../", "..\\", "%2e%2e/", "..%2f", "....//", "/", "./", "~/", "file:///", "\u2025/", "C:\\", "\\\\host\\")
    return [
        "".join(luck.choices(ups, k=luck.randrange(1, 8))) + CANARY + luck.choice(("", "\0", "/config.json", ".safetensors"))
        for _ in range(count)
    ]


async def named(replica: LocalReplica, payload: str) -> None:
    status, answer = await replica.post(COMPLETIONS, completion(model=payload))
    assert status in (400, 404)
    assert error_of(answer)["code"] in ("model_not_found", "invalid_value")
    safe = "".join(char if char.isalnum() or char in "/.-%" else "_" for char in payload)
    status, _ = await replica.get(f"/v1/models/{safe}")
    assert status == 404


async def test_a_name_that_is_a_path_opens_nothing() -> None:
    if _note not in _HOOKED:
        sys.addaudithook(_note)
        _HOOKED.append(_note)
    async with local_replica() as replica:
        OPENED.clear()
        _WATCHING.set()
        try:
            for payload in payloads(300):
                await named(replica, payload)
            await replica.post(COMPLETIONS, completion(user=f"../{CANARY}"), x_request_id=f"../../{CANARY}", traceparent=f"../{CANARY}")
        finally:
            _WATCHING.clear()
        assert [path for path in OPENED if CANARY in path] == []


_HOOKED: list[Any] = []  # an audit hook cannot be taken back: one for this process


async def test_the_hook_sees_a_file_that_is_opened(tmp_path: Path) -> None:
    await test_a_name_that_is_a_path_opens_nothing()
    _WATCHING.set()
    with pytest.raises(FileNotFoundError):
        (tmp_path / CANARY).read_text()
    _WATCHING.clear()
    assert any(CANARY in path for path in OPENED)
    assert NAME not in OPENED
