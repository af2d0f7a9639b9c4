"""langchain-openai: chat, streams, bound tools and structured output. argv: base URL, model."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

URL, MODEL = sys.argv[1:3]
AT: dict[str, Any] = {"base_url": URL, "api_key": "unused", "model": MODEL, "max_retries": 0}
TALK = [SystemMessage("be short"), HumanMessage("hi")]


class Place(BaseModel):
    """A place and for how long."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


@tool
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def streamed() -> dict[str, Any]:
    chat = ChatOpenAI(**AT, max_tokens=8, stream_usage=True, temperature=0)
    parts = list(chat.stream(TALK))
    whole, added = chat.invoke(TALK), parts[0]
    for part in parts[1:]:
        added = added + part
    return {"same": added.content == whole.content, "usage": added.usage_metadata["output_tokens"]}


def with_tools() -> dict[str, Any]:
    """A call, its result, and an answer to that."""
    chat = ChatOpenAI(**AT, max_tokens=400)
    asked = chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False).invoke(TALK)
    results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in asked.tool_calls]
    after = chat.bind_tools([weather], tool_choice="none").invoke([*TALK, asked, *results])
    return {"names": sorted({call["name"] for call in asked.tool_calls}), "after": isinstance(after, AIMessage) and not after.tool_calls}


def structured() -> dict[str, str]:
    chat = ChatOpenAI(**AT, max_tokens=400)
    methods = ("json_schema", "function_calling")
    return {method: type(chat.with_structured_output(Place, method=method).invoke(TALK)).__name__ for method in methods}


async def several() -> int:
    return len(await ChatOpenAI(**AT, max_tokens=3).abatch([TALK] * 4))


def main() -> None:
    text = OpenAI(**AT, max_tokens=4, logprobs=2).invoke("hi")
    vectors = OpenAIEmbeddings(base_url=URL, api_key="unused", model=MODEL, check_embedding_ctx_length=False).embed_documents(["a", "b"])
    found = {"streamed": streamed(), "with_tools": with_tools(), "structured": structured(), "several": asyncio.run(several())}
    print(json.dumps(found | {"text": bool(text), "vectors": [len(vector) for vector in vectors]}))


main()
