"""Bugs to plant: the faults of the advisories, put into this code for as long as a test runs. A reproducer must go red on its own.

Each is a function of a MonkeyPatch; `tests/security/advisories.toml` names them.
"""

from __future__ import annotations

import json
import pickle
import re
import runpy
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httptools
import jinja2
import msgspec
import pytest
from pagoda_contracts import prefix
from pagoda_daemon.api.access import auth
from pagoda_daemon.api.access.caller import ANYBODY, caller
from pagoda_daemon.api.http import app, connection
from pagoda_daemon.api.openai import errors as api_errors
from pagoda_daemon.api.openai import fields, requests, sampling, strict, structured
from pagoda_daemon.api.routes import admission as front_admission
from pagoda_daemon.api.routes import submitting
from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.core.sampling import Number
from pagoda_daemon.engine import loop, wire
from pagoda_daemon.metrics import Exposition
from pagoda_daemon.model import config, files, loader
from pagoda_daemon.scheduler import admission
from pagoda_daemon.scheduler.commit import fail_step
from pagoda_daemon.text import template_worker, tokens
from starlette.datastructures import Headers
from starlette.responses import Response

Patch = pytest.MonkeyPatch
PLANTS: dict[str, Callable[[Patch], None]] = {}


def plant(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    PLANTS[function.__name__] = function
    return function


# What a request's fields say


def _anything(*_: Any, **__: Any) -> None:
    """In the place of a check."""


@plant
def fields_are_not_compared(patch: Patch) -> None:
    patch.setattr(requests, "_check", _anything)


@plant
def ranges_are_not_checked(patch: Patch) -> None:
    patch.setattr(Number, "refusal", _anything)


@plant
def comparisons_let_nan_through(patch: Patch) -> None:
    def refusal(number: Number, name: str, value: float) -> str | None:
        return f"{name} is {value}" if value < number.low or value > number.high else None

    patch.setattr(strict, "decode", json.loads)
    patch.setattr(Number, "refusal", refusal)


@plant
def prompts_are_not_counted(patch: Patch) -> None:
    patch.setattr(requests, "MAX_CHOICES", 10**9)


def _passed_over(name: str) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        patch.setattr(fields, "_INTERNAL", fields._INTERNAL - {name})
        patch.setattr(fields, "_HARMLESS", fields._HARMLESS | {name})

    apply.__name__ = f"{name}_is_passed_over"
    return plant(apply)


for _name in ("cache_salt", "prompt_embeds", "kv_transfer_params", "chat_template"):
    _passed_over(_name)


@plant
def chat_template_kwargs_is_passed_over(patch: Patch) -> None:
    patch.setattr(requests, "template_variables", lambda _given, _effort: ())


@plant
def internal_fields_are_passed_over(patch: Patch) -> None:
    patch.setattr(fields, "_INTERNAL", frozenset())


@plant
def the_last_of_two_keys_counts(patch: Patch) -> None:
    patch.setattr(strict, "_unique", dict)


@plant
def ids_are_not_checked(patch: Patch) -> None:
    patch.setattr(submitting, "check_ids", _anything)
    patch.setattr(sampling, "check_ids", _anything)


@plant
def grammars_have_no_depth(patch: Patch) -> None:
    patch.setattr(structured, "_depth", lambda _: 0)
    patch.setattr(structured, "_brackets", lambda _: 0)


@plant
def grammars_have_no_size(patch: Patch) -> None:
    patch.setattr(structured, "MAX_BYTES", 2**40)


# The HTTP layer


@plant
def headers_have_no_bounds(patch: Patch) -> None:
    patch.setattr(connection, "_too_large", lambda _: connection._MALFORMED)
    patch.setattr(connection.BoundedProtocol, "on_header", connection.HttpToolsProtocol.on_header)
    patch.setattr(connection.BoundedProtocol, "_check_head", _anything)
    patch.setattr(connection.BoundedProtocol, "data_received", connection.HttpToolsProtocol.data_received)


@plant
def bodies_have_no_bound(patch: Patch) -> None:
    async def read(request: Any, _hold: Any, _most: int) -> bytes:
        return b"".join([chunk async for chunk in request.stream()])

    patch.setattr(front_admission, "read_body", read)


class _Lenient:
    """A parser that takes what is nearly right, as h11 did with the end of a chunk."""

    def __init__(self, protocol: Any) -> None:
        self._parser = httptools.HttpRequestParser(protocol)
        self._parser.set_dangerous_leniencies(
            lenient_data_after_close=True,
            lenient_optional_crlf_after_chunk=True,
            lenient_optional_lf_after_cr=True,
            lenient_chunked_length=True,
            lenient_keep_alive=True,
            lenient_transfer_encoding=True,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


@plant
def the_parser_is_lenient(patch: Patch) -> None:
    before = connection.BoundedProtocol.__init__

    def lenient(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        self.parser = _Lenient(self)

    patch.setattr(connection.BoundedProtocol, "__init__", lenient)


def _rewritten(patch: Patch, pattern: bytes, replacement: Callable[[re.Match[bytes], bytes], bytes]) -> None:
    """Bytes in, as a parser would understand them that guesses."""
    before = connection.BoundedProtocol.data_received

    def received(self: Any, data: bytes) -> None:
        before(self, re.sub(pattern, lambda found: replacement(found, data), data))

    patch.setattr(connection.BoundedProtocol, "data_received", received)


@plant
def lengths_are_guessed(patch: Patch) -> None:
    _rewritten(patch, rb"(content-length: )[^\r]*", lambda found, data: found[1] + b"%d" % len(data.partition(b"\r\n\r\n")[2]))


@plant
def chunk_sizes_are_guessed(patch: Patch) -> None:
    _rewritten(patch, rb"\r\n\r\n[^h]*hello", lambda _found, _data: b"\r\n\r\n5\r\nhello")


# Who is let in


@plant
def paths_are_rebuilt_from_the_host(patch: Patch) -> None:
    before = auth.Guarded.__call__

    async def guessing(self: Any, scope: Any, receive: Any, send: Any) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        path = urlsplit(f"http://{host}{scope['path']}").path
        if path.startswith(("/v1", "/tokenize", "/detokenize", "/metrics", "/load", "/openapi")):
            await before(self, scope, receive, send)
        else:
            scope["state"]["caller"] = caller(ANYBODY, Headers(scope=scope), scope["state"]["arrived"])
            await self._app(scope, receive, send)

    patch.setattr(auth.Guarded, "__call__", guessing)


# What answers give away


@plant
def bugs_are_reported_to_clients(patch: Patch) -> None:
    def report(_request: Any, error: Exception) -> Response:
        reply = api_errors.ErrorReply(api_errors.ErrorBody(repr(error), "server_error", None, "internal_error"))
        return Response(msgspec.json.encode(reply), 500)

    patch.setattr(app, "on_bug", report)


@plant
def refusals_name_their_code(patch: Patch) -> None:
    before = fields._explained
    patch.setattr(fields, "_explained", lambda text: (f"{fields.__file__}: {before(text)[0]}", before(text)[1]))


@plant
def device_errors_are_reported_to_clients(patch: Patch) -> None:
    def lose(self: Any, state: Any, failed: Any) -> None:
        ended = fail_step(state, str(failed.error))
        self._landed(state)
        self._send_outputs(state, ended)

    patch.setattr(loop.Engine, "_lose", lose)


@plant
def each_path_makes_a_series(patch: Patch) -> None:
    seen: set[str] = set()
    handle, text = app.Outermost.__call__, Exposition.text

    async def noting(self: Any, scope: Any, receive: Any, send: Any) -> None:
        seen.add(f'requests_total{{method="{scope["method"]}",path="{scope["path"]}"}} 1\n')
        await handle(self, scope, receive, send)

    patch.setattr(app.Outermost, "__call__", noting)
    patch.setattr(Exposition, "text", lambda self: text(self) + "".join(sorted(seen)).encode())


# What requests reach


@plant
def addresses_in_requests_are_fetched(patch: Patch) -> None:
    before = strict.decode

    def fetching(body: bytes) -> Any:
        for port in set(re.findall(rb"127\.0\.0\.1:(\d+)", body)):
            with socket.create_connection(("127.0.0.1", int(port)), timeout=1) as visit:
                visit.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return before(body)

    patch.setattr(strict, "decode", fetching)


@plant
def model_names_are_paths(patch: Patch) -> None:
    before = strict.decode

    def opening(body: bytes) -> Any:
        parsed = before(body)
        try:
            (Path("/models") / str(parsed["model"]).replace("\0", "")).read_bytes()
        except OSError:
            return parsed
        return parsed

    patch.setattr(strict, "decode", opening)


# Tenants


@plant
def everybody_shares_beginnings(patch: Patch) -> None:
    patch.setattr(admission, "Scope", lambda _salt, model, adapter="": prefix.Scope("", model, adapter))


@plant
def names_are_short(patch: Patch) -> None:
    patch.setattr(prefix, "HASH_BYTES", 2)


@plant
def scopes_are_joined(patch: Patch) -> None:
    patch.setattr(prefix, "_prefixed", str.encode)


@plant
def clients_name_requests(patch: Patch) -> None:
    before = app.Outermost.__init__

    def init(self: Any, inner: Any, replica: Any) -> None:
        async def named(scope: Any, receive: Any, send: Any) -> None:
            given = dict(scope["headers"]).get(b"x-request-id")
            if given:
                scope["state"]["request_id"] = given.decode()
            await inner(scope, receive, send)

        before(self, named, replica)

    patch.setattr(app.Outermost, "__init__", init)


# Model directories


@plant
def code_in_a_model_is_run(patch: Patch) -> None:
    def run(folder: Path) -> None:
        for file in sorted(folder.glob("*_evil.py")):
            runpy.run_path(str(file))

    read_spec, init = config._refuse_unsupported, tokens.ModelText.__init__

    def trusting(self: Any, directory: Path) -> None:
        run(directory)
        init(self, directory)

    patch.setattr(config, "_refuse_unsupported", lambda raw: read_spec({**raw, "auto_map": None}))
    patch.setattr(tokens.ModelText, "__init__", trusting)


@plant
def any_architecture_is_taken(patch: Patch) -> None:
    before = config._family
    patch.setattr(config, "_family", lambda raw: before({**raw, "architectures": ["LlamaForCausalLM"]}))


@plant
def pickles_are_loaded(patch: Patch) -> None:
    before = loader.weight_files

    def load(directory: Path) -> list[Path]:
        for file in directory.glob("*.bin"):
            pickle.loads(file.read_bytes())  # noqa: S301 - the bug itself
        return before(directory)

    patch.setattr(loader, "weight_files", load)


@plant
def an_index_may_lead_anywhere(patch: Patch) -> None:
    def anywhere(directory: Path) -> list[Path]:
        return [directory / name for name in json.loads((directory / loader.INDEX).read_text())["weight_map"].values()]

    patch.setattr(loader, "_indexed", anywhere)


@plant
def lengths_in_files_are_believed(patch: Patch) -> None:
    patch.setattr(files, "_LARGEST_HEADER", 2**64)


@plant
def offsets_in_files_are_believed(patch: Patch) -> None:
    patch.setattr(files, "os", SimpleNamespace(fstat=lambda _: SimpleNamespace(st_size=2**64)))


@plant
def shapes_in_files_are_believed(patch: Patch) -> None:
    def believing(file: Path, name: str, entry: Any, start: int) -> Any:
        try:
            begin, end = entry["data_offsets"]
            return files.Stored(file, name, entry["dtype"], tuple(entry["shape"]), start + begin, start + end)
        except (KeyError, TypeError) as error:
            raise ModelRejected(str(error)) from error

    patch.setattr(files, "_stored", believing)


@plant
def templates_have_no_sandbox(patch: Patch) -> None:
    patch.setattr(template_worker, "ImmutableSandboxedEnvironment", jinja2.Environment)


# Wires


@plant
def the_wire_speaks_pickle(patch: Patch) -> None:
    before = wire.Wire.__init__

    def init(self: Any, inbox: str, outbox: str) -> None:
        before(self, inbox, outbox)
        self._decoder = SimpleNamespace(decode=pickle.loads)

    patch.setattr(wire.Wire, "__init__", init)
