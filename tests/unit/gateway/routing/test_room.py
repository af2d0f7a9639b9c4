"""When a replica has room for one more request."""

import pytest
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.room import has_room, places


def endpoint(running=0, waiting=0, own=0, rows=16, used=0):
    frame = Frame(1, "ready", running, waiting, 0, blocks_used=used, blocks_total=100, max_concurrency=rows)
    return Endpoint("a", "s", "a:1", frame=frame, in_flight=own, in_flight_at_frame=own)


@pytest.mark.parametrize(
    ("state", "gateways", "room"),
    [
        (endpoint(running=16, waiting=1), 2, True),  # 16 rows and 2 more
        (endpoint(running=16, waiting=2, own=9), 2, False),
        (endpoint(running=16, waiting=2, own=8), 2, True),  # another gateway has the rest
        (endpoint(running=16, waiting=2, own=8), 1, True),
        (endpoint(running=16, waiting=2, own=6), 3, False),
        (endpoint(running=16, waiting=2, own=5), 3, True),
        (endpoint(running=17, own=17), 1, True),
        (endpoint(running=18, own=18), 1, False),
        (endpoint(running=4, waiting=2, own=6, used=95), 1, False),  # the KV cache is full, so free rows are of no use
        (endpoint(running=4, waiting=2, own=6, used=50), 1, True),
        (endpoint(running=4, own=4, used=95), 1, True),
        (endpoint(running=900, own=900, rows=0), 1, True),  # an older replica does not report its rows
        (Endpoint("a", "s", "a:1"), 1, True),
    ],
)
def test_a_replica_has_room_for_its_rows_and_an_eighth_more(state, gateways, room):
    assert has_room(state, gateways) is room


@pytest.mark.parametrize(("took_ms", "more"), [(0, 8), (100, 8), (600, 3), (8000, 0)])
def test_as_many_requests_wait_for_a_row_as_end_before_the_next_one_could_come(took_ms, more):
    assert places(Frame(1, "ready", 0, 0, 0, max_concurrency=64), took_ms) == 64 + more
