"""pydantic-ai: agents whose output is native, with tools beside it, and by a tool. argv: base URL, model."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, MODEL = sys.argv[1:3]
LIMITS = UsageLimits(request_limit=20)


class Place(BaseModel):
    """A place and for how long."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


def agent(output: Any) -> tuple[Agent[None, Any], list[str]]:
    """An agent with one tool, and the cities that the tool is asked for."""
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="unused"))
    made, asked = Agent(model, output_type=output, model_settings={"max_tokens": 600}, retries=0), []

    @made.tool_plain
    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return f"rain in {city}"

    return made, asked


def ran(output: Any, prompts: list[str]) -> dict[str, Any]:
    """The classes of the answers, and how often the tool was called on the way."""
    made, asked = agent(output)
    found = {type(made.run_sync(prompt, usage_limits=LIMITS).output).__name__ for prompt in prompts}
    return {"outputs": sorted(found), "calls": len(asked)}


async def streamed() -> bool:
    made, _ = agent(NativeOutput(Place))
    async with made.run_stream("hi", usage_limits=LIMITS) as result:
        return isinstance(await result.get_output(), Place)


def main() -> None:
    prompts = [f"hi {number}" for number in range(6)]
    found = {"native": ran(NativeOutput(Place), prompts), "tool": ran(ToolOutput(Place), prompts[:2])}
    print(json.dumps(found | {"streamed": asyncio.run(streamed())}))


main()
