"""POST /v1/responses: a chat in the form of OpenAI's Responses API. Reading and writing are its own; all between them is the chat's."""

from __future__ import annotations

import time

from pagoda_daemon.api.openai.replies import Dialect, Head
from pagoda_daemon.api.responses.conversion import read
from pagoda_daemon.api.responses.dialect import Terms
from pagoda_daemon.api.responses.names import refusal
from pagoda_daemon.api.routes.completions import Generate, Read
from pagoda_daemon.core.sampling import Sampling


class Respond(Generate):
    """The endpoint."""

    def _read(self, body: bytes, ignored: list[str]) -> Read:
        converted = read(body, ignored)

        def dialect(head: Head, sampling: Sampling) -> Dialect:
            return self.dialect(Terms(head, converted.asked, sampling, time.time))

        return Read(converted.chat, dialect, refusal)
