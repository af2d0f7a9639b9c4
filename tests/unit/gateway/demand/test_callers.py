"""Callers of the gateway's gRPC: each has the role of its ServiceAccount's token, and none without a valid one."""

import pytest
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_OPERATOR
from pagoda_gateway.demand.callers import Callers, Unauthorized
from support.kube.issuer import STRANGER, SUBJECTS, Issuer, SigningKey


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path)


@pytest.fixture
def callers(issuer):
    return Callers(issuer.file, {SUBJECTS[ROLE_OPERATOR]: ROLE_OPERATOR})


def shown(token):
    return (("user-agent", "x"), ("authorization", f"Bearer {token}"))


def test_a_caller_has_its_subjects_role(callers, issuer):
    assert callers.role(shown(issuer.token(ROLE_OPERATOR))) == ROLE_OPERATOR


def test_callers_of_ours_whose_role_is_not_named_here_are_known_and_not_let_in(callers, issuer):
    with pytest.raises(Unauthorized, match="may not call this") as caught:
        callers.role(shown(issuer.token(ROLE_GATEWAY)))
    assert caught.value.known


WRONG = {
    "nothing": lambda _: (),
    "an empty one": lambda _: shown(""),
    "binary": lambda _: (("authorization", b"Bearer x"),),
    "another scheme": lambda issuer: (("authorization", f"Basic {issuer.token(ROLE_OPERATOR)}"),),
    "no token": lambda _: shown("sk-123"),
    "too long": lambda _: shown("a" * 10_000),
    "another key's": lambda _: shown(SigningKey("one").token(SUBJECTS[ROLE_OPERATOR])),
    "for another audience": lambda issuer: shown(issuer.token(ROLE_OPERATOR, aud=["api"])),
    "expired": lambda issuer: shown(issuer.token(ROLE_OPERATOR, exp=1)),
    "a stranger's": lambda issuer: shown(issuer.keys[0].token(STRANGER)),
}


@pytest.mark.parametrize("made", WRONG.values(), ids=WRONG)
def test_a_caller_without_proof_is_refused_and_its_token_is_not_repeated(callers, issuer, made):
    sent = made(issuer)
    with pytest.raises(Unauthorized) as caught:
        callers.role(sent)
    assert not any(str(value) in str(caught.value) for _, value in sent if len(str(value)) > 20)


def test_keys_are_followed_as_they_rotate_and_nobody_is_let_in_without_them(callers, issuer):
    old = issuer.token(ROLE_OPERATOR)
    issuer.keys = [SigningKey("two")]
    issuer.publish()
    assert callers.role(shown(issuer.token(ROLE_OPERATOR))) == ROLE_OPERATOR
    with pytest.raises(Unauthorized, match="none of the known keys"):
        callers.role(shown(old))
    issuer.file.unlink()
    with pytest.raises(Unauthorized, match="cannot read"):
        callers.role(shown(issuer.token(ROLE_OPERATOR)))
