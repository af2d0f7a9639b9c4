"""What Envoy tells of an exchange, in every order that it can and cannot have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_gateway.extproc.phases import CHUNK_BYTES, Exchange, Head, Piece, Side, State, Trailers, chunks
from pagoda_gateway.requests.errors import ProxyMisconfigured
from support.suite.profiles import examples

SIDES = st.sampled_from(Side)
EVENTS = st.lists(
    st.one_of(
        st.builds(Head, SIDES, st.just({}), st.booleans()),
        st.builds(Piece, SIDES, st.binary(max_size=3), st.booleans()),
        st.builds(Trailers, SIDES),
    ),
    max_size=12,
)


def valid(events: list, side: Side) -> bool:
    """Whether one message's events are a head, then pieces, then an end, and nothing after it."""
    mine = [event for event in events if event.side is side]
    kinds = "".join("h" if isinstance(event, Head) else "p" if isinstance(event, Piece) else "t" for event in mine)
    ends = [isinstance(event, Trailers) or event.end for event in mine]
    return not kinds or (kinds[0] == "h" and "h" not in kinds[1:] and not any(ends[:-1]))


@pytest.mark.deep
@settings(max_examples=examples(100))
@given(EVENTS)
def test_an_exchange_takes_the_orders_of_http_and_no_other(events):
    exchange, taken = Exchange(), []
    for event in events:
        begun = any(one.side is Side.REQUEST for one in taken)
        possible = valid([*taken, event], event.side) and (begun or event.side is Side.REQUEST)
        if not possible:
            with pytest.raises(ProxyMisconfigured):
                exchange.take(event)
            break
        exchange.take(event)
        taken.append(event)
    for side, message in ((Side.REQUEST, exchange.request), (Side.ANSWER, exchange.answer)):
        mine = [event for event in taken if event.side is side]
        assert (message.state is State.NOTHING) == (not mine)
        assert message.whole == bool(mine and (isinstance(mine[-1], Trailers) or mine[-1].end))
        assert message.trailers == bool(mine and isinstance(mine[-1], Trailers))
        assert message.body == any(isinstance(event, Piece) for event in mine)
        assert message.head_only == (len(mine) == 1 and not mine[0].end)
    assert exchange.over == exchange.answer.whole


@settings(max_examples=examples(10))
@given(st.integers(0, 3).flatmap(lambda n: st.integers(max(0, n * CHUNK_BYTES - 2), n * CHUNK_BYTES + 2)), st.booleans())
def test_chunks_are_the_body_in_pieces_that_envoy_takes_and_only_the_last_one_ends_it(size, end):
    body = bytes(size)
    made = list(chunks(body, end=end))
    assert b"".join(chunk.data for chunk in made) == body
    assert all(0 < len(chunk.data) <= CHUNK_BYTES for chunk in made) or (size == 0 and len(made) == end)
    assert [chunk.end for chunk in made] == [False] * (len(made) - 1) + [end] * bool(made)
