"""The operator's settings: the only reader of command line and environment."""

from __future__ import annotations

import argparse
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from pagoda_contracts.name_owners import NOTHING_RESERVED, Reserved, read_reserved
from pagoda_contracts.names import DEFAULT_PROFILE, PORT_GATEWAY_HTTP, PORT_METRICS, PORT_PROBES
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.units import parse_duration
from pydantic import BaseModel, ValidationError

from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import SettingsError
from pagoda_operator.api.state import Key

GATEWAY_URL = "PAGODA_GATEWAY_URL"
NAMESPACE = "PAGODA_NAMESPACE"
DEFAULT_PROFILE_FILE = "PAGODA_DEFAULT_PROFILE"
CALLERS_FILE = "PAGODA_CALLERS"
GATEWAYS = "PAGODA_GATEWAYS"
READ_REPLICAS = "PAGODA_READ_REPLICAS"
NAMESPACES = "PAGODA_NAMESPACES"
RESERVED_NAMES = "PAGODA_RESERVED_NAMES"
SERVICE_CLASS = "PAGODA_SERVICE_CLASS"
TOKEN_FILE = "PAGODA_TOKEN"  # noqa: S105 (a variable's name)
# As the chart sets them from the pod's own fields.
POD_NAME = "POD_NAME"
POD_NAMESPACE = "POD_NAMESPACE"

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

M = TypeVar("M", bound=BaseModel)


class Settings(NamedTuple):
    """What one operator process runs with."""

    kubeconfig: str | None = None
    # The address in the status of services; None if no gateway is known.
    url: str | None = None
    default_profile: ServingProfileSpec | None = None
    # The accounts that may call replicas; None: all callers may.
    callers: Callers | None = None
    # The file with our own token.
    token: Path | None = None
    probes_port: int = PORT_PROBES
    resync: float = 300
    # host:port of gateways' demand; a name means all its addresses. Empty: no gateway is installed.
    gateways: tuple[str, ...] = ()
    # Whether to read replicas' states, because no gateway does.
    read_replicas: bool = False
    metrics_port: int = PORT_METRICS
    # The namespace of the Lease; None: this process uses none, and must be the only one.
    lease_namespace: str | None = None
    identity: str = ""
    # Where services are served; empty: in all namespaces.
    namespaces: tuple[str, ...] = ()
    # Served names that only some namespaces may have.
    reserved: Reserved = NOTHING_RESERVED
    # The class of the services that are served; empty: those without one.
    service_class: str = ""
    # Whether each run is logged: how long it was queued, how long it took, and how long it waited for the API server.
    debug: bool = False

    @property
    def default_profile_key(self) -> Key:
        """The profile that the chart describes, named after the class, so that two installs do not write the same one. It is queued like a
        service; no service has an empty namespace."""
        return Key("", self.service_class or DEFAULT_PROFILE)


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """SettingsError names the option or variable, its value and what is accepted."""
    more = "pagoda-replay shows what scaling would have done with recorded demand."
    parser = argparse.ArgumentParser(prog="pagoda-operator", description="Turns InferenceServices into replicas.", epilog=more)
    parser.add_argument("--kubeconfig", help="a kubeconfig file (default: the pod's ServiceAccount)")
    parser.add_argument("--probes-port", type=int, default=PORT_PROBES, help="0 lets the kernel choose (default: %(default)s)")
    parser.add_argument("--resync", default="5m", help="reconcile each service this often without any event (default: %(default)s)")
    parser.add_argument("--gateways", help="host:port,... where gateways report demand; a name means all its addresses")
    parser.add_argument("--read-replicas", action="store_true", help="read replicas' states directly: only if there is no gateway")
    parser.add_argument("--metrics-port", type=int, default=PORT_METRICS, help="0 lets the kernel choose (default: %(default)s)")
    parser.add_argument("--namespace", help=f"where the Lease is kept (default: ${POD_NAMESPACE}; without either there is no Lease)")
    parser.add_argument("--identity", help=f"holder of the Lease, unique (default: ${POD_NAME}, else host name and a number)")
    parser.add_argument("--no-lease", action="store_true", help="work without a Lease: only if no other operator runs")
    parser.add_argument("--namespaces", help=f"serve in these only, with commas between them (default: ${NAMESPACES}, else all)")
    parser.add_argument("--debug", action="store_true", help="log each run: how long it was queued, took and waited")
    options = parser.parse_args(arguments)
    return Settings(
        kubeconfig=options.kubeconfig,
        url=_url(environment),
        default_profile=_read(DEFAULT_PROFILE_FILE, ServingProfileSpec, environment),
        callers=_read(CALLERS_FILE, Callers, environment),
        token=Path(environment[TOKEN_FILE]) if environment.get(TOKEN_FILE) else None,
        probes_port=options.probes_port,
        resync=_resync(options.resync),
        gateways=_gateways(options.gateways if options.gateways is not None else environment.get(GATEWAYS, "")),
        read_replicas=options.read_replicas or environment.get(READ_REPLICAS) == "true",
        metrics_port=options.metrics_port,
        lease_namespace=None if options.no_lease else options.namespace or environment.get(POD_NAMESPACE) or None,
        identity=options.identity or environment.get(POD_NAME) or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        namespaces=_namespaces(options.namespaces if options.namespaces is not None else environment.get(NAMESPACES, "")),
        reserved=_reserved(environment.get(RESERVED_NAMES, "")),
        service_class=_class(environment.get(SERVICE_CLASS, "")),
        debug=options.debug,
    )


def _gateways(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        host, _, port = name.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingsError(f"--gateways: {name!r} is not an address; it must be host:port, or several with commas between them")
    return names


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if not _LABEL.fullmatch(name):
            raise SettingsError(f"--namespaces: {name!r} is not a namespace; it must be names of namespaces with commas between them")
    return names


def _class(text: str) -> str:
    if text and not _LABEL.fullmatch(text):
        raise SettingsError(f"{SERVICE_CLASS}: {text!r} is not a class; it must be lower-case letters, digits and dashes, at most 63")
    return text


def _reserved(text: str) -> Reserved:
    try:
        return read_reserved(text) if text else NOTHING_RESERVED
    except ValueError as error:
        raise SettingsError(f"{RESERVED_NAMES}: {error}") from error


def _resync(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"--resync: {error}") from error
    if seconds < 1:
        raise SettingsError(f"--resync: {text!r} is too often; it must be at least 1s")
    return seconds


def _url(environment: Mapping[str, str]) -> str | None:
    """The gateway's address as given, else by the chart's name in the operator's own namespace."""
    namespace = environment.get(NAMESPACE)
    standard = f"http://pagoda-gateway.{namespace}.svc:{PORT_GATEWAY_HTTP}/v1" if namespace else None
    url = environment.get(GATEWAY_URL) or standard
    if url and not url.startswith(("http://", "https://")):
        raise SettingsError(f"{GATEWAY_URL}: {url!r} is not an address; it must be http://host:port/v1 or https://host:port/v1")
    return url


def _read(variable: str, kind: type[M], environment: Mapping[str, str]) -> M | None:
    """A part of the installation's configuration, from the JSON file that a variable names."""
    if not (path := environment.get(variable)):
        return None
    try:
        return kind.model_validate_json(Path(path).read_bytes())
    except (OSError, ValidationError) as error:
        raise SettingsError(f"{variable}: {path!r}: {error}") from error
