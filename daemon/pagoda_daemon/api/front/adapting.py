"""What a front needs for LoRA adapters: the catalogue, and the operator's orders for it. Called by `front.py`."""

from __future__ import annotations

from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.grpc.fetching import Sidecar
from pagoda_daemon.api.grpc.orders import AdapterOrders
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.process.settings import Settings


def adapting(replica: Replica, engine: EngineLink, settings: Settings) -> tuple[Catalogue | None, AdapterOrders]:
    """No catalogue where the configuration has no adapters. Orders are refused unless a sidecar brings what they name."""
    adapters, served = settings.config.adapters, settings.config.model.served_names
    if adapters is None:
        return None, AdapterOrders(replica, None, None)
    catalogue = Catalogue(replica, engine, adapters, served)
    fetch = None if adapters.fetch_port is None else Sidecar(adapters.fetch_port)
    return catalogue, AdapterOrders(replica, catalogue, fetch, settings.pod_uid)
