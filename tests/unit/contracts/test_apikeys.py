"""API keys: what is made, what is stored of it, and what is refused as a stored key."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from pagoda_contracts.resources.apikeys import PREFIX, is_tenant, new_key, sha256, stored_key

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def test_a_new_key_is_known_by_its_digest_and_stored_without_its_text():
    made = new_key(bytes(range(32)), NOW, NOW + timedelta(days=1))
    assert re.fullmatch(rf"{PREFIX}[A-Za-z0-9_-]{{43}}", made.text)
    document = made.stored.document()
    assert made.text not in document
    assert stored_key(made.id, document.encode()) == made.stored
    assert made.stored.sha256 == sha256(made.text)
    assert made.stored.sha256.startswith(made.id)


def test_a_key_of_too_few_random_bytes_is_refused():
    with pytest.raises(ValueError, match="needs 32 random bytes, got 31"):
        new_key(bytes(31), NOW)


@pytest.mark.parametrize(
    ("key_id", "value"),
    [
        ("id", b"{"),
        ("id", b"{}"),
        ("id", b'{"sha256": "secret-text", "created": "2026-11-24T00:00:00Z"}'),
        ("id", b'{"sha256": "%s", "created": "2026-11-24T00:00:00"}' % (b"0" * 64)),
        ("id", b'{"sha256": "%s", "created": "2026-11-24T00:00:00Z", "unknown": 1}' % (b"0" * 64)),
        ("", b"{}"),
        ("a b", b"{}"),
    ],
)
def test_what_is_not_a_stored_key_is_refused_without_its_value(key_id, value):
    with pytest.raises(ValueError, match=r"^it|^its") as caught:
        stored_key(key_id, value)
    assert "secret-text" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "valid"), [("a", True), ("team-a.b_c", True), ("", False), ("-a", False), ("a" * 64, False), ("a b", False)]
)
def test_a_tenants_name_is_a_labels_value(name, valid):
    assert is_tenant(name) == valid
