"""The only reader of flags and environment. Every flag `--hold-timeout` is also `PAGODA_HOLD_TIMEOUT`; the flag wins.

Ends are typed: durations are seconds, paths are paths, nothing is left to resolve.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagoda_contracts.name_owners import Reserved, read_reserved
from pagoda_contracts.names import PORT_DEMAND, PORT_GATEWAY_HTTP, PORT_METRICS, PORT_PROBES
from pagoda_contracts.units import parse_duration, parse_quantity

_PREFIX: Final = "PAGODA_"


@dataclass(frozen=True, slots=True)
class Settings:
    """What one gateway process runs with."""

    host: str
    http_port: int
    metrics_port: int
    probes_port: int
    demand_port: int
    fleet: Path | None
    keys: Path | None
    keys_namespace: str | None
    quotas: Path | None
    quota_gateways: int
    quota_store: Path | None
    usage_lines: bool
    anonymous: bool
    kubeconfig: Path | None
    token: Path | None
    token_keys: Path | None
    operator: str | None
    account: str | None
    reserved_names: Reserved
    service_class: str | None
    peers: str | None
    keda: bool
    identity: str
    hold_timeout: float
    hold_limit: int
    hold_ping_after: float
    overflow_targets: Path | None
    body_limit: int
    body_budget: int
    body_timeout: float
    connect_timeout: float
    lame_duck: float
    drain_timeout: float
    access_log: bool
    traces_endpoint: str | None
    ext_proc_port: int | None
    ext_proc_secret: Path | None
    ext_proc_open: bool
    ext_proc_tls: bool
    tls_cert: Path | None
    tls_key: Path | None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port; it must be between 0 (the kernel chooses) and 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a count; it must be a whole number, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a count; it must be a whole number, 1 or more")
    return int(text)


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is not valid; it must be true or false")
    return text == "true"


def _bytes(text: str) -> int:
    return int(parse_quantity(text))


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} is not an address; it must begin with http:// or https://")
    return text


def _account(text: str) -> str:
    if text.count("/") != 1 or not all(text.split("/")):
        raise ValueError(f"{text!r} is not a ServiceAccount; it must be namespace/name")
    return text


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; it must be host:port")
    return text


class Option(NamedTuple):
    """One setting: flag and variable come from its name."""

    name: str
    parse: Callable[[str], Any]
    default: str | None
    help: str


OPTIONS: Final = (
    Option("host", str, "0.0.0.0", "address to listen on"),
    Option("http_port", _port, str(PORT_GATEWAY_HTTP), "port of the OpenAI API"),
    Option("metrics_port", _port, str(PORT_METRICS), "port of /metrics"),
    Option("probes_port", _port, str(PORT_PROBES), "port of the probes"),
    Option("demand_port", _port, str(PORT_DEMAND), "port of gRPC, where operators watch demand"),
    Option("fleet", Path, None, "services and replicas from this JSON file instead of Kubernetes; read again when it changes"),
    Option("keys", Path, None, "API keys from this JSON file (watch/key_file.py)"),
    Option("keys_namespace", str, None, "API keys from the labelled Secrets of this namespace (`pagoda key create`)"),
    Option("quotas", Path, None, "TenantQuotas from this JSON file instead of Kubernetes, read at the start (watch/quotas.py)"),
    Option("quota_gateways", _positive, "1", "how many gateways share the limits of quotas; without a common store each takes its part"),
    Option(
        "quota_store", Path, None, "file with the URL of a Redis or Valkey where all gateways count, such as redis://:PASSWORD@HOST:6379/0"
    ),
    Option("usage_lines", _bool, "false", "write a line of JSON to the log for each request that used tokens"),
    Option("anonymous", _bool, "false", "serve requests without a valid API key too"),
    Option("kubeconfig", Path, None, "kubeconfig for Kubernetes; without it the pod's own ServiceAccount"),
    Option("token", Path, None, "file with the ServiceAccount token for replicas; without it the gateway sends none"),
    Option("token_keys", Path, None, "the cluster's public keys (a JWKS file) to verify callers' tokens"),
    Option("operator", _account, None, "the operator's ServiceAccount (namespace/name), which may watch the demand"),
    Option("account", _account, None, "the gateways' own ServiceAccount (namespace/name), which may watch the demand too"),
    Option("reserved_names", read_reserved, "{}", 'served names that only some namespaces may have, as JSON: {"prod-*": ["team-a"]}'),
    Option("service_class", str, None, "serve InferenceServices, and obey TenantQuotas, of this class; without it, those that have none"),
    Option("peers", _address, None, "host:port at which all gateways serve gRPC: a name with one address per gateway"),
    Option("keda", _bool, "false", "answer KEDA as an external scaler on the gRPC port, without authentication"),
    Option("identity", str, None, "this gateway's name in replicas' logs; without it the host name"),
    Option("hold_timeout", parse_duration, "5m", "how long a request waits for a ready replica"),
    Option("hold_limit", _count, "2000", "how many requests may wait at once"),
    Option("hold_ping_after", parse_duration, "15s", "after so long a held stream begins, with comments that keep its connection alive"),
    Option("overflow_targets", Path, None, "JSON file of APIs outside of the cluster to which services may overflow (requests/outside.py)"),
    Option("body_limit", _bytes, "16Mi", "largest request body"),
    Option("body_budget", _bytes, "256Mi", "how many bytes of bodies may be held and under way at once"),
    Option("body_timeout", parse_duration, "1m", "how long a request body may take to arrive"),
    Option("connect_timeout", parse_duration, "3s", "how long a connection to a replica may take"),
    Option("lame_duck", parse_duration, "10s", "how long new connections are still taken after SIGTERM, while endpoints propagate"),
    Option("drain_timeout", parse_duration, "10m", "how long running requests may finish after that"),
    Option("access_log", _bool, "true", "a line for each request that ended or was refused: times, tokens and names, no text"),
    Option("traces_endpoint", _url, None, "spans of requests go to this OpenTelemetry collector, such as http://collector:4318/v1/traces"),
    Option(
        "ext_proc_port", _port, None, "port where Envoy asks for replicas (external processing), usually 9002; without it there is none"
    ),
    Option("ext_proc_secret", Path, None, "file with a text that Envoy shows there as `authorization: Bearer TEXT`"),
    Option("ext_proc_open", _bool, "false", "serve every caller that reaches the port; an answer holds the token of --token"),
    Option("ext_proc_tls", _bool, "false", "encrypt that port too, with the pair of tls-cert and tls-key"),
    Option("tls_cert", Path, None, "certificate of the API's port in PEM, followed by its chain; without it the port is not encrypted"),
    Option("tls_key", Path, None, "its private key in PEM, without a password; a renewed pair is used by new connections"),
)


def load(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Returns the settings from the command line and the environment. Exits with 2 and names a value that is not valid."""
    parser = argparse.ArgumentParser(prog="pagoda-gateway", description="The inference gateway of Pagoda.")
    for option in OPTIONS:
        default = f" (default {option.default})" if option.default is not None else ""
        parser.add_argument(f"--{option.name.replace('_', '-')}", help=option.help + default)
    given = vars(parser.parse_args(arguments))
    values: dict[str, Any] = {}
    for option in OPTIONS:
        text = given[option.name] or environment.get(_PREFIX + option.name.upper()) or option.default
        try:
            values[option.name] = option.parse(text) if text is not None else None
        except ValueError as error:
            parser.error(f"{option.name.replace('_', '-')}: {error}")
    if not (values["anonymous"] or values["keys"] or values["keys_namespace"]):
        parser.error("no request would be served: name the clients' API keys by keys or keys-namespace, or set anonymous to true")
    if values["ext_proc_port"] is not None and bool(values["ext_proc_secret"]) == values["ext_proc_open"]:
        parser.error("ext-proc-port needs ext-proc-secret, or ext-proc-open true if only Envoy reaches the port")
    if bool(values["tls_cert"]) != bool(values["tls_key"]):
        parser.error("tls-cert and tls-key must be given together")
    if values["ext_proc_tls"] and not values["tls_cert"]:
        parser.error("ext-proc-tls needs tls-cert and tls-key")
    values["identity"] = values["identity"] or socket.gethostname()
    return Settings(**values)
