"""The one place where a response becomes a chat. Templates, tools, grammars, limits and the engine know the chat alone. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pagoda_daemon.api.openai import requests
from pagoda_daemon.api.openai.messages import Message
from pagoda_daemon.api.openai.requests import ChatRequest
from pagoda_daemon.api.openai.sampling import SamplingFields
from pagoda_daemon.api.openai.structured import NamedSchema, ObjectFormat, ResponseFormat, SchemaFormat
from pagoda_daemon.api.responses.inputs import conversation
from pagoda_daemon.api.responses.names import refusal, renamed
from pagoda_daemon.api.responses.requests import JsonSchemaFormat, ResponsesRequest, parse
from pagoda_daemon.api.responses.tools import choice_of, tools_of
from pagoda_daemon.core.errors import BadRequest


class Converted(NamedTuple):
    """What was asked, and the chat that answers it."""

    asked: ResponsesRequest
    chat: ChatRequest


def read(body: bytes, ignored: list[str]) -> Converted:
    """BadRequest names the first field that is wrong, as this API calls it."""
    asked = parse(body, ignored)
    chat = converted(asked)
    places: list[str] = []
    try:
        requests.check(chat, places)
    except BadRequest as error:
        raise refusal(error) from error
    ignored += [renamed(place) for place in places]
    return Converted(asked, chat)


def converted(asked: ResponsesRequest) -> ChatRequest:
    """The same wishes, as a chat says them."""
    sampling = {name: getattr(asked, name) for name in SamplingFields.__struct_fields__}
    return ChatRequest(
        **sampling,
        model=asked.model,
        messages=_messages(asked),
        max_completion_tokens=asked.max_output_tokens,
        stream=asked.stream,
        logprobs=asked.wants_logprobs or None,
        top_logprobs=asked.top_logprobs if asked.wants_logprobs else None,
        tools=tools_of(asked),
        tool_choice=choice_of(asked),
        parallel_tool_calls=asked.parallel_tool_calls,
        response_format=_format(asked),
        reasoning_effort=asked.reasoning.effort if asked.reasoning is not None else None,
    )


def _messages(asked: ResponsesRequest) -> list[Message]:
    before = [Message("system", asked.instructions)] if asked.instructions else []
    return before + conversation(asked.input)


def _format(asked: ResponsesRequest) -> ResponseFormat | None:
    wished = asked.text.format if asked.text is not None else None
    if isinstance(wished, JsonSchemaFormat):
        return SchemaFormat(NamedSchema(wished.name, wished.schema, wished.description, wished.strict))
    return wished if isinstance(wished, ObjectFormat) else None
