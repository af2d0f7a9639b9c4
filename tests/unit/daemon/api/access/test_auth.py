"""Who may call: keys, ServiceAccount tokens, and every way to forge one of them that others fell for."""

import base64
import hashlib
import hmac
import json
import os
import time

import jwt
import pytest
from pagoda_contracts.jwks import MAX_TOKEN
from pagoda_contracts.launch import AuthConfig
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_METRICS, ROLE_OPERATOR
from pagoda_daemon.api.access import auth, keys
from pagoda_daemon.api.access.auth import Guard
from pagoda_daemon.api.access.caller import ANYBODY, ROLE_CLIENT
from pagoda_daemon.api.access.roles import NOBODY, OPEN, ROUTES
from pagoda_daemon.core.errors import ConfigRejected, Forbidden, Unauthenticated
from structlog.testing import capture_logs
from support.kube.issuer import STRANGER, SUBJECTS, Issuer, SigningKey

GATEWAYS = frozenset((ROLE_GATEWAY,))


class Clock:
    """Real time, moved by hand, or standing still."""

    def __init__(self):
        self.ahead, self.stands = 0.0, None

    def __call__(self):
        return (self.stands or time.time()) + self.ahead


@pytest.fixture(scope="module")
def first_key():
    return SigningKey("one")


@pytest.fixture
def issuer(tmp_path, first_key):
    made = Issuer.__new__(Issuer)
    made.file, made.keys = tmp_path / "jwks.json", [first_key]
    made.publish()
    return made


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def guard(issuer, clock):
    return Guard(issuer.config(), clock)


def test_a_refused_reader_of_metrics_sees_what_may(tmp_path):
    given = AuthConfig(keysFile=str(key_file(tmp_path, f"{hashlib.sha256(b'sk').hexdigest()} {keys.OF_FLAG}0")))
    with pytest.raises(Forbidden, match=r"^the key of --api-key may not use this; its role is client\. Use a key that has role=metrics"):
        Guard(given).allow(ROUTES["/metrics"], "Bearer sk")
    with pytest.raises(Forbidden, match=r"its role is client$"):
        Guard(given).allow(GATEWAYS, "Bearer sk")


def key_file(tmp_path, *lines):
    path = tmp_path / "keys"
    path.with_suffix(".new").write_text("\n".join(lines))
    path.with_suffix(".new").replace(path)
    return path


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(token):
    return f"Bearer {token}"


def test_without_auth_everybody_is_anybody_and_nobody_is_the_operator():
    guard = Guard(None)
    assert guard.identify(None) == guard.identify("Bearer none") == ANYBODY
    with pytest.raises(Forbidden, match="unless the configuration has auth"):
        guard.allow(frozenset((ROLE_OPERATOR,)), None)


@pytest.mark.parametrize("role", [ROLE_GATEWAY, ROLE_OPERATOR, ROLE_METRICS])
def test_a_token_has_its_subjects_role(guard, issuer, role):
    principal = guard.identify(bearer(issuer.token(role)))
    assert (principal.role, principal.name) == (role, SUBJECTS[role])


def test_an_elliptic_key_signs_as_well(issuer, clock):
    issuer.keys = [SigningKey("ec", "ES256")]
    issuer.publish()
    assert Guard(issuer.config(), clock).identify(bearer(issuer.token(ROLE_GATEWAY))).role == ROLE_GATEWAY


def now():
    return int(time.time())


WRONG_CLAIMS = {
    "expired": ({"exp": 1}, "expired"),
    "just expired": ({"exp": now() - 1}, "expired"),
    "without an end": ({"exp": None}, "cannot be verified"),
    "not yet": ({"nbf": now() + 600}, "not valid yet"),
    "for the API server": ({"aud": ["https://kubernetes.default.svc"]}, "audience"),
    "for nobody": ({"aud": None}, "cannot be verified"),
    "for an audience that begins alike": ({"aud": "pagoda-2"}, "audience"),
    "of another cluster": ({"iss": "https://elsewhere"}, "issuer"),
    "of nobody": ({"iss": None}, "cannot be verified"),
    "without a subject": ({"sub": None}, "cannot be verified"),
}


@pytest.mark.parametrize(("changes", "why"), WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
def test_a_token_that_is_not_for_us_now_is_refused(guard, issuer, changes, why):
    with pytest.raises(Unauthenticated, match=why):
        guard.identify(bearer(issuer.token(ROLE_GATEWAY, **changes)))


STORED = {"iss": "kubernetes/serviceaccount", "aud": None, "exp": None, "nbf": None, "iat": None}


def test_a_token_that_a_secret_keeps_reads_metrics_and_nothing_else(issuer, first_key, clock):
    """As the chart's monitors show it: it has no audience and no end."""
    guard = Guard(AuthConfig(tokens=issuer.tokens_config().model_copy(update={"issuer": None})), clock)
    assert guard.identify(bearer(issuer.token(ROLE_METRICS, **STORED))).role == ROLE_METRICS
    wrong = [{"exp": now() + 60}, {"aud": "pagoda-2"}, {"iss": "https://elsewhere"}, {"iss": None}, {"sub": None}]
    refused = [issuer.token(ROLE_METRICS, **STORED | changes) for changes in wrong]
    refused += [issuer.token(role, **STORED) for role in (ROLE_GATEWAY, ROLE_OPERATOR)]
    refused += [first_key.token(STRANGER, **STORED), SigningKey("one").token(SUBJECTS[ROLE_METRICS], **STORED)]
    for token in refused:
        with pytest.raises(Unauthenticated):
            guard.identify(bearer(token))
    with pytest.raises(Unauthenticated):
        Guard(issuer.config(), clock).identify(bearer(issuer.token(ROLE_METRICS, **STORED)))  # the configuration names an issuer


def test_a_fresh_token_is_known_to_a_replica_whose_clock_is_a_little_slow(guard, issuer):
    token = issuer.token(ROLE_GATEWAY, nbf=now() + 30, iat=now() + 30)
    assert guard.identify(bearer(token)).role == ROLE_GATEWAY


def test_a_good_token_of_another_account_is_known_and_not_allowed(guard, first_key):
    token = bearer(first_key.token(STRANGER))
    with pytest.raises(Forbidden, match="its role is none"):
        guard.allow(GATEWAYS, token)
    assert guard.identify(token).role == ""


@pytest.mark.parametrize("claim", [["a list"], {"a": 1}, 7])
def test_a_subject_that_is_no_text_is_refused(guard, first_key, claim):
    with pytest.raises(Unauthenticated, match="cannot be verified"):
        guard.identify(bearer(signed_by_hand(first_key, {"sub": claim})))


def encoded(part):
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def claims(**changes):
    known = {"iss": "https://kubernetes.default.svc.cluster.local", "sub": SUBJECTS[ROLE_OPERATOR], "aud": "pagoda", "exp": now() + 60}
    return {**known, **changes}


def signed_by_hand(key, changes):
    """By nobody's library, so that it may be wrong where libraries refuse to be."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    body = f"{encoded({'alg': 'RS256', 'kid': key.kid})}.{encoded(claims(**changes))}"
    signature = key.private.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def test_the_hand_that_forges_can_also_sign_rightly(guard, first_key):
    assert guard.identify(bearer(signed_by_hand(first_key, {}))).role == ROLE_OPERATOR


@pytest.mark.parametrize("name", ["none", "None", "nOnE", ""])
@pytest.mark.parametrize("signature", ["", "AAAA"])
def test_no_algorithm_is_no_proof(guard, name, signature):
    with pytest.raises(Unauthenticated):
        guard.identify(bearer(f"{encoded({'alg': name, 'kid': 'one'})}.{encoded(claims())}.{signature}"))


@pytest.mark.parametrize("secret", ["pem", "der", "jwk"])
def test_a_public_key_is_not_taken_for_a_shared_secret(guard, first_key, secret):
    shared = {
        "pem": first_key.public_pem,
        "der": base64.b64decode(b"".join(first_key.public_pem.splitlines()[1:-1])),
        "jwk": json.dumps(first_key.jwk()).encode(),
    }[secret]
    body = f"{encoded({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{encoded(claims())}"
    forged = base64.urlsafe_b64encode(hmac.digest(shared, body.encode(), "sha256")).rstrip(b"=").decode()
    with pytest.raises(Unauthenticated, match="algorithm"):
        guard.identify(bearer(f"{body}.{forged}"))


def test_a_shared_secret_in_the_key_file_is_left_out(issuer, clock):
    secret = b"s" * 32
    jwk = {"kty": "oct", "kid": "shared", "alg": "HS256", "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode()}
    issuer.publish(jwk)
    guard = Guard(issuer.config(), clock)
    with pytest.raises(Unauthenticated, match="none of the known keys"):
        guard.identify(bearer(jwt.encode(claims(), secret, "HS256", headers={"kid": "shared"})))


@pytest.mark.parametrize("kid", [None, 7, "", "two", "../one", ["one"]])
def test_a_token_must_name_a_known_key(guard, kid):
    header = {"alg": "RS256", **({"kid": kid} if kid is not None else {})}
    with pytest.raises(Unauthenticated):
        guard.identify(bearer(f"{encoded(header)}.{encoded(claims())}.AAAA"))


def test_another_key_under_a_known_name_does_not_sign(guard):
    with pytest.raises(Unauthenticated, match="signature"):
        guard.identify(bearer(SigningKey("one").token(SUBJECTS[ROLE_GATEWAY])))


def header_of(text):
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode() + ".e30.AAAA"


NO_TOKENS = ["..", "a.b.c", "é.é.é", "." * 200, f"{'A' * 4000}.B.C", "\udcff.a.b"]


@pytest.mark.parametrize("token", [*NO_TOKENS, header_of("[" * 5000), header_of('{"kid": ' + "9" * 5000 + "}"), header_of("7")])
def test_what_is_no_token_is_refused(guard, token):
    with pytest.raises(Unauthenticated):
        guard.identify(bearer(token))


def test_an_oversized_token_is_not_even_looked_at(guard, issuer):
    token = issuer.token(ROLE_GATEWAY, padding="x" * MAX_TOKEN)
    with pytest.raises(Unauthenticated, match=f"at most {MAX_TOKEN} characters"):
        guard.identify(bearer(token))


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Token x", "bearer\tx"])
def test_without_a_bearers_key_nobody_is_let_in(guard, header):
    with pytest.raises(Unauthenticated, match="no key was given"):
        guard.identify(header)


def test_the_schemes_case_does_not_matter(guard, issuer):
    assert guard.identify(f"bearer  {issuer.token(ROLE_GATEWAY)} ").role == ROLE_GATEWAY


def test_a_remembered_token_is_forgotten_when_it_expires(guard, issuer, clock):
    token = bearer(issuer.token(ROLE_GATEWAY, exp=now() + 100))
    assert guard.identify(token).role == ROLE_GATEWAY
    clock.ahead = 101
    with pytest.raises(Unauthenticated, match="expired"):
        guard.identify(token)


def test_a_token_is_verified_once(guard, issuer, monkeypatch):
    token = bearer(issuer.token(ROLE_GATEWAY))
    guard.identify(token)
    monkeypatch.setattr(jwt, "decode", None)
    assert guard.identify(token).role == ROLE_GATEWAY


def test_what_is_remembered_is_bounded_and_holds_no_secret(guard, first_key, monkeypatch):
    monkeypatch.setattr(auth, "_REMEMBERED", 4)
    tokens = [first_key.token(SUBJECTS[ROLE_GATEWAY], n=number) for number in range(8)]
    for token in tokens:
        guard.identify(bearer(token))
    assert len(guard._proven) == 4
    assert not any(token in repr(guard._proven) for token in tokens)


def test_rotated_keys_are_seen_and_a_withdrawn_one_counts_no_more(guard, issuer, clock):
    old = bearer(issuer.token(ROLE_GATEWAY))
    assert guard.identify(old).role == ROLE_GATEWAY
    issuer.keys = [SigningKey("two")]
    issuer.publish()
    clock.ahead = 2
    assert guard.identify(bearer(issuer.token(ROLE_GATEWAY))).role == ROLE_GATEWAY
    with pytest.raises(Unauthenticated, match="none of the known keys"):
        guard.identify(old)


def test_the_operators_file_of_accounts_counts_before_the_configuration(issuer, first_key, clock, tmp_path):
    """The next installation may have another name: its gateway calls replicas that the earlier one made."""
    file = tmp_path / "subjects.json"
    guard = Guard(AuthConfig(tokens=issuer.tokens_config().model_copy(update={"subjects_file": str(file)})), clock)
    tokens = [bearer(issuer.token(ROLE_GATEWAY)), bearer(first_key.token(STRANGER))]

    def roles():
        clock.ahead += 2
        return [guard.identify(token).role for token in tokens]

    assert roles() == [ROLE_GATEWAY, ""]
    file.write_text(json.dumps({STRANGER: ROLE_GATEWAY, SUBJECTS[ROLE_GATEWAY]: "of a later version"}))
    assert roles() == ["", ROLE_GATEWAY]
    file.write_text("[]")
    assert roles() == ["", ROLE_GATEWAY], "a wrong file changes nothing"
    file.unlink()
    assert roles() == [ROLE_GATEWAY, ""]


def test_a_flood_of_unknown_keys_reads_the_file_no_more_than_once_a_second(guard, clock, monkeypatch):
    looks, clock.stands = [], time.time() + 2
    monkeypatch.setattr(guard._tokens._file, "_look", lambda: looks.append(1))
    for _ in range(50):
        with pytest.raises(Unauthenticated):
            guard.identify(bearer(f"{encoded({'alg': 'RS256', 'kid': 'nobody'})}.{encoded(claims())}.AAAA"))
    assert len(looks) == 1


@pytest.mark.parametrize(
    "content", ["", "no json", "[]", '{"keys": []}', '{"keys": 7}', '{"keys": [{"kty": "RSA", "kid": "x"}]}', " " * 300_000]
)
def test_a_broken_key_file_stops_a_start_and_not_a_running_replica(guard, issuer, clock, content):
    issuer.file.write_text(content)
    clock.ahead = 2
    with capture_logs() as logs:
        assert guard.identify(bearer(issuer.token(ROLE_GATEWAY))).role == ROLE_GATEWAY
        clock.ahead = 4
        guard.identify(bearer(issuer.token(ROLE_GATEWAY)))
    assert [entry["event"] for entry in logs].count("auth_file_unusable") == 1
    with pytest.raises(ConfigRejected, match=r"jwks\.json"):
        Guard(issuer.config(), clock)


def test_a_missing_file_and_nobody_at_all_are_impossible_configurations(tmp_path, issuer):
    with pytest.raises(ConfigRejected, match="No such file"):
        Guard(AuthConfig(keys_file=str(tmp_path / "none")))
    with pytest.raises(ConfigRejected, match="no client could ever call"):
        Guard(AuthConfig())
    with pytest.raises(ConfigRejected, match="metricsFrom"):
        Guard(issuer.config(metrics_from=("10.0.0.0/33",)))


def test_a_keys_holder_is_a_client_by_name_and_nothing_more(tmp_path):
    guard = Guard(AuthConfig(keys_file=str(key_file(tmp_path, "# ours", f"{digest('sk-1')} alice", "", digest("sk-2").upper()))))
    assert guard.identify("Bearer sk-1").name == "alice"
    assert guard.identify("Bearer sk-2").name == digest("sk-2")[:16]
    assert guard.identify("Bearer sk-2").role == ROLE_CLIENT
    with pytest.raises(Forbidden, match="alice may not"):
        guard.allow(GATEWAYS, "Bearer sk-1")
    for wrong in ("sk-3", "sk-", "sk-1 sk-1", digest("sk-1"), "alice"):
        with pytest.raises(Unauthenticated):
            guard.identify(f"Bearer {wrong}")


def test_a_withdrawn_key_counts_no_more(tmp_path, clock):
    guard = Guard(AuthConfig(keys_file=str(key_file(tmp_path, digest("sk-1")))), clock)
    assert guard.identify("Bearer sk-1").role == ROLE_CLIENT
    key_file(tmp_path, digest("sk-2") + " bob")
    clock.ahead = 2
    assert guard.identify("Bearer sk-2").name == "bob"
    with pytest.raises(Unauthenticated):
        guard.identify("Bearer sk-1")


def test_a_file_that_was_swapped_for_one_of_equal_size_and_time_is_read_again(tmp_path, clock):
    """As kubelet swaps a Secret, whose files' times may be those of a filesystem that counts whole seconds."""
    path = key_file(tmp_path, digest("sk-1"))
    os.utime(path, ns=(10**18, 10**18))
    guard = Guard(AuthConfig(keys_file=str(path)), clock)
    (tmp_path / "other").mkdir()
    other = key_file(tmp_path / "other", digest("sk-2"))
    os.utime(other, ns=(10**18, 10**18))
    other.replace(path)
    clock.ahead = 2
    assert guard.identify("Bearer sk-2").role == ROLE_CLIENT
    with pytest.raises(Unauthenticated):
        guard.identify("Bearer sk-1")


def test_keys_listed_as_sha256sum_prints_them_are_not_one_tenant():
    listed = keys.parse(f"{digest('sk-1')}  -\n{digest('sk-2')}  -\n".encode())
    assert [key.name for key in listed] == [digest("sk-1")[:16], digest("sk-2")[:16]]


def test_a_key_is_a_clients_unless_its_line_gives_it_a_role():
    lines = ["sk-1", "sk-2 bob", "sk-3 bob role=client", "sk-4 scraper role=metrics  # ours"]
    listed = keys.parse("\n".join(digest(line.split()[0]) + line[4:] for line in lines).encode())
    assert [key.role for key in listed] == [ROLE_CLIENT, ROLE_CLIENT, ROLE_CLIENT, ROLE_METRICS]


@pytest.mark.parametrize("rest", ["bob role=gateway", "bob role=operator", "bob metrics", "role=metrics", "bob role="])
def test_no_key_is_given_another_role(rest):
    with pytest.raises(ValueError, match="role=client or role=metrics"):
        keys.parse(f"{digest('sk-1')} {rest}".encode())


def test_keys_and_tokens_may_stand_side_by_side(tmp_path, issuer):
    guard = Guard(issuer.config(keys_file=str(key_file(tmp_path, digest("sk.1.x")))))
    assert guard.identify("Bearer sk.1.x").role == ROLE_CLIENT
    assert guard.identify(bearer(issuer.token(ROLE_OPERATOR))).role == ROLE_OPERATOR


def test_every_key_is_compared_whichever_matches(tmp_path, monkeypatch):
    listed = [digest(f"sk-{number}") for number in range(20)]
    guard = Guard(AuthConfig(keys_file=str(key_file(tmp_path, *listed))))
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda one, other: compared.append(1) or real(one, other))
    for key in ("sk-0", "sk-19"):
        compared.clear()
        guard.identify(f"Bearer {key}")
        assert len(compared) == 20


def test_a_key_written_where_its_digest_belongs_is_not_repeated(tmp_path):
    with pytest.raises(ConfigRejected, match="line 2") as refused:
        Guard(AuthConfig(keys_file=str(key_file(tmp_path, digest("a"), "sk-secret-secret"))))
    assert "sk-secret" not in str(refused.value)


def test_peers_are_known_by_their_network(issuer):
    guard = Guard(issuer.config(metrics_from=("10.1.0.0/16", "fd00::/8")))
    assert guard.is_peer("10.1.2.3")
    assert guard.is_peer("fd00::1")
    for other in ("10.2.0.1", "", "testclient", "::1", "::ffff:10.1.2.3"):
        assert not guard.is_peer(other)


def test_what_nobody_may_use_nobody_gets_and_what_is_open_everybody(guard, issuer):
    assert guard.allow(OPEN, None) == ANYBODY
    with pytest.raises(Forbidden):
        guard.allow(NOBODY, bearer(issuer.token(ROLE_OPERATOR)))
    with pytest.raises(Unauthenticated):
        guard.allow(NOBODY, None)


def test_no_secret_is_logged(tmp_path, issuer, clock):
    with capture_logs() as logs:
        guard = Guard(issuer.config(keys_file=str(key_file(tmp_path, digest("sk-1")))), clock)
        token = issuer.token(ROLE_GATEWAY)
        for good in (token, "sk-1"):
            guard.identify(bearer(good))
        for wrong in ("sk-wrong", token + "x"):
            with pytest.raises(Unauthenticated) as refused:
                guard.identify(bearer(wrong))
            assert wrong not in str(refused.value)
        os.utime(issuer.file, (1, 1))  # not the time that it has, by a clock of few ticks
        clock.ahead = 2
        guard.identify(bearer(token))
    assert [entry["event"] for entry in logs] == ["auth_file_read_again"]
    assert "sk-" not in repr(logs)
    assert token not in repr(logs)
