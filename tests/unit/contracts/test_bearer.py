"""Which of two own tokens is shown while the cluster's signing key rotates: the new key's public half needs time to reach the callees."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.bearer import SETTLE_S, first, parse


def token(key, until, salt=""):
    parts = ({"alg": "RS256", "kid": key}, {"exp": until, "sub": salt})
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts), "signature"])


OLD, RENEWED, NEW = token("a", 3600), token("a", 6480), token("b", 6480)


def test_a_token_by_the_same_key_is_shown_at_once():
    assert first(OLD, 0).seen(RENEWED, 2880).used.token == RENEWED


def test_a_token_by_a_new_key_is_held_back_until_the_key_could_arrive():
    shown = first(OLD, 0).seen(NEW, 2880)
    assert (shown.used.token, shown.found.token) == (OLD, NEW)
    assert shown.seen(NEW, 2880 + SETTLE_S - 1).used.token == OLD
    assert shown.seen(NEW, 2880 + SETTLE_S).used.token == NEW


def test_nothing_is_held_back_when_the_old_one_ends():
    assert first(token("a", 1000), 0).seen(NEW, 950).used.token == NEW


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 900)), min_size=1, max_size=20))
def test_whatever_the_keys_do_a_good_token_is_shown_where_there_is_one(renewals):
    """Renewed at any times by any keys, each good for an hour: what is shown has not expired, and is one of those in the file."""
    now, files = 0.0, [token("a", 3600)]
    shown = first(files[0], now)
    for number, (key, after) in enumerate(renewals):
        now += after
        files.append(token(key, now + 3600, str(number)))
        shown = shown.seen(files[-1], now)
        assert shown.used.until > now
        assert shown.used.token in files
    assert shown.seen(files[-1], now + SETTLE_S + 1).used.token == files[-1]


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "a.b.c.d", OLD.rpartition(".")[0], "é.é.é"])
def test_what_is_no_token_is_refused_without_being_repeated(text):
    with pytest.raises(ValueError, match=r"^not a ServiceAccount token: [A-Za-z]+$"):
        parse(text)
