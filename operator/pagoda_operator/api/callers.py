"""The accounts that may call replicas, from the file that the chart writes. Pure; read by settings.py, used by `decide/render`.

With the file, new revisions check callers and every service gets a NetworkPolicy. Without it (an operator run by hand), neither.
"""

from __future__ import annotations

import json
from typing import Annotated

from pagoda_contracts.bearer import subject
from pagoda_contracts.launch import AuthConfig, TokensConfig
from pagoda_contracts.names import JWKS_DIR, JWKS_KEY, ROLE_GATEWAY, ROLE_METRICS, ROLE_OPERATOR, subjects_key
from pagoda_contracts.resources.profile import is_network
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
Account = Annotated[str, StringConstraints(pattern=rf"^{_NAME}/{_NAME}$", max_length=320)]
"""A ServiceAccount: namespace/name."""
Namespace = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=63)]


def _network(text: str) -> str:
    if not is_network(text):
        raise ValueError(f"{text!r} is not a network; it must have zeros after its length, such as 10.0.0.0/8 or fd00::/8")
    return text


Network = Annotated[str, AfterValidator(_network)]


class Callers(BaseModel):
    """The chart's values. The namespaces are those of the ServiceAccounts."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    gateway: Account
    operator: Account
    metrics: tuple[Account, ...] = ()
    metrics_from: tuple[Network, ...] = ()
    metrics_namespaces: tuple[Namespace, ...] = Field(default=(), description="Namespaces of Prometheus, which shows a token of `metrics`.")
    proxies: tuple[Namespace, ...] = Field(default=(), description="Namespaces of Envoys that send requests to replicas themselves.")
    service_class: str = Field(default="", description="The installation's class.")
    tokens: bool = Field(default=True, description="Replicas of new revisions ask for tokens.")
    clients: bool = Field(default=False, description="There is no gateway: services may let clients call replicas.")
    network_policy: bool = Field(default=True, description="Each service gets a NetworkPolicy.")

    def auth(self) -> AuthConfig | None:
        """Returns the DaemonConfig's part. It names no issuer: the keys are this cluster's, and a cluster that changes its issuer's name
        must not lock callers out of running revisions. For the same reason the accounts stand in a file beside the keys as well."""
        if not self.tokens:
            return None
        files = {"jwksFile": f"{JWKS_DIR}/{JWKS_KEY}", "subjectsFile": f"{JWKS_DIR}/{subjects_key(self.service_class)}"}
        config = files | {"subjects": self._subjects()}
        return AuthConfig(tokens=TokensConfig.model_validate(config), metrics_from=self.metrics_from)

    def file(self) -> dict[str, str]:
        """Returns the file that replicas read the accounts from, by its name."""
        return {subjects_key(self.service_class): json.dumps(self._subjects(), sort_keys=True, indent=1)}

    def _subjects(self) -> dict[str, str]:
        pairs = [(self.gateway, ROLE_GATEWAY), (self.operator, ROLE_OPERATOR), *((account, ROLE_METRICS) for account in self.metrics)]
        return {subject(account): role for account, role in pairs}


def namespace_of(account: Account) -> str:
    """Returns the namespace of the account's pods."""
    return account.partition("/")[0]
