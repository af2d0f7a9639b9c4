"""Cutting at events changes no byte, and keeps what has been let through whole."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.usage import Used
from pagoda_gateway.proxy.sse import Events

PIECES = st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n\r\n", b"\r", b": ping"]), max_size=30)


@given(PIECES, st.data())
def test_any_chunking_gives_the_same_bytes_in_whole_events(pieces, data):
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    events, out = Events(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        whole, _ = events.take(stream[start:end])
        assert not whole or whole.endswith((b"\n\n", b"\r\n\r\n"))
        out.append(whole)
    assert b"".join(out) + events.rest() == stream


def test_a_complete_event_never_waits():
    events = Events()
    assert events.take(b"data: 1\n\ndata: 2") == (b"data: 1\n\n", None)
    assert events.take(b"\n\n") == (b"data: 2\n\n", None)
    assert events.rest() == b""


def test_what_has_no_end_is_let_through_in_time():
    events = Events()
    passed = b"".join(events.take(b"x" * 65536)[0] for _ in range(64))
    assert len(passed) > 3 * 2**20


def test_a_replica_s_word_on_usage_is_taken_out_and_counts_as_no_event():
    events = Events()
    assert events.take(b": pagoda-usage 7 2 1\n\ndata: a\n\n: pagoda-u") == (b"data: a\n\n", Used(7, 2, 1))
    assert events.take(b'sage 7 2 2\n\ndata: ": pagoda-usage 9 9 9"\n\n') == (b'data: ": pagoda-usage 9 9 9"\n\n', Used(7, 2, 2))
    assert events.count == 2
