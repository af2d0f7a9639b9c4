"""The operator's settings, finished at the door: the only reader of command line and environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pagoda_contracts.names import PORT_GATEWAY_HTTP, PORT_PROBES
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.units import parse_duration
from pydantic import ValidationError

from pagoda_operator.errors import SettingsError

GATEWAY_URL = "PAGODA_GATEWAY_URL"
NAMESPACE = "PAGODA_NAMESPACE"
DEFAULT_PROFILE_FILE = "PAGODA_DEFAULT_PROFILE"


class Settings(NamedTuple):
    """What one operator process runs with."""

    kubeconfig: str | None = None
    # What services tell as their address; None where no gateway is known.
    url: str | None = None
    default_profile: ServingProfileSpec | None = None
    probes_port: int = PORT_PROBES
    resync: float = 300


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """SettingsError names the option or variable, its value and what is accepted."""
    parser = argparse.ArgumentParser(prog="pagoda-operator", description="Turns InferenceServices into replicas.")
    parser.add_argument("--kubeconfig", help="a kubeconfig file; the pod's ServiceAccount where absent")
    parser.add_argument("--probes-port", type=int, default=PORT_PROBES, help="0 lets the kernel choose (default: %(default)s)")
    parser.add_argument("--resync", default="5m", help="look at each service this often without any event (default: %(default)s)")
    options = parser.parse_args(arguments)
    return Settings(options.kubeconfig, _url(environment), _profile(environment), options.probes_port, _resync(options.resync))


def _resync(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"--resync: {error}") from error
    if seconds < 1:
        raise SettingsError(f"--resync: {text!r} is too often; accepted is 1s or more")
    return seconds


def _url(environment: Mapping[str, str]) -> str | None:
    """The gateway's address as given, else by the chart's name in the operator's own namespace."""
    namespace = environment.get(NAMESPACE)
    standard = f"http://pagoda-gateway.{namespace}.svc:{PORT_GATEWAY_HTTP}/v1" if namespace else None
    url = environment.get(GATEWAY_URL) or standard
    if url and not url.startswith(("http://", "https://")):
        raise SettingsError(f"{GATEWAY_URL}: {url!r} is not an address; accepted is http://host:port/v1 or https://host:port/v1")
    return url


def _profile(environment: Mapping[str, str]) -> ServingProfileSpec | None:
    """The spec of the profile `default` that this installation keeps, from a JSON file."""
    path = environment.get(DEFAULT_PROFILE_FILE)
    if not path:
        return None
    try:
        return ServingProfileSpec.model_validate_json(Path(path).read_bytes())
    except (OSError, ValidationError) as error:
        raise SettingsError(f"{DEFAULT_PROFILE_FILE}: {path!r}: {error}") from error
