#!/usr/bin/env python
"""Asks one question through the OpenAI client, prints the answer as it streams, then why the gateway sent it where it did.

Used by `make demo`. The API key comes from OPENAI_API_KEY. The client retries nothing (`max_retries=0`), so a lost request shows here.
"""

from __future__ import annotations

import argparse
import os
import sys

from openai import OpenAI, OpenAIError
from pagoda_contracts.names import HEADER_ROUTE


def chat(base_url: str, model: str, question: str) -> str:
    """Prints the answer token by token; returns the route header."""
    client = OpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "unused"), max_retries=0)
    response = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, stream=True
    )
    for chunk in response.parse():
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
    print()
    return response.headers.get(HEADER_ROUTE, "absent: no Pagoda gateway answered")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Asks a model one question and streams its answer.")
    parser.add_argument("--base-url", required=True, metavar="URL", help="the OpenAI API, such as http://10.96.0.20:8080/v1")
    parser.add_argument("--model", default="llama-tiny", help="a served name (default: %(default)s)")
    parser.add_argument("--question", default="What is the with statement?", help="default: %(default)s")
    args = parser.parse_args()
    try:
        route = chat(args.base_url, args.model, args.question)
    except OpenAIError as error:
        sys.exit(f"{args.base_url}: {error}")
    print(f"{HEADER_ROUTE}: {route}")


if __name__ == "__main__":
    main()
