"""instructor: objects of pydantic classes in each of its modes that our API has. argv: base URL, model."""

from __future__ import annotations

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

URL, MODEL = sys.argv[1:3]
HI = [{"role": "user", "content": "hi"}]
MODES = ("JSON_SCHEMA", "TOOLS", "TOOLS_STRICT")


class Place(BaseModel):
    """A place and for how long."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


class Trip(BaseModel):
    title: str = Field(max_length=6)
    places: list[Place] = Field(min_length=1, max_length=2)


def client(mode: str) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=URL, api_key="unused", max_retries=0), mode=getattr(instructor.Mode, mode))


def asked(mode: str) -> str:
    """The class of the object, after instructor's own validation. It may not ask twice."""
    trip = client(mode).chat.completions.create(model=MODEL, messages=HI, response_model=Trip, max_retries=0, max_tokens=1500)
    return type(trip).__name__


def partial() -> bool:
    """Objects that grow while the stream goes on; the last one is whole."""
    found = list(client("JSON_SCHEMA").chat.completions.create_partial(model=MODEL, messages=HI, response_model=Trip, max_tokens=1500))
    return len(found) > 1 and bool(Trip.model_validate(found[-1].model_dump()))


def main() -> None:
    print(json.dumps({"asked": {mode: asked(mode) for mode in MODES}, "partial": partial()}))


main()
