"""What is registered with Kopf, and how it is set."""

from itertools import islice

import kopf
from pagoda_operator.api.state import ADAPTERS, PROFILES, QUOTAS, SERVICES, Key
from pagoda_operator.serve.watches import EndlessJitter, configure, register
from pagoda_operator.watch.caches import Caches


async def test_kopf_watches_our_own_kinds_and_its_events_go_to_the_caches():
    caches, registry = Caches(), kopf.OperatorRegistry()
    register(registry, caches, "https://none", lambda: None)
    handlers = {handler.selector.any_name: handler for handler in registry._watching._handlers}
    assert set(handlers) == {resource.plural for resource in (SERVICES, PROFILES, ADAPTERS, QUOTAS)}
    body = {"metadata": {"name": "s", "namespace": "n", "resourceVersion": "5"}, "spec": {}}
    await handlers["inferenceservices"].fn(event={"type": None, "object": body})
    assert await caches.get(SERVICES, "n", "s")
    ended = {"metadata": {**body["metadata"], "resourceVersion": "6"}}
    await handlers["inferenceservices"].fn(event={"type": "DELETED", "object": ended})
    assert caches.of(SERVICES).get(Key("n", "s")) is None


def test_the_settings_keep_kopf_from_writing_and_from_giving_up():
    settings = kopf.OperatorSettings()
    configure(settings)
    assert settings.posting.enabled is False
    assert (settings.watching.inactivity_timeout, settings.watching.server_timeout, settings.watching.client_timeout) == (70, 300, 330)
    assert settings.queueing.error_delays == (1, 2, 5, 10, 30, 60)
    assert settings.process.ultimate_exiting_timeout == 25
    assert (settings.watching.connect_timeout, settings.watching.chunk_size) == (10, 100)
    assert (settings.networking.request_timeout, settings.networking.connect_timeout) == (30, 5)
    assert settings.queueing.idle_timeout == 0.5


def test_watch_retries_are_endless_and_jittered():
    """Kopf's own delays end after 54 s of HTTP 5xx, and with them the process."""
    settings = kopf.OperatorSettings()
    configure(settings)
    assert isinstance(settings.networking.error_backoffs, EndlessJitter)
    steps = (0.5, 1, 2, 5, 10, 15)
    first, second = (list(islice(settings.networking.error_backoffs, 500)) for _ in range(2))
    wanted = [*steps, *([steps[-1]] * (500 - len(steps)))]
    assert all(0.8 * step <= delay <= 1.2 * step for step, delay in zip(wanted, first, strict=True))
    assert first != second, "two operators, two series"
