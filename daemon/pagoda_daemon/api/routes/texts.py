"""/tokenize and /detokenize, in vLLM's shapes: what the model's tokenizer makes of text, a conversation, or ids. Nothing is generated.

They take part in admission like the generating endpoints: tokenising 16 MB keeps a thread busy for seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_daemon.api.openai import fields
from pagoda_daemon.api.openai.errors import JSON
from pagoda_daemon.api.openai.logprobs import shown
from pagoda_daemon.api.openai.messages import Message, check_messages
from pagoda_daemon.api.openai.requests import ChatRequest, ReasoningEffort
from pagoda_daemon.api.openai.sampling import check_ids
from pagoda_daemon.api.openai.tools import Tool, ToolChoice
from pagoda_daemon.api.routes.admission import Admission, admitted
from pagoda_daemon.api.routes.preparing import in_time
from pagoda_daemon.api.routes.submitting import chat_ids
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.text.tokens import ModelText


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /tokenize. Either `prompt` or `messages`; `add_special_tokens` is true for the one and false for the other where absent. What
    changes a chat's prompt has the name that it has there."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    return_token_strs: bool | None = None


CHAT_FIELDS: Final = tuple(name for name in TokenizeRequest.__struct_fields__ if name in ChatRequest.__struct_fields__ and name != "model")


class TokenizeReply(msgspec.Struct, frozen=True):
    """How many ids, which, and how many a request of this replica may have."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class DetokenizeReply(msgspec.Struct, frozen=True):
    """The text of ids, special ones included."""

    prompt: str


@dataclass(frozen=True)
class TextRoute:
    """One endpoint: its request type, what it makes of one, and what it has instead of other endpoints' fields (`fields.typed`). `answer`
    adds the names of fields without effect to its last argument."""

    kind: type[Any]
    answer: Callable[[Any, ModelText, Ready, list[str]], msgspec.Struct]
    admission: Admission
    text: ModelText
    served_names: tuple[str, ...]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.learn(self.kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def work(body: bytes) -> None:
            ignored = scope["state"]["ignored"]
            working = self.admission.preparing.run(len(body), lambda: self._answered(body, ignored), blocks=True)
            content = await in_time(scope["state"]["caller"].terms.deadline_ms, working)
            await Response(content, media_type=JSON)(scope, receive, send)

        await admitted(self.admission, scope, receive, work)

    def _answered(self, body: bytes, ignored: list[str]) -> bytes:
        request = fields.typed(body, self.kind, ignored, self.elsewhere)
        limits = self.admission.limits_of(request.model, self.served_names)
        return msgspec.json.encode(self.answer(request, self.text, limits, ignored))


def tokenize(request: TokenizeRequest, text: ModelText, limits: Ready, _ignored: list[str]) -> TokenizeReply:
    context = limits.max_model_len
    if (request.prompt is None) is (request.messages is None):
        raise BadRequest("give either prompt or messages", "prompt")
    if request.messages is None:
        ids = text.encode(request.prompt or "", context, special=request.add_special_tokens is not False)
    else:
        ids = chat_ids(chat := _as_chat(request), chat.box, text, context)
    strings = [shown(text.spell(token)) for token in ids] if request.return_token_strs else None
    return TokenizeReply(len(ids), context, ids, strings)


def _as_chat(request: TokenizeRequest) -> ChatRequest:
    """The chat whose prompt is counted, so that nothing that changes it is counted in another way here."""
    said = {name: getattr(request, name) for name in CHAT_FIELDS}
    chat = ChatRequest(model=request.model or "", **said)
    check_messages(chat.messages)
    return chat


def detokenize(request: DetokenizeRequest, text: ModelText, limits: Ready, _ignored: list[str]) -> DetokenizeReply:
    check_ids("tokens", request.tokens, limits.vocab_size)
    return DetokenizeReply(text.decode_apart(request.tokens, skip_special=False))
