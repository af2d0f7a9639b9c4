"""Who is trusted: a gateway's word about its clients reaches the engine, anybody else's does not."""

import pytest
from pagoda_contracts.names import (
    HEADER_CACHE_SALT,
    HEADER_DEADLINE,
    HEADER_PREFIX_HASHES,
    HEADER_PRIORITY,
    HEADER_TENANT,
    HEADER_TIER,
    HEADER_WEIGHT,
    ROLE_GATEWAY,
)
from pagoda_contracts.prefix import MAX_TEXT_HASHES, to_header
from pagoda_daemon.api.access.caller import ANYBODY, MAX_DEADLINE_MS, ROLE_CLIENT, Principal, Terms, authorization, caller, located
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Prefix, Submit
from pagoda_daemon.core.sampling import Sampling

GATEWAY = Principal(ROLE_GATEWAY, "system:serviceaccount:pagoda:gateway")
HASHES = tuple(bytes([number]) * 16 for number in range(3))
SAID = {
    HEADER_TENANT: "team-a",
    HEADER_WEIGHT: "2.5",
    HEADER_TIER: "batch",
    HEADER_PRIORITY: "-7",
    HEADER_CACHE_SALT: "s4lt",
    HEADER_DEADLINE: "1500",
    HEADER_PREFIX_HASHES: to_header(HASHES),
}


def stamped(principal, headers):
    return caller(principal, headers, arrived_s=10.0).terms.stamp(Submit("r", tuple(range(100)), Sampling(max_tokens=1)))


def test_what_a_gateway_says_of_its_client_reaches_the_engine():
    message = stamped(GATEWAY, SAID)
    assert (message.tenant, message.weight, message.tier, message.priority) == ("team-a", 2.5, "batch", -7)
    assert (message.cache_salt, message.deadline_ms) == ("s4lt", 11_500)
    assert [prefix.hash for prefix in message.prefixes] == list(HASHES)


@pytest.mark.parametrize("principal", [ANYBODY, Principal(ROLE_CLIENT, "alice"), Principal("operator", "o")])
def test_of_what_anybody_else_says_only_the_deadline_counts(principal):
    message = stamped(principal, SAID)
    assert message.deadline_ms == 11_500
    assert (message.weight, message.tier, message.priority, message.cache_salt, message.prefixes) == (1.0, "interactive", 0, "", ())
    assert message.tenant == ("key:alice" if principal.role == ROLE_CLIENT else "")


def test_a_gateway_cannot_be_mistaken_for_the_holder_of_a_key():
    assert stamped(GATEWAY, {HEADER_TENANT: "alice"}).tenant != stamped(Principal(ROLE_CLIENT, "alice"), {}).tenant


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (HEADER_TENANT, "a b"),
        (HEADER_TENANT, "a" * 254),
        (HEADER_TENANT, "käse"),
        (HEADER_WEIGHT, "nan"),
        (HEADER_WEIGHT, "0"),
        (HEADER_WEIGHT, "1e300"),
        (HEADER_WEIGHT, ""),
        (HEADER_TIER, "gold"),
        (HEADER_PRIORITY, "1001"),
        (HEADER_PRIORITY, "1.5"),
        (HEADER_PRIORITY, "9" * 5000),
        (HEADER_CACHE_SALT, "a" * 129),
        (HEADER_CACHE_SALT, "../\x00"),
        (HEADER_DEADLINE, "0"),
        (HEADER_DEADLINE, "-1"),
        (HEADER_DEADLINE, "soon"),
        (HEADER_PREFIX_HASHES, "!!!!"),
        (HEADER_PREFIX_HASHES, "QUJD"),
        (HEADER_PREFIX_HASHES, to_header([bytes(16)] * (MAX_TEXT_HASHES + 1))),
    ],
)
def test_a_trusted_header_that_makes_no_sense_is_refused_by_name(header, value):
    with pytest.raises(BadRequest, match=header) as refused:
        caller(GATEWAY, {header: value}, 0.0)
    assert refused.value.param == header
    assert len(str(refused.value)) < 300


def test_an_enormous_deadline_stays_a_number_of_64_bits():
    assert caller(ANYBODY, {HEADER_DEADLINE: "9" * 32}, 1.0).terms.deadline_ms == 1000 + MAX_DEADLINE_MS


def test_prefixes_take_their_share_of_the_prompts_tokens():
    # 3 chunks of 512 bytes in a text of 2,048: the third ends at three quarters of 100 tokens.
    assert located(HASHES, 100, 2048) == (Prefix(HASHES[0], 25), Prefix(HASHES[1], 50), Prefix(HASHES[2], 75))


def test_where_the_text_is_unknown_the_last_prefix_stands_for_the_whole_prompt():
    assert [prefix.tokens for prefix in located(HASHES, 100, None)] == [34, 67, 100]
    assert [prefix.tokens for prefix in located(HASHES, 100, 3 * 512 - 1)] == [34, 67, 100]
    assert located((), 100, 5) == ()


def test_terms_leave_the_rest_of_the_request_alone():
    message = Submit("r", (1, 2), Sampling(max_tokens=3), n=2)
    assert Terms().stamp(message) == message


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ({}, None),
        ({"authorization": "Bearer a"}, "Bearer a"),
        ({"x-api-key": "b"}, "Bearer b"),
        ({"authorization": "Bearer a", "x-api-key": "b"}, "Bearer a"),
        ({"authorization": "", "x-api-key": "b"}, ""),
    ],
)
def test_a_key_is_read_from_one_header_only(headers, value):
    assert authorization(headers) == value
