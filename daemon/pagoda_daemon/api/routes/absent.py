"""Answers for routes that are known and not served (contracts, `absent_routes.py`): refused by name, by any method, their bodies unread."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda_contracts.absent_routes import NOT_BUILT, STORED
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pagoda_daemon.core.errors import MAX_SHOWN, EndpointNotBuilt, ResponseNotFound, shown


@dataclass(frozen=True, eq=False)
class NotBuiltHere:
    """One route; `what` it would be."""

    what: str

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        raise EndpointNotBuilt(f"{scope['method']} {scope['path'][:MAX_SHOWN]} is not built ({self.what})")


@dataclass(frozen=True, eq=False)
class NotStored:
    """Whatever names an earlier response."""

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        given = shown(scope["path_params"]["id"].partition("/")[0])
        raise ResponseNotFound(f"response {given} was not found: this replica keeps no responses; store is always false")


def absent_routes() -> list[Route]:
    """To be tried after the routes that are served."""
    return [*(Route(path, NotBuiltHere(what)) for path, what in NOT_BUILT.items()), Route(STORED, NotStored())]
