"""Cutting at events changes no byte, and keeps what has been let through whole."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_gateway.proxy.sse import Events, MarkedEvents

PIECES = st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n\r\n", b"\r", b": ping"]), max_size=30)


@given(PIECES, st.data())
def test_any_chunking_gives_the_same_bytes_in_whole_events(pieces, data):
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    events, out = Events(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        whole = events.feed(stream[start:end])
        assert not whole or whole.endswith((b"\n\n", b"\r\n\r\n"))
        out.append(whole)
    assert b"".join(out) + events.rest() == stream


def test_a_complete_event_never_waits():
    events = Events()
    assert events.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert events.feed(b"\n\n") == b"data: 2\n\n"
    assert events.rest() == b""


def test_what_has_no_end_is_let_through_in_time():
    events = Events()
    passed = b"".join(events.feed(b"x" * 65536) for _ in range(64))
    assert len(passed) > 3 * 2**20


MARKED = [b'data: {"a": "x\\n\\n: pagoda over"}', b"\n\n", b": ping", b": pagoda ", b'{"ids":[1]}', b"over", b"data: 1\n\n: pagoda 2\n\n"]


@given(st.lists(st.sampled_from(MARKED), max_size=20), st.data())
def test_marks_are_taken_out_and_events_wait_for_theirs_however_it_is_chunked(pieces, data):
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    events, out, marks = MarkedEvents(), b"", []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        passed, found = events.feed(stream[start:end])
        out += passed
        marks += found
    parts = stream.split(b"\n\n")[:-1]
    last = max((at for at, part in enumerate(parts) if part.startswith(b": pagoda ")), default=-1)
    wanted = [part for part in parts[: last + 1] if part.startswith(b": pagoda ")]
    assert out == b"".join(part + b"\n\n" for part in parts[: max(last, 0)] if not part.startswith(b": pagoda "))
    assert marks == [one for part in wanted if (one := part.removeprefix(b": pagoda ")) not in (b"", b"over")]
    assert events.over == (b": pagoda over" in wanted)


def test_what_stands_before_a_death_is_not_passed_on():
    events = MarkedEvents()
    assert events.feed(b"data: 1\n\n: pagoda m\n\ndata: error\n\n: pagoda died\n\n") == (b"data: 1\n\n", [b"m"])
    assert (events.died, events.over) == (True, False)
