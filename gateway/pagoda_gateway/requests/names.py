"""Names: what a tenant is told of a name that it cannot use: nobody has it, it was lost seconds ago, or it is hidden from the tenant.

Asked by router.py, limiter.py and proxy/handlers.py. Which service has a name is watch/cache.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pagoda_gateway.limits.rules import Policy, Rule
from pagoda_gateway.requests.errors import ModelGone, ModelNotAllowed, ModelNotFound
from pagoda_gateway.requests.near_names import near
from pagoda_gateway.watch.cache import EndpointCache

# A service that is made anew (`kubectl replace --force`) has its name again within seconds.
_LOST_MS: Final = 30_000


class Names:
    """The names that services have, and those that were lost of late, with the namespaces of their services."""

    def __init__(self, cache: EndpointCache, clock_ms: Callable[[], float]) -> None:
        self._cache, self._clock_ms = cache, clock_ms
        self._namespaces: dict[str, str] = {}
        self._lost: dict[str, tuple[float, str]] = {}

    def changed(self) -> None:
        """Reads the cache again."""
        now_ms, before = self._clock_ms(), self._namespaces
        self._namespaces = {model.name: model.namespace for model in self._cache.models()}
        lost = {name: one for name, one in self._lost.items() if now_ms - one[0] < _LOST_MS}
        lost |= {name: (now_ms, namespace) for name, namespace in before.items()}
        self._lost = {name: one for name, one in lost.items() if name not in self._namespaces}

    @property
    def synced(self) -> bool:
        """Whether all services are known. Before that, a name that nobody has may be somebody's."""
        return self._cache.synced

    def hidden(self, model: str, policy: Policy) -> Rule | None:
        """Returns the rule that hides a name from a tenant. A rule that hides names also hides those that nobody has, or the two could be
        told apart; but not one that was lost seconds ago and was not hidden: the tenant knows it."""
        return None if self._just_lost(model, policy) else policy.hiding(self._namespaces.get(model, ""))

    def not_found(self, model: str, policy: Policy) -> ModelNotFound:
        """Returns the error for a name that the tenant's quotas do not list, that nobody has, or that is hidden from the tenant: the latter
        two look alike. One that was lost seconds ago is worth a retry."""
        if policy.refusing(model) is not None:
            return ModelNotAllowed(model, near(model, policy.models))
        if self._just_lost(model, policy):
            return ModelGone(model)
        seen = [name for name, namespace in self._namespaces.items() if policy.shows(name, namespace)]
        return (ModelNotAllowed if policy.hides else ModelNotFound)(model, near(model, seen))

    def _just_lost(self, model: str, policy: Policy) -> bool:
        lost = self._lost.get(model)
        return lost is not None and self._clock_ms() - lost[0] < _LOST_MS and policy.hiding(lost[1]) is None
