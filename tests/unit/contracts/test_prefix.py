"""Prefix hashes: the vectors for other languages, and what a chain promises."""

import json
import struct
import subprocess
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.prefix import (
    MAX_TEXT_HASHES,
    TEXT_CHUNK_BYTES,
    Scope,
    chat_text,
    from_header,
    normalise,
    packed_hashes,
    root,
    text_hashes,
    to_header,
    token_hashes,
)

# Made by a second reading of the specification with coreutils' b2sum as the hash, not by the code under test.
VECTORS = json.loads((Path(__file__).parents[2] / "data/v0.1/prefix-vectors.json").read_text())["vectors"]
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)
SCOPES = st.builds(Scope, st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
TENANT = Scope("a", "m")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['kind']}-{v['scope']['salt']}-{len(v['hashes'])}")
def test_the_vectors_hold(vector):
    scope = Scope(**vector["scope"])
    by_tokens = vector["kind"] == "tokens"
    found = token_hashes(scope, vector["tokens"], vector["blockSize"]) if by_tokens else text_hashes(scope, vector["text"])
    assert [one.hex() for one in found] == vector["hashes"]


def test_another_program_gets_the_same_root():
    data = b"pagoda.prefix.v1\0tokens\0" + bytes([16, 0, 0, 0]) + bytes([1, 0, 0, 0]) + b"a" + bytes([1, 0, 0, 0]) + b"m" + bytes(4)
    digest = subprocess.run(["b2sum", "-l", "128"], input=data, capture_output=True, check=True).stdout.split()[0].decode()
    assert root(TENANT, "tokens", 16).hex() == digest


@given(TOKENS, TOKENS, st.sampled_from([1, 4, 16]))
def test_equal_beginnings_have_equal_chains_as_long_as_they_are_equal(first, second, size):
    one, other = token_hashes(TENANT, first, size), token_hashes(TENANT, second, size)
    assert len(one) == len(first) // size
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        end = (index + 1) * size
        assert (a == b) == (first[:end] == second[:end])


@given(SCOPES, SCOPES)
def test_another_tenant_model_or_adapter_shares_nothing(one, other):
    same = token_hashes(one, [1, 2], 1) == token_hashes(other, [1, 2], 1)
    assert same == (one == other)
    assert root(one, "tokens", 512) != root(one, "text", 512)


@given(TOKENS, st.integers(0, 5))
def test_a_chain_goes_on_where_it_stopped(tokens, blocks):
    whole, cut = token_hashes(TENANT, tokens, 16), min(blocks, len(tokens) // 16)
    parent = whole[cut - 1] if cut else None
    assert whole[:cut] + token_hashes(TENANT, tokens[cut * 16 :], 16, parent) == whole


@given(TOKENS, st.sampled_from([1, 4, 16]))
def test_packed_tokens_have_the_hashes_of_the_tokens(tokens, size):
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    assert packed_hashes(root(TENANT, "tokens", size), packed, size) == token_hashes(TENANT, tokens, size)


@pytest.mark.parametrize("tokens", [[-1], [2**32]])
def test_what_is_no_token_id_is_refused(tokens):
    with pytest.raises(ValueError, match="outside 0 to 4294967295"):
        token_hashes(TENANT, tokens, 1)


def test_a_block_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="block size must be at least 1, got 0"):
        token_hashes(TENANT, [1], 0)


def test_texts_that_look_alike_are_alike():
    assert normalise("cafe\u0301\r\n") == "caf\u00e9\n"
    assert text_hashes(TENANT, "e\u0301\r\n" * 400) == text_hashes(TENANT, "\u00e9\n" * 400)


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u0344\u0323"])
def test_a_text_whose_marks_would_take_long_to_sort_is_not_sorted(marks):
    text = "a" + marks * 31 + "e\u0301"
    assert normalise(text + "\r\n") == text + "\n"
    few = "a" + "\u0301" * 15 + "\u0323" * 15 + "e\u0301"
    assert normalise(few) == unicodedata.normalize("NFC", few) != few


def test_the_number_of_text_hashes_is_bounded_and_lone_surrogates_are_accepted():
    assert len(text_hashes(TENANT, "x" * TEXT_CHUNK_BYTES * 100)) == 64
    assert len(text_hashes(TENANT, "x" * TEXT_CHUNK_BYTES * 9, most=2)) == 2
    assert len(text_hashes(TENANT, "\ud800" * TEXT_CHUNK_BYTES)) == 1


def test_a_longer_chat_begins_like_the_shorter_and_roles_cannot_be_shifted():
    short = [("system", "be brief"), ("user", "hi")]
    assert chat_text([*short, ("assistant", "yes")]).startswith(chat_text(short))
    assert chat_text([("user", "a"), ("user", "b")]) != chat_text([("user", "ab")])


def test_hashes_travel_in_a_header_and_come_back():
    hashes = tuple(bytes([number] * 16) for number in range(MAX_TEXT_HASHES))
    assert from_header(to_header(hashes)) == hashes
    assert from_header(to_header(())) == ()
    assert to_header(hashes).isascii()
    for wrong in ("A", "AAAA", "****", to_header([*hashes, bytes(16)])):
        with pytest.raises(ValueError, match=r"must be|base64"):
            from_header(wrong)
