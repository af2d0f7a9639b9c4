"""Routes of OpenAI's and Anthropic's APIs that replicas and gateways know and do not serve: what each would be. The only such table.

They are 501, not 404: clients of a longer API can tell "not built" from a misspelt path, and `x-should-retry: false` keeps OpenAI's clients
from trying again, which they else do after any 5xx. A stored response is 404, as OpenAI says it of one that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STORED: Final = "/v1/responses/{id:path}"
"""What a store would answer: the response, its input, its end. There is none."""

_TREES: Final[Mapping[str, str]] = {
    "/v1/audio": "speech and transcription",
    "/v1/images": "images",
    "/v1/videos": "videos",
    "/v1/moderations": "moderation",
    "/v1/files": "files",
    "/v1/uploads": "uploads of files",
    "/v1/batches": "batches",
    "/v1/conversations": "stored conversations",
}
NOT_BUILT: Final[Mapping[str, str]] = {
    "/v1/responses/input_tokens": "counting a response's input; POST /tokenize counts a chat's",
    "/v1/responses/compact": "compaction of conversations",
    "/v1/messages/batches": "batches of messages",
    "/v1/messages/batches/{rest:path}": "batches of messages",
    **{f"{root}{more}": what for root, what in _TREES.items() for more in ("", "/{rest:path}")},
}
"""By path pattern, in the order in which routes are tried."""
