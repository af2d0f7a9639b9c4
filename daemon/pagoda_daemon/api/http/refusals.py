"""Errors in the shape of the API that the request's path belongs to. Called by `app` and `final_errors`.

The mapper is `api/openai/errors.py`. For the Messages API its answers are translated; nothing is decided here but whose shape it is.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda_daemon.api.anthropic import errors as anthropic
from pagoda_daemon.api.anthropic import replies
from pagoda_daemon.api.openai import errors as openai
from pagoda_daemon.api.openai.replies import DONE, event
from pagoda_daemon.core.errors import DaemonError

_MESSAGES: Final = "/v1/messages"
HEADER_MESSAGE_ID: Final = "request-id"
"""By this name Anthropic's clients read the id of a request."""


def is_messages(path: str) -> bool:
    """Returns whether a path belongs to the Messages API."""
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/")


def response_of(scope: Scope, error: DaemonError) -> Response:
    """Returns the answer where no byte was sent yet."""
    if is_messages(scope["path"]):
        return anthropic.response_of(error, answer_id(scope))
    return openai.response_of(error)


def final_events_of(scope: Scope, error: DaemonError) -> bytes:
    """Returns the last events of a stream that fails."""
    if is_messages(scope["path"]):
        return replies.event(anthropic.body_of(error, answer_id(scope)))
    return event(openai.body_of(error)) + DONE


def answer_id(scope: Scope) -> str:
    """Returns the request's id as an answer of the Messages API has it, in its header and in its body; none if the loop stood still before
    it gave one."""
    return str(scope["state"].get("request_id", ""))


def on_daemon_error(request: Request, error: Exception) -> Response:
    known = openai.on_daemon_error(request, error)
    return response_of(request.scope, error) if isinstance(error, DaemonError) else known


def on_http_error(request: Request, error: Exception) -> Response:
    return _translated(request, openai.on_http_error(request, error))


def on_bug(request: Request, error: Exception) -> Response:
    return _translated(request, openai.on_bug(request, error))


def _translated(request: Request, known: Response) -> Response:
    return anthropic.translated(known, answer_id(request.scope)) if is_messages(request.scope["path"]) else known


class NamedMessages:
    """Puts the request's id into the header that Anthropic's clients read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER_MESSAGE_ID] = answer_id(scope)
            await send(message)

        await self._app(scope, receive, named if is_messages(scope["path"]) else send)
