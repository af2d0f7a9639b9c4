"""Whose an API key is: the ring's answers, and what a request shows as its key."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pagoda_contracts.resources.apikeys import MAX_BYTES, new_key
from pagoda_gateway.access.credentials import shown_key
from pagoda_gateway.access.keys import KeyRing, Refused
from support.suite.profiles import examples

NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEYS = [new_key(bytes([number]) * 32, NOW) for number in range(4)]
SHORT_LIVED = new_key(b"s" * 32, NOW, NOW + timedelta(days=1))


def put(ring: KeyRing, source: str, tenant: str, *keys) -> None:
    ring.put(source, tenant, {key.id: key.stored for key in keys})


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({}, ""),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"authorization": "Basic azpr"}, ""),
        ({"authorization": "Bearer"}, ""),
        ({"x-api-key": "k"}, "k"),
        ({"authorization": "Bearer k", "x-api-key": "other"}, "k"),
        ({"authorization": "Basic azpr", "x-api-key": "k"}, "k"),
    ],
)
def test_a_request_shows_its_key_as_either_api_sends_it(headers, shown):
    assert shown_key(headers) == shown


def test_a_key_is_its_tenants_until_it_expires_to_the_second():
    ring = KeyRing()
    put(ring, "ns/a", "team-a", SHORT_LIVED)
    owner = ring.owner(SHORT_LIVED.text, NOW + timedelta(days=1, seconds=-1))
    assert (owner.tenant, owner.key_id) == ("team-a", SHORT_LIVED.id)
    with pytest.raises(Refused, match=f"{SHORT_LIVED.id} expired at 2026-11-25T00:00:00Z") as caught:
        ring.owner(SHORT_LIVED.text, NOW + timedelta(days=1))
    assert caught.value.reason == "expired"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[(text, "unknown") for text in ("", KEYS[0].text[:-1], KEYS[0].text + "x", KEYS[0].stored.sha256)],
        ("k" * (MAX_BYTES + 1), "malformed"),
        ("kö", "malformed"),
    ],
)
def test_an_unknown_key_is_refused_without_naming_it(text, reason):
    ring = KeyRing()
    put(ring, "ns/a", "team-a", KEYS[0])
    with pytest.raises(Refused) as caught:
        ring.owner(text, NOW)
    assert caught.value.reason == reason
    assert not text or text not in str(caught.value)


def test_many_sources_are_indexed_once_and_not_once_for_each():
    class Counted(dict):
        reads = 0

        def items(self):
            Counted.reads += 1
            return super().items()

    ring = KeyRing()
    for number, key in enumerate(KEYS):
        ring.put(f"ns/{number}", "t", Counted({key.id: key.stored}))
    assert [ring.owner(key.text, NOW).key_id for key in KEYS] == [key.id for key in KEYS]
    assert Counted.reads == len(KEYS)


class Sources(RuleBasedStateMachine):
    """Whatever came and went, a key belongs to the first source by name that holds it now."""

    def __init__(self):
        super().__init__()
        self.ring, self.model = KeyRing(), {}

    @rule(source=st.sampled_from("abc"), tenant=st.sampled_from(["t", "u"]), keys=st.sets(st.integers(0, 3)))
    def put(self, source, tenant, keys):
        put(self.ring, source, tenant, *(KEYS[number] for number in keys))
        self.model[source] = tenant, keys

    @rule(source=st.sampled_from("abc"))
    def drop(self, source):
        self.ring.drop(source)
        self.model.pop(source, None)

    @invariant()
    def every_key_has_its_owner(self):
        for number, key in enumerate(KEYS):
            holders = [tenant for _, (tenant, keys) in sorted(self.model.items()) if number in keys]
            try:
                found = self.ring.owner(key.text, NOW).tenant
            except Refused:
                found = None
            assert found == (holders[0] if holders else None)


TestSources = Sources.TestCase
TestSources.settings = settings(max_examples=examples(25), stateful_step_count=15)
