"""/v1/messages and /v1/messages/count_tokens: Anthropic's Messages API. Reading and writing are its own; all between them is the chat's."""

from __future__ import annotations

from pagoda_daemon.api.anthropic.conversion import ELSEWHERE, chat_of
from pagoda_daemon.api.anthropic.errors import own_name
from pagoda_daemon.api.anthropic.replies import CountTokensReply
from pagoda_daemon.api.anthropic.requests import CountTokensRequest, MessagesRequest
from pagoda_daemon.api.openai import fields, requests
from pagoda_daemon.api.openai.replies import Dialect, Head
from pagoda_daemon.api.openai.requests import ChatRequest
from pagoda_daemon.api.routes.completions import Generate, Read
from pagoda_daemon.api.routes.submitting import chat_ids
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.text.tokens import ModelText


class CreateMessage(Generate):
    """POST /v1/messages."""

    def _read(self, body: bytes, ignored: list[str]) -> Read:
        request = fields.typed(body, MessagesRequest, ignored, ELSEWHERE)
        hides = request.thinking is not None and request.thinking.display == "omitted"

        def dialect(head: Head, sampling: Sampling) -> Dialect:
            return self.dialect(head, cut_by_context=sampling.max_tokens < request.max_tokens, hides_thinking=hides)

        return Read(checked_chat(request, ignored), dialect, most=request.max_tokens)


def checked_chat(request: MessagesRequest | CountTokensRequest, ignored: list[str]) -> ChatRequest:
    """Returns the chat that a request is answered as. `ignored` takes what has no effect, by the names that it has in the request."""
    chat, loosened = chat_of(request, ignored), list[str]()
    requests.check(chat, loosened)
    ignored += map(own_name, loosened)
    return chat


def count_tokens(request: CountTokensRequest, text: ModelText, limits: Ready, ignored: list[str]) -> CountTokensReply:
    """Returns how many tokens the prompt of a message has: its `input_tokens` and the cached ones."""
    chat = checked_chat(request, ignored)
    return CountTokensReply(len(chat_ids(chat, chat.box, text, limits.max_model_len)))
