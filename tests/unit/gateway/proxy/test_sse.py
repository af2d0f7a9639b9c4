"""Cutting at events changes no byte, and keeps what has been let through whole. Notes are taken out, and events wait for theirs."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.notes import NOTE, Note, from_line, to_comment
from pagoda_contracts.usage import Used
from pagoda_gateway.proxy.sse import Events, NotedEvents, Release

PIECES = st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n\r\n", b"\r", b": ping"]), max_size=30)
TEXT = b'data: {"a": "x\\n\\n: pagoda over"}\n\n'
NOTES = (Note(), Note("more", Used(7, 2, 1)), Note("more", Used(7, 2, 2), b'{"ids":[1]}'), Note("more", None, b'{"ids":[2]}'))


def chunks(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if start < end:
            yield stream[start:end]


@given(PIECES, st.data())
def test_any_chunking_gives_the_same_bytes_in_whole_events(pieces, data):
    stream = b"".join(pieces)
    events, out = Events(), []
    for chunk in chunks(stream, data):
        whole = events.take(chunk).events
        assert not whole or whole.endswith((b"\n\n", b"\r\n\r\n"))
        out.append(whole)
    rest = events.take(b"")
    assert (b"".join(out) + rest.events, rest.end) == (stream, "over")


def test_a_complete_event_never_waits():
    events = Events()
    assert events.take(b"data: 1\n\ndata: 2") == Release(b"data: 1\n\n")
    assert events.take(b"\n\n") == Release(b"data: 2\n\n")
    assert events.take(b"") == Release(b"", end="over")


def test_what_has_no_end_is_let_through_in_time():
    events = Events()
    passed = b"".join(events.take(b"x" * 65536).events for _ in range(64))
    assert len(passed) > 3 * 2**20


@given(st.lists(st.sampled_from([TEXT, b": ping\n\n", *map(to_comment, NOTES)]), max_size=12), st.booleans(), st.data())
def test_notes_are_taken_out_and_events_wait_for_theirs_however_it_is_chunked(parts, over, data):
    parts += [to_comment(Note("over", Used(9, 9, 9)))] * over
    events = NotedEvents()
    found = [events.take(chunk) for chunk in chunks(b"".join(parts), data)]
    notes = [from_line(part[len(NOTE) : -2]) for part in parts if part.startswith(NOTE)]
    last = max((at for at, part in enumerate(parts) if part.startswith(NOTE)), default=-1)
    assert b"".join(one.events for one in found) == b"".join(part for part in parts[: last + 1] if not part.startswith(NOTE))
    assert [one for release in found for one in release.answered] == [note.answered for note in notes if note.answered]
    used = [one.used for one in found if one.used is not None]
    assert used[-1:] == [note.used for note in notes if note.used is not None][-1:]
    assert [one.end for one in found if one.end] == ["over"] * over


def test_what_stands_before_a_death_is_not_passed_on():
    events = NotedEvents()
    stream = b'data: 1\n\n: pagoda more 7 2 1 {"ids":[1]}\n\ndata: error\n\n: pagoda died 7 2 1\n\n'
    assert events.take(stream) == Release(b"data: 1\n\n", Used(7, 2, 1), (b'{"ids":[1]}',), "died")
    assert NotedEvents().take(b"") == Release(end="died")


def test_a_note_that_cannot_be_read_is_a_death():
    """Nothing is known of the events before it."""
    for line in (b"", b"later 1 2 3", b"more 1 2", b"more 1 2 3 ids", b"over 1 2 3 {", b"more  1 2 3"):
        assert from_line(line).state == "died"
        assert NotedEvents().take(b"data: 1\n\n: pagoda " + line + b"\n\n") == Release(end="died")


def test_each_note_is_read_as_it_was_written():
    for note in (*NOTES, Note("over"), Note("over", Used(0, 0, 10**14)), Note("died", Used(1, 2, 3))):
        assert from_line(to_comment(note)[len(NOTE) : -2]) == note
