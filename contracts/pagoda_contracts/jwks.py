"""ServiceAccount tokens, verified offline against the cluster's public keys. Pure; the callees' only importer of PyJWT.

Used by the daemon (api/access/jwks.py) and the gateway (callers.py), which read the key file. Only asymmetric algorithms, and of them only
the one that the named key is for: a header can neither choose `none` nor have a public key taken for a shared secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
from jwt.types import Options

from pagoda_contracts.names import TOKEN_AUDIENCE

MAX_BYTES: Final = 256 * 1024
MAX_TOKEN: Final = 8192  # characters; a ServiceAccount token has about 1,200
_MAX_KEYS: Final = 64
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")
_OPTIONS: Final[Options] = {
    "require": ["exp", "aud", "sub"],
    "verify_signature": True,
    "verify_exp": True,
    "verify_aud": True,
    "verify_nbf": True,
}
_STORED: Final[Options] = {"require": ["iss", "sub"], "verify_signature": True, "verify_aud": False}
_STORED_ISSUER: Final = "kubernetes/serviceaccount"  # of such tokens in every cluster
# What Kubernetes itself allows: a fresh token is valid from its maker's now, which a slower clock has not reached. The end is judged to the
# second.
_LEEWAY_S: Final = 60.0
_EXPIRED: Final = "the token is expired"
_WRONG_ALGORITHM: Final = "the token's algorithm is not its key's"
_SENTENCES: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: _EXPIRED,
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidAudienceError: f"the token is not for the audience {TOKEN_AUDIENCE}",
    jwt.InvalidIssuerError: "the token comes from another issuer",
    jwt.InvalidAlgorithmError: _WRONG_ALGORITHM,
    jwt.InvalidSignatureError: "the token's signature is wrong",
}

Keys = Mapping[str, jwt.PyJWK]


class BadToken(Exception):
    """Proves nothing; says why in a sentence, without the token."""


class Unbound(BadToken):
    """It has no end or no audience, as a token that a Secret keeps."""


class Claims(NamedTuple):
    """The account that the token is for, and until when it is valid (Unix seconds)."""

    subject: str
    until: float


def verify(token: str, keys: Keys, issuer: str | None, now: float) -> Claims:
    """BadToken says what is wrong. Without an issuer any is accepted: the keys are one cluster's."""
    claims = _decode(token, keys, _OPTIONS, TOKEN_AUDIENCE, issuer)
    found = Claims(claims["sub"], float(claims["exp"]))
    if found.until <= now:
        raise BadToken(_EXPIRED)
    return found


def stored(token: str, keys: Keys) -> str:
    """Returns the account of a token that a Secret keeps (type kubernetes.io/service-account-token); BadToken for any other one."""
    claims = _decode(token, keys, _STORED, None, _STORED_ISSUER)
    if not {"exp", "aud"}.isdisjoint(claims):
        raise BadToken(_sentence(ValueError()))
    return str(claims["sub"])


def _decode(token: str, keys: Keys, options: Options, audience: str | None, issuer: str | None) -> dict[str, Any]:
    try:
        key = _key(keys, jwt.get_unverified_header(token))
        algorithms = [key.algorithm_name]
        claims: dict[str, Any] = jwt.decode(token, key, algorithms, options, audience=audience, issuer=issuer, leeway=_LEEWAY_S)
    except jwt.MissingRequiredClaimError as error:
        raise Unbound(_sentence(error)) from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:  # JSON can trip its reader
        raise BadToken(_sentence(error)) from None
    return claims


def _key(keys: Keys, header: Mapping[str, Any]) -> jwt.PyJWK:
    name = header.get("kid")
    key = keys.get(name) if isinstance(name, str) else None
    if key is None:
        raise BadToken("the token names none of the known keys")
    if header.get("alg") != key.algorithm_name:
        raise BadToken(_WRONG_ALGORITHM)
    return key


def parse(data: bytes) -> dict[str, jwt.PyJWK]:
    """Key id → key; ValueError where the file is no JWKS or holds nothing of use. Symmetric and nameless keys are left out."""
    document = json.loads(data)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
        raise ValueError(f"not a JWKS: `keys` is to be a list of at most {_MAX_KEYS}")
    keys = {}
    for entry in listed:
        name = entry.get("kid") if isinstance(entry, dict) else None
        if not isinstance(name, str) or entry.get("kty") not in ("RSA", "EC"):
            continue
        try:
            key = jwt.PyJWK(entry)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise ValueError(f"a key cannot be read: {type(error).__name__}") from error
        if key.algorithm_name in _ALGORITHMS:
            keys[name] = key
    if not keys:
        raise ValueError("it holds no RSA or EC key with a kid")
    return keys


def _sentence(error: Exception) -> str:
    return next((text for kind, text in _SENTENCES.items() if isinstance(error, kind)), "the token cannot be verified")
