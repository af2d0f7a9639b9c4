"""Room: whether a replica can take one more request without a queue of its own. Pure; called by requests/router.py.

Requests beyond that are held at the gateway, because only there the next one is chosen among all tenants and for all replicas.
"""

from __future__ import annotations

from typing import Final

from pagoda_gateway.routing.endpoint import Endpoint, Frame, load

# From the end of a request until the next one computes: the gateway hears of the end, sends another one, and its prompt is tokenized.
_GAP_MS: Final = 30.0
# At most this part of the rows beyond them, and as much until the first requests have ended.
_SPARE: Final = 8
# Rows that are free are of no use while the KV cache is as full as this and requests wait.
_KV_FULL: Final = 0.9


def has_room(endpoint: Endpoint, gateways: int) -> bool:
    """Returns whether one more request fits. Each of so many gateways may use its part of the places whatever the others have there: else
    one that comes later would find them taken for as long as the first one holds requests. An autoscaler's number of gateways is not
    known, so a gateway's part is at most a half."""
    frame = endpoint.frame
    if frame is None or not frame.max_concurrency:
        return True
    most = places(frame, endpoint.took_ms)
    return load(endpoint) < most or endpoint.in_flight * max(2, gateways) < most


def places(frame: Frame, took_ms: float) -> int:
    """Returns how many requests a replica should have: its rows, or what runs if its KV cache admits no further one, and as many more as
    end before the next one could come. `took_ms` is how long requests take, 0 if that is not known. Those more have to wait for a row of
    this replica, so there are none if requests take long."""
    full = frame.waiting > 0 and frame.blocks_total > 0 and frame.blocks_used >= _KV_FULL * frame.blocks_total
    rows = frame.running if full else frame.max_concurrency
    most = max(1, frame.max_concurrency // _SPARE)
    return rows + (min(most, int(rows * _GAP_MS / took_ms)) if took_ms else most)
