"""Which role may use which route, HTTP and gRPC: the only such table. A route that is not in it is refused to everybody.

Read by `auth.py` (HTTP) and `api/grpc/server.py`. Keys are a route's own path pattern and a method's full name, never what a client wrote,
so that no spelling of a path goes round it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pagoda_contracts.absent_routes import NOT_BUILT, STORED
from pagoda_contracts.names import (
    GRPC_GENERATE,
    GRPC_HEALTH_CHECK,
    GRPC_HEALTH_WATCH,
    GRPC_SET_ADAPTERS,
    GRPC_SET_STATE,
    GRPC_WATCH_STATE,
    PATH_TRACE,
    ROLE_ADMIN,
    ROLE_GATEWAY,
    ROLE_METRICS,
    ROLE_OPERATOR,
)

from pagoda_daemon.api.access.caller import ROLE_ANYBODY, ROLE_CLIENT

Roles = frozenset[str]

NOBODY: Final[Roles] = frozenset()
OPEN: Final[Roles] = frozenset(("*",))  # without any proof: says nothing that a port scan does not
_OPENAI: Final[Roles] = frozenset((ROLE_ANYBODY, ROLE_CLIENT, ROLE_GATEWAY))
_SCRAPE: Final[Roles] = frozenset((ROLE_ANYBODY, ROLE_GATEWAY, ROLE_OPERATOR, ROLE_METRICS))
# A caller without a role may not drain a replica. Stand-alone, SIGTERM does that.
_CONTROL: Final[Roles] = frozenset((ROLE_OPERATOR,))
_WATCH: Final[Roles] = frozenset((ROLE_ANYBODY, ROLE_GATEWAY, ROLE_OPERATOR))
_GENERATE: Final[Roles] = frozenset((ROLE_ANYBODY, ROLE_GATEWAY))

# Of the stand-alone daemon: files of this machine are read, and other clients' names change.
_ADAPTERS: Final[Roles] = frozenset((ROLE_ANYBODY, ROLE_ADMIN))

PATH_LOAD: Final = "/v1/load_lora_adapter"
PATH_UNLOAD: Final = "/v1/unload_lora_adapter"
ROUTES: Final[Mapping[str, Roles]] = {
    "/v1/chat/completions": _OPENAI,
    "/v1/completions": _OPENAI,
    "/v1/responses": _OPENAI,
    "/v1/messages": _OPENAI,
    "/v1/messages/count_tokens": _OPENAI,
    "/v1/embeddings": _OPENAI,
    "/v1/models": _OPENAI,
    "/v1/models/{name:path}": _OPENAI,
    PATH_TRACE: _OPENAI,
    PATH_LOAD: _ADAPTERS,
    PATH_UNLOAD: _ADAPTERS,
    "/tokenize": _OPENAI,
    "/detokenize": _OPENAI,
    # A browser that opens a page has no key to show. Both say what the documentation says.
    "/docs": OPEN,
    "/openapi.json": OPEN,
    "/load": _OPENAI | _SCRAPE,
    "/metrics": _SCRAPE,
    "/health": OPEN,
    "/version": OPEN,
    **dict.fromkeys((*NOT_BUILT, STORED), _OPENAI),
}
METHODS: Final[Mapping[str, Roles]] = {
    GRPC_WATCH_STATE: _WATCH,
    GRPC_SET_STATE: _CONTROL,
    GRPC_SET_ADAPTERS: _CONTROL,
    GRPC_GENERATE: _GENERATE,
    GRPC_HEALTH_CHECK: OPEN,
    GRPC_HEALTH_WATCH: OPEN,
}
# Whose peers may come from the networks of `auth.metricsFrom` without a token.
PEER_ROUTES: Final = frozenset(("/metrics",))
