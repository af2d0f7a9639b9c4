"""/tokenize counts what the generating endpoints read: the same fields, the same ids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pagoda_daemon.api.anthropic.requests import CountTokensRequest, MessagesRequest
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest, parse, typed
from pagoda_daemon.api.routes.messages import checked_chat, count_tokens
from pagoda_daemon.api.routes.submitting import submissions
from pagoda_daemon.api.routes.texts import CHAT_FIELDS, TokenizeRequest, tokenize
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import VOCAB, tiny_model_dir

LIMITS = Ready(4096, VOCAB, 16, 1000, 4)
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} in <tool_call>{% endif %}"
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] }}"
    "{% for call in message.tool_calls %}{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}{% if thinking %}think{% endif %}{{ reasoning_effort }}"
)
HI = [{"role": "user", "content": "hi"}]
CALLED = [*HI, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]}]
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}} for name in ("f", "g")]
NAMED = {"type": "function", "function": {"name": "g"}}
# Of a chat's own fields those that change no prompt; whatever is new and not here has to be counted.
NO_PROMPT = {"max_completion_tokens", "logprobs", "top_logprobs", "parallel_tool_calls"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    folder = tiny_model_dir(tmp_path_factory.mktemp("texts"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return ModelText(folder)


def counted(text: ModelText, **body: Any) -> tuple[int, ...]:
    return tokenize(typed(json.dumps(body).encode(), TokenizeRequest, []), text, LIMITS, []).tokens


def generated_from(text: ModelText, **body: Any) -> tuple[int, ...]:
    request = parse(json.dumps({"model": "m", **body}).encode(), ChatRequest, [])
    (job,) = submissions(request, "r", text, LIMITS)
    return job.message.prompt


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": NAMED}, {"tools": TOOLS, "tool_choice": "none"}),
        *({"add_generation_prompt": False}, {"continue_final_message": True}, {"add_special_tokens": True}),
        {"messages": CALLED, "tools": TOOLS, "tool_choice": "required"},
        {"chat_template_kwargs": {"thinking": True}, "reasoning_effort": "low"},
    ],
)
def test_a_conversation_is_counted_as_it_is_answered(text: ModelText, changes: dict[str, Any]) -> None:
    body = {"messages": HI, **changes}
    assert counted(text, **body) == generated_from(text, **body)


def test_what_a_client_may_set_of_the_template_is_counted(text: ModelText) -> None:
    bare, set_ = (len(counted(text, messages=HI, **more)) for more in ({}, {"chat_template_kwargs": {"thinking": True}}))
    assert set_ == bare + len("think")


def test_tools_are_counted(text: ModelText) -> None:
    bare, one, both = (len(counted(text, messages=HI, tools=TOOLS[:count])) for count in (0, 1, 2))
    assert bare < one < both


def test_every_field_that_changes_a_chats_prompt_is_counted() -> None:
    shared = set(CompletionRequest.__struct_fields__) - {"add_special_tokens", "logprobs"}
    assert set(ChatRequest.__struct_fields__) - shared - NO_PROMPT == set(CHAT_FIELDS)


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"tools": TOOLS, "tool_choice": {**NAMED, "function": {"name": "h"}}}, "tool_choice"), ({"messages": []}, "messages")],
)
def test_what_a_chat_would_refuse_is_refused(text: ModelText, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        counted(text, **{"messages": HI, **changes})
    assert caught.value.param == param


def test_what_a_message_ignores_is_ignored_and_named_when_it_is_counted(text: ModelText) -> None:
    kept: list[str] = []
    redacted = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}]}
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"minLength": 1}]}}}
    fields: dict[str, Any] = {
        "messages": [*HI, redacted, *HI],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "tools": [{"name": "f", "input_schema": schema, "strict": True}],
        "tool_choice": {"type": "any"},
        "unheard_of": 1,
    }
    body = json.dumps({"model": "m", **fields}).encode()
    assert count_tokens(typed(body, CountTokensRequest, kept), text, LIMITS, kept).input_tokens > 0
    named: list[str] = []
    checked_chat(typed(json.dumps({"model": "m", "max_tokens": 9, **fields}).encode(), MessagesRequest, named), named)
    assert kept == named
    assert {"unheard_of", "messages[].content[].data", "thinking.budget_tokens"} < set(kept)
