"""OpenAI's client for Python. argv: base URL, model. The last line is what openai_node.mjs prints, too."""

from __future__ import annotations

import json
import sys
from typing import Any

from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, Field

URL, MODEL = sys.argv[1:3]
CLIENT = OpenAI(base_url=URL, api_key="unused", max_retries=0)
HI: Any = [{"role": "user", "content": "hi"}]


class Trip(BaseModel, extra="forbid"):
    """How long it takes."""

    days: int = Field(ge=1, le=9)


TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": Trip.model_json_schema()}}


def chat() -> dict[str, Any]:
    asked: Any = {"model": MODEL, "messages": HI, "max_completion_tokens": 8, "logprobs": True, "top_logprobs": 2}
    whole = CLIENT.chat.completions.create(**asked).choices[0]
    chunks = list(CLIENT.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    same, usage = text == whole.message.content, chunks[-1].usage
    return {"same": same, "tokens": usage.completion_tokens, "logprobs": len(whole.logprobs.content)}


def structured() -> bool:
    answer = CLIENT.chat.completions.parse(model=MODEL, messages=HI, response_format=Trip, max_completion_tokens=300)
    return isinstance(answer.choices[0].message.parsed, Trip)


def called() -> list[str]:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    asked: Any = {"model": MODEL, "messages": HI, "tools": [TOOL], "tool_choice": choice, "max_completion_tokens": 300}
    with CLIENT.chat.completions.stream(**asked) as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0].function
    return [call.name, "number" if isinstance(json.loads(call.arguments)["days"], int) else "none"]


def refused() -> dict[str, Any]:
    found: dict[str, Any] = {"long": False, "unknown": False}
    try:
        CLIENT.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 5000}])
    except BadRequestError as error:
        found["long"] = error.code
    try:
        CLIENT.chat.completions.create(model="nobody", messages=HI)
    except NotFoundError as error:
        found["unknown"] = error.code
    return found


def responses() -> dict[str, Any]:
    events = list(CLIENT.responses.create(model=MODEL, input="hi", max_output_tokens=16, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    ends = sum(event.type in ("response.completed", "response.incomplete") for event in events)
    return {"ends": ends, "same": text == CLIENT.responses.create(model=MODEL, input="hi", max_output_tokens=16).output_text}


def main() -> None:
    text = CLIENT.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3, n=2)
    vectors = CLIENT.embeddings.create(model=MODEL, input=["a", "b"])
    found = {"chat": chat(), "structured": structured(), "called": called(), "refused": refused(), "responses": responses()}
    found |= {"texts": len(text.choices), "vectors": [len(one.embedding) for one in vectors.data]}
    print(json.dumps(found | {"models": [one.id for one in CLIENT.models.list()]}))


main()
