"""A cluster's signing keys and the ServiceAccount tokens it issues, for tests of whoever verifies them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pagoda_contracts.launch import AuthConfig, TokensConfig
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_METRICS, ROLE_OPERATOR, TOKEN_AUDIENCE

ISSUER = "https://kubernetes.default.svc.cluster.local"
SUBJECTS = {
    ROLE_GATEWAY: "system:serviceaccount:pagoda:pagoda-gateway",
    ROLE_OPERATOR: "system:serviceaccount:pagoda:pagoda-operator",
    ROLE_METRICS: "system:serviceaccount:monitoring:prometheus",
}
STRANGER = "system:serviceaccount:team-a:default"


class SigningKey:
    """One key of the cluster, as kube-apiserver would use it."""

    def __init__(self, kid: str, algorithm: str = "RS256") -> None:
        self.kid, self.algorithm = kid, algorithm
        if algorithm.startswith("RS"):
            self.private: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        else:
            self.private = ec.generate_private_key(ec.SECP256R1())

    @property
    def public_pem(self) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        pem: bytes = self.private.public_key().public_bytes(serialization.Encoding.PEM, form)
        return pem

    def jwk(self) -> dict[str, Any]:
        kind: Any = jwt.algorithms.RSAAlgorithm if self.algorithm.startswith("RS") else jwt.algorithms.ECAlgorithm
        entry: dict[str, Any] = json.loads(kind.to_jwk(self.private.public_key()))
        return {**entry, "kid": self.kid, "use": "sig", "alg": self.algorithm}

    def token(self, subject: str, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        """As projected into a pod; `changes` are claims, None leaves one out."""
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": subject, "aud": [TOKEN_AUDIENCE], "iat": now, "nbf": now, "exp": now + 3600, **changes}
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, self.private, self.algorithm, headers={"kid": self.kid, **(headers or {})})


class Issuer:
    """Keys and the file they are published in, swapped whole as kubelet does."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "jwks.json"
        self.keys = [SigningKey("one")]
        self.publish()

    def publish(self, *extra: dict[str, Any]) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps({"keys": [*(key.jwk() for key in self.keys), *extra]}))
        fresh.replace(self.file)

    def token(self, role: str, **changes: Any) -> str:
        return self.keys[-1].token(SUBJECTS[role], **changes)

    def tokens_config(self) -> TokensConfig:
        subjects = {subject: role for role, subject in SUBJECTS.items()}
        return TokensConfig.model_validate({"jwksFile": str(self.file), "issuer": ISSUER, "subjects": subjects})

    def config(self, **changes: Any) -> AuthConfig:
        return AuthConfig(tokens=self.tokens_config(), **changes)
