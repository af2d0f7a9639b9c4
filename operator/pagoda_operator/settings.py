"""The operator's settings, finished at the door: the only reader of command line and environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pagoda_contracts.names import PORT_GATEWAY_HTTP, PORT_PROBES
from pagoda_contracts.units import parse_duration

from pagoda_operator.errors import SettingsError

GATEWAY_URL = "PAGODA_GATEWAY_URL"
NAMESPACE = "PAGODA_NAMESPACE"


class Settings(NamedTuple):
    """What one operator process runs with. `url` is what services tell as their address; None where no gateway is known."""

    kubeconfig: str | None
    url: str | None
    probes_port: int
    resync: float


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """SettingsError names the option or variable, its value and what is accepted."""
    parser = argparse.ArgumentParser(prog="pagoda-operator", description="Turns InferenceServices into replicas.")
    parser.add_argument("--kubeconfig", help="a kubeconfig file; the pod's ServiceAccount where absent")
    parser.add_argument("--probes-port", type=int, default=PORT_PROBES, help="0 lets the kernel choose (default: %(default)s)")
    parser.add_argument("--resync", default="5m", help="look at each service this often without any event (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        resync = parse_duration(options.resync)
    except ValueError as error:
        raise SettingsError(f"--resync: {error}") from error
    if resync < 1:
        raise SettingsError(f"--resync: {options.resync!r} is too often; accepted is 1s or more")
    return Settings(options.kubeconfig, _url(environment), options.probes_port, resync)


def _url(environment: Mapping[str, str]) -> str | None:
    """The gateway's address as given, else by the chart's name in the operator's own namespace."""
    namespace = environment.get(NAMESPACE)
    standard = f"http://pagoda-gateway.{namespace}.svc:{PORT_GATEWAY_HTTP}" if namespace else ""
    base = environment.get(GATEWAY_URL) or standard
    if base and not base.startswith(("http://", "https://")):
        raise SettingsError(f"{GATEWAY_URL}: {base!r} is not an address; accepted is http://host:port or https://host:port")
    return f"{base.rstrip('/')}/v1" if base else None
